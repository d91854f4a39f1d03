"What the commands say and show: bars that move, advice in options, screenshots of any size, scripts."
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from oaml.apps.app import split_seeds
from oaml.devices.app_device import AppDevice
from oaml.runtime.agents import PolicyAgent
from oaml.evals.closed_loop import run_episodes
from oaml.evals.suites import load_suite
from oaml.nano.files import shipped_nano
from oaml.runtime.policy import load_policy
from oaml.schemas.sessions import Action
from oaml.scripts.cli import app

BOUND = 60  # seconds after which something that should come at once is given up


def oaml(*words):
    "Exit code, standard output and standard error of `oaml WORDS`."
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout, done.stderr


class Waiting:
    "Never done: presses a key that does nothing."
    name = "waiting"
    def act(self, views): return [Action("wait") for _ in views]


def test_a_bar_counts_actions_while_no_episode_is_over(capsys):
    run_episodes(Waiting(), lambda: AppDevice("login"), range(2), progress=True)
    shown = capsys.readouterr().err
    assert "0/2" in shown
    assert len({part.split("]")[0] for part in shown.split("actions=")[1:]}) > 5


def test_a_bar_goes_on_while_an_agent_thinks(monkeypatch):
    "The agent answers only after its bar was drawn again; without a clock of its own the bar would never be."
    from oaml.runtime import play
    monkeypatch.setattr(play, "HEARTBEAT", .01)
    drawn = threading.Event()
    monkeypatch.setattr(play.tqdm, "refresh", lambda bar, *a, **kw: drawn.set())

    class Thinking(Waiting):
        def act(self, views):
            assert drawn.wait(BOUND), "the bar stood still"
            return [Action("done") for _ in views]
    run_episodes(Thinking(), lambda: AppDevice("login"), range(1), progress=True)


def test_the_memoriser_shows_that_it_makes_its_data(monkeypatch, tmp_path):
    from oaml.evals import suites
    monkeypatch.setattr(suites.training_episodes, "__defaults__", (4, False, None))
    code, _, shown = oaml("eval", "--agent", "memoriser", "--episodes", "1", "--out", f"{tmp_path}/r.json")
    assert code == 0 and "login sessions" in shown


@pytest.mark.parametrize("words, advice", [
    (("train", "login_nano", "--set", "training.max_steps=0"), "(--set training.max_steps=VALUE)"),
    (("train", "login_nano", "--set", "max_steps=5"), "(--set training.max_steps=VALUE)"),
    (("synth", "--sessions", "-1"), "--sessions: "),
    (("synth", "--recovery", "2"), "--recovery: "),
    (("eval", "--agent", "nobody"), "--agent: "),
    (("predict", "--agent", "random", "--image", "none.png", "--goal", " "), "--goal: "),
    (("predict", "--agent", "random", "--image", "none.png", "--goal", "Go.", "--expected", "CLICK(5)"), "--expected: "),
])
def test_advice_names_options(words, advice, tmp_path):
    code, _, errors = oaml(*words, *(("--out", f"{tmp_path}/out") if words[0] in ("synth", "eval") else ()))
    assert code == 2 and advice in errors.splitlines()[-1]


def test_a_run_that_is_there_is_resumed_by_the_option(tmp_path):
    from oaml.scripts.cli import train_command
    from oaml.scripts.commands import command_options, command_words
    words = command_words("runs/a already holds a run; go on with it by resume=True, or choose another output_dir",
                          command_options(train_command))
    assert words == ("runs/a already holds a run; go on with it by --resume, or choose another output_dir "
                     "(--set output_dir=VALUE)")


@pytest.fixture
def login(tmp_path):
    "A login screen of nano's size, the same three times as wide and high with something to its right, and the goal."
    device = AppDevice("login")
    screen = Image.fromarray(device.reset(2).image)
    screen.save(tmp_path/"as-trained.png")
    large = Image.fromarray(np.pad(np.asarray(screen.resize((768, 576))), ((0, 0), (0, 132), (0, 0)), "edge"))
    large.save(tmp_path/"large.png")
    return tmp_path, device.goal.text


def test_predict_takes_any_screenshot(login):
    folder, goal = login
    code, answer, notes = oaml("predict", "--agent", "nano", "--image", f"{folder}/large.png", "--goal", goal)
    assert code == 0 and answer.count("\n") == 1
    assert "900x576, is scaled by 0.28 and padded to 256x192" in notes and "warning: " in notes
    code, _, notes = oaml("predict", "--agent", "nano", "--image", f"{folder}/as-trained.png", "--goal", goal)
    assert code == 0 and notes == ""


def test_coordinates_are_those_of_the_screenshot(login):
    from oaml.models.fitting import fit_screen, training_screens
    from oaml.nano.files import shipped_nano
    folder, _ = login
    with Image.open(folder/"large.png") as image: fitted = fit_screen(image.convert("RGB"), training_screens(shipped_nano()))
    x, y = 450/900, 288/576  # the middle of the screenshot, where it lies in the fitted picture
    inside = Action("click", x=450*fitted.scale/256, y=288*fitted.scale/192)
    assert (fitted.on_original(inside).x, fitted.on_original(inside).y) == pytest.approx((x, y))
    assert fitted.on_original(Action("click", x=.5, y=.99)).type == "failed"


def test_predict_compares(login):
    folder, goal = login
    ask = "predict", "--agent", "do-nothing", "--image", f"{folder}/large.png", "--goal", goal, "--expected"
    assert oaml(*ask, "DONE()")[:2] == (0, "DONE()\nexpected DONE(): the same action\n")
    code, answer, _ = oaml(*ask, "CLICK(x=0.5, y=0.3)")
    assert code == 1 and answer.endswith("another kind of action\n")


def test_a_trained_agent_says_what_it_was_trained_on(tmp_path):
    from oaml.models.cards import write_card
    from oaml.models.fitting import training_screens
    (tmp_path/"agent").mkdir()
    write_card(tmp_path/"agent")
    assert training_screens(str(tmp_path/"agent")) == []
    (tmp_path/"data.json").write_text(json.dumps(dict(shapes=[dict(size=[160, 224])])))
    assert training_screens(str(tmp_path/"agent")) == [(160, 224)]
    (tmp_path/"data.json").write_text("{")
    with pytest.raises(ValueError, match="data.json"): training_screens(str(tmp_path/"agent"))


@pytest.mark.parametrize("command, shows", [("train", "config"), ("eval", "--suite"), ("predict", "--expected")])
def test_the_package_runs_as_the_command(command, shows):
    done = subprocess.run([sys.executable, "-m", "oaml", command, "--help"], capture_output=True, text=True,
                          env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0 and shows in done.stdout.lower()


MISSING = """
import sys
for name in {names}: sys.modules[name] = None
sys.argv = ["oaml", *{words}]
from oaml.scripts.cli import main
main()
"""

@pytest.mark.parametrize("words, names, extra", [
    (["demo"], ["torch"], "train"), (["train", "login_nano"], ["torch"], "train"), (["rft"], ["peft"], "train"),
    (["data", "export", "x", "--out", "y"], ["datasets"], "hf"), (["serve-task", "tasks.yaml"], ["aiohttp"], "serve"),
    (["miniwob", "collect"], ["miniwob"], "browser")])
def test_a_missing_extra_is_named_before_anything_is_done(tmp_path, words, names, extra):
    done = subprocess.run([sys.executable, "-c", MISSING.format(names=names, words=words)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and f'{names[0]}: not installed; pip install "oaml[{extra}]"' in done.stderr, done.stderr
    assert not list(tmp_path.iterdir()) and "Traceback" not in done.stderr


def test_acting_needs_no_torch(tmp_path):
    words = ["act", "app:login", "--seed", "12", "--out", "act"]
    names = ["torch", "transformers", "peft"]
    done = subprocess.run([sys.executable, "-c", MISSING.format(names=names, words=words)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_loaded_policy_does_not_go_in_circles():
    "nano, alone or as an agent in the tables: the same actions, and none twice on one screen where another can be drawn."
    suite, seed = load_suite("synthetic-v1"), split_seeds("validation", 1)[0]
    def acts(retries):
        device = suite.device("files")
        frame, policy, history = device.reset(seed), load_policy("nano", retries=retries), []
        while len(history) < 12 and (not history or history[-1].type != "done"):
            history.append(policy.predict_action(frame.image, device.goal.text, history)[0])
            frame = device.perform(history[-1])
        return history
    [outcome] = run_episodes(PolicyAgent(load_policy("nano"), "nano"), lambda: suite.device("files"), [seed])
    assert outcome.actions[:12] == acts(4)


def test_the_shipped_nano_holds_no_answer_back():
    assert not json.loads((shipped_nano()/"generation_config.json").read_text()).get("sequence_bias")


def test_recordings_lead_to_the_next_command_and_an_application_fails_with_its_reasons(tmp_path):
    def oaml(*args): return subprocess.run([sys.executable, "-m", "oaml", *args], capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    nothing, absent = CliRunner().invoke(app, ["train"]), CliRunner().invoke(app, ["train", "--data", "mine"])
    assert (nothing.exit_code, absent.exit_code) == (2, 2)
    assert "--data FOLDER" in nothing.stderr and "oaml data import plain mine" in absent.stderr
    (tmp_path/"lost.py").write_text("from oaml.apps.login import Login\nfrom oaml.apps.app import ClickOn\n\nclass Lost(Login):\n"
                                    "    def plan(self, elements, goal, history): return [ClickOn('gone')]\n")
    lost = oaml("check-app", "lost:Lost", "--out", "why.png")
    assert lost.returncode == 1 and (tmp_path/"why.png").exists(), lost.stderr
    assert all(word in lost.stderr for word in ("seed 0 in the look", "goal: ", "the plan wants 'gone'", "on the last screen: ", "why.png"))
