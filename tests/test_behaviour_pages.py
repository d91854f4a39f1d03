"Pages that spin, ask, flood, open windows or close themselves: each step ends as its file says, and the device goes on."
import time
from contextlib import closing
from pathlib import Path

import pytest

from oaml.devices.chromium import REOPENED, PageDevice
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.device import DeviceError
from oaml.devices.tab import MAX_LINE, MAX_LINES
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "")
FOLDER = Path(__file__).parent/"hostile"
DEADLINE_S = 3.   # of a step; a machine that is busy needs a moment even for a page that behaves
GIVEN_UP = "did not answer"
ENDS = dict(spin=GIVEN_UP, spin_date_now=GIVEN_UP, microtasks=GIVEN_UP, alerts_without_end=GIVEN_UP, console_flood_without_end=GIVEN_UP,
            closes_itself="closed itself")  # what DeviceError says after the click
MAY_END = "huge_document", "reload", "history"  # either way, by how fast the machine is
LOGS = dict(dialogs=("alert dismissed: a", "confirm dismissed: b", "prompt dismissed: c"), new_tab=("a new window was asked for and is not shown",),
            new_windows=("a new window",)*10, file_chooser=("a file was asked for",), download=("a file was to be saved and is not",)*2,
            console_huge=("characters more)",), throws=("Error: mousedown",))
NAMES = {**dict.fromkeys(("busy_wait",), "waited"), **dict.fromkeys(("timers", "messages", "beforeunload"), "clicked"), "print": "printed", "dialogs": "false,",
         "new_windows": "opened", "permissions": "asked"}  # what the button says afterwards
ANSWERED = [*LOGS, *(n for n in NAMES if n not in LOGS), "fullscreen", "pointer_lock", "datalist", "select", "document_open", "keeps_keys", "breaks_builtins",
            "console_flood"]


@pytest.fixture(scope="module")
def chromium():
    with Chromium(patience=20.) as c: yield c


@pytest.fixture(params=[True, False], ids=["own-time", "real-time"])
def opened(request, chromium):
    "Opens a page of the folder at its first screen."
    devices = []
    def make(name):
        devices.append(device := PageDevice((FOLDER/f"{name}.html").as_uri(), own_time=request.param, chromium=chromium, deadline=DEADLINE_S))
        device.reset(0)
        return device
    yield make
    for device in devices: device.close()


def click(device, x=.5, y=.5): return device.perform(Action("click", x=x, y=y))


@pytest.mark.parametrize("name", ENDS)
def test_what_never_ends_is_given_up_in_time(opened, name):
    device, since = opened(name), time.monotonic()
    with pytest.raises(DeviceError, match=ENDS[name]): click(device)
    assert time.monotonic() - since < 3*DEADLINE_S
    with pytest.raises(DeviceError, match=ENDS[name]): device.look()  # at once
    assert device.reset(0).log == (REOPENED,)


@pytest.mark.parametrize("name", ANSWERED)
def test_what_ends_is_answered(opened, name):
    device = opened(name)
    log = click(device).log
    for words in LOGS.get(name, ()): assert any(words in line for line in log), log
    assert len([line for line in log if LOGS.get(name, ("-",))[0] in line]) >= LOGS.get(name, ()).count(LOGS.get(name, ("-",))[0])
    elements = device.read_elements()
    if name in NAMES: assert elements[0].name == NAMES[name]
    assert device.perform(Action("type", text="al")).size == device.size
    if name == "datalist": assert device.read_elements()[0].value == "al"
    if name == "pointer_lock": click(device, .25, .25); assert device.page.evaluate("document.title") == "80,64"
    if name == "file_chooser": assert device.page.evaluate("document.title") == "file chooser"  # no file came
    assert REOPENED not in device.reset(1).log and device.chromium.alive


@pytest.mark.parametrize("name", MAY_END)
def test_what_may_take_long(opened, name):
    device = opened(name)
    for _ in range(2):
        since = time.monotonic()
        try: click(device)
        except DeviceError as e: assert GIVEN_UP in str(e) or "did not load" in str(e)
        assert time.monotonic() - since < 4*DEADLINE_S
    device.reset(0)


def test_an_endless_loop_while_loading():
    with Chromium(patience=3.) as chromium:
        with closing(PageDevice((FOLDER/"spin_at_load.html").as_uri(), chromium=chromium)) as device:
            for _ in range(2):
                with pytest.raises(DeviceError, match="did not load|did not answer"): device.reset(0)
        with closing(PageDevice(html="<p>fine", chromium=chromium)) as device: device.reset(0)


@pytest.mark.parametrize("name, most", [("console_flood", MAX_LINES + 2), ("console_huge", 10)])
def test_the_console_is_bounded(opened, name, most):
    log = click(opened(name)).log
    assert len(log) <= most and max(map(len, log)) < MAX_LINE + 100
    assert any("more lines were dropped" in line or "characters more)" in line for line in log)


def test_a_wait_by_reading_the_clock_is_the_same_each_time(chromium):
    html = """<button id=go style='position: fixed; inset: 0'>go</button><script>
      const starts = [Date.now(), performance.now()]
      go.onclick = () => { const end = Date.now() + 50; let n = 0; while (Date.now() < end) n++; go.textContent = [n, Date.now() - starts[0]].join() }</script>"""
    with closing(PageDevice(html=html, chromium=chromium)) as device:
        def waited(seed):
            device.reset(seed), click(device)
            return device.read_elements()[0].name
        assert waited(0) == waited(1) != "go"


def test_a_long_text_is_put_in_at_once(chromium):
    html = """<textarea id=t style='position: fixed; inset: 0'></textarea><script>let keys = 0; t.onkeydown = () => document.title = ++keys</script>"""
    with closing(PageDevice(html=html, chromium=chromium)) as device:
        device.reset(0), click(device)
        assert not device.perform(Action("type", text="x"*200)).log and device.page.evaluate("document.title") == "200"
        since = time.monotonic()
        log = device.perform(Action("type", text="y"*5000)).log
        assert log == ("W/page: 5000 characters are put in at once, without keys: more than 256",) and time.monotonic() - since < 10
        assert device.page.evaluate("[t.value.length, document.title].join()") == "5200,200"
        with pytest.raises(ValueError, match="100000 characters"): device.perform(Action("type", text="z"*100_000))
        assert device.look().clock
