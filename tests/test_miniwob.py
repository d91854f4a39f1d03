"MiniWoB++ pages: the same bytes whatever came before, no success for what is wrong, and a browser that dies."
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from math import cos, pi, sin
from random import Random

import gymnasium as gym
import pytest

from oaml.apps.app import random_action
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.device import DeviceError, ForceStop, StartActivity, StartIntent
from oaml.miniwob.device import ALL_TASKS, FAIR_SCRIPTS, MINIWOB_ORIGIN, RELOADED_TASKS, MiniwobDevice
from oaml.miniwob.env import register_miniwob
from oaml.miniwob.oracles import MiniwobOracle, miniwob_targets
from oaml.evals.baselines import RandomAgent
from oaml.evals.miniwob import Pages
from oaml.runtime.play import in_order, play
from oaml.schemas.sessions import Action
from oaml.ui.events import PointerDown, PointerMove, PointerUp, Tick

pytestmark = pytest.mark.skipif(bool(missing_browser()) or not find_spec("miniwob"),
                                reason="needs Chromium and the package miniwob")
EVERY = 1 if os.environ.get("OAML_ALL_TASKS") else 6  # all tasks take minutes

@pytest.fixture(scope="module")
def chromium():
    with Chromium() as browser: yield browser

def episode(device, seed, acts=3):
    "Hashes of the screens of an episode of random actions on what is seen, and what came of it."
    rng, hashes = Random(f"{device.task}:{seed}"), [device.reset(seed).screen_hash()]
    for _ in range(acts):
        action = random_action(rng, [e for e in device.read_elements() if e.box[1] > .22])
        hashes.append(device.perform(action).screen_hash())
    return hashes, device.goal.text, device.raw_reward

@pytest.mark.parametrize("task", ALL_TASKS[::EVERY])
def test_the_same_bytes_whatever_came_before(chromium, task):
    used, fresh = (MiniwobDevice(task, chromium=chromium) for _ in range(2))
    first = [episode(used, seed) for seed in (1, 2)]
    assert episode(fresh, 2) == first[1]
    assert episode(used, 1) == first[0]
    used.close(), fresh.close()

CLICK = "document.getElementById('subbtn').click()"
QUERY = "const query = document.getElementById('query').textContent;"

@pytest.mark.parametrize("task, js", [
    ("generate-number", """() => {
        for (let k = 1; !/even/.test(document.getElementById('query').textContent); k++) {
          Math.seedrandom(k); core.startEpisodeReal() }
        document.getElementById('submit').click() }"""),
    ("stock-market", f"""() => {{ {QUERY}
        document.getElementById('stock-price').textContent = '$' + parseFloat(query.split('$')[1])
        document.getElementById('buy').click() }}"""),
    ("use-autocomplete", f"""() => {{ {QUERY}
        document.getElementById('tags').value = query.match(/"[^"]*"/g).map(w => w.slice(1, -1)).join('zz')
        {CLICK} }}"""),
    ("daily-calendar", f"""() => {{ {QUERY}
        const [, from, half] = query.match(/between (\\d+)(AM|PM)/)
        const amount = query.match(/a ([\\d.]+) (min|hour)/), length = amount[2] == 'min' ? amount[1]/30 : amount[1]*2
        const start = 2*(from % 12 + 12*(half == 'PM')) - 1, at = k => document.getElementById('hh-' + k)
        const tell = (e, type) => e.dispatchEvent(new MouseEvent(type, {{bubbles: true}}))
        tell(at(start), 'mousedown'); tell(at(start + length - 1), 'mousemove')
        tell(document.getElementById('newEvent'), 'mouseup')
        document.getElementById('event-name').value = query.match(/"([^"]*)"/)[1]
        document.querySelector('.create').click() }}"""),
])
def test_what_is_paid_by_mistake_is_no_success(chromium, task, js):
    device = MiniwobDevice(task, chromium=chromium)
    device.reset(1), device.ask(js), device.feed([Tick(16)])
    assert (device.ended, device.raw_reward, device.solved()) == (True, 1, False)
    device.close()

def test_a_file_without_the_ending_is_no_success(chromium):
    device = MiniwobDevice("terminal", chromium=chromium)
    seed = next(s for s in range(20) if device.reset(s) and "extension ." in device.goal.text)
    device.perform(Action("wait"))
    name = "x" + device.goal.text.rpartition(".")[2]
    device.ask("name => { currentFiles.push(name) }", name)
    device.perform(Action("type", text=f"rm {name}")), device.perform(Action("key_press", key="Enter"))
    assert (seed, device.ended, device.raw_reward, device.solved()) == (seed, True, 1, False)
    device.close()

def drawn(device, points):
    "Draw a line through points of the page, and submit."
    begin, *on = points
    device.feed([PointerMove(*begin), PointerDown(*begin), *(PointerMove(*p) for p in on), PointerUp(*on[-1])])
    button = next(e for e in device.read_elements() if e.name == "Submit").box
    device.perform(Action("click", x=(button[0]+button[2])/2, y=(button[1]+button[3])/2))
    return device.raw_reward, device.solved()

def test_a_circle_goes_around_its_centre(chromium):
    device = MiniwobDevice("draw-circle", chromium=chromium)
    def centre():
        device.reset(1)
        return device.page.evaluate("(({x, y}) => [x + 4, y + 4])(document.getElementById('circ').getBoundingClientRect())")
    x, y = centre()
    a, b = -1 if x > 80 else 1, -1 if y > 110 else 1  # a line beside the centre, where there is room
    assert drawn(device, [(x + a*(32+k), y + b*(32-k)) for k in (-11, 11)]) == (1, False)
    centre()
    assert drawn(device, [(x + 22*cos(a*pi/18), y + 22*sin(a*pi/18)) for a in range(37)]) == (1, True)
    device.close()

def test_a_killed_browser_says_so_and_comes_back():
    device = MiniwobDevice("click-checkboxes")
    before = device.reset(5).screen_hash()
    os.killpg(device.chromium._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="gone"):
        for _ in range(2): device.perform(Action("wait"))
    again = device.reset(5)
    assert again.screen_hash() == before
    assert again.log == ("W/chromium: the page or its browser was gone and has been started again",)
    assert device.reset(5).log == ()
    device.close()

def test_a_browser_that_dies_costs_an_evaluation_nothing():
    class Once(RandomAgent):
        killed = False
        def act(self, views):
            if not self.killed and views[0].history: os.killpg(pages.pool.devices[0].chromium._process.pid, signal.SIGKILL)
            self.killed = self.killed or bool(views[0].history)
            return super().act(views)
    with Pages(2) as pages:
        alone = [(e.actions, e.success) for e in in_order(play(RandomAgent(), pages.show("click-checkboxes"), range(3)), range(3))]
        with pytest.warns(UserWarning, match="seeds 0 begin again: .*SIGKILL"):
            episodes = in_order(play(Once(), pages, range(3), retries=1), range(3))
    assert [(e.actions, e.success) for e in episodes] == alone
    assert {s.observation.image_path for e in episodes for s in e.steps} == {None}  # nobody asked for pictures

def test_pages_side_by_side_do_not_paste_what_another_copied():
    with Pages(2) as pages:
        assert [e.success for e in play(MiniwobOracle(), pages.show("copy-paste"), range(4))] == [True]*4

def test_what_was_copied_does_not_outlive_an_episode(chromium):
    device = MiniwobDevice("enter-text", chromium=chromium)
    box = "document.getElementById('tt')"
    device.reset(1), device.page.evaluate(f"() => {{ {box}.value = 'secret'; {box}.select() }}")
    device.perform(Action("key_press", key="ctrl+c"))
    device.reset(1), device.page.evaluate(f"{box}.focus()")
    device.perform(Action("key_press", key="ctrl+v"))
    assert device.page.evaluate(f"{box}.value") == ""
    device.close()

def test_a_switch_waits_for_the_next_episode(chromium):
    device = MiniwobDevice("click-test", chromium=chromium)
    device.reset(1), device.switch("enter-text")
    assert (device.task, device.activity()) == ("click-test", "app.oaml.miniwob/.click-test")
    device.manage(ForceStop("app.oaml.miniwob")), device.manage(StartActivity("app.oaml.miniwob/.click-test"))
    assert "button" in device.goal.text
    device.reset(1)
    assert device.task == "enter-text" and "text" in device.goal.text
    device.close()

def test_a_check_that_throws_is_no_success(chromium, monkeypatch):
    monkeypatch.setitem(FAIR_SCRIPTS, "click-test", "() => { throw 1 }")
    device = MiniwobDevice("click-test", chromium=chromium)
    device.reset(1), device.ask("() => { try { core.endEpisode(1) } catch {} }"), device.feed([Tick(16)])
    assert (device.ended, device.raw_reward, device.solved()) == (True, 1, False)
    device.close()

FORGERIES = {  # each wants the present episode of a task to count as solved, or what follows to be easier
    "the end": "core.endEpisode(1)",
    "the end, unfairly": "core.endEpisode(1); oamlWob.fair = true",
    "the reward": "WOB_DONE_GLOBAL = true; WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = 1",
    "another end": "core.endEpisode = () => { WOB_DONE_GLOBAL = true; WOB_RAW_REWARD_GLOBAL = 1 }; core.endEpisode()",
    "another judge": "window.oamlWob = {kept: [], fair: true, seconds: 1, last: 0}; window.eval = () => () => true",
    "the end, later": "setTimeout(core.endEpisode, 0, 1)",
    "the end, by the clock": "setTimeout(() => core.endEpisode(1), 0); oamlClock.tick(100)",
    "read as won": """for (const [name, value] of Object.entries({WOB_DONE_GLOBAL: true, WOB_RAW_REWARD_GLOBAL: 1, WOB_REWARD_GLOBAL: 1}))
        Object.defineProperty(window, name, {get: () => value})""",
    "every value": "for (const name of ['fair', 'done', 'value', 'toJSON']) Object.prototype[name] = 1; Array.prototype.toJSON = () => [true, 1, 1, true]",
    "elements for variables": "document.body.insertAdjacentHTML('beforeend', '<a id=WOB_DONE_GLOBAL><a id=core name=endEpisode><form id=oamlWob><input name=fair value=1></form>')",
    "presses that no hand made": """document.querySelectorAll('button, input, #area *').forEach(e => {
        for (const type of ['mousedown', 'mouseup', 'click']) e.dispatchEvent(new MouseEvent(type, {bubbles: true})); e.click?.() })""",
    "keys that no hand pressed": """['r', 'm', ' ', 'x', 'Enter'].forEach(key => document.activeElement.dispatchEvent(
        new KeyboardEvent('keydown', {key, keyCode: 13, bubbles: true})))""",
    "another problem": "window.genProblem = () => {}; Math.seedrandom = Math.random = () => 0; core.startEpisodeReal()",
    "another script": "document.head.append(Object.assign(document.createElement('script'), {textContent: 'core.endEpisode(1)'}))",
    "another page": "void (location = location.href.replace('miniwob/', 'core/'))",
    "an empty page": "document.open(); document.write('<script>var WOB_DONE_GLOBAL = true, WOB_RAW_REWARD_GLOBAL = 1</script>'); document.close()",
}

def oracle_wins(device, seed):
    "Whether the oracle solves an episode."
    device.reset(seed)
    acts = []
    while not device.ended and len(acts) < 20:
        acts.append(miniwob_targets(device, acts)[0].action)
        device.perform(acts[-1])
    return device.solved()

@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_script_in_the_document_cannot_win(chromium, forgery):
    device = MiniwobDevice("click-test", chromium=chromium)
    for task in ("click-test", "terminal"):
        device.switch(task)
        device.reset(4)
        try: device.page.evaluate(f"() => {{ {FORGERIES[forgery]} }}")
        except DeviceError: assert device.page.alive
        device.feed([Tick(16)]), device.perform(Action("wait"))
        assert (device.solved(), device.raw_reward) == (False, -1 if forgery == "another page" else 0)
        assert device.ended == (forgery == "another page")
        assert oracle_wins(device, 5)
    device.close()

def enter(device, *lines):
    "Type lines into a terminal."
    device.perform(Action("wait"))  # until it has the focus
    for line in lines: device.perform(Action("type", text=line)), device.perform(Action("key_press", key="Enter"))

@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_is_typed_is_no_script(chromium, forgery):
    device, script = MiniwobDevice("terminal", chromium=chromium), " ".join(FORGERIES[forgery].split())
    script = "document.title = 1; " + script.replace('"', "'")
    device.reset(4)
    enter(device, f'<img src=x onerror="{script}">', f'<a href="javascript:{script}" id=a>x</a>', f'<svg onload="{script}"></svg>', f"<script>{script}</script>",
          f"<b><script>{script}</script></b>", f"<svg><script>{script}</script></svg>", f'<iframe srcdoc="<script>top.{script}</script>"></iframe>')
    device.page.evaluate("document.getElementById('a').click()")
    device.perform(Action("wait"))
    assert (device.ended, device.solved(), device.page.evaluate("document.title")) == (False, False, "Terminal Task")
    assert oracle_wins(device, 5)
    device.close()

def test_what_is_typed_reads_no_file_and_leads_nowhere(chromium, tmp_path):
    (tmp_path/"a.html").write_text("secret")
    device, secret = MiniwobDevice("terminal", chromium=chromium), (tmp_path/"a.html").as_uri()
    for typed in (f"<iframe src={secret}></iframe>", f"<object data={secret}></object>", f"<meta http-equiv=refresh content=0;url={secret}>",
                  f"<base href={tmp_path.as_uri()}/>", "<form action=/core/core.js><input autofocus><button id=b></form>"):
        device.reset(4)
        enter(device, typed)
        device.page.evaluate("document.getElementById('b')?.click()")
        device.perform(Action("wait"))
        assert device.page.evaluate("[document.title, document.baseURI]") == ["Terminal Task", f"{MINIWOB_ORIGIN}/miniwob/terminal.html"]
        assert not device.page.evaluate("[...document.querySelectorAll('iframe, object')].some(e => e.contentDocument?.body?.textContent)")
        assert not device.ended
    device.close()

def test_a_page_that_goes_away_ends_its_episode(chromium):
    device = MiniwobDevice("terminal", chromium=chromium)
    before = device.reset(4).screen_hash()
    enter(device, "<meta http-equiv=refresh content=0;url=click-test.html>")
    for _ in range(3): device.perform(Action("wait"))
    assert (device.ended, device.solved(), device.reward) == (True, False, -1)
    assert device.reset(4).screen_hash() == before and oracle_wins(device, 5)
    device.close()

def test_tasks_can_prepare_it(chromium):
    device = MiniwobDevice("click-button", chromium=chromium)
    before = device.reset(2).screen_hash()
    device.manage(ForceStop("app.oaml.miniwob"))
    assert device.activity() == "" and device.perform(Action("click", x=.1, y=.4)).screen_hash() != before
    device.manage(StartActivity("app.oaml.miniwob/.click-button"))
    assert device.activity() == "app.oaml.miniwob/.click-button" and device.look().screen_hash() == before
    with pytest.raises(DeviceError, match="the one activity is"): device.manage(StartActivity("app.oaml.miniwob/.click-link"))
    with pytest.raises(DeviceError, match="no other page"): device.manage(StartIntent("https://example.org"))
    for key in ("BACK", "HOME"): assert device.perform(Action("key_press", key=key)).screen_hash() == before
    device.close()

def test_registering_opens_and_imports_nothing():
    program = """
import sys
from oaml.miniwob.device import ALL_TASKS
from oaml.miniwob.env import register_miniwob
register_miniwob()
import gymnasium
assert sum(id.startswith("oaml/miniwob.") for id in gymnasium.registry) == len(ALL_TASKS)
print([m for m in ("playwright", "selenium", "miniwob", "torch") if m in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr

def test_unknown_ids_and_left_overs():
    register_miniwob()
    with pytest.raises(gym.error.NameNotFound): gym.make("oaml/miniwob.click-buton-v1")
    assert set(RELOADED_TASKS) < set(ALL_TASKS)
