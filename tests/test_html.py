"The HTML face in a real Chromium: every application looks and acts there as it does in Pillow."
import os
import time

import pytest

from oaml.apps.catalog import APPS
from oaml.apps.phone import PHONE_SIZE
from oaml.envs.app_device import AppDevice
from oaml.envs.html_page import Chromium, HtmlStage, check_faces, missing_browser
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as c: yield c


@pytest.mark.parametrize("wrapper", ["", "@phone", "@perturbed"])
@pytest.mark.parametrize("app", APPS)
def test_both_faces_agree(app, wrapper, chromium):
    "bench/worlds.py compares 20 seeds of each."
    assert check_faces(app + wrapper, chromium, range(2), PHONE_SIZE if wrapper == "@phone" else (256, 192)) > 0


@pytest.mark.parametrize("markup", ["<script>window.hurt = 1</script>", '"><img src=x onerror="window.hurt = 1">',
                                    "' onfocus='window.hurt = 1", "&lt;b&gt; </main>"])
def test_typed_markup_stays_text(markup, chromium):
    device = AppDevice("login")
    device.reset(0)
    page = HtmlStage(device.stage, device.screen, chromium)
    before = chromium.call(lambda p: p.evaluate("document.querySelectorAll('*').length"))
    x0, y0, x1, y1 = next(e for e in page.elements() if e.id == "username").box
    page.perform(Action("click", x=(x0+x1)/2, y=(y0+y1)/2))
    page.perform(Action("type", text=markup))
    assert next(e for e in page.elements() if e.id == "username").value == markup
    assert chromium.call(lambda p: p.evaluate("window.hurt")) is None
    assert chromium.call(lambda p: p.evaluate("document.querySelectorAll('*').length")) == before + 1  # the caret


@pytest.mark.skipif(os.name != "posix", reason="signal 0 asks for a process on POSIX only")
def test_the_browser_is_gone_after_close():
    def running(pid):
        try: os.kill(pid, 0)
        except ProcessLookupError: return False
        return True
    with Chromium() as c:
        cdp = c.call(lambda page: c.browser.new_browser_cdp_session())
        told = c.call(lambda page: cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
        pids = [p["id"] for p in told]
        assert len(pids) > 1 and all(map(running, pids))
    end = time.monotonic() + 10
    while any(map(running, pids)) and time.monotonic() < end: time.sleep(.1)
    assert not [p for p in pids if running(p)]
