"Shown by hand on the page of `oaml show`, in Chromium, on each kind of device, then acted out with other values."
import json
import threading
import time
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("playwright", reason="Playwright drives the browser: pip install playwright")
for needed in ("starlette", "uvicorn", "httpx"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')

from lab import browser, chromium_path

from oaml.datasets.demonstrations import load_demonstration
from oaml.devices.app_device import AppDevice
from oaml.devices.catalog import open_device
from oaml.devices.connection import Chromium
from oaml.devices.daemon import serve_in_thread
from oaml.devices.device import DeviceError
from oaml.devices.oracle import acceptable_targets
from oaml.devices.serve import serve_device
from oaml.devices.window import WindowDevice
from oaml.ingest.episodes import load_episodes
from oaml.miniwob.device import missing_pages
from oaml.schemas.sessions import to_json
from oaml.scripts.act import CODES, PersonsDevice, act
from oaml.scripts.show import CANNOT_GO_BACK, DemonstrationEditor, DemonstrationRecorder, listen, show_device, show_server
from test_inspector import serious, settled

pytestmark = pytest.mark.skipif(chromium_path() is None, reason="no chromium, chromium-browser or google-chrome on the path")
PATIENCE = 60  # seconds; CI is busy


@pytest.fixture(scope="module")
def chromium():
    with browser() as one: yield one


class Person:
    "Somebody in front of the page, who has eyes, a mouse and a keyboard."
    def __init__(self, chromium, session, address, **how):
        self.session, self.page, self.noise = session, chromium.new_context(**dict(viewport=dict(width=1400, height=1000)) | how).new_page(), []
        self.page.on("console", lambda m: self.noise.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.noise.append(str(e)))
        self.page.goto(address)
        self.wait()

    def wait(self):
        "Until all that was done has come back."
        until = time.time() + PATIENCE
        while self.page.evaluate("Boolean(busy || queue.length || waiting || from || !state.mode)"):
            assert time.time() < until, self.page.locator("#problem").inner_text()
            self.page.wait_for_timeout(20)

    def at(self, x, y):
        "Pixels of the page where a place of the device's screen is."
        box = self.page.locator("#screen").bounding_box()
        return box["x"] + x*box["width"], box["y"] + y*box["height"]
    def press(self, name, role=None, **how):
        "Press what has this name."
        e = next(e for e in self.session.elements if e.name == name and role in (None, e.role))
        self.page.mouse.click(*self.at((e.box[0] + e.box[2])/2, (e.box[1] + e.box[3])/2), **how)
        self.wait()
    def type(self, text):
        "Key by key, on the screen."
        self.page.locator("#stage").focus()
        self.page.keyboard.type(text)
        self.wait()

    def do(self, action):
        "With mouse and keys, what an oracle would do."
        mouse, at = self.page.mouse, action.x is not None and self.at(action.x, action.y)
        if action.type == "click": mouse.click(*at)
        elif action.type == "double_click": mouse.dblclick(*at)
        elif action.type == "right_click": mouse.click(*at, button="right")
        elif action.type == "long_press": mouse.click(*at, delay=800)
        elif action.type == "drag":
            mouse.move(*at); mouse.down(); mouse.move(*self.at(action.x2, action.y2), steps=4); mouse.up()
        elif action.type == "scroll":
            size = self.page.locator("#screen").bounding_box()
            mouse.move(*at); mouse.wheel(action.dx*size["width"], action.dy*size["height"])
        elif action.type == "type": return self.type(action.text)
        elif action.type == "key_press":
            self.page.locator("#stage").focus()
            self.page.keyboard.press("+".join(dict(ctrl="Control", alt="Alt", shift="Shift", Left="ArrowLeft", Right="ArrowRight", Up="ArrowUp", Down="ArrowDown").get(k, k) for k in action.key.split("+")))
        elif action.type == "answer":
            self.page.locator("#text").fill(action.text)
            self.page.get_by_role("button", name="Answer it").click()
        self.page.wait_for_timeout(30)
        self.wait()

    def button(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()
        self.wait()
    def steps(self): return self.page.locator("#steps .words").all_inner_texts()
    def note(self): return self.page.locator("#note").inner_text()
    def problem(self): return self.page.locator("#problem").inner_text()


@contextmanager
def showing(chromium, out, device, goal=None, seed=0, spec="app:x", secrets=None, **how):
    "A person in front of a device."
    recorder = DemonstrationRecorder(PersonsDevice(device, goal, 500, secrets, spec), out, seed)
    server, address = show_server(recorder)
    with serve_in_thread(server):
        person = Person(chromium, recorder, address, **how)
        yield person
        assert not person.noise
        person.page.context.close()


def by_oracle(person, oracle, twin=None):
    "Let the person do what the oracle of the device, or of a twin of it, would; then press Done."
    while (action := acceptable_targets(oracle, oracle_acts := [s.action for s in person.session.writer.steps])[0].action).type != "done":
        person.do(action)
        if twin: twin.perform(action)
        assert len(oracle_acts) < 30
    person.button("Done")
    assert "Written to" in person.note(), person.problem()


def silent(line): pass


@pytest.mark.parametrize("kind", ["app", "html"])
@pytest.mark.parametrize(("app", "family"), [("login", "login"), ("calendar", "add"), ("mail", "archive")])
def test_an_application(chromium, tmp_path, kind, app, family):
    with closing(open_device(f"{kind}:{app}", goals=(family,))) as device:
        with showing(chromium, tmp_path/"demo.yaml", device, seed=4, spec=f"{kind}:{app}") as person:
            by_oracle(person, device)
            assert person.session.driver.success and len(person.steps()) >= 2
    shown, (episode,) = load_demonstration(tmp_path/"demo.yaml"), load_episodes(tmp_path/"demo-shown"/"results.episodes.jsonl")
    assert shown.values and episode.success and episode.agent == "you"
    assert "x:" not in (tmp_path/"demo.yaml").read_text()  # words, no places
    results = [act(f"{kind}:{app}", like=[str(tmp_path/"demo.yaml")], seed=seed, goals=(family,), say=silent).code for seed in (1_000_001, 1_000_002)]
    assert CODES["checked"] in results and CODES["wrong"] not in results


def test_the_list_is_the_file_and_marks_and_names_go_into_it(chromium, tmp_path):
    device = AppDevice("login", goals=("login",))
    with showing(chromium, tmp_path/"demo.yaml", device, seed=4) as person:
        fields = [e.name for e in person.session.elements if e.role == "textbox"]
        person.press(fields[0], "textbox")
        person.type("adx")
        person.page.keyboard.press("Backspace")
        person.wait()
        person.type("a")
        assert len(person.steps()) == 1 and "'ada'" in person.steps()[0]
        person.button("Undo"); person.button("Undo"); person.button("Undo")  # the letter, the key, the letters
        assert person.steps() == []
        assert next(e.value for e in person.session.elements if e.role == "textbox") == ""
        for name in fields[:2]:
            person.press(name, "textbox")
            person.type(device.goal["password" if "assword" in name else "username"])
        person.page.locator("#values input[type=text]").first.fill("account")
        person.page.locator("#values input[type=text]").first.press("Enter")
        person.wait()
        assert "{account}" in " ".join(person.steps())
        person.page.locator("#values input[type=text]").first.fill("No Name")
        person.page.locator("#values input[type=text]").first.press("Enter")
        person.wait()
        assert "is no name" in person.problem()
        person.page.get_by_label("Step 1, optional").check()
        person.wait()
        person.button("Pause")
        person.press(next(e.name for e in person.session.elements if e.role == "button"), "button")
        assert len(person.steps()) == 2 and person.page.locator("#pause").get_attribute("aria-pressed") == "true"
        person.button("Pause")
        person.page.reload()  # nothing is lost with the page
        person.wait()
        lines = person.steps()
        person.button("Done")
    shown = load_demonstration(tmp_path/"demo.yaml")
    assert shown.steps[0].optional and "account" in shown.values and len(shown.steps) == len(lines) == 2


PAGE = b"""<!doctype html><html lang=en><title>Tea</title><h1>Tea house</h1>
<label>Your name <input id=name></label> <label>How many <input id=n value=1></label>
<p id=list></p><script>
for (const tea of ["Green tea", "Black tea", "Mint tea"]) {
  const b = document.createElement("button"); b.textContent = tea
  b.onclick = async () => { await fetch("/order", {method: "POST", body: JSON.stringify([tea, document.getElementById("n").value, document.getElementById("name").value])}); list.textContent = "Ordered: " + tea }
  document.body.append(b)
}</script>"""


@contextmanager
def tea_house():
    "A page on this machine, and what was ordered there."
    orders = []
    class Handler(BaseHTTPRequestHandler):
        def answer(self, body=b""):
            self.send_response(200); self.send_header("content-type", "text/html"); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
        def do_GET(self): self.answer(PAGE)
        def do_POST(self):
            orders.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.answer()
        def log_message(self, *_): pass
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try: yield f"page:http://127.0.0.1:{server.server_port}/", orders
    finally: server.shutdown(); server.server_close()


def test_a_page(chromium, tmp_path):
    with tea_house() as (spec, orders):
        with closing(open_device(spec, own_time=False, size=(640, 400))) as device, \
             showing(chromium, tmp_path/"demo.yaml", device, "Order '3' of 'Black tea' for 'Ada'.", spec=spec) as person:
            person.press("How many", "textbox")
            person.page.keyboard.press("Control+a"); person.wait()
            person.type("3")
            person.press("Your name", "textbox")
            person.type("Ada")
            person.press("Mint tea", "button")
            person.button("Undo")  # the tea is ordered, and nothing brings it back
            assert person.note() == CANNOT_GO_BACK and person.session.paused
            person.button("Pause")
            person.press("Black tea", "button")
            person.button("Done")
            assert "Written to" in person.note()
        assert orders == [["Mint tea", "3", "Ada"], ["Black tea", "3", "Ada"]]
        done = act(spec, "Order '12' of 'Green tea' for 'Grace Hopper'.", like=[str(tmp_path/"demo.yaml")], size=(900, 500), say=silent)
        assert (done.code, orders[2:]) == (CODES["unchecked"], [["Green tea", "12", "Grace Hopper"]]), done.words
        none = act(spec, "Order '1' of 'Oolong' for 'Ada'.", like=[str(tmp_path/"demo.yaml")], size=(900, 500), say=silent)
        assert (none.code, len(orders)) == (CODES["halted"], 3)


@pytest.mark.skipif(missing_pages() is not None, reason=str(missing_pages()))
def test_a_task_of_miniwob(chromium, tmp_path):
    spec = "miniwob:enter-text"
    with closing(open_device(spec)) as device, showing(chromium, tmp_path/"demo.yaml", device, seed=1, spec=spec) as person:
        word = device.goal.text.split('"')[1]
        field = next(e.name for e in person.session.elements if e.role == "textbox")
        person.press(field, "textbox")
        person.type("oops")
        person.button("Undo")  # from the start, once more
        assert [s.action.type for s in person.session.writer.steps] == ["click"]
        person.type(word)
        person.press("Submit", "button")
        assert person.session.driver.success
        person.button("Done")
    results = [act(spec, like=[str(tmp_path/"demo.yaml")], seed=seed, say=silent) for seed in (2_000_001, 2_000_002)]
    assert [r.code for r in results] == [CODES["checked"]]*2, [r.words for r in results]


def test_a_device_that_another_machine_lends(chromium, tmp_path):
    twin = AppDevice("login", goals=("login",))
    twin.reset(4)
    with serve_device("app:login", options=dict(goals=("login",))) as served:
        with closing(open_device(served.url)) as device, showing(chromium, tmp_path/"demo.yaml", device, twin.goal.text, seed=4, spec=served.url) as person:
            assert person.session.goes_back == "again"
            by_oracle(person, twin, twin)
        other = AppDevice("login", goals=("login",))
        other.reset(1_000_001)
        done = act(served.url, other.goal.text, like=[str(tmp_path/"demo.yaml")], seed=1_000_001, say=silent)
    assert done.code == CODES["unchecked"], done.words


def test_a_phone(chromium, tmp_path):
    from oaml.devices import android
    from oaml.devices.hierarchy import missing_lxml
    if why := android.missing_adb() or missing_lxml(): pytest.skip(why)
    from fake_android import fake_phone
    with fake_phone("login@phone") as phone:
        rest = {k: v for k, v in phone.attached.items() if k != "serial"} | dict(settle=0.)
        spec, twin = f"android:{phone.attached['serial']}", AppDevice("login@phone")
        twin.reset(4)
        with closing(open_device(spec, **rest)) as device, showing(chromium, tmp_path/"demo.yaml", device, twin.goal.text, seed=4, spec=spec) as person:
            by_oracle(person, twin, twin)
        again = AppDevice("login@phone")
        again.reset(1_000_001)
        done = act(spec, again.goal.text, like=[str(tmp_path/"demo.yaml")], seed=1_000_001, say=silent, **rest)
        assert done.code in (CODES["unchecked"], CODES["halted"]), done.words
        assert done.code == CODES["unchecked"] and phone.device.solved(), done.words


def test_a_secret_is_in_no_file(chromium, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "tr0ub4dor&3")
    goal, secrets = "Log in as 'ada' with the password {password}.", dict(password="tr0ub4dor&3")
    with showing(chromium, tmp_path/"demo.yaml", AppDevice("login"), goal, 4, secrets=secrets) as person:
        fields = [e.name for e in person.session.elements if e.role == "textbox"]
        person.press(fields[0], "textbox"); person.type("ada")
        person.press(fields[1], "textbox"); person.type("tr0ub4dor&3")
        person.button("Undo")
        person.button("Type {password}")
        assert "tr0ub4dor" not in person.page.content()
        person.button("Done")
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 3 and not any(b"tr0ub4dor" in p.read_bytes() for p in files)
    shown = load_demonstration(tmp_path/"demo.yaml")
    assert [(s.value, s.source) for s in shown.steps][-1] == ("{password}", "secret")
    done = act("app:login", "Log in as 'grace' with the password {password}.", like=[str(tmp_path/"demo.yaml")], seed=9, secrets=dict(password="MY_SECRET"), say=silent)
    typed = [a.text for a in done.episode.actions if a.type == "type"]
    assert typed == ["grace", "{password}"], done.words


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_is_accessible(chromium, tmp_path, scheme, width):
    with showing(chromium, tmp_path/"demo.yaml", AppDevice("mail"), seed=4, color_scheme=scheme, viewport=dict(width=width, height=900), bypass_csp=True) as person:
        person.page.locator("#things summary").click()
        person.page.locator("#things button").first.focus()
        person.page.keyboard.press("Enter")  # without a pointer
        person.wait()
        assert person.steps()
        settled(person.page)
        assert serious(person.page) == []
        assert person.page.evaluate("document.documentElement.scrollWidth") <= width
    editor = DemonstrationEditor(_file(tmp_path))
    server, address = show_server(editor)
    with serve_in_thread(server):
        person = Person(chromium, editor, address, color_scheme=scheme, viewport=dict(width=width, height=900), bypass_csp=True)
        settled(person.page)
        assert serious(person.page) == []
        person.page.context.close()


def _file(folder):
    path = folder/"file.yaml"
    path.write_text("demonstration: 1\ngoal: Send '{to}' a mail.\nvalues: {to: Ada}\nsteps:\n- {do: press, what: {role: button, name: Compose}}\n- {do: enter, what: {role: textbox, name: To}, value: '{to}', source: goal}\n")
    return path


def test_a_file_is_changed_on_the_page(chromium, tmp_path):
    editor = DemonstrationEditor(_file(tmp_path))
    server, address = show_server(editor)
    with serve_in_thread(server):
        person = Person(chromium, editor, address)
        assert person.page.locator("#live").is_hidden() and len(person.steps()) == 2
        text = person.page.locator("#yaml").input_value()
        person.page.locator("#yaml").fill(text.replace("do: press", "do: prss"))
        person.button("Check it")
        assert "steps[0].do" in person.problem()
        person.page.locator("#yaml").fill(text.replace("Compose", "New message"))
        person.button("Check it")
        assert "New message" in person.steps()[0]
        person.page.get_by_label("Step 1, until there is no more").check()
        person.wait()
        person.button("Done")
        assert "Written to" in person.note() and not person.noise
        person.page.context.close()
    shown = load_demonstration(tmp_path/"file.yaml")
    assert shown.steps[0].until_gone and shown.steps[0].what.name == "New message"


def test_what_goes_wrong_is_said_and_nothing_is_done_twice(chromium, tmp_path):
    class Fragile(AppDevice):
        broken = False
        def perform(self, action, **how):
            if self.broken: raise DeviceError("the phone is gone")
            return super().perform(action, **how)
    device = Fragile("login")
    with showing(chromium, tmp_path/"demo.yaml", device, seed=4) as person:
        person.button("Done")
        assert "nothing was shown yet" in person.problem()
        field = next(e.name for e in person.session.elements if e.role == "textbox")
        device.broken = True
        person.press(field, "textbox")
        assert "the phone is gone" in person.problem() and person.session.writer.steps == []
        device.broken = False
        person.press(field, "textbox")
        assert not person.problem() and len(person.session.writer.steps) == 1
        old = person.page.url.split("#")[0] + "#wrong"
        stranger = person.page.context.new_page()
        stranger.goto(old)
        stranger.locator("#problem", has_text="an old one").wait_for()
        stranger.close()
        person.noise.clear()  # the 401 that the stranger got


def test_ctrl_c_keeps_what_was_shown(tmp_path):
    def person(address):
        import urllib.request
        url, token = address.split("/#")
        for message in (dict(do="act", action=dict(type="click", x=.5, y=.3)), dict(do="act", action=dict(type="key_press", key="Enter"))):
            urllib.request.urlopen(urllib.request.Request(f"{url}/do", json.dumps(message).encode(), {"Authorization": f"Bearer {token}"})).read()
        raise KeyboardInterrupt
    shown = show_device("app:login", tmp_path/"demo.yaml", seed=7, open_page=person, say=silent)
    assert load_demonstration(tmp_path/"demo.yaml") == shown and (tmp_path/"demo-shown"/"results.episodes.jsonl").exists()
    with suppress(KeyboardInterrupt):
        def leaves(address): raise KeyboardInterrupt
        show_device("app:login", tmp_path/"none.yaml", open_page=leaves, say=silent)
    assert not (tmp_path/"none.yaml").exists()
    assert to_json(shown)


FORM = """data:text/html,<title>Shop</title><h1>Shop</h1><label>Item <input id=i></label> <label>Key <input id=k type=password></label>
<button onclick="document.querySelector('p').textContent = 'Ordered ' + document.getElementById('i').value">Order</button><p></p>"""


def test_a_window_is_listened_to(tmp_path):
    device, said = WindowDevice(FORM, (600, 200), None, Chromium()), []  # without a head; a person's window differs in nothing that is listened to
    with closing(device):
        recorder = DemonstrationRecorder(PersonsDevice(device, "Order 'Tea'.", 100, dict(key="hunter22"), "page:x"), tmp_path/"order.yaml")
        thread = listen(recorder, device, said.append)
        def until(done):
            end = time.time() + PATIENCE
            while not done(): assert time.time() < end, (said, recorder.last); time.sleep(.05)
        def press(where):
            n = len(recorder.history)
            x, y = device.page.evaluate(f"(() => {{ const r = document.querySelector('{where}').getBoundingClientRect(); return [r.x + r.width/2, r.y + r.height/2] }})()")
            for kind in ("mousePressed", "mouseReleased"): device.page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            until(lambda: len(recorder.history) > n)
        def type(text, kept):
            for c in text: device.page.send("Input.dispatchKeyEvent", type="keyDown", key=c, text=c)
            until(kept)
        press("#i"); type("Tea", lambda: recorder.history[-1][0].text == "Tea")
        press("#k"); type("guess", lambda: any("--secret" in s for s in said))
        assert device.page.evaluate("document.getElementById('k').value") == ""
        type("hunter22", lambda: recorder.history[-1][0].text == "{key}")
        press("button")
        until(lambda: device.page.evaluate("document.querySelector('p').textContent") == "Ordered Tea")
        device.chromium.send("Target.closeTarget", targetId=device.page._target)  # the person closes it
        thread.join(PATIENCE)
    shown = load_demonstration(tmp_path/"order.yaml")
    assert [(s.do, s.value) for s in shown.steps] == [("enter", "{item}"), ("enter", "{key}"), ("press", "")] and shown.values["item"] == "Tea"
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and b"hunter22" in f.read_bytes()]
