"""A desktop without a screen: two programs that nobody told of oaml get text, presses and keys, and keep what is theirs"""
import os, shutil, signal, subprocess, sys, threading, time
from contextlib import closing, contextmanager

import pytest
from fake_desktop import fake_desktop, missing_desktop, wait_for

from oaml.devices.catalog import open_device
from oaml.devices.connection import find_chromium, wants_sandbox
from oaml.devices.desktop import DesktopDevice, StoppedByHand
from oaml.devices.device import DeviceError
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_desktop()), reason=str(missing_desktop()))


@pytest.fixture(scope="module")
def desktop():
    with fake_desktop() as d: yield d


@pytest.fixture
def notes(desktop):
    "A window 'Notes', alone on the desktop; the pointer is not in the corner."
    desktop.layout("us")
    move_pointer(desktop, 400, 300)
    box = desktop.text_box()
    yield box
    for process in desktop.programs: process.kill()
    for process in desktop.programs: process.wait()
    desktop.programs.clear()
    box.path.unlink()


@contextmanager
def device(name="Notes", **options):
    with closing(DesktopDevice(name, allow_desktop=True, settle=.1, **options)) as d:
        d.reset(0)
        yield d


def display(desktop):
    from Xlib.display import Display
    return Display(desktop.name)


def move_pointer(desktop, x, y):
    "As a person does."
    d = display(desktop)
    d.screen().root.warp_pointer(x, y)
    d.sync()
    d.close()


def pressed(desktop):
    "Keys and buttons that are down on the display."
    d = display(desktop)
    keys, mask = d.query_keymap(), d.screen().root.query_pointer().mask
    d.close()
    return sum(bin(b).count("1") for b in keys), mask & 0x1f00


def tap(desktop, code):
    "A key that a person presses."
    from Xlib.ext import xtest
    d = display(desktop)
    for kind in (2, 3): xtest.fake_input(d, kind, code)
    d.sync()
    d.close()


CAPS_KEY = 66
TEXT = "Grüße, ÄÖÜ & Łódź: 'x' \"y\" @ {~} \\ ^ €5 漢字"


@pytest.mark.parametrize("layout", ["us", "de", "fr", "us,ru -option grp:caps_toggle", "caps lock"])
def test_a_text_is_typed_right_whatever_the_layout(desktop, notes, layout):
    if layout != "caps lock": desktop.layout(layout)
    if layout != "us" and layout in ("caps lock", "us,ru -option grp:caps_toggle"): tap(desktop, CAPS_KEY)
    before = keyboard(desktop)
    with device() as d:
        assert d.perform(Action("type", text=TEXT)).log[1:] == ()
        assert notes.text(TEXT) == TEXT
    assert keyboard(desktop) == before and pressed(desktop)[0] == 0
    if layout in ("caps lock", "us,ru -option grp:caps_toggle"):
        tap(desktop, CAPS_KEY)
        desktop.layout("us -option")


def keyboard(desktop):
    d = display(desktop)
    rows = [tuple(r) for r in d.get_keyboard_mapping(8, 248)]
    locked = d.screen().root.query_pointer().mask & 2
    d.close()
    return rows, locked


def test_more_foreign_letters_than_free_keys(desktop, notes):
    text = "".join(map(chr, range(0x4e00, 0x4e00 + 60)))
    with device() as d: d.perform(Action("type", text=text))
    assert notes.text(text) == text


def test_the_mouse_does_what_a_hand_does(desktop, notes):
    def heard(action):
        n = len(notes.said())
        d.perform(action)
        time.sleep(.1)
        return notes.said()[n:]
    with device() as d:
        assert heard(Action("click", .5, .5)) == [["<Button-1>", 200, 124], ["<ButtonRelease-1>", 200, 124]]
        assert ["<Double-Button-1>", 100, 124] in heard(Action("double_click", .25, .5))
        assert heard(Action("right_click", .5, .5)) == [["<Button-3>", 200, 124]]
        drag = heard(Action("drag", .2, .5, x2=.8, y2=.9))
        assert drag[0] == ["<Button-1>", 80, 124] and drag[-1] == ["<ButtonRelease-1>", 320, 244] and sum(s[0] == "<B1-Motion>" for s in drag) > 3
        assert [s[0] for s in heard(Action("scroll", .5, .5, dx=0., dy=.5))] == ["<Button-5>"]*3
        assert [s[0] for s in heard(Action("scroll", .5, .5, dx=0., dy=-.2))] == ["<Button-4>"]
        assert ["ctrl", "b"] in heard(Action("key_press", key="ctrl+b"))
    assert pressed(desktop) == (0, 0)


def test_keys_and_chords_edit_and_the_clipboard_is_the_persons(desktop, notes):
    with device() as d:
        d.perform(Action("type", text="One two\nThree"))
        d.perform(Action("key_press", key="shift+Home"))
        d.perform(Action("key_press", key="Delete"))
        d.perform(Action("type", text="Ü"))
        assert notes.text("Ü") == "Ü"
        d.perform(Action("key_press", key="ctrl+shift+F5"))
        assert wait_for(lambda: [s for s in notes.said() if s[0] == "clipboard"]) == [["clipboard", "mine"]]
        assert "desktop has no such button" in d.perform(Action("key_press", key="BACK")).log[0]


def test_nothing_without_consent(desktop, notes):
    from typer.testing import CliRunner
    from oaml.scripts.act import plan_act
    from oaml.scripts.cli import app
    with pytest.raises(DeviceError, match="Nothing was done. If you want that, say so by allow_desktop=True"): open_device("desktop:Notes")
    with pytest.raises(ValueError, match="ask_before: all asks before steps on desktop:, and nobody is there to be asked"): plan_act("desktop:", allow_desktop=True)
    words = "act", "desktop:notes", "--goal", "Write.", "--agent", "random"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "say so by --allow-desktop" in done.stderr, done.output
    done = CliRunner().invoke(app, [*words, "--allow-desktop"], input="n\n")
    assert done.exit_code == 4 and "May I " in done.output and "you said no" in done.output, done.output
    assert notes.said() == [["ready"]]


def test_the_corner_ends_it_at_once(desktop, notes):
    with device() as d:
        timer = threading.Timer(.5, lambda: move_pointer(desktop, 0, 0))
        timer.start()
        with pytest.raises(StoppedByHand, match="top left corner"): d.perform(Action("type", text="x"*2000))
        timer.join()
        move_pointer(desktop, 400, 300)
        time.sleep(.2)
        n = len(notes.text())
        assert 0 < n < 1500 and pressed(desktop) == (0, 0)
        for use in (lambda: d.perform(Action("click", .5, .5)), d.look, lambda: d.reset(0)):
            with pytest.raises(StoppedByHand): use()
        assert len(notes.text()) == n
    move_pointer(desktop, 1, 1)
    with pytest.raises(StoppedByHand, match="move it away"): DesktopDevice("", allow_desktop=True)


def test_a_stopped_episode_says_so(desktop, notes, tmp_path):
    from oaml.scripts.act import CODES, act
    asked = []
    def allow(words):
        asked.append(words)
        if len(asked) == 2: move_pointer(desktop, 0, 0), time.sleep(.2)
        return True
    result = act("desktop:Notes", "Press.", agent="random", allow_desktop=True, settle=.1, allow=allow, say=lambda line: None, max_steps=9, out=tmp_path/"out")
    assert (result.code, len(asked)) == (CODES["stopped"], 2) and "stopped by you" in result.words


def test_it_never_goes_into_the_corner_itself(desktop, notes):
    with device("") as d:
        assert "the top left corner is the person's" in d.perform(Action("click", 0., 0.)).log[0]
        assert d.perform(Action("move", .5, .5)).log == ()


HOLDS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests behind nohup has told them to ignore these two
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from oaml.devices.desktop import DesktopDevice
from oaml.ui.events import PointerDown, PointerMove, Text
d = DesktopDevice("Notes", allow_desktop=True, settle=.1)
d.reset(0)
d.feed([Text("漢"), PointerMove(200, 200), PointerDown(200, 200)])
d.hands.press(2, 50)
print("held", flush=True)
if sys.argv[1] == "error": raise ValueError("in the middle")
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["error", "SIGINT", "SIGTERM", "SIGHUP"])
def test_nothing_stays_pressed(desktop, notes, end):
    before = keyboard(desktop)
    process = subprocess.Popen([sys.executable, "-c", HOLDS, end], env=desktop.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "held\n"
    if end != "error":
        assert pressed(desktop)[0] == 1 and pressed(desktop)[1]
        process.send_signal(getattr(signal, end))
    code = process.wait(60)
    process.stdout.close()
    assert pressed(desktop) == (0, 0) and keyboard(desktop) == before
    if end in ("SIGTERM", "SIGHUP"): assert code == -getattr(signal, end)


def test_keys_go_to_what_was_pressed_last(desktop, notes):
    letter = desktop.text_box("Letter")
    from oaml.devices.xwindows import XWindows
    with device("") as d:
        assert "no window was pressed yet" in d.perform(Action("type", text="x")).log[0]
        windows = XWindows(display(desktop))
        windows.activate(windows.find("Letter"))
        assert d.perform(Action("click", 250/800, 30/600)).log == ()
        d.perform(Action("type", text="a"))
        assert letter.text("a") == "a"
        windows.activate(windows.find("Notes"))  # as a person does who answers a question elsewhere
        d.perform(Action("type", text="b"))
        assert (letter.text("ab"), notes.text()) == ("ab", "")


def test_one_window_is_all_that_is_seen_and_pressed(desktop, notes):
    from oaml.devices.xwindows import XWindows
    letter = desktop.text_box("Letter")
    windows = XWindows(display(desktop))
    with device() as d:
        clear = wait_for(lambda: (f := d.look()).image[:90, :190].mean() > 128 and f)  # its program has drawn it
        assert clear.image.shape == (300, 400, 3) and clear.log == ()
        windows._of(windows.find("Letter")).configure(x=250, y=120, stack_mode=0)
        windows.display.sync()
        time.sleep(.3)
        covered = d.look()
        assert "'Letter' lies over a part of the window: painted over" in covered.log[0]
        assert (covered.image[100:, 200:] == 96).all() and (covered.image[30:90, :190] == clear.image[30:90, :190]).all()  # below the box, whose frame tells the focus
        n = len(letter.said())
        assert any("nothing was pressed" in line for line in d.perform(Action("click", .9, .9)).log)
        assert len(letter.said()) == n
        d.windows._of(d.window).configure(x=100, y=200)
        d.display.sync()
        assert d.look().size == (400, 300) and d.box == (100, 200, 500, 500)  # it was moved
        notes.process.kill()
        notes.process.wait()
        with pytest.raises(DeviceError, match="closed, or hidden|gone"): wait_for(lambda: d.look() and None, 3)
    with pytest.raises(DeviceError, match="none has 'Notes' in its title; there is 'Letter'"): DesktopDevice("Notes", allow_desktop=True)
    desktop.text_box("Letter 2")
    with pytest.raises(DeviceError, match="2 have 'lett' in their titles"): DesktopDevice("lett", allow_desktop=True)


def test_a_window_manager_is_asked():
    with fake_desktop() as d:
        move_pointer(d, 400, 500)
        d.manager()
        notes, letter = d.text_box(), d.text_box("Letter")
        with device() as found:
            windows = found.windows
            assert windows.managed and windows.active() == windows.find("Notes") == found.window
            assert found.look().size == (400, 300) and windows.box(found.window)[1] == windows.box(windows.top_of(found.window))[1] + 20  # without its frame
            assert found.perform(Action("type", text="Äh")).log == () and notes.text("Äh") == "Äh"
            windows.activate(windows.find("Letter"))
            assert "'Letter' lies over a part of the window" in found.look().log[0]
            found.perform(Action("type", text="!"))
            assert (notes.text("Äh!"), letter.text()) == ("Äh!", "") and windows.active() == found.window


def test_of_several_monitors_one_is_chosen(desktop, notes, monkeypatch):
    import mss
    places = [(0, 0, 800, 400), (0, 0, 500, 400), (500, 0, 300, 200)]  # the whole, and two that are not equally high
    monkeypatch.setattr(mss.MSS, "monitors", property(lambda self: [dict(zip(("left", "top", "width", "height"), p)) for p in places]))
    with pytest.raises(DeviceError, match=r"there are 2 monitors: #1 \(500x400 at 0,0\), #2 \(300x200 at 500,0\); choose one, such as desktop:#1"): DesktopDevice("", allow_desktop=True)
    with device("#2") as d:
        assert (d.size, d.box) == ((300, 200), (500, 0, 800, 200))
        move_pointer(desktop, 500, 1)  # the corner of any
        with pytest.raises(StoppedByHand): time.sleep(.2), d.perform(Action("click", .5, .5))


def test_a_secret_is_not_typed_where_it_could_not_be_hidden(desktop, notes):
    from oaml.scripts.act import PersonsDevice
    with closing(PersonsDevice(DesktopDevice("Notes", allow_desktop=True, settle=.1), "Log in.", secrets=dict(code="pw123456"), spec="desktop:Notes")) as d:
        d.reset(0)
        with pytest.raises(DeviceError, match="a secret was not typed"): d.perform(Action("type", text="{code}"))
    assert notes.text() == ""


def test_a_display_that_goes_is_said():
    with fake_desktop() as other:
        move_pointer(other, 50, 50)
        d = DesktopDevice("", allow_desktop=True, settle=.1)
        d.reset(0)
        os.kill(other.server.pid, signal.SIGKILL)
        other.server.wait()
        with pytest.raises(DeviceError, match="is gone"): d.perform(Action("click", .5, .5))
        d.close()


ORDER = """<title>Order page</title><body style="font: 16px sans-serif"><h1>Orders</h1>
<form onsubmit="event.preventDefault(); document.querySelector('p').textContent = 'Saved ' + q.value">
<label>Quantity <input id=q></label> <label><input type=checkbox>Gift</label> <select aria-label=Size><option>Small<option>Large</select> <button>Save order</button></form>
<p role=status></p></body>"""


@contextmanager
def accessibility():
    "A session bus with the accessibility bus on it."
    daemon = subprocess.Popen(["dbus-daemon", "--session", "--nofork", "--print-address"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before, os.environ["DBUS_SESSION_BUS_ADDRESS"] = os.environ.get("DBUS_SESSION_BUS_ADDRESS"), daemon.stdout.readline().strip()
    try: yield
    finally:
        del os.environ["DBUS_SESSION_BUS_ADDRESS"]
        if before: os.environ["DBUS_SESSION_BUS_ADDRESS"] = before
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()


def needs_bus():
    if not find_chromium(): return "Chromium: not installed"
    if not shutil.which("dbus-daemon") or not any(os.path.exists(f"{d}/at-spi-bus-launcher") for d in ("/usr/libexec", "/usr/lib/at-spi2-core")):
        return "dbus-daemon and at-spi-bus-launcher: not installed; apt install dbus at-spi2-core"


@pytest.mark.skipif(bool(needs_bus()), reason=str(needs_bus()))
def test_shown_once_and_done_again_in_a_browser_of_the_persons(tmp_path):
    "Chromium with a window, read by its accessibility bus: shown with a quantity, done with another."
    from oaml.scripts.act import CODES, PersonsDevice, act
    from oaml.scripts.show import DemonstrationRecorder
    (tmp_path/"order.html").write_text(ORDER, encoding="utf-8")
    def browser(d):
        flags = ["--no-sandbox"]*(not wants_sandbox()) + ["--no-first-run", "--disable-gpu", "--force-renderer-accessibility", "--window-size=700,500", "--test-type"]
        d.start(find_chromium(), *flags, f"--user-data-dir={tmp_path}/profile", f"--app={(tmp_path/'order.html').as_uri()}", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return wait_for(opened, 40)
    def opened():
        try: found = DesktopDevice("order page", allow_desktop=True, settle=.2)
        except DeviceError: return None
        found.reset(0)
        if any(e.name == "Save order" for e in found.read_elements()): return found
        found.close()
    def place(elements, role): return next(((e.box[0] + e.box[2])/2, (e.box[1] + e.box[3])/2) for e in elements if e.role == role)
    with accessibility(), fake_desktop("1000x700") as d:
        move_pointer(d, 500, 600)
        found = browser(d)
        elements = {(e.role, e.name): e for e in found.read_elements()}
        assert elements["checkbox", "Gift"].checked is False and elements["combobox", "Size"].value == "Small" and ("heading", "Orders") in elements
        recorder = DemonstrationRecorder(PersonsDevice(found, "Order '7 Äpfel'.", spec="desktop:order page"), tmp_path/"order.yaml")
        recorder.act(Action("click", *place(recorder.elements, "textbox")))
        recorder.act(Action("type", text="7 Äpfel"))
        recorder.act(Action("click", *place(recorder.elements, "button")))
        shown = recorder.finish()
        assert [s.do for s in shown.steps] == ["enter", "press"] and shown.steps[0].value.startswith("{")
        found.close()
        lines = []
        result = act("desktop:order page", "Order '12 Kürbisse'.", like=[str(tmp_path/"order.yaml")], allow_desktop=True, ask_before="none", settle=.2, out=tmp_path/"out", say=lines.append)
        assert result.code == CODES["unchecked"], (result.words, lines)
        with closing(opened()) as again: assert "Saved 12 Kürbisse" in [e.name for e in again.read_elements()]
