"""Every device under one examination, one task through every interface, and what a notebook cannot show of the latter.

The notebooks of chapter 06 explain the interfaces and 00c the dialects; here they meet every device that this machine
has, dm_env's own test, invented acts, and clients that misbehave.
"""
import json
import pickle
import socket
import threading
import time
from contextlib import contextmanager
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

import oaml.envs
import oaml.tasks
from oaml.apps.app import random_action
from oaml.devices.app_device import AppDevice
from oaml.devices.device import Frame
from oaml.envs.gym_env import ENV_TYPES, AppEnv
from oaml.devices.oracle import acceptable_targets
from oaml.schemas.dialects import BOMBS, DIALECTS, DialectError, check_dialect
from oaml.schemas.sessions import Action
from oaml.ui.events import compile_action

pytest.importorskip("dm_env", reason='pip install "oaml[mobile]"')
pytest.importorskip("lxml.cssselect", reason='pip install "oaml[mobile]"')
from dm_env import specs
from oaml.devices.checks import check_device
from oaml.envs.checks import INTERFACES, check_interfaces
from oaml.envs import openenv, wrappers
from oaml.devices.device import AdbCommand, DeviceError, InstallApk, PressButton, ShellCommand
from oaml.devices.episode import EpisodeDriver
from oaml.envs.dm import DmEnv, Vocabulary, load
from oaml.envs.openenv import serve_openenv
from oaml.tasks.task_env import TaskEnv, TaskFailure, prepare
from oaml.tasks.definition import (AppScreen, EventNode, EventSlots, EventSource, ResponseEvent, SetupStep, SuccessCondition, Task, WaitForMessage, load_task,
                                   to_textproto)
from oaml.tasks.vision import TreeTextModel
from oaml.envs.wrappers import (BaseWrapper, DiscreteAction, GymInterface, ImageRescale, TapAction,
                                TextAction, VhIo)
from oaml.ingest.recorder import ActionReader, Recorder
from oaml.ingest.store import load_sessions

LOGIN = load_task(Path(oaml.tasks.__file__).parent/"task_files"/"login.textproto")
GOALS = dict(goals=("login",))


@pytest.fixture(scope="module")
def chromium():
    "One browser for all tests; None if it cannot be had, with the reason."
    from oaml.devices.connection import Chromium, missing_browser
    missing = missing_browser()
    running = None if missing else Chromium()
    yield running, missing
    if running: running.close()


def browser(chromium):
    "The browser, or a skip that says what is missing."
    if chromium[1]: pytest.skip(chromium[1])
    return chromium[0]


@contextmanager
def app(chromium):
    yield lambda: AppDevice("login", **GOALS)


@contextmanager
def phone_app(chromium):
    yield lambda: AppDevice("login@phone", **GOALS)


@contextmanager
def remote(chromium):
    pytest.importorskip("httpx", reason='pip install "oaml[serve]"')
    pytest.importorskip("uvicorn", reason='pip install "oaml[serve]"')
    from oaml.devices.remote import RemoteDevice
    from oaml.devices.serve import serve_device
    with serve_device(lambda: AppDevice("login", **GOALS)) as served: yield lambda: RemoteDevice(served.url)


@contextmanager
def html(chromium):
    from oaml.devices.html_page import HtmlDevice
    yield lambda: HtmlDevice("login", chromium=browser(chromium), **GOALS)


def page_of(seed):
    "A page with a field, a button and a number by chance."
    return f"<h1>Page {seed}</h1><input><button onclick='this.textContent += Math.random()'>Go {seed}</button>"


@contextmanager
def page(chromium):
    from oaml.devices.chromium import PageDevice
    yield lambda: PageDevice(html=page_of, chromium=browser(chromium))


@contextmanager
def miniwob(chromium):
    pytest.importorskip("miniwob", reason='pip install "oaml[browser]"')
    from oaml.miniwob.device import MiniwobDevice
    yield lambda: MiniwobDevice("click-button", chromium=browser(chromium))


@contextmanager
def android(chromium):
    from oaml.devices.android import AndroidDevice, missing_adb
    if missing := missing_adb(): pytest.skip(missing)
    from fake_android import fake_phone
    with fake_phone("login", **GOALS) as phone: yield lambda: AndroidDevice(**phone.attached)


@pytest.mark.parametrize("kind", [app, phone_app, remote, html, page, miniwob, android], ids=lambda k: k.__name__)
def test_device_keeps_its_promises(kind, chromium):
    seeds, steps = ((0, 1, 2), 8) if kind in (app, phone_app) else ((0, 1), 3)
    with kind(chromium) as make: check_device(make, seeds, steps)


def oracle_acts(size, seed):
    "What the login application's oracle does on a screen of this size, to the goal."
    device, acts = AppDevice("login", size, **GOALS), []
    device.reset(seed)
    while not device.solved():
        acts.append(acceptable_targets(device)[0].action)
        device.perform(acts[-1])
    return acts


@pytest.mark.parametrize("kind", [app, remote, html, android], ids=lambda k: k.__name__)
def test_interfaces_agree_on_every_device(kind, chromium):
    with kind(chromium) as make:
        device = make()
        size = device.size
        device.close()
        rewards = check_interfaces(lambda: TaskEnv(make(), LOGIN, TreeTextModel()), 11, oracle_acts(size, 11))
    assert set(rewards) == set(INTERFACES) and set(map(tuple, rewards.values())) == {(0, 1, 0, 0, 4)}


def login_env(): return TaskEnv(AppDevice("login", **GOALS), LOGIN, TreeTextModel())


def test_interfaces_agree_on_careless_acts():
    for seed in range(4):
        device, acts = AppDevice("login", **GOALS), []
        device.reset(seed)
        for _ in range(15):
            acts.append(random_action(Random(f"{seed}:{len(acts)}"), device.last_elements))
            device.perform(acts[-1])
        check_interfaces(login_env, seed, acts + [Action("done")])


# dm_env's own examination

def login_dm(**kw):
    "The login task under dm_env, with tokens."
    return DmEnv(login_env(), ["al", "##ice", "bob"], **kw)


def examine(make):
    "dm_env's own suite on what `make` makes."
    from absl.testing import absltest
    from dm_env import test_utils

    class Examined(test_utils.EnvironmentTestMixin, absltest.TestCase):
        def make_object_under_test(self): return make()
        def assertValidStep(self, step):
            # The one thing that differs on purpose: Mobile-Env's loop begins with `reward = step.reward` and adds to it,
            # so a first step has a number where dm_env has None.
            if step.first():
                self.assertEqual((step.reward, step.discount), (0., None))
                step = step._replace(reward=None)
            super().assertValidStep(step)
    result = absltest.unittest.TestResult()
    absltest.unittest.defaultTestLoader.loadTestsFromTestCase(Examined).run(result)
    assert result.testsRun == 4 and result.wasSuccessful(), "\n".join(m for _, m in result.errors + result.failures)


@pytest.mark.parametrize("kind", [app, phone_app, remote, html, page, miniwob, android], ids=lambda k: k.__name__)
def test_dm_env_own_checks_on_every_device(kind, chromium):
    with kind(chromium) as make:
        examine(lambda: DmEnv(TaskEnv(make(), Task("any", max_num_steps=7)), ["al", "##ice"], with_view_hierarchy=True))


def login_with_tree(): return login_dm(with_view_hierarchy=True)
AROUND = {"DmEnv": lambda folder: login_with_tree(), "without a tree": lambda folder: login_dm(),
          "BaseWrapper": lambda folder: BaseWrapper(login_with_tree()),
          "DiscreteAction": lambda folder: DiscreteAction(login_with_tree(), (3, 4)),
          "ImageRescale": lambda folder: ImageRescale(login_with_tree(), grayscale=True),
          "TapAction": lambda folder: TapAction(login_with_tree()),
          "TextAction": lambda folder: TextAction(login_with_tree()), "VhIo": lambda folder: VhIo(login_with_tree()),
          "Recorder": lambda folder: Recorder(login_with_tree(), folder/str(len(list(folder.iterdir())))),
          "several": lambda folder: ImageRescale(VhIo(Recorder(login_with_tree(), folder/str(len(list(folder.iterdir()))))))}


@pytest.mark.parametrize("around", AROUND)
def test_dm_env_own_checks_on_every_wrapper(around, tmp_path): examine(lambda: AROUND[around](tmp_path))


# what a spec allows never raises

def members(spec):
    "Any value of a spec of an action."
    if isinstance(spec, specs.DiscreteArray): return st.integers(0, int(spec.num_values)-1).map(np.int32)
    if isinstance(spec, specs.StringArray): return st.text(max_size=40).map(lambda t: np.array(t, dtype=object))
    return st.tuples(*[st.sampled_from([0., 1.]) | st.floats(0, 1, width=32)]*2).map(lambda v: np.array(v, spec.dtype))


ANY_TEXT = st.text(st.characters(), max_size=9) | st.sampled_from(["", "\ud800", "two\nlines", "\0", "CLICK(x=2, y=0)"])


@pytest.mark.parametrize("gym", [False, True], ids=["dm", "gym"])
@pytest.mark.parametrize("around", AROUND)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_actions_of_the_spec_never_raise(around, gym, tmp_path_factory, data):
    env = AROUND[around](tmp_path_factory.mktemp("recorded"))
    faced = GymInterface(env) if gym else env
    faced.reset()
    over = False
    for _ in range(8):
        action = {k: data.draw(members(v)) for k, v in env.action_spec().items()}
        action |= {k: np.array(data.draw(ANY_TEXT), dtype=object) for k in ("text", "response") if k in action}
        for k, v in action.items(): env.action_spec()[k].validate(v)
        if over: faced.reset()
        step = faced.step(action)
        over = step[2] or step[3] if gym else step.last()
        if gym: assert step[4]["invalid"] == (env.invalid or None)
    env.close()
    if isinstance(env, Recorder): assert load_sessions(env.folder)


@pytest.mark.parametrize("env, action, why", [
    ("TapAction", dict(action_type=3, text=""), "text: is empty"), ("TextAction", dict(text=""), "there is no action in ''"),
    ("TextAction", dict(text="I would rather not"), "line 1"), ("VhIo", dict(action_type=1, element_id=199), "199 is not on the screen"),
    ("VhIo", dict(action_type=2, element_id=199, text="a"), "199 is not on the screen"),
    ("VhIo", dict(action_type=2, element_id=2, text=""), "text: is empty")])
def test_acts_without_effect_cost_a_step_and_say_why(env, action, why, tmp_path):
    env = AROUND[env](tmp_path)
    before = env.reset_to(11).observation["pixels"]
    step = env.step(action)
    assert why in env.invalid and (env.observation_spec()["pixels"].validate(step.observation["pixels"]) == before).all()
    assert (step.mid(), env.raw_env.env.steps, env.raw_env.env.last.reward) == (True, 1, 0)
    env.step(Action("wait"))
    assert env.invalid == ""


@settings(max_examples=60, deadline=None)
@given(st.integers(-20, 20), st.integers(-40, 40), ANY_TEXT, st.floats(-2, 2))
def test_app_env_takes_no_number_from_the_end(kind, key, text, x):
    env = AppEnv("login")
    env.reset(seed=3)
    _, reward, terminated, truncated, info = env.step(dict(type=kind, point=(x, .5), to=(.5, x), scroll=(0, x), text=text, key=key))
    assert not reward and (terminated == (kind == len(ENV_TYPES)-1) or info["invalid"])
    if not 0 <= kind < len(ENV_TYPES): assert info["invalid"] and not terminated and "type: " in info["invalid"]


words = st.lists(st.text("abcé", min_size=1, max_size=9), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(words, st.data(), st.sampled_from([("", "##"), ("Ġ", ""), ("<", ">")]))
def test_pieces_make_the_text_again(text, data, marks):
    pieces = []
    for word in text:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(word)-1), max_size=3))) if len(word) > 1 else []
        parts = [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)])]
        pieces += [marks[k > 0] + part for k, part in enumerate(parts)]
    vocabulary, typed = Vocabulary(tuple(pieces), *marks), ""
    for k in range(len(pieces)): typed += "".join(e.text for e in vocabulary.events(k, bool(typed)))
    assert typed == " ".join(text)


# What is recorded of touches is what happened

fractions = st.integers(0, 63).map(lambda k: (k+.5)/64)
kinds = st.sampled_from(["tap", "tap", "text", "hold", "drag"])
gestures = st.lists(st.tuples(kinds, st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8)


def middle_of(device, k):
    "The middle of one of what is on the screen."
    x0, y0, x1, y1 = device.last_elements[k % len(device.last_elements)].box
    return dict(action_type=0, touch_position=np.array([(x0+x1)/2, (y0+y1)/2]))


@settings(max_examples=25, deadline=None)
@given(gestures, st.integers(0, 20))
def test_recorded_touches_replay_to_the_same_state(tmp_path_factory, drawn, seed):
    folder = tmp_path_factory.mktemp("recorded")
    patient = replace(LOGIN, max_num_steps=0, expected_app_screen=None, event_slots=type(LOGIN.event_slots)())
    device = AppDevice("login", **GOALS)
    env = Recorder(DmEnv(TaskEnv(device, patient, TreeTextModel()), ["al", "##ice"]), folder)
    env.reset_to(seed)
    lift, wait, token = dict(action_type=1), dict(action_type=2), dict(action_type=3, input_token=0)
    for kind, k, to in drawn:
        down = middle_of(device, k)
        steps = dict(tap=[down, lift], hold=[down, *[wait]*14, lift], text=[token, token],
                     drag=[down, middle_of(device, to), lift])[kind]
        for step in steps + [wait]*8: env.step(step)
    env.close()
    episode, = load_sessions(folder)[0].episodes
    again = AppDevice("login", **GOALS)
    TaskEnv(again, patient, TreeTextModel()).reset(seed)
    for step in episode.steps: again.perform(step.action)
    assert again.screen.app == device.screen.app


presses = st.sampled_from(["click", "right_click", "long_press", "double_click"])
plain = st.one_of(st.builds(lambda t, x, y: Action(t, x, y), presses, fractions, fractions),
                  st.builds(lambda x, y, d: Action("scroll", x, y, dx=0., dy=d), fractions, fractions, fractions),
                  st.builds(lambda t: Action("answer", text=t), st.text("abcé ", min_size=1)),
                  st.builds(lambda t: Action("type", text=t), st.text("abcé ", min_size=1).filter(str.strip)),
                  st.sampled_from([Action("key_press", key="Enter"), Action("wait")]))


@settings(max_examples=200, deadline=None)
@given(st.lists(plain, max_size=6))
def test_reader_undoes_the_compiler(actions):
    reader, frame = ActionReader(), Frame(np.zeros((320, 640, 3), np.uint8))
    for action in actions: reader.read(frame, compile_action(action, frame.size)), reader.finish()
    reader.finish()
    got = [a for _, a in reader.acts]
    assert [a.type for a in got] == [a.type for a in actions]
    assert all(abs(a.x - b.x) < 1e-9 and abs(a.y - b.y) < 1e-9 for a, b in zip(got, actions) if b.x is not None)
    assert [a.text for a in got] == [a.text for a in actions]


def test_recorder_of_whole_acts_and_their_responses(tmp_path):
    env = TapAction(Recorder(DmEnv(login_env()), tmp_path))
    env.reset_to(11)
    for _ in range(2): env.step(dict(action_type=1, touch_position=(.5, .5), response="hi"))
    env.close()
    episode, = load_sessions(tmp_path)[0].episodes
    assert [s.action for s in episode.steps] == [Action("click", .5, .5), Action("answer", text="hi")]*2
    assert not any(s.action.raw for s in episode.steps)


@pytest.mark.parametrize("by_hand", [False, True])
def test_recorder_of_an_episode_that_its_first_screen_ends(tmp_path, by_hand):
    at_once = replace(LOGIN, expected_app_screen=AppScreen("app.oaml.mail/.Main"))
    env = Recorder(DmEnv(TaskEnv(AppDevice("login", **GOALS), at_once, TreeTextModel())), tmp_path)
    first = env.reset_to(11)
    last = env.step(dict(action_type=0, touch_position=(.5, .5)) if by_hand else Action("wait"))
    assert (first.last(), last.last(), last.discount, env.step("anything").first()) == (False, True, 1., True)
    env.close()
    assert [(e.steps, e.meta["ended"]) for e in env.session.episodes] == [([], "truncated"), ([], "left")]


@pytest.mark.parametrize("wrap", [BaseWrapper, TapAction, TextAction, VhIo, DiscreteAction, Recorder])
@pytest.mark.parametrize("fail", [lambda e: e.switch_task(5), lambda e: e.reset_to(3_000_000)], ids=["task", "seed"])
def test_a_failed_reset_leaves_a_wrapper_whole(tmp_path, wrap, fail):
    env = wrap(login_dm(with_view_hierarchy=True), *[tmp_path]*(wrap is Recorder))
    env.reset_to(11)
    with pytest.raises((IndexError, ValueError)): fail(env)
    assert env.step("anything").first() and not env.step(Action("wait")).first()
    env.close()


# What a task file may do

def test_commands_of_a_task_need_consent(chromium, tmp_path):
    key = tmp_path/"bashrc"
    task = Task("t", reset_steps=(SetupStep(AdbCommand(("keygen", str(key)))),))  # adb writes a key into any file of this machine
    with android(chromium) as make:
        for take_up in (lambda: TaskEnv(make(), task).reset(1), lambda: prepare(make(), task.reset_steps)):
            with pytest.raises(PermissionError, match=r"steps\[0\].adb_call.adb_command: would run 'keygen .*pass shell=True"): take_up()
            assert not key.exists()
        TaskEnv(make(), task, shell=True).reset(1)
    assert key.exists()


def test_load_passes_on_consent_and_similarity(tmp_path):
    task = Task("t", reset_steps=(SetupStep(ShellCommand(("id",))),), event_sources=(EventSource(ResponseEvent("a cat", "SBERT", .5), 1),),
                event_slots=EventSlots(reward_listener=EventNode(events=(1,))))
    (tmp_path/"t.textproto").write_text(to_textproto(task))
    def loaded(**how): return load(tmp_path, device="app:login", **how)
    with pytest.raises(ValueError, match="SBERT compares by meaning"): loaded(shell=True)
    with pytest.raises(PermissionError, match="task 't': reset_steps"): loaded(similarity=lambda a, b: .9)
    assert loaded(similarity=lambda a, b: .9, shell=True).env.signals.sources[1].match("kitten") == .9


@pytest.mark.parametrize("where", ["screen", "response"])
def test_a_search_that_takes_too_long_is_the_tasks_fault(where):
    slow = r"(?:.|..|...)+(.)\1\1$"
    screen, source = AppScreen("app.oaml.login/.Main", (slow,)), EventSource(ResponseEvent(slow), 1)
    task = replace(LOGIN, expected_app_screen=screen if where == "screen" else None, event_slots=EventSlots(),
                   event_sources=(source,) if where == "response" else ())
    env = TaskEnv(AppDevice("login", **GOALS), task)
    with pytest.raises(TaskFailure, match="takes more than 1 s"): env.reset(1), env.perform(Action("wait"), "ab"*50)


def test_the_seeds_names_of_wrappers():
    assert (wrappers.DiscreteActionWrapper, wrappers.ImageRescaleWrapper, wrappers.GymInterfaceWrapper, wrappers.VhIoWrapper) == (
        DiscreteAction, wrappers.ImageRescale, GymInterface, VhIo) and wrappers.BaseWrapper is BaseWrapper


# Whose fault it was

def broken_task(): return TaskEnv(AppDevice("login", **GOALS), replace(LOGIN, event_sources=(
    EventSource(ResponseEvent("(.+)"), 1),), event_slots=EventSlots(reward_listener=EventNode(
        events=(1,), transformation=("y = float(x[0])",)))))


def test_the_task_is_at_fault_not_the_agent():
    act = dict(action_type=0, response="four")
    for env, step in ((TapAction(DmEnv(broken_task())), act), (DmEnv(broken_task()), dict(action_type=2, response="four"))):
        gym_env = GymInterface(env)
        gym_env.reset(seed=1)
        assert "action_type" in gym_env.step(dict(action_type=99))[4]["invalid"]
        with pytest.raises(TaskFailure, match="task 'login': .*float"): gym_env.step(step)
        with pytest.raises(ResetNeeded): gym_env.step(step)
        gym_env.reset(seed=1)


class Bent(BaseWrapper):
    """Fails after the device has acted."""
    def _process_timestep(self, timestep):
        if not timestep.first(): raise ValueError("cannot show this")
        return timestep


def test_gymnasium_blames_no_agent_after_the_act():
    env = GymInterface(Bent(login_dm()))
    env.reset(seed=1)
    with pytest.raises(ValueError, match="cannot show this"): env.step(dict(action_type=2))
    assert env._raw.env.steps == 1


def test_gymnasium_tells_an_end_at_the_first_screen():
    at_once = replace(LOGIN, expected_app_screen=AppScreen("app.oaml.mail/.Main"))
    env = GymInterface(DmEnv(TaskEnv(AppDevice("login", **GOALS), at_once, TreeTextModel())))
    assert env.reset(seed=1)[1]["over"] and env.step(dict(action_type=2))[2:4] == (False, True)
    with pytest.raises(ResetNeeded): env.step(dict(action_type=2))


# Dialects

places, shifts = st.floats(0, 1), st.floats(-1, 1)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Mn", "Mc"]), min_size=1)
acts = st.one_of(
    st.builds(lambda t, x, y: Action(t, x, y), st.sampled_from(["click", "right_click", "move"]), places, places),
    st.builds(lambda x, y, x2, y2: Action("drag", x, y, x2=x2, y2=y2), places, places, places, places),
    st.builds(lambda x, y, dx, dy: Action("scroll", x, y, dx=dx, dy=dy), places, places, shifts, shifts))


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=str)
@pytest.mark.parametrize("size", [(160, 210), (1280, 720), (333, 777)])
def test_dialects_conform(dialect, size):
    check_dialect(dialect, size)


@settings(max_examples=300, deadline=None)
@given(acts, st.tuples(st.integers(32, 4000), st.integers(32, 4000)))
def test_browsergym_is_exact_to_a_hundredth_of_a_pixel(action, size):
    dialect = DIALECTS["browsergym"]
    text = dialect.format(action, size)
    back, = dialect.parse(text, size)
    assert back.type == action.type and dialect.format(back, size) == text
    for field, n in zip(("x", "y", "x2", "y2", "dx", "dy"), (*size, *size, *size)):
        if (wanted := getattr(action, field)) is not None: assert abs(getattr(back, field) - wanted)*n <= .00501


def storable(text):
    "Can an action carry this text?"
    try: return bool(Action("type", text=text))
    except ValueError: return False


@settings(max_examples=300, deadline=None)
@given(texts.filter(storable))
def test_texts_survive_browsergym(text):
    for action in (Action("type", text=text), Action("answer", text=text)):
        assert DIALECTS["browsergym"].parse(DIALECTS["browsergym"].format(action, (100, 100)), (100, 100)) == [action]


@settings(max_examples=500, deadline=None)
@given(st.text() | st.text("mouse_click(123.,'\")\n#{}[]:e-", max_size=60), st.sampled_from(list(DIALECTS.values())))
def test_any_text_is_actions_or_a_refusal(text, dialect):
    try: assert all(isinstance(a, Action) for a in dialect.parse(text, (640, 480)))
    except DialectError as e: assert str(e)


def test_bombs_take_no_time():
    began = time.monotonic()
    for dialect in DIALECTS.values():
        for bomb in BOMBS:
            with pytest.raises(DialectError): dialect.parse(bomb, (640, 480))
    assert time.monotonic() - began < 5


# OpenEnv's clients

def goal_env(): return EpisodeDriver(AppDevice("login"))


def talk(ws, kind, **data):
    "One message and its answer."
    ws.send(json.dumps(dict(type=kind, data=data)))
    return json.loads(ws.recv())


@pytest.fixture
def connect():
    pytest.importorskip("starlette", reason='pip install "oaml[serve]"')
    return pytest.importorskip("websockets.sync.client", reason='pip install "oaml[serve]"').connect


def test_openenv_clients_are_apart(connect):
    def play(url, seed):
        with connect(url) as ws:
            first = talk(ws, "reset", seed=seed)["data"]["observation"]["screen"]
            for _ in range(3): talk(ws, "step", type="click", x=.5, y=.5)
            return first, talk(ws, "state")["data"]
    with serve_openenv(goal_env, max_sessions=8) as url, ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda s: play(url.replace("http", "ws") + "/ws", s), range(8)))
    assert len({screen for screen, _ in got}) == 8
    assert [(s["seed"], s["step_count"]) for _, s in got] == [(k, 3) for k in range(8)]


def test_openenv_bears_bad_clients(connect):
    with serve_openenv(goal_env, max_sessions=2) as url:
        ws_url = url.replace("http", "ws") + "/ws"
        with connect(ws_url) as a, connect(ws_url) as b, connect(ws_url) as c:
            assert json.loads(c.recv())["data"]["code"] == "CAPACITY_REACHED"
            a.send(b"\x00\xff")
            assert json.loads(a.recv())["data"]["code"] == "INVALID_JSON"
            assert talk(a, "step", type="wait")["data"]["code"] == "EXECUTION_ERROR"  # no reset yet
            assert talk(a, "reset", seed=5)["type"] == "observation"
            b.send("x" * 2**21)  # too large: only this connection ends
            with pytest.raises(Exception): b.recv(timeout=5)
            assert talk(a, "state")["data"]["seed"] == 5
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as raw: raw.send(b"GET /ws HTTP/1.1\r\n")
        for _ in range(50):  # those who left made room
            with connect(ws_url) as ws:
                if talk(ws, "reset", seed=1)["type"] == "observation": break
            time.sleep(.1)
        else: pytest.fail("no room again")
    assert not [t for t in threading.enumerate() if t.name == "openenv-server"]


def refusal(connect, url, speaks, pause):
    "What a client that comes too late hears: a message, or why the door is closed."
    try:
        with connect(url) as ws:
            time.sleep(pause)
            if speaks: ws.send(json.dumps(dict(type="reset")))
            return json.loads(ws.recv(timeout=10))["data"]["code"]
    except Exception as e: return str(e)


def test_openenv_over_capacity_tells_every_client_why(connect, monkeypatch):
    with serve_openenv(goal_env, max_sessions=1) as url, connect(url.replace("http", "ws") + "/ws") as first:
        assert talk(first, "state")["type"] == "state"
        def ask(speaks, pause): return refusal(connect, url.replace("http", "ws") + "/ws", speaks, pause)
        assert {ask(speaks, pause) for speaks in (False, True) for pause in (0, .05) for _ in range(15)} == {"CAPACITY_REACHED"}
        monkeypatch.setattr(openenv, "SPEAK_S", .05)
        assert "CAPACITY_REACHED: all 1 environments are taken; try again later" in ask(True, 1.)


def test_openenv_turns_pages_of_other_sites_away(connect):
    with serve_openenv(goal_env) as url:
        ws_url = url.replace("http", "ws") + "/ws"
        for stranger in (dict(origin="http://evil.example"), dict(origin="null"),
                         dict(additional_headers=dict(Host="evil.example"))):
            with pytest.raises(Exception, match="403|400|two Host"): connect(ws_url, **stranger).close()
        with connect(ws_url, origin=url) as ws: assert talk(ws, "reset", seed=5)["type"] == "observation"


def test_openenv_survives_what_is_asked_of_it(connect):
    with serve_openenv(broken_task) as url, connect(url.replace("http", "ws") + "/ws") as ws:
        for data in (dict(method="close"), dict(self=1), dict(hosted=1), dict(seed=3_000_000)):
            assert talk(ws, "reset", **data)["data"]["code"] == "VALIDATION_ERROR"
        assert talk(ws, "reset", seed=5)["type"] == "observation"
        fault = talk(ws, "step", type="answer", text="four")["data"]  # the task's own, not the client's
        assert fault["code"] == "EXECUTION_ERROR" and "float" in fault["message"]
        assert talk(ws, "reset", seed=5)["type"] == "observation"


def test_openenv_over_plain_routes_is_the_same_episode(connect):
    httpx = pytest.importorskip("httpx", reason='pip install "oaml[serve]"')
    acts = [dict(type="click", x=.5, y=.5), dict(type="wait"), dict(type="done")]
    with serve_openenv(goal_env) as url:
        with connect(url.replace("http", "ws") + "/ws") as ws:
            by_socket = [talk(ws, "reset", seed=3)["data"]] + [talk(ws, "step", **a)["data"] for a in acts]
        with httpx.Client(base_url=url, trust_env=False) as client:
            by_route = [client.post("/reset", json=dict(seed=3)).json()]
            by_route += [client.post("/step", json=dict(action=a)).json() for a in acts]
            assert client.post("/step", json=dict(action=acts[0])).status_code == 500  # the episode has ended
            assert client.get("/schema").json()["action"]["title"] == "Action"
    assert by_socket == by_route and by_route[-1]["done"]


def test_two_recorders_do_not_share_a_session(tmp_path):
    "The first to save lost its episodes to the other."
    one = Recorder(DmEnv(login_env()), tmp_path)
    with pytest.raises(FileExistsError, match="'recorded' already"): Recorder(DmEnv(login_env()), tmp_path)
    one.close()
    Recorder(DmEnv(login_env()), tmp_path).close()  # nothing was recorded


def test_a_task_that_cannot_be_made_leaves_the_one_before(monkeypatch):
    env = TaskEnv(AppDevice("login", **GOALS), [LOGIN, replace(LOGIN, id="other")], TreeTextModel())
    before = env.signals
    def refuse(*a, **k): raise ValueError("no picture")
    monkeypatch.setattr("oaml.tasks.task_env.Signals", refuse)
    with pytest.raises(ValueError, match="no picture"): env.switch_task(1)
    assert (env.index, env.task.id, env.signals) == (0, LOGIN.id, before)


@pytest.mark.parametrize("values, shape", [([[1, 2, 3], [4, 5, 6]], (2,)), ([None], ()), ([1e300], ())])
def test_extras_of_another_form_are_refused(values, shape):
    from oaml.envs.dm import _as_declared
    with pytest.raises(ValueError, match="extra 'p'"): _as_declared("p", values, specs.Array(shape, np.float32))
    assert _as_declared("p", [1, 2], specs.Array((2,), np.float32)).tolist() == [[1, 2]]


def test_a_message_from_before_a_setup_step_does_not_count():
    steps = [SetupStep(adb_call=PressButton("BACK")), SetupStep(sleep=.1, success_condition=SuccessCondition(wait_for_message=WaitForMessage("BACK")))]
    device = AppDevice("login", **GOALS)
    device.reset(1)
    with pytest.raises(DeviceError, match="did not come true"): prepare(device, steps)


def test_not_a_number_in_a_log_is_no_extra():
    from oaml.tasks.signals import _as_json_extras
    with pytest.warns(UserWarning, match="NaN is no number"): assert _as_json_extras('{"a": NaN}', "x") == {}


def test_icons_of_mobile_envs_models_are_not_padded():
    import torch  # noqa: F401  such a model comes with it
    from oaml.tasks.vision import MobileEnvIconModel
    class Model:
        def icon_detector(self, *_): return np.array([[[0, 0, 9, 9], [0, 0, 0, 0]], [[0, 0, 9, 9], [1, 1, 5, 5]]]), [["a", ""], ["b", "c"]]
    frame = AppDevice("login", **GOALS).reset(1)
    places, names = MobileEnvIconModel(Model()).detect_icons(frame, np.array([[0, 0, 20, 20]]*2))
    assert [len(p) for p in places] == [1, 2] and names == [["a"], ["b", "c"]]


def test_files_of_a_task_lie_beside_it(tmp_path):
    called = []
    class Phone(AppDevice):
        def manage(self, call): called.append(call)
    step = SetupStep(adb_call=InstallApk("app.apk"))
    there = str(tmp_path/"elsewhere"/"there.apk")
    task = replace(LOGIN, setup_steps=(step,), reset_steps=(replace(step, adb_call=InstallApk(there)),), folder=tmp_path/"tasks")
    TaskEnv(Phone("login", **GOALS), task, TreeTextModel()).reset(11)
    assert [c.path for c in called] == [str(tmp_path/"tasks"/"app.apk"), there]


def test_a_screen_that_turns_is_recorded_as_it_stands():
    reader = ActionReader()
    for size in ((100, 200), (200, 100)):
        reader.read(Frame(np.zeros((*size[::-1], 3), np.uint8)), compile_action(Action("click", .3, .5), size))
        reader.finish()
    assert [(a.x, a.y) for _, a in reader.acts] == [(.3, .5)]*2


def test_wrappers_that_do_not_fit_say_so():
    with pytest.raises(TypeError, match="DiscreteAction goes around touches and lifts; TapAction has "): DiscreteAction(TapAction(DmEnv(login_env())))


def test_a_wrapper_that_shows_less_stands_below_others():
    class PixelsOnly(BaseWrapper):
        def _process_timestep(self, step): return step._replace(observation=dict(pixels=step.observation["pixels"]))
    env = ImageRescale(PixelsOnly(DmEnv(login_env())), (.5, .25))
    h, w, _ = env.reset_to(11).observation["pixels"].shape
    assert (2*h, 4*w) == env.raw_env.observation_spec()["pixels"].shape[:2]
    assert set(env.step(dict(action_type=0, touch_position=(.5, .5))).observation) == {"pixels"}


@pytest.mark.parametrize("wrap", [TapAction, TextAction, VhIo])
def test_an_interface_goes_to_another_process_in_mid_episode(wrap):
    "What it has seen of the task goes along: the same steps have the same rewards there."
    def same(a, b): return all(np.array_equal(a[k], b[k]) for k in a) and set(a) == set(b)
    env = GymInterface(wrap(DmEnv(login_env(), with_view_hierarchy=wrap is VhIo)))
    env.reset(seed=11)
    env.action_space.seed(0)
    acts = [env.action_space.sample() for _ in range(4)]
    for act in acts[:2]: env.step(act)
    there = pickle.loads(pickle.dumps(env))
    for act in acts[2:]:
        here, other = env.step(act), there.step(act)
        assert same(here[0], other[0]) and here[1:4] == other[1:4]
    assert same(env.reset(seed=12)[0], there.reset(seed=12)[0])


def test_a_text_of_any_length_is_in_the_space():
    space = GymInterface(TextAction(DmEnv(login_env()))).action_space
    assert space.contains(dict(text='keyboard_type("' + 99*"a" + '")')) and len(space.sample()["text"]) <= wrappers.MAX_SAMPLED


def test_a_task_that_is_no_number():
    with pytest.raises(TypeError, match="task: '0' is no whole number"): login_env().switch_task("0")


def test_checks_are_found_wrong_when_they_are_made():
    from oaml.tasks.signals import Checks
    with pytest.raises(ValueError, match="screen: 'LIFT' is no EventCheckControl"): Checks(screen="LIFT")


def test_environments_of_other_modules_in_spawned_processes():
    import gymnasium as gym

    from oaml.envs.vector import make_vector
    gym.register("oaml-test/Login-v0", "oaml.envs.gym_env:AppEnv", kwargs=dict(app="login"))
    envs = make_vector("oaml-test/Login-v0", 1, context="spawn")
    try: assert envs.reset()[0]["goal"][0]
    finally: envs.close()


def test_extras_that_json_does_not_have_are_null():
    assert openenv.finite_values(dict(a=[float("nan"), 1.], b=(float("inf"),))) == dict(a=[None, 1.], b=[None])


def test_stable_baselines3_seeds_environments_as_it_does():
    "It draws seeds of 32 bits and adds the number of the environment; only the screen is something that it can take."
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason="pip install 'oaml[p2p]'")
    gym = pytest.importorskip("gymnasium")
    from oaml.envs.gym_env import AppEnv
    envs = vec_env.DummyVecEnv([lambda: gym.wrappers.FilterObservation(AppEnv("login"), ["screen"])]*2)
    def episodes(seed):
        envs.seed(seed)
        envs.reset()
        return [info["seed"] for info in envs.reset_infos]
    assert episodes(2**32 - 2) == episodes(2**32 - 2)
    assert all(s < 1_000_000 for s in episodes(2**32 - 2))
    assert episodes(2_000_000) == [2_000_000, 2_000_001]


@pytest.mark.parametrize("context", [None, "spawn"])
def test_goals_arrive_from_gymnasiums_own_processes(context):
    gym = pytest.importorskip("gymnasium")
    import oaml.envs  # noqa: F401, registers
    from oaml.envs.gym_env import AppEnv
    envs = gym.make_vec("oaml/Login-v1", 2, vectorization_mode="async", vector_kwargs=dict(context=context))
    try:
        for first in (5, 2_000_000):
            goals = [AppEnv("login").reset(seed=first + k)[0]["goal"] for k in range(2)]
            obs, _ = envs.reset(seed=first)
            assert obs["goal"] == tuple(goals) and envs.observation_space["goal"].contains(obs["goal"])
    finally: envs.close()
