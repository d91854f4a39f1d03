"What a user gets wrong is refused in words that say what, where and what to do."
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from oaml.datasets.prompts import PromptFormat, user_text
from oaml.devices.app_device import AppDevice
from oaml.ingest.store import StoreError, load_sessions
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.nano.numpy_engine import LightNano
from oaml.schemas.actions import parse_action
from oaml.schemas.sessions import Action, Episode, Observation, SchemaError, Session, from_json
from oaml.training.config import ConfigError, TrainingConfig, load_config


def refused(call, *words, error=Exception):
    "`call` raises `error`, and its message has all `words`."
    with pytest.raises(error) as e: call()
    message = str(e.value)
    assert not [w for w in words if w not in message], message


@pytest.fixture
def broken_png(tmp_path):
    "A screenshot cut off in the middle."
    path = tmp_path/"broken.png"
    Image.effect_noise((256, 192), 50).save(path)
    path.write_bytes(path.read_bytes()[:500])
    return str(path)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    "The folder of a saved agent that has learnt nothing."
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.models.qwen_vl import QwenVLAdapter
    folder = tmp_path_factory.mktemp("agent")
    QwenVLAdapter.from_pretrained("nano-small", device="cpu").save(folder)
    return folder


def policy(folder):
    from oaml.runtime.policy import load_policy
    return load_policy(folder, "cpu")


# ---- images ----

def test_missing_image(tmp_path, agent):
    path = str(tmp_path/"none.png")
    refused(Observation(path).image, "none.png", "no such screenshot", error=FileNotFoundError)
    refused(lambda: policy(agent).predict_action(path, "Log in."), "none.png", error=ValueError)


def test_corrupt_image(broken_png):
    refused(Observation(broken_png).image, "broken.png", "cannot be read as an image", error=ValueError)


def test_corrupt_image_for_a_model(broken_png, agent):
    refused(lambda: policy(agent).predict_action(broken_png, "Log in."), "broken.png", "cannot read", error=ValueError)


def test_a_data_set_names_its_bad_screens(tmp_path):
    generate_synthetic_sessions(1, seed=0, output_dir=tmp_path, progress=False)
    screen = next((tmp_path/"screens").glob("*.png"))
    screen.write_bytes(screen.read_bytes()[:100])
    refused(lambda: load_sessions(tmp_path), screen.name, "cannot be read as an image", error=StoreError)
    screen.unlink()
    refused(lambda: load_sessions(tmp_path), screen.name, "no such screenshot", error=StoreError)


def test_a_screen_of_one_pixel(tmp_path, agent):
    Image.new("RGB", (1, 1)).save(tmp_path/"dot.png")
    for image in (tmp_path/"dot.png", Image.new("RGB", (1, 1)), np.zeros((500, 1, 3), np.uint8)):
        refused(lambda: policy(agent).predict_action(image, "Log in."), "pixels; a screen has 32", error=ValueError)


@pytest.mark.parametrize("temperature", [-1., float("nan"), float("inf")])
def test_temperature(agent, temperature):
    screen = AppDevice("login").reset(0).image
    refused(lambda: policy(agent).predict_actions([screen], ["Log in."], temperature=temperature), "temperature",
            str(temperature), error=ValueError)
    sample = dict(images=[screen], messages=[dict(role="user", content="Goal: Log in.")])
    for adapter in (policy(agent).adapter, LightNano.load(agent)):
        refused(lambda: adapter.generate_batch([sample], 4, temperature), f"temperature: {temperature}", error=ValueError)


# ---- actions ----

def test_unknown_action_type():
    refused(lambda: Action("tap", x=.5, y=.5), "type", "'tap' is not one of", "click", error=SchemaError)
    failed = parse_action("TAP(x=0.5, y=0.5)")
    assert failed.type == "failed" and "TAP(...) is none of CLICK" in failed.raw["reason"]


def test_coordinate_on_another_scale():
    refused(lambda: Action("click", x=475, y=.3), "x: 475 is outside [0, 1]", "divided by its size", error=SchemaError)
    failed = parse_action("CLICK(x=475, y=340)")
    assert failed.type == "failed" and failed.raw["text"] == "CLICK(x=475, y=340)"
    assert "x: 475.0 is outside [0, 1]" in failed.raw["reason"]


def test_coordinate_in_a_file():
    step = dict(t=0., observation={}, action=dict(type="click", x=475., y=.3))
    text = json.dumps(dict(id="e", goal="Log in.", steps=[step]))
    refused(lambda: from_json(Episode, text, "e.json"), "e.json: steps[0].action.x: 475.0 is outside [0, 1]",
            error=SchemaError)


# ---- records ----

@pytest.mark.parametrize("cls, text", [
    (Action, '{"type": "click", "x": 0.1, "x": 0.9, "y": 0.5}'),
    (Episode, '{"id": "e", "goal": "Log in.", "steps": [], "meta": {"x": 1, "x": 2}}'),
    (Session, '{"id": "s", "episodes": [{"id": "e", "goal": "x", "x": 1, "steps": [], "goal": "Log in."}]}'),
])
def test_a_repeated_key(cls, text):
    text = text.replace('"goal": "x", "x": 1,', '"goal": "x",')
    repeated = "'goal'" if cls is Session else "'x'"
    refused(lambda: from_json(cls, text, "a.json"), "a.json, line 1", f"the key {repeated} is there twice", error=SchemaError)


# ---- numbers and types in calls ----

@pytest.mark.parametrize("wrong", [dict(num_sessions=0), dict(num_sessions=-3), dict(workers=0), dict(workers=-1)], ids=str)
def test_sessions_and_workers_below_1(tmp_path, wrong):
    (name, value), = wrong.items()
    refused(lambda: generate_synthetic_sessions(**dict(num_sessions=1, seed=0, output_dir=tmp_path/"data") | wrong),
            f"{name}: {value} is fewer than 1", error=ValueError)
    assert not (tmp_path/"data").exists()


def _policy_calls(predict):
    screen = Image.new("RGB", (256, 192))
    return {"image: 5 (int)": lambda: predict(5, "Log in."), "goal: None": lambda: predict(screen, None),
            "goal: b'Log in.' (bytes)": lambda: predict(screen, b"Log in."),
            "history: 'CLICK()' (str)": lambda: predict(screen, "Log in.", "CLICK()"),
            "think: 'yes' (str)": lambda: predict(screen, "Log in.", think="yes")}


def test_wrong_types_in_public_calls(agent, tmp_path):
    "Each is a TypeError that names argument and value, before anything is written."
    from oaml.envs.gym_env import AppEnv
    from oaml.evals.suites import evaluate_suite, load_agent, load_suite
    from oaml.evals.trajectory_matching import match_trajectories
    from oaml.models.qwen_vl import QwenVLAdapter
    from oaml.runtime.policy import load_policy
    from oaml.scripts.eval_policy import eval_policy
    make, waiter = generate_synthetic_sessions, load_agent("do-nothing", load_suite("login-v1"))
    calls = {
        "num_sessions: '10' (str)": lambda: make("10", output_dir=tmp_path/"a"),
        "seed: 1.5 (float)": lambda: make(1, 1.5, output_dir=tmp_path/"a"),
        "size: 256 (int)": lambda: make(1, 0, size=256, output_dir=tmp_path/"a"),
        "app: None": lambda: make(1, 0, app=None, output_dir=tmp_path/"a"),
        "jitter: 'no' (str)": lambda: make(1, 0, jitter="no", output_dir=tmp_path/"a"),
        "folder: None": lambda: load_policy(None), "folder: 5 (int)": lambda: load_sessions(5),
        "model_name: 8 (int)": lambda: QwenVLAdapter.from_pretrained(8),
        "seed: '1' (str)": lambda: QwenVLAdapter.from_pretrained("nano-small", seed="1"),
        "episodes: '5' (str)": lambda: evaluate_suite(waiter, "login-v1", "5"),
        "agents: 'do-nothing' (str)": lambda: evaluate_suite("do-nothing", "login-v1", 1),
        "suite: 1 (int)": lambda: eval_policy(1), "episodes: True (bool)": lambda: eval_policy(episodes=True),
        "episodes: 'runs/data' (str)": lambda: match_trajectories(waiter, "runs/data"),
        "step_budget: '9' (str)": lambda: AppEnv(step_budget="9"), "app: 3 (int)": lambda: AppEnv(3),
        "seed: '7' (str)": lambda: AppEnv().reset(seed="7"),
        "text: None": lambda: parse_action(None), **_policy_calls(policy(agent).predict_action)}
    for words, call in calls.items(): refused(call, words, "is not ", error=TypeError)
    assert not (tmp_path/"a").exists()


def test_numbers_of_numpy_and_paths_are_right(tmp_path, agent):
    sessions = generate_synthetic_sessions(np.int64(1), np.int32(0), tmp_path/"a", size=[256, 192], progress=False)
    screen = Path(sessions[0].episodes[0].steps[0].observation.image_path)
    assert policy(agent).predict_action(screen, "Log in.", ())[0].type


# ---- the command line, before anything runs ----

@pytest.mark.parametrize("line, words", [
    (["eval", "--agent", "nano", "--episodes", "1", "--out", "."], "out: . is a folder"),
    (["miniwob", "eval", "--agent", "random", "--out", "."], "out: . is a folder"),
    (["predict", "--agent", "none", "--image", "none.png", "--goal", "Log in.", "--draw", "foo"], "draw: foo"),
    (["predict", "--agent", "none", "--image", "none.png", "--goal", b"caf\xe9"], "not UTF-8"),
], ids=["out", "miniwob-out", "draw", "goal"])
def test_a_wrong_option_is_told_first(tmp_path, line, words):
    "None of them would end well after the minutes that the work takes."
    done = subprocess.run([sys.executable, "-c", "from oaml.scripts.cli import main; main()", *line],
                          capture_output=True, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr.decode(), done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


# ---- goals ----

@pytest.mark.parametrize("goal", ["", "  \n"])
def test_empty_goal(goal, agent):
    refused(lambda: Episode("e", goal, []), "goal: is empty", "say in words", error=SchemaError)
    refused(lambda: user_text(goal), "goal: is empty", "say in words", error=ValueError)
    screen = AppDevice("login").reset(0).image
    refused(lambda: policy(agent).predict_action(screen, goal), "goal: is empty", error=ValueError)


# ---- configs ----

def test_config_with_a_typo(tmp_path):
    path = tmp_path/"login.yaml"
    path.write_text("output_dir: runs/a\ntraining:\n  learnin_rate: 0.001\n")
    refused(lambda: load_config(path), "login.yaml", "line 3", "training.learnin_rate", "did you mean learning_rate?",
            error=ConfigError)
    refused(lambda: load_config(overrides=["training.sed=1"]), "training.sed", "did you mean seed?", error=ConfigError)


def test_config_with_a_value_of_another_kind(tmp_path):
    path = tmp_path/"login.yaml"
    path.write_text("training:\n  max_steps: many\n")
    refused(lambda: load_config(path), "login.yaml", "line 2", "training.max_steps", "'many'", error=ConfigError)


def test_the_config_that_mobile_env_publishes(tmp_path):
    pytest.importorskip("starlette", reason='pip install "oaml[serve]"')
    from oaml.devices.serve import load_daemon_config
    path = tmp_path/"android-envd.conf.yaml"
    path.write_text("adb_path: ~/Android/Sdk/platform-tools/adb\navd_name: Pixel_2\nandroid_avd_home: ~/.android/avd\n"
                    "android_sdk_root: ~/Android/Sdk\nemulator_path: ~/Android/Sdk/emulator/emulator\nrun_headless: true\n"
                    "mitm_config:\n  method: syscert\ngap_sec: 0.05\n")
    refused(lambda: load_daemon_config(path), "adb_path: can stay", "avd_name: oaml starts no emulator", "android_avd_home: oaml",
            "android_sdk_root: oaml", "emulator_path: oaml", "run_headless: oaml", "mitm_config: is not supported: leave",
            "gap_sec: is not needed", "settle", "device: is missing", error=ValueError)
    with pytest.raises(ValueError) as e: load_daemon_config(path)
    assert "is unknown" not in str(e.value)


@pytest.mark.parametrize("text, words", [
    ("logging:\n  metric: sucess\n", ("line 2", "logging.metric", "did you mean success?")),
    ("logging:\n  metric: letters\n", ("line 2", "logging.metric", "there are success, reached")),
    ("model: {model_name: reader}\nstream: {lesson: reading}\n", ("logging.metric", "there are letters")),
    ("prompt:\n  dsl_version: 4\n", ("line 2", "prompt.dsl_version", "4")),
    ("training:\n  seed: 1\0\n", ("line 2", "'\\x00'")),
])
def test_config_with_a_name_or_character_that_is_none(tmp_path, text, words):
    path = tmp_path/"login.yaml"
    path.write_text(text)
    refused(lambda: load_config(path), "login.yaml", *words, error=ConfigError)


@pytest.mark.parametrize("metric", ["action_accuracy", "coordinate_error", "click_within", "success"])
def test_metrics_that_may_be_watched(metric):
    assert load_config(overrides=[f"logging.metric={metric}"]).logging.metric == metric


# ---- output folders ----

def test_a_file_where_the_output_folder_should_be(tmp_path):
    (tmp_path/"taken").write_text("a file")
    for folder in (tmp_path/"taken", tmp_path/"taken"/"data"):
        refused(lambda: generate_synthetic_sessions(1, seed=0, output_dir=folder), "taken", error=OSError)
    assert (tmp_path/"taken").read_text() == "a file"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="for root every folder is writable")
def test_unwritable_output_folder(tmp_path):
    folder = tmp_path/"locked"
    folder.mkdir(mode=0o500)
    refused(lambda: generate_synthetic_sessions(1, seed=0, output_dir=folder), "locked", error=PermissionError)


# ---- versions ----

def test_checkpoint_of_another_schema_version(agent):
    card = agent/"oaml.json"
    was = card.read_text()
    card.write_text(json.dumps(json.loads(was) | dict(schema_version="9.0", oaml_version="7.1")))
    words = "oaml.json", "schema_version is '9.0'", "reads '1.0'", "use oaml 7.1 or train again"
    try: refused(lambda: policy(agent), *words, error=ValueError)
    finally: card.write_text(was)
    refused(lambda: policy(agent.parent), "oaml.json", "not a checkpoint", error=FileNotFoundError)


def test_data_of_another_schema_version(tmp_path):
    refused(lambda: from_json(Session, '{"id": "s", "episodes": [], "schema_version": "9.0"}', "s.json"),
            "s.json: schema_version", "'9.0' is not '1.0'", error=SchemaError)
    generate_synthetic_sessions(1, seed=0, output_dir=tmp_path, progress=False)
    manifest = tmp_path/"manifest.json"
    manifest.write_text(re.sub('"schema_version": "[^"]*"', '"schema_version": "9.0"', manifest.read_text()))
    refused(lambda: load_sessions(tmp_path), "manifest.json", "schema version '9.0'", "reads '1.0'", error=StoreError)


def test_prompt_format_of_another_checkpoint():
    saved = dict(dsl_version=1, precision=3, history=0, thought=False)
    refused(lambda: PromptFormat().check_same(saved), "dsl_version is 3 here and 1 there", error=ValueError)


# ---- damaged agents ----

JSON_FILES = "oaml.json", "config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"


@pytest.fixture
def copied(agent, tmp_path):
    "A copy of the saved agent, to be damaged."
    return Path(shutil.copytree(agent, tmp_path/"copied"))


def load_both(folder):
    "Load `folder` on NumPy, then on PyTorch; the errors."
    from oaml.runtime.policy import load_policy
    for device in (None, "cpu"):
        try: load_policy(folder, device)
        except (FileNotFoundError, ValueError) as e: yield str(e)


@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "no manifest"])
@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors"])
def test_half_a_file_is_named(copied, name, manifest):
    if not manifest: (copied/"manifest.json").unlink(missing_ok=True)
    data = (copied/name).read_bytes()
    (copied/name).write_bytes(data[:len(data)//2])
    errors = list(load_both(copied))
    assert len(errors) == 2 and all(name in e for e in errors), errors
    (copied/name).unlink()
    errors = list(load_both(copied))
    assert len(errors) == 2 and all(name in e and "missing" in e for e in errors), errors


def test_zeroed_bytes_in_the_weights(copied):
    weights = bytearray((copied/"model.safetensors").read_bytes())
    middle = len(weights)//2
    weights[middle:middle+400] = bytes(400)
    (copied/"model.safetensors").write_bytes(weights)
    errors = list(load_both(copied))
    assert len(errors) == 2 and all("model.safetensors has changed since it was written" in e for e in errors), errors


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": []}', "{", ""])
def test_a_damaged_manifest(copied, tmp_path, text):
    (copied/"manifest.json").write_text(text)
    errors = list(load_both(copied))
    assert len(errors) == 2 and all("manifest.json" in e for e in errors), errors
    generate_synthetic_sessions(1, seed=0, output_dir=tmp_path/"data", progress=False)
    (tmp_path/"data"/"manifest.json").write_text(text)
    refused(lambda: load_sessions(tmp_path/"data"), "manifest.json", error=StoreError)


def test_saving_over_a_saved_agent(copied):
    from oaml.models.qwen_vl import QwenVLAdapter
    QwenVLAdapter.from_pretrained("nano-small", device="cpu", seed=1).save(copied)
    assert list(load_both(copied)) == []


def test_a_model_folder_that_is_not_there(tmp_path):
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.models.qwen_vl import QwenVLAdapter
    for name in (tmp_path/"none", "./none", "runs-9/none/agent"):
        refused(lambda: QwenVLAdapter.from_pretrained(name), f"{name}: no such folder", error=FileNotFoundError)
    refused(lambda: policy("none"), "none: no such folder", error=FileNotFoundError)


def test_a_lora_knob_that_is_none():
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.models.qwen_vl import QwenVLAdapter
    for wrong, right in dict(rank="r", alpha="lora_alpha", target_module="target_modules").items():
        refused(lambda: QwenVLAdapter.from_pretrained("nano-small", {wrong: 4}, device="cpu"),
                f"lora_config: '{wrong}'", f"did you mean '{right}'?", error=ValueError)


# ---- what this machine can't do ----

def test_4bit_without_cuda():
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.models.qwen_vl import QwenVLAdapter
    refused(lambda: QwenVLAdapter.from_pretrained("nano-small", load_in_4bit=True, device="cpu"),
            "load_in_4bit=True", "only models in transformers' own format", "pass load_in_4bit=False", error=ValueError)
    refused(lambda: load_config(overrides=["model.load_in_4bit=true"]), "lora", "4-bit", error=ConfigError)


# ---- found by reading ----

def test_a_screenshot_that_would_change_by_being_read(tmp_path):
    for name, image, why in (("clear.png", Image.new("RGBA", (64, 64), (0, 0, 0, 0)), "transparent pixels"),
                             ("deep.png", Image.fromarray(np.full((64, 64), 30000, np.uint16)), "8 bits a color")):
        image.save(tmp_path/name)
        refused(Observation(str(tmp_path/name)).image, name, why, error=ValueError)
    Image.new("RGBA", (64, 64), (9, 8, 7, 255)).save(tmp_path/"fine.png")
    assert Observation(str(tmp_path/"fine.png")).image().getpixel((0, 0)) == (9, 8, 7)


def test_configs_name_the_line_or_the_override(tmp_path):
    file = tmp_path/"x.yaml"
    file.write_text("training:\n  betas: [.9]\n")
    refused(lambda: load_config(file), "line 2: training.betas", error=ConfigError)
    file.write_text("")
    refused(lambda: load_config(file, ["training.seed.x=3"]), "override 'training.seed.x=3': training.seed", error=ConfigError)
    file.write_text("stages: 5")
    refused(lambda: load_config(file), "is a recipe", error=ConfigError)
    for text in ("data: &d {x: *d}", "a: " + "["*3000):
        file.write_text(text)
        refused(lambda: load_config(file), "nested too deep", error=ConfigError)


def test_a_damaged_session_is_named(tmp_path):
    from oaml.ingest.store import load_session
    generate_synthetic_sessions(1, seed=0, output_dir=tmp_path, progress=False)
    path = next((tmp_path/"sessions").glob("*.json"))
    path.write_bytes(path.read_bytes().replace(b'"', b'\xff', 1))
    refused(lambda: load_session(tmp_path, path.stem), path.name, error=SchemaError)


def test_nothing_is_trained_on_test_seeds(tmp_path):
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.ingest.store import save_sessions
    from oaml.ingest.synthetic import record_episode
    from oaml.scripts.train import make_stream, training_data
    (tmp_path/"screens").mkdir(), (tmp_path/"sessions").mkdir()
    episode = record_episode(AppDevice("login"), 2_000_000, tmp_path/"screens")
    save_sessions([Session("test", [episode])], tmp_path)
    config = load_config(overrides=[f"data.path={tmp_path}"])
    refused(lambda: training_data(config, progress=False), "test split", error=ValueError)
    streamed = load_config(overrides=[f"stream.kinds=[{{size: [256, 192], sources: {{'sessions:{tmp_path}': 1}}}}]", "stream.samples=8"])
    refused(lambda: make_stream(streamed, PromptFormat()), "test split", error=ValueError)


def test_widget_names_that_no_answer_can_hold():
    from oaml.datasets.next_action import NextActionDataset
    from oaml.schemas.sessions import Step
    def data(name):
        meta = dict(elements=[dict(role="button", name=name, box=[.1, .1, .5, .5])])
        return NextActionDataset([Episode("e", "Go.", [Step(0., Observation("screen.png", meta), Action("wait"))])], questions=1)
    refused(lambda: data("a\rb"), "steps[0]: the name of a widget", error=ValueError)
    data("Cafe\u0301")


def test_a_memory_of_rewards_that_are_equal():
    "Their mean is another number by rounding; nobody is better than the others."
    torch = pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.training.grpo import group_advantages
    assert group_advantages(torch.tensor([.7]*7)).tolist() == [0.]*7


def test_rft_heeds_of_data_the_path_alone():
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.scripts.rft import rft
    refused(lambda: rft("rft", ["data.sessions=9"]), "data: of it oaml rft heeds the path alone", error=ValueError)
    refused(lambda: rft("rft", ["data=x"]), "x has recorded steps, which nothing plays", error=ValueError)


def test_a_demo_whose_agent_has_a_baselines_name():
    pytest.importorskip("torch", reason='pip install "oaml[train]"')
    from oaml.scripts.demo import demo
    refused(lambda: demo("runs/nano", shown=0), "would be called 'nano'", error=ValueError)


def test_a_click_on_the_far_edge_of_a_fitted_screenshot():
    from oaml.models.fitting import fit_screen
    assert fit_screen(Image.new("RGB", (187, 100)), [(256, 192)]).on_original(Action("click", x=1., y=.2)).x == 1.


def test_a_folder_trained_again_is_another_agent(agent, tmp_path):
    from oaml.evals.suites import AgentByName
    folder = shutil.copytree(agent, tmp_path/"agent")
    first, same = (AgentByName(str(folder), "mine").load() for _ in range(2))
    os.utime(folder/"manifest.json", (1, 1))
    assert first is same and AgentByName(str(folder), "mine").load() is not first


def test_hexadecimal_numbers_of_thousands_of_digits():
    pytest.importorskip("json5", reason='pip install "oaml[rl]"')
    from oaml.schemas.agentcpm import agentcpm_response
    assert agentcpm_response('{"POINT":[0x' + "F"*3900 + ",1]}", True)[0].type == "failed"


@pytest.mark.parametrize("key", ["ctrl+ß", "ctrl+µ", "ctrl+ı", "ctrl+a", "PageDown"])
def test_openais_keys_come_back(key):
    from oaml.schemas.dialects import DIALECTS
    dialect, action = DIALECTS["openai"], Action("key_press", key=key)
    assert dialect.parse(dialect.format(action, (100, 100)), (100, 100)) == [action]


def test_a_recorded_click_on_its_boxs_edge_is_right():
    from oaml.evals.trajectory_matching import matches
    from oaml.schemas.sessions import Target
    click = Action("click", x=.5, y=.4)
    assert matches(click, Target(click, (.2, .2, .5, .6))) and not matches(click, Target(Action("click", x=.4, y=.4), (.2, .2, .5, .6)))


@pytest.mark.parametrize("text", ["Total:\r\n5", "cafe\u0301", "a\u2028b", "a\0b"])
def test_an_answer_that_no_record_can_hold_is_refused_and_ends_nothing(text):
    from oaml.models.api_adapter import answer_of_calls
    assert "(refused: " in answer_of_calls([dict(name="answer", text=text)], "", "openai", (256, 192), "")


def test_an_action_that_the_format_cannot_say_is_found_before_training(tmp_path):
    from oaml.datasets.next_action import NextActionDataset
    from oaml.ingest.synthetic import record_episode
    episode = record_episode(AppDevice("mail"), 3, tmp_path)
    scrolled = replace(episode, steps=[replace(episode.steps[0], action=Action("scroll", .5, .5, dx=0., dy=.4))])
    with pytest.raises(ValueError, match=r"steps\[0\].action: "): NextActionDataset([scrolled], PromptFormat(dsl_version=1))


@pytest.mark.parametrize("kind", [dict(size=(250, 190)), dict(variant="@phon"), dict(size=(16, 16))])
def test_a_rare_kind_of_screen_that_cannot_be_is_found_at_once(kind):
    from oaml.datasets.stream import ScreenSpec, Source, Stream
    with pytest.raises(ValueError): Stream(64, 8, sources=[Source("login")], shapes=[ScreenSpec(), ScreenSpec(share=.01, **kind)])


def test_what_a_reader_does_not_have():
    with pytest.raises(ConfigError, match="lora: is nothing that a reader has"):
        TrainingConfig(model=dict(model_name="reader"), stream=dict(lesson="reading"), lora=dict(r=4))


def test_a_config_error_comes_through_a_process():
    import pickle
    error = ConfigError([(("training", "seed"), "is odd")], lambda path: "a.yaml, line 3: ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a.yaml, line 3: training.seed: is odd"


def test_a_model_folder_trained_again_is_another_start(tmp_path):
    from oaml.scripts.train import model_manifest
    config = TrainingConfig(model=dict(model_name=str(tmp_path)))
    assert model_manifest(config) == {}
    (tmp_path/"manifest.json").write_text("1")
    first = model_manifest(config)
    (tmp_path/"manifest.json").write_text("2")
    assert first["model"] != model_manifest(config)["model"]


def test_an_address_that_answers_with_a_page_is_named():
    from oaml.models.api_adapter import ApiError, _parsed
    with pytest.raises(ApiError, match="http://127.0.0.1:1/ answers with what is no JSON"): _parsed("<html>", SimpleNamespace(base_url="http://127.0.0.1:1/"))


def test_an_unknown_look_is_refused_at_once():
    with pytest.raises(ValueError, match="family: 'nope' is unknown; there are "): AppDevice("login", family="nope")


def test_the_oracle_of_recorded_steps_says_why_it_cannot():
    from oaml.evals.baselines import Oracle
    from oaml.runtime.agents import AgentView
    with pytest.raises(ValueError, match="oracle: it knows no device of this episode"): Oracle().act([AgentView(np.zeros((192, 256, 3), np.uint8), "Log in.", [])])


def test_an_oracle_without_some_tasks_stands_beside_others(tmp_path):
    from oaml.evals.leaderboard import leaderboard
    def rows(agent, episodes):
        of = [dict(app=app, episodes=n, success=1. if n else None) for app, n in episodes.items()]
        of.append(dict(app="mean", episodes=sum(episodes.values()), success=.5, first=0))
        return [dict(suite="miniwob", split="test", agent=agent, goal_family="all", **r) for r in of]
    def board(*boards):
        for k, b in enumerate(boards): (tmp_path/f"{k}.json").write_text(json.dumps(b))
        return leaderboard([tmp_path/f"{k}.json" for k in range(len(boards))])
    assert [r["agent"] for r in board(rows("oracle", dict(a=5, b=0)), rows("random", dict(a=5, b=5)))] == ["oracle", "random"]
    with pytest.raises(ValueError, match="they cannot be compared"): board(rows("oracle", dict(a=5, b=0)), rows("random", dict(a=4, b=5)))


def test_recordings_of_another_size_are_found_before_training(tmp_path):
    from oaml.datasets.stream import ScreenSpec, Source, Stream
    generate_synthetic_sessions(num_sessions=1, seed=0, output_dir=tmp_path/"s", progress=False)
    with pytest.raises(ValueError, match="its screens have 256x192 pixels, and a kind shows them as 320x192"):
        Stream(8, 8, sources=[Source(f"sessions:{tmp_path/'s'}")], shapes=[ScreenSpec(size=(320, 192))])


def test_sessions_that_change_are_read_anew(tmp_path):
    from oaml.datasets.stream import _episodes
    for n in (1, 2):
        generate_synthetic_sessions(num_sessions=n, seed=0, output_dir=tmp_path/str(n), progress=False)
    shutil.copytree(tmp_path/"1", tmp_path/"s")
    before = len(_episodes(str(tmp_path/"s")))
    shutil.rmtree(tmp_path/"s")
    shutil.copytree(tmp_path/"2", tmp_path/"s")
    assert len(_episodes(str(tmp_path/"s"))) == 2*before


def test_validation_plays_what_was_trained_on(tmp_path):
    from oaml.scripts.train import training_data
    generate_synthetic_sessions(num_sessions=1, seed=0, app="mail", output_dir=tmp_path/"mail", progress=False)
    config = TrainingConfig(data=dict(path=str(tmp_path/"mail")), logging=dict(eval_episodes=2))
    with pytest.raises(ValueError, match="has sessions of mail, and login would be played"): training_data(config, progress=False)


def test_dagger_needs_something_to_play(tmp_path):
    from oaml.scripts.stages import dagger
    generate_synthetic_sessions(num_sessions=1, seed=0, output_dir=tmp_path/"s", progress=False)
    config = TrainingConfig(model=dict(model_name="nano"), output_dir=str(tmp_path/"out"),
                            stream=dict(samples=8, sources={f"sessions:{tmp_path/'s'}": 1.}))
    with pytest.raises(ValueError, match="has nothing that a policy could play"): dagger(config, progress=False)


@pytest.mark.parametrize("name", ["thought", "goal_first", "marks"])
def test_what_is_true_or_false_in_a_prompt_is_no_text(name):
    with pytest.raises(ValueError, match=f"{name}: 'nein' is neither true nor false"): PromptFormat(**{name: "nein"})


def test_elements_that_are_null_are_none():
    from oaml.devices.device import recorded_elements
    assert recorded_elements(Observation(meta=dict(elements=None))) == ()
