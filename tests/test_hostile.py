"Pages that want to get out, one file of tests/hostile for each way, on every kind of device that has a browser."
import pytest

for needed in ("starlette", "uvicorn", "httpx"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')
pytest.importorskip("miniwob", reason='needs pip install "oaml[browser]"')

import hostile_pages
from oaml.devices.connection import missing_browser

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))


def test_each_page_says_what_it_tries():
    assert len(hostile_pages.NAMES) >= 40
    for name in hostile_pages.NAMES: assert "<!-- Tries: " in (hostile_pages.PAGES/f"{name}.html").read_text(), name


@pytest.mark.parametrize("kind, names", [("html", hostile_pages.NAMES[::4]), ("miniwob", hostile_pages.NAMES[::2]), ("served", hostile_pages.NAMES),
                                         ("page", hostile_pages.NAMES[::8])])  # all pages in `served`, tab and all; bench/hostile.py plays all of them by every kind
def test_no_page_gets_out(kind, names, tmp_path):
    with hostile_pages.host(tmp_path) as here: assert hostile_pages.faults(kind, here, names) == {}
