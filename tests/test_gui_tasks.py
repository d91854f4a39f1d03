"Screens as tasks: MiniWoB++'s pages behind the task server, and the tools as TRL and transformers read them."
import inspect
import json

import pytest

from oaml.devices.episode import EpisodeDriver
from oaml.evals.suites import SUITES
from oaml.miniwob.device import MiniwobDevice, missing_pages
from oaml.miniwob.oracles import MiniwobOracle
from oaml.devices.wire import missing_serve
from oaml.evals.baselines import view_of
from oaml.schemas.actions import format_action
from oaml.service.client import TaskClient
from oaml.service.gui import GuiEnvironment, MiniwobTask, SuiteTask, tool_arguments
from oaml.service.worker import serve_task

needs_serve = pytest.mark.skipif(bool(missing_serve()), reason=str(missing_serve()))


@pytest.mark.parametrize("suite", [name for name in SUITES if name != "calendar-v1"])
def test_every_suite_is_a_task(suite):
    task = SuiteTask(suite, split="validation", episodes=1)
    indices = task.get_indices()
    assert len(indices) == len(SUITES[suite].apps)
    env = GuiEnvironment(task)
    assert env.reset(index=indices[0]) and env.look()[0]["image"].size == SUITES[suite].size
    env.act("DONE()")
    assert env.get_reward() in (0., 1.)


@needs_serve
@pytest.mark.skipif(bool(missing_pages()), reason=str(missing_pages()))
def test_miniwob_over_http():
    "The oracle's acts on a page beside the server's, as tool calls."
    oracle, driver = MiniwobOracle(), EpisodeDriver(MiniwobDevice("click-test"))
    try:
        driver.reset(3)
        oracle.attach(id(driver), driver.device)
        with serve_task(MiniwobTask(["click-test"], episodes=5)) as worker, TaskClient("miniwob", worker.address) as client:
            with client.start("click-test:3") as sample:
                while not driver.over:
                    action = oracle.act([view_of(driver)])[0]
                    call = dict(id="c", type="function", function=dict(name="act", arguments=json.dumps(tool_arguments(action))))
                    turn = sample.interact([dict(role="assistant", content=None, tool_calls=[call])])
                    driver.act(action)
                assert turn.finish and turn.reward == 1. and turn.metrics["success"]
    finally: driver.close()


def test_the_tools_as_trl_reads_them():
    "TRL lists the functions of the class, and makes their schemas with transformers."
    pytest.importorskip("transformers", reason="transformers is not installed; pip install 'oaml[train]'")
    from transformers.utils import get_json_schema
    env = GuiEnvironment(SuiteTask("login-v1", episodes=2))
    names = [n for n, _ in inspect.getmembers(type(env), inspect.isfunction) if not n.startswith("_")]
    assert names == ["act", "get_reward", "look", "reset"]
    schemas = [get_json_schema(getattr(env, n))["function"] for n in ("act", "look")]
    assert schemas[0]["parameters"]["properties"]["action"]["type"] == "string" and schemas[0]["parameters"]["required"] == ["action"]
    assert [s["name"] for s in schemas] == ["act", "look"] and not schemas[1]["parameters"]["properties"]
