"What a notebook cannot show of a browser: processes that end, faults, threads, asyncio, and equal bytes from two browsers."
import asyncio
import http.server
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from oaml.apps.app import random_action
from oaml.devices.chromium import PageDevice, PagePool
from oaml.devices.clock import CLOCK_SCRIPT
from oaml.devices.connection import Chromium, find_chromium, missing_browser, sweep_folders
from oaml.devices.gateway import Gateway
from oaml.devices.page import Page
from oaml.devices.device import DeviceError, ForceStop, InstallApk, PressButton, StartActivity, StartIntent, Tap
from oaml.devices.html_page import HtmlDevice, check_renderers
from oaml.envs.gym_env import HtmlEnv
from oaml.envs.vector import PagedVectorEnv, batch_actions, make_vector
from oaml.schemas.sessions import Action
from oaml.ui.events import KeyDown, PointerDown, PointerMove, PointerUp, Text, Tick, Wheel

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))

COUNT = "<!doctype html><body style='margin:0'><button style='width:80px;height:40px' onclick='this.textContent=++n'>0</button><script>n=0</script>"
MOVING = """<!doctype html><style>@keyframes turn {to {transform: rotate(360deg)}}
#a {width: 40px; height: 40px; background: teal; animation: turn 3s infinite} #b {transition: opacity .8s; opacity: .2}</style>
<div id=a></div><button id=b onclick="b.style.opacity = 1; say()">Go</button><input id=i><p id=p></p><script>
function say() { setTimeout(() => p.textContent += Math.random().toFixed(3) + ' ' + Date.now() % 10000 + ' ', 300) }
i.oninput = say; let n = 0; requestAnimationFrame(function f(t) { b.style.marginLeft = (n++ % 50) + 'px'; requestAnimationFrame(f) })
</script>"""


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as c: yield c


@pytest.fixture
def page(chromium):
    with Page(chromium, (320, 200), gateway=Gateway(None)) as p: yield p


def click(x, y): return [PointerMove(x, y), PointerDown(x, y), Tick(60), PointerUp(x, y)]


def group(pid):
    "Processes of the group `pid` that run (a dead one whose parent has not asked is none)."
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try: state, _, pgid = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError: continue
        if int(pgid) == pid and state != "Z": found.append(int(stat.parent.name))
    return found


def gone(pid, seconds=10):
    "Is nothing left of the group, within some seconds?"
    end = time.monotonic() + seconds
    while group(pid) and time.monotonic() < end: time.sleep(.05)
    return not group(pid)


# -- processes

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc, which this system lacks")


@needs_proc
def test_nothing_is_left_after_close():
    c = Chromium()
    pid, folder = c._process.pid, c._process.folder
    Page(c)
    assert len(group(pid)) > 3
    c.close(), c.close()
    assert gone(pid) and not Path(folder).exists()
    with pytest.raises(DeviceError, match="closed"): c.send("Browser.getVersion")


@needs_proc
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os.kill(os.getpid(), 9)", "1/0"])
def test_nothing_is_left_when_python_ends(end):
    code = f"import os\nfrom oaml.devices.page import *\nfrom oaml.devices.connection import *\nc = Chromium()\nPage(c)\nprint(c._process.pid, flush=True)\n{end}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert gone(int(result.stdout)), result.stderr


@needs_proc
def test_nothing_is_left_of_a_browser_that_does_not_start(monkeypatch, tmp_path):
    before = {p.parent.name for p in Path("/proc").glob("[0-9]*/stat")}
    with pytest.raises(DeviceError, match="did not answer Browser.getVersion within 0.001 s"): Chromium(patience=.001)
    script = tmp_path/"chromium"
    script.write_text("#!/bin/sh\necho no display here >&2\nexit 7\n")
    script.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(script))
    with pytest.raises(DeviceError, match="exited with 7, and the last it said was 'no display here'"): Chromium()
    end = time.monotonic() + 10
    def ours():
        "Browsers that this process has started and not taken leave of."
        new = [p for p in Path("/proc").glob("[0-9]*/stat") if p.parent.name not in before]
        rows = []
        for p in new:
            try: rows.append(p.read_text().rsplit(")", 1))
            except OSError: continue
        return [r for r in rows if "chrom" in r[0] and int(r[1].split()[1]) == os.getpid()]
    while ours() and time.monotonic() < end: time.sleep(.05)
    assert not ours()


REFUSED_SANDBOX = """#!/bin/sh
case " $* " in *" --no-sandbox "*) exec {chromium} "$@";; esac
echo "[1:1:FATAL:content/browser/zygote_host/zygote_host_impl_linux.cc:132] No usable sandbox! If you are running on Ubuntu 23.10+ or another Linux distro that has disabled unprivileged user namespaces with AppArmor, see https://chromium.googlesource.com/chromium/src/+/main/docs/security/apparmor-userns-restrictions.md." >&2
echo "#0 0x55d0b0a3c5a2 (/usr/lib/chromium/chromium+0x6d3c5a1)" >&2
kill -{signal} $$
"""


@pytest.mark.parametrize("signal", ["TRAP", "ABRT"])
def test_a_refused_sandbox_is_named_with_its_ways_out(monkeypatch, tmp_path, signal):
    (tmp_path/"chromium").write_text(REFUSED_SANDBOX.format(chromium=find_chromium(), signal=signal))
    (tmp_path/"chromium").chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(tmp_path/"chromium"))
    for how in dict(OAML_BROWSER_SANDBOX="1"), dict(OAML_BROWSER_SANDBOX="0", OAML_BROWSER_SANDBOX_OPTION="1"):
        for k, v in how.items(): monkeypatch.setenv(k, v)
        with pytest.raises(DeviceError, match="may not make its sandbox here(.|\n)*apparmor(.|\n)*--no-browser-sandbox"): Chromium()
    monkeypatch.delenv("OAML_BROWSER_SANDBOX_OPTION")
    with Chromium() as c: assert c.alive  # OAML_BROWSER_SANDBOX=0
    with Chromium(sandbox=False) as c: assert c.alive


def test_every_command_that_opens_a_browser_can_do_without_its_sandbox():
    from oaml.scripts import cli
    commands = {name for name, c in vars(cli).items() if callable(c) and "browser_sandbox" in getattr(c, "__annotations__", {})}
    assert commands == {f"{name}_command" for name in "train sweep pretrain dagger eval act show serve_device serve_task".split()} | {f"miniwob_{n}" for n in ("collect", "train", "eval")}


@needs_proc
def test_a_fork_neither_uses_nor_ends_it():
    with Chromium() as c:
        page = Page(c)
        child = os.fork()
        if child == 0:
            try: page.evaluate("1")
            except DeviceError as e: os._exit(5 if "forked" in str(e) else 6)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert page.evaluate("1 + 1") == 2


@needs_proc
def test_a_fork_closes_only_what_is_chromiums():
    with Chromium() as c:
        freed = c._process.read
        os.killpg(c._process.pid, signal.SIGKILL)
        while c.alive: time.sleep(.01)
        with tempfile.TemporaryFile() as mine:
            if mine.fileno() != freed: os.dup2(mine.fileno(), freed)  # whose number is now another file's
            child = os.fork()
            if child == 0:
                try: os.fstat(freed)
                except OSError: os._exit(1)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if mine.fileno() != freed: os.close(freed)
        assert code == 0


def test_closing_waits_for_a_message_under_way():
    c = Chromium()
    process = c._process
    with process.writing:
        thread = threading.Thread(target=c.close)
        thread.start()
        thread.join(.5)
        os.fstat(process.write)  # whoever writes still writes to Chromium
    thread.join(10)
    assert not process.fds


@needs_proc
def test_a_program_that_cannot_be_run_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path/"chromium").write_bytes(b"\x7fELF no program")
    (tmp_path/"chromium").chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(tmp_path/"chromium"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="chromium cannot be run .*set CHROMIUM"): Chromium()
    assert len(os.listdir("/proc/self/fd")) == before and os.listdir(tmp_path) == ["chromium"]


@needs_proc
def test_what_a_killed_process_leaves_is_swept():
    folder = tempfile.mkdtemp()
    def run(end):
        code = f"import os\nfrom oaml.devices.connection import *\nc = Chromium()\nprint(c._process.pid, flush=True)\n{end}"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | dict(TMPDIR=folder))
        assert gone(int(result.stdout)), result.stderr
        return os.listdir(folder)
    left = run("os.kill(os.getpid(), 9)")
    assert len(left) == 1 and left[0].startswith("oaml-chromium-")  # and nothing of Chromium's own beside it
    assert run("pass") == []
    shutil.rmtree(folder)


@needs_proc
def test_a_folder_of_a_process_whose_number_is_another_ones_now_is_swept(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = Path(tempfile.mkdtemp(prefix=f"oaml-chromium-{os.getpid()}-"))  # as in a container, where every start has the same numbers
    with Chromium() as one, Chromium() as two:
        assert {*map(str, tmp_path.iterdir())} == {one._process.folder, two._process.folder} and not old.exists()
        child = os.fork()
        if child == 0: os._exit(0)  # which takes no lock along
        os.waitpid(child, 0)
        sweep_folders()
        assert Path(one._process.folder).exists()
    assert not any(tmp_path.iterdir())


# -- faults

def test_a_page_that_was_given_up_does_not_stop_the_others():
    with Chromium() as c, Page(c) as other:
        page, c.patience = Page(c), .5
        page.set_content("<p>")
        with pytest.raises(DeviceError, match="within 0.5 s"):
            page.evaluate("() => { setTimeout(() => alert('late')); const end = Date.now() + 1500; while (Date.now() < end); }")
        c.patience = 30.
        time.sleep(2)
        assert c.alive and other.evaluate("1 + 1") == 2


def test_somebody_else_asked_how_it_ended():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes leave of every child at once
    try:
        with Chromium() as c:
            os.killpg(c._process.pid, signal.SIGKILL)
            while c.alive: time.sleep(.01)
            with pytest.raises(DeviceError, match=r"^Chromium is gone; call restart\(\)$"): c.send("Browser.getVersion")
            c.revive()
            assert c.send("Browser.getVersion")
    finally: signal.signal(signal.SIGCHLD, before)


def test_a_bug_in_a_listener_is_reported_and_nobody_waits_for_ever(monkeypatch):
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    with Chromium() as c:
        page = Page(c)
        c._listeners[page.session] = lambda method, params: 1/0
        with pytest.raises(DeviceError, match="Chromium"): page.evaluate("console.log(1), new Promise(() => {})")
        assert errors[0].exc_type is ZeroDivisionError and not c.alive
        c.revive()
        with Page(c) as other: assert other.evaluate("1") == 1


def test_a_clock_that_stands_still_is_reported():
    with Chromium() as c:
        page = Page(c)
        page.hold_time()
        page.set_content("<p>")
        c.patience = .5
        with pytest.raises(DeviceError, match="its clock stands still until `tick` moves it"):
            page.evaluate("new Promise(w => setTimeout(w, 10))")


def test_killed_in_mid_episode():
    device = PageDevice(html=COUNT)
    frame = device.reset(0)
    os.killpg(device.chromium._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"killed by signal 9 \(SIGKILL\); call restart"): device.perform(Action("click", x=.1, y=.1))
    with pytest.raises(DeviceError, match="Chromium is gone"): device.look()
    again = device.reset(0)
    assert again.screen_hash() == frame.screen_hash()
    assert again.log == ("W/chromium: the page or its browser was gone and has been started again",)
    assert device.perform(Action("click", x=.1, y=.1)).log == ()
    device.close(), device.close()


def test_killed_while_a_call_waits():
    with Chromium() as c:
        page = Page(c)
        threading.Timer(.3, lambda: os.killpg(c._process.pid, signal.SIGKILL)).start()
        begin = time.monotonic()
        with pytest.raises(DeviceError, match="gone"): page.evaluate("new Promise(() => {})")
        assert time.monotonic() - begin < 5 and not page.alive and not c.alive
        c.restart()
        with pytest.raises(DeviceError, match="page's browser was closed or restarted"): page.evaluate("1")
        with Page(c) as other: assert other.evaluate("2") == 2


def test_a_pages_crash_leaves_the_others(chromium):
    one, other = Page(chromium), Page(chromium)
    one.post("Page.crash")
    with pytest.raises(DeviceError, match="crashed"):
        for _ in range(100): one.evaluate("1")
    assert other.evaluate("1") == 1 and not one.alive
    one.close(), other.close()


def test_a_page_that_hangs_is_given_up_and_replaced():
    with Chromium() as c:
        device = PageDevice(html="<button style='width:80px;height:40px' onclick='while (seed) {}'>x</button><script>seed = 1</script>", chromium=c)
        device.reset(0)
        c.patience = 1.
        with pytest.raises(DeviceError, match="within 1 s"): device.perform(Action("click", x=.1, y=.1))
        c.patience = 30.
        assert device.reset(0).log[0].startswith("W/chromium: the page")


def test_nothing_hangs_on_a_server_that_does_not_answer():
    with http.server.HTTPServer(("127.0.0.1", 0), None) as mute, Chromium() as c:  # it never accepts
        page, c.patience = Page(c, gateway=Gateway(None)), 1.
        with pytest.raises(DeviceError, match="within 1 s|did not load"): page.goto(f"http://127.0.0.1:{mute.server_port}/")


def test_unreachable_and_malformed(page):
    for url in ("http://127.0.0.1:9/", "file:///no/such", "no scheme"):
        with pytest.raises(DeviceError, match="ERR_|invalid URL"): page.goto(url)
        assert page.still
    page.set_content(COUNT)
    assert page.evaluate("n") == 0
    with pytest.raises(DeviceError, match="threw Error: no"): page.evaluate("async () => { throw Error('no') }")
    with pytest.raises(DeviceError, match="SyntaxError"): page.evaluate("1 +")
    with pytest.raises(DeviceError, match="wasn't found"): page.send("Page.noSuchMethod")


# -- threads, asyncio

def test_from_many_threads(chromium):
    with ThreadPoolExecutor(8) as threads, Page(chromium) as a, Page(chromium) as b:
        asked = [threads.submit((a, b)[k % 2].evaluate, "k => k * k", k) for k in range(200)]
        assert [f.result() for f in asked] == [k*k for k in range(200)]


def test_from_asyncio(page):
    async def both():
        page.set_content(COUNT)  # also directly, beside a running loop
        shot = asyncio.to_thread(page.screenshot)
        product = asyncio.wrap_future(page.post("Runtime.evaluate", expression="6*7"))
        ticked = asyncio.sleep(0, "the loop runs")
        return await asyncio.gather(shot, product, ticked)
    shot, product, ticked = asyncio.run(both())
    assert shot.shape == (200, 320, 3) and product["result"]["value"] == 42 and ticked


def test_two_pages_of_a_browser_know_nothing_of_each_other(chromium, tmp_path):
    (tmp_path/"a.html").write_text("<input id=i autofocus onfocus='f = 1'>")
    pages = [Page(chromium, gateway=Gateway([f"{tmp_path.as_uri()}/"])) for _ in range(2)]
    for k, p in enumerate(pages):
        p.goto((tmp_path/"a.html").as_uri())
        p.evaluate("k => { localStorage.k ??= k; i.focus() }", k)
        p.feed([Text("ab")])
    assert [p.evaluate("[localStorage.k, i.value, document.hasFocus()]") for p in pages] == [["0", "ab", True], ["1", "ab", True]]
    for p in pages: p.close()


def test_links_that_lead_nowhere(chromium, tmp_path):
    (tmp_path/"a.bin").write_bytes(bytes(9))
    (tmp_path/"a.html").write_text("<body style='margin:0'>" + "".join(
        f"<a href='{url}' style='display:block;height:20px' target='{t}'>x</a>" for url, t in
        (("mailto:a@b.c", ""), ("javascript:void 0", ""), ("a.bin", ""), ("#here", ""), ("a.html?new", "_blank"))))
    device = PageDevice((tmp_path/"a.html").as_uri(), chromium=chromium, origins=[f"{tmp_path.as_uri()}/"])
    device.reset(0)
    logs = [device.feed([*click(3, 10 + 20*k), Tick(500)]).log for k in range(5)]
    assert device.page.evaluate("location.search + document.readyState") == "complete" and device.page.alive
    assert "a new window was asked for and is not shown" in logs[-1][0]
    device.close()


def test_a_window_that_a_page_opens_does_not_stop_it(chromium, tmp_path):
    (tmp_path/"a.html").write_text("<button>x</button>")
    device = PageDevice((tmp_path/"a.html").as_uri(), chromium=chromium)
    device.reset(0)
    def windows(): return [t["targetId"] for t in chromium.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
    before = windows()
    for how in ("''", "'noopener'")*3:  # in front of the page they would keep it from being drawn
        device.page.evaluate(f"void window.open('a.html?2', '_blank', {how})")
        assert any("a new window was asked for" in line for line in device.perform(Action("wait")).log)
    end = time.monotonic() + 20
    while windows() != before and time.monotonic() < end: time.sleep(.05)
    assert windows() == before
    device.close()


# -- equal bytes

def episode(device, seed, n=12):
    "Hashes of the frames of an episode with random actions."
    rng, frames = Random(seed), [device.reset(seed)]
    for _ in range(n): frames.append(device.perform(random_action(rng, device.read_elements())))
    return [(f.screen_hash(), f.clock, f.log, f.elements) for f in frames]


def test_two_browsers_and_a_pool_give_the_same_bytes(chromium):
    one = PageDevice(html=MOVING, chromium=chromium, tree=True)
    alone = [episode(one, s) for s in (1, 2)]
    assert episode(one, 1) == alone[0]
    one.close()
    with PagePool(2, lambda c: PageDevice(html=MOVING, chromium=c, tree=True)) as pool:
        assert pool.map(episode, (1, 2)) == alone
    assert alone[0] != alone[1]


def test_a_caret_does_not_blink(page):
    page.set_content("<input id=i value=text>")
    page.evaluate("i.focus()")
    shots = []
    for _ in range(5):
        shots.append(page.screenshot().tobytes())
        time.sleep(.25)
    assert len(set(shots)) == 1


# -- hands

def test_typing_is_what_a_keyboard_does(page):
    page.set_content("<input id=i><script>h = []; for (const t of ['keydown', 'keyup']) addEventListener(t, e => h.push([t, e.key, e.code, e.keyCode, e.shiftKey, e.ctrlKey]))</script>")
    page.evaluate("i.focus()")
    every = "".join(map(chr, range(32, 127)))
    page.feed([Text(every + "é😀ß")])
    assert page.evaluate("i.value") == every + "é😀ß"
    page.feed([KeyDown("ctrl+a"), KeyDown("Backspace"), Text("aB"), KeyDown("shift+Left"), KeyDown("Delete")])
    assert page.evaluate("i.value") == "a"
    page.evaluate("h.length = 0")
    page.feed([Text("A"), KeyDown("ctrl++")])
    assert page.evaluate("h") == [
        ["keydown", "A", "KeyA", 65, True, False], ["keyup", "A", "KeyA", 65, True, False],
        ["keydown", "Control", "ControlLeft", 17, False, True], ["keydown", "+", "Equal", 187, True, True],
        ["keyup", "+", "Equal", 187, True, True], ["keyup", "Control", "ControlLeft", 17, False, False]]


def test_every_key_has_its_name(page):
    from oaml.schemas.sessions import KEYS
    page.set_content("<script>h = []; addEventListener('keydown', e => { h.push(e.key); e.preventDefault() })</script>")
    page.feed([KeyDown(k) for k in KEYS])
    dom = dict(Space=" ", Left="ArrowLeft", Right="ArrowRight", Up="ArrowUp", Down="ArrowDown")
    assert page.evaluate("h") == [dom.get(k, k) for k in KEYS]


def test_clicks_of_each_kind(page):
    page.set_content("""<body style='margin:0'><button id=b style='width:99px;height:50px'>b</button><script>h = []
        for (const t of ['click', 'dblclick', 'contextmenu']) b.addEventListener(t, e => { h.push(t + e.detail); e.preventDefault() })</script>""")
    page.feed([*click(20, 20), Tick(60), *click(20, 20)])
    page.time += 1000
    page.feed([*click(20, 20), Tick(60), *click(60, 20)])
    page.feed([PointerDown(20, 20, "right"), PointerUp(20, 20, "right")])
    assert page.evaluate("h") == ["click1", "click2", "dblclick2", "click1", "click1", "contextmenu0"]


def test_the_wheel_and_hover(page):
    page.set_content("<style>body{margin:0}#r{height:90px;overflow:auto}#r:hover{background:red}p{height:400px;margin:0}</style><div id=r><p></div>")
    for k in range(1, 5):  # a page hears of scrolling with its next frame, which on a busy machine is late
        page.feed([PointerMove(20, 20), Wheel(20, 20, 0, 70)])
        assert page.evaluate("r.scrollTop") == 70*k
    assert page.screenshot()[5, 5].tolist() == [255, 0, 0]
    page.release_inputs()
    assert page.screenshot()[5, 5].tolist() == [255, 255, 255]


def test_what_html_drags(page):
    page.set_content("""<style>body{margin:0}div{position:absolute;width:60px;height:60px}</style><div draggable=true id=a></div>
        <div id=b style='left:150px'></div><script>a.ondragstart = e => e.dataTransfer.setData('text', 'x')
        b.ondragover = e => e.preventDefault(); h = []; b.ondrop = e => h.push(e.dataTransfer.getData('text')); b.onclick = () => h.push('click')</script>""")
    page.feed([PointerMove(20, 20), PointerDown(20, 20), PointerMove(170, 20), PointerUp(170, 20), *click(170, 20)])
    assert page.evaluate("h") == ["x", "click"]


def test_a_list_that_drops_down_is_within_reach(page):
    page.set_content("<body style='margin:0'><select id=s><option>One<option>Two<option>Three</select>")
    page.feed(click(20, 8))
    boxes = {e.name: e.box for e in page.tree() if e.role == "option"}
    x0, y0, x1, y1 = boxes["Two"]
    page.feed(click((x0+x1)/2*320, (y0+y1)/2*200))
    assert page.evaluate("s.value") == "Two" and page.tree()[0].value == "Two"


# -- time

def test_the_clock(page):
    page.hold_time(5)
    page.set_content("""<script>h = []; const t0 = performance.now(), put = what => () => h.push([what, performance.now() - t0])
        setTimeout(put('b'), 20); setTimeout(put('a'), 10); const i = setInterval(put('i'), 30); setTimeout(() => clearInterval(i), 100)
        const gone = setTimeout(put('no'), 5); clearTimeout(gone); Promise.resolve().then(put('p'))
        setTimeout(() => Promise.resolve().then(put('q')), 15); setTimeout("h.push(['text', 0])", 16); requestAnimationFrame(put('f'))
        setTimeout(() => { throw Error('in a timer') }, 40)</script>""")
    time.sleep(.1)
    assert page.evaluate("h.length") == 1  # only what was promised
    page.tick(200)
    h = page.evaluate("h")
    assert [w for w, _ in h] == ["p", "a", "q", "text", "f", "b", "i", "i", "i"] and [t for w, t in h if w == "i"] == [30, 60, 90]
    assert page.console == ["E/console: Error: in a timer"]
    page.tick(10_000)
    assert page.evaluate("[h.length, Date.now(), new Date().getFullYear(), typeof Date(), new Date(0).getTime(), new Date() instanceof Date]") == [
        9, 1577836810200, 2020, "string", 0, True]


def test_frames_of_the_same_site_keep_the_same_time(page):
    page.hold_time()
    page.set_content("<iframe srcdoc='<script>n = 0; setInterval(() => n++, 100)</script>'></iframe><iframe src='data:text/html,x'></iframe>")
    page.tick(1000)
    assert page.evaluate("frames[0].n") == 10


def test_a_frame_may_go_away_while_time_passes(page):
    page.hold_time()
    page.set_content("<p>x</p><iframe srcdoc=\"<script>setInterval(() => 1, 1); setTimeout(() => location = 'data:text/html,y', 1)</script>\"></iframe>")
    page.tick(20_000)  # enough for the frame to be replaced in the middle
    assert page.evaluate("performance.now()") >= 20_000 and page.evaluate("document.body.firstChild.textContent") == "x"


def test_the_clock_is_installed_once(page):
    page.hold_time(1), page.hold_time(2)
    page.set_content("<p>")
    first = page.evaluate("Math.random()")
    page.evaluate(f"({CLOCK_SCRIPT})(7, 0, 16)")
    page.hold_time(2), page.set_content("<p>")
    assert page.evaluate("Math.random()") == first


def test_answers_of_the_network_are_waited_for(chromium):
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/slow": time.sleep(.3)
            self.send_response(200), self.send_header("content-type", "text/html"), self.end_headers()
            self.wfile.write(b"later" if self.path == "/slow" else b"<body style='margin:0'><button id=b style='width:99px;height:40px' onclick="
                             b"'fetch(\"/slow\").then(r => r.text()).then(t => b.textContent = t)'>now</button><a href=/two>two</a>")
        def log_message(self, *_): pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        device = PageDevice(f"http://127.0.0.1:{server.server_port}/", chromium=chromium)
        device.reset(0)
        device.perform(Action("click", x=.1, y=.05))
        assert device.page.evaluate("b.textContent") == "later" and device.clock == 560
        link = next(e.box for e in device.read_elements() if e.role == "link")
        device.perform(Action("click", x=(link[0]+link[2])/2, y=(link[1]+link[3])/2))
        assert device.page.evaluate("location.pathname") == "/two"
        device.perform(Action("key_press", key="BACK"))
        assert device.page.evaluate("location.pathname") == "/"
        device.perform(Action("key_press", key="BACK"))  # the first
        assert device.page.evaluate("location.pathname") == "/"
        device.close()
        server.shutdown()


def test_the_real_clock_and_a_condition(chromium):
    html = "<body style='margin:0'><button id=b style='width:99px;height:40px' onclick='setTimeout(() => b.textContent = 2, 700)'>1</button>"
    real = PageDevice(html=html, own_time=False, until="b.textContent == 2 || !clicked", chromium=chromium)
    real.html += "<script>clicked = false; b.addEventListener('click', () => clicked = true)</script>"
    real.reset(0)
    begin = time.monotonic()
    real.perform(Action("click", x=.1, y=.05))
    assert real.page.evaluate("b.textContent") == "2" and .6 < time.monotonic() - begin < 4
    begin = time.monotonic()
    real.perform(Action("wait"))
    assert time.monotonic() - begin >= 1
    real.close()


def test_two_clicks_on_the_real_clock_are_no_double_click(chromium):
    html = "<body style='margin:0'><button id=b style='width:99px;height:40px'>1</button><script>n = 0; b.addEventListener('dblclick', () => n++)</script>"
    real = PageDevice(html=html, own_time=False, chromium=chromium)
    real.reset(0)
    for _ in range(2): real.perform(Action("click", x=.1, y=.05))
    assert real.page.evaluate("n") == 0
    real.close()


# -- what is on it

def test_a_tree_deeper_than_pythons_calls(page):
    page.set_content("<div aria-label=x role=group>"*600 + "<button>deep</button>")
    assert [e.name for e in page.tree()] == ["deep"]


@pytest.mark.parametrize("color, shows", [("rgba(0, 0, 0, .01)", 1), ("oklch(.5 .1 20 / 0)", 1), ("color(srgb 0 0 0 / 0.3)", 1),
                                          ("lab(50 0 0 / none)", 1), ("transparent", 1), ("oklch(.5 .1 20)", 0), ("rgba(0, 0, 0, .9)", 0), ("#fff", 0)])
def test_what_can_be_seen_through_hides_nothing(page, color, shows):
    page.set_content(f"<button>below</button><div style='position: fixed; inset: 0; background: {color}'></div>")
    assert [e.name for e in page.tree()] == ["below"]*shows


# -- the device

def test_a_tasks_calls(chromium, tmp_path):
    (tmp_path/"two.html").write_text("<p>two")
    device = PageDevice(html=COUNT, chromium=chromium, origins=[f"{tmp_path.as_uri()}/"])
    for early in (lambda: device.perform(Action("wait")), device.look, device.read_elements, lambda: device.manage(Tap(1, 1))):
        with pytest.raises(DeviceError, match="no episode yet"): early()
    device.reset(0)
    device.manage(Tap(20, 20))
    assert device.page.evaluate("n") == 1
    device.manage(StartIntent((tmp_path/"two.html").as_uri()))
    assert device.page.evaluate("document.body.textContent") == "two"
    device.manage(PressButton("HOME"))
    assert device.page.evaluate("n") == 0
    device.manage(ForceStop("app.oaml.page"))
    assert (device.activity(), device.read_elements()) == ("", ())
    device.manage(StartActivity("app.oaml.page/.Main"))
    assert device.activity() == "app.oaml.page/.Main" and device.installed("app.oaml.page")
    with pytest.raises(DeviceError, match="no shell and no installer"): device.manage(InstallApk("x.apk"))
    with pytest.raises(DeviceError, match="this device has app.oaml.page and no other"): device.manage(ForceStop("a.b"))
    assert device.perform(Action("answer", text="four")).log == ("I/answer: four",)
    for at in (Tap(320, 10), Tap(-1, 10)):
        with pytest.raises(DeviceError, match="the screen is 320x256 pixels"): device.manage(at)
    with pytest.raises(DeviceError, match=r"Other: the one activity is app.oaml.page/.Main"): device.manage(StartActivity("app.oaml.page/.Other"))
    device.manage(ForceStop("app.oaml.page"))
    for key in ("HOME", "BACK"):
        device.perform(Action("key_press", key=key))
        assert (device.activity(), device.read_elements()) == ("", ())
    device.manage(StartIntent((tmp_path/"two.html").as_uri()))
    assert device.activity() == "app.oaml.page/.Main"
    device.close()
    for scale in (0, -1, 1.3):
        with pytest.raises(ValueError, match="no whole pixels"): PageDevice(html=COUNT, scale=scale, chromium=chromium)
    assert PageDevice(html=COUNT, chromium=chromium).activity() == ""
    with pytest.raises(ValueError, match="either a url or html"): PageDevice()


def test_nothing_stored_outlives_an_episode(chromium, tmp_path):
    (tmp_path/"a.html").write_text("<p id=p></p><script>p.textContent = localStorage.n = +(localStorage.n ?? 0) + 1</script>")
    device = PageDevice((tmp_path/"a.html").as_uri(), chromium=chromium)
    hashes = {device.reset(s).screen_hash() for s in range(3)}
    assert len(hashes) == 1 and device.page.evaluate("p.textContent") == "1"
    device.close()


def test_nothing_else_outlives_an_episode(chromium):
    asked = []
    class Kept(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200), self.send_header("cache-control", "max-age=9999"), self.send_header("content-type", "text/html"), self.end_headers()
            self.wfile.write(b"told = [1]" if self.path == "/a.js" else b"<input id=i value=secret><script src=/a.js></script>"
                             b"<script>addEventListener('copy', e => e.stopImmediatePropagation(), true); told.push(window.name)</script>")
        def log_message(self, *_): pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kept) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        device = PageDevice(f"http://127.0.0.1:{server.server_port}/", chromium=chromium)
        for seed in range(2):
            device.reset(seed)
            assert device.page.evaluate("told") == [1, ""]
            device.page.evaluate("() => { i.value = ''; i.focus() }")
            device.feed([KeyDown("ctrl+v")])
            assert device.page.evaluate("i.value") == ""
            device.page.evaluate("() => { window.name = 'left'; i.value = 'secret'; i.select() }")
            device.feed([KeyDown("ctrl+c")])
        assert asked.count("/a.js") == 2
        device.close(), server.shutdown()


def test_scale(chromium):
    device = PageDevice(html=COUNT, size=(160, 80), scale=2, chromium=chromium)
    assert device.reset(0).size == device.size == (320, 160)
    device.feed(click(140, 70))  # pixels of the picture: within 80x40 of the page
    assert device.page.evaluate("n") == 1
    device.feed(click(170, 70))
    assert device.page.evaluate("n") == 1
    device.close()


# -- vectors

def played(env, n=7):
    "What a vector of two tells while one says DONE and both run into a budget of three."
    steps = [env.reset(seed=2_000_000)]
    for k in range(n): steps.append(env.step(batch_actions(["DONE()" if k == 1 else "WAIT()", "CLICK(x=0.5, y=0.5)"])))
    rows = [([g for g in t[0]["goal"]], [list(map(float, v)) for v in t[1:-1]], t[-1]["seed"].tolist(), sorted(t[-1])) for t in steps]
    env.close()
    return rows


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_of_pages_tells_what_gymnasiums_own_does(mode):
    pages = PagedVectorEnv(lambda c: HtmlEnv("login", step_budget=3, chromium=c), 2, split="test", autoreset_mode=mode)
    own = make_vector("oaml/Login-v1", 2, processes=False, split="test", autoreset_mode=mode, step_budget=3)
    assert played(pages) == played(own)


def test_a_mask_resets_only_some():
    pages = PagedVectorEnv(lambda c: HtmlEnv("login", chromium=c), 2, autoreset_mode=AutoresetMode.DISABLED)
    before = pages.reset(seed=4)[0]
    pages.step(batch_actions(["DONE()", "WAIT()"]))
    after, info = pages.reset(options=dict(reset_mask=np.array([True, False])))
    assert after["goal"][1] == before["goal"][1] and after["goal"][0] != before["goal"][0] and info["seed"][0] == 6
    pages.close()


def test_a_vector_of_pages_outlives_its_browser():
    pages = PagedVectorEnv(lambda c: HtmlEnv("login", chromium=c), 2)
    first = pages.reset(seed=0)[0]["screen"]
    os.killpg(pages.pool.browsers[0]._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="gone"): pages.step(batch_actions(["CLICK(x=0.5, y=0.5)"]*2))
    assert (pages.reset(seed=0)[0]["screen"] == first).all()
    pages.close(), pages.close()


def test_a_pool_that_cannot_be_made_leaves_nothing():
    made = []
    def make(chromium):
        made.append(chromium)
        if len(made) == 2: raise OSError("no more")
        return PageDevice(html=COUNT, chromium=chromium)
    with pytest.raises(OSError, match="no more"): PagePool(3, make, browsers=2)
    assert not any(c.alive for c in made)


def test_a_pool_of_none_and_a_vector_of_what_is_no_environment():
    for n, browsers in ((0, 1), (2, 0)):
        with pytest.raises(ValueError, match="1 of each at least"): PagePool(n, lambda c: None, browsers)
    made = []
    def make(chromium):
        made.append(chromium)
        return PageDevice(html=COUNT, chromium=chromium)
    with pytest.raises(TypeError, match="Env"): PagedVectorEnv(make, 2)
    assert made and not any(c.alive for c in made)


def test_too_few_actions_and_none_is_done():
    with PagePool(2, lambda c: PageDevice(html=COUNT, chromium=c), browsers=1) as pool:
        pool.reset([0, 1])
        with pytest.raises(ValueError, match=r"not one for each: \[2, 1\]"): pool.perform([Action("click", x=.1, y=.1)])
        assert [d.page.evaluate("n") for d in pool.devices] == [0, 0]


def test_renderers_that_differ_leave_no_page(chromium, monkeypatch):
    monkeypatch.setattr(HtmlDevice, "perform", lambda self, action, draw=True: self.look(draw))
    before = len(chromium._listeners)
    with pytest.raises(AssertionError, match="login, seed 0"): check_renderers("login", chromium, range(1))
    assert len(chromium._listeners) == before
