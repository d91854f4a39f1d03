"With `pytest -n`, a module whose tests share something that takes long to start (a site, JupyterLab, Ray, Docker) keeps to one process."
from pathlib import PurePosixPath

import pytest

TOGETHER = "test_docs", "test_engines", "test_environments", "test_inspector", "test_miniwob_oracles", "test_p2p_backends"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    "Tests go to whichever process is free, those of a module in `TOGETHER` all to the same."
    from xdist.scheduler import LoadScopeScheduling
    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module = nodeid.split("::")[0]
            return module if PurePosixPath(module).stem in TOGETHER else nodeid
    return ByModule(config, log)
