"Every application keeps the contract: under random hands, for the oracle, against those who do not look."
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from oaml.apps.app import check_app, split_seeds
from oaml.apps.catalog import APPS, HELD_OUT_APP, TRAIN_APPS, load_app
from oaml.apps.perturb import Perturb
from oaml.apps.phone import PHONE_SIZE, Phone
from oaml.devices.app_device import AppDevice
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.html_page import check_renderers
from oaml.devices.oracle import acceptable_targets, play_oracle
from oaml.evals.conformance import check_baselines, check_conformance, check_oracle, examine
from oaml.evals.manifests import check_manifest
from oaml.evals.suites import SUITES
from oaml.evals.trajectory_matching import matches
from oaml.schemas.sessions import ACTION_TYPES

ROOT = Path(__file__).parent.parent


@pytest.fixture(params=APPS)
def name(request):
    "Each application in turn."
    return request.param


@pytest.mark.parametrize("seed", range(3))
def test_random_hands_never_break_it(name, seed):
    "200 random actions: nothing raises, every state serialises, a replay has the same hash."
    check_app(load_app(name), seed, 200)


@pytest.mark.parametrize("wrapper", ["phone", "perturbed", "phone@perturbed"])
def test_random_hands_never_break_a_wrapped_one(name, wrapper):
    check_app(load_app(f"{name}@{wrapper}"), 7, 60, PHONE_SIZE if "phone" in wrapper else (256, 192))


def test_six_goal_families_in_several_wordings(name):
    app = load_app(name)
    assert len(app.families) >= 6
    for family in app.families:
        texts = {app.goal(app.start(Random(s), family)).text for s in range(40)}
        assert len(texts) > 2, family
        assert all(t.isascii() and len(t) <= 220 for t in texts)


def test_some_goals_hold_at_the_start(name):
    "Then the right action is DONE, at once or after a look at what is not in sight."
    device, satisfied = AppDevice(name, goals=load_app(name).families), 0
    for seed in range(120):
        device.reset(seed, draw=False)
        if device.solved():
            satisfied += 1
            acts = play_oracle(device)
            assert acts[-1].type == "done" and device.solved(), seed
            assert "type" not in {a.type for a in acts}, seed
    assert satisfied


def test_the_oracle_always_gets_there(name):
    "In every look; bench/worlds.py plays 200 seeds of each."
    check_oracle(name, range(3))
    check_oracle(name, range(8), ("daylight",), disturbed=True)
    check_oracle(name, range(2), ("slate",), (320, 256))
    check_oracle(name, range(1), ("paper",), (1280, 800))


@pytest.mark.parametrize("wrapper", ["phone", "perturbed"])
def test_the_oracle_always_gets_there_on_phones_and_bad_days(name, wrapper):
    size = PHONE_SIZE if wrapper == "phone" else (256, 192)
    check_oracle(f"{name}@{wrapper}", range(4), ("daylight",), size)
    check_oracle(f"{name}@{wrapper}", range(4), ("dusk",), size, disturbed=True)


def test_two_decimals_are_enough_to_hit(name):
    check_oracle(name, range(3), ("office",), precision=2)


def test_nobody_gets_there_without_looking(name):
    "A sample of what bench/worlds.py plays: 40 episodes a goal family there, 100 to copy from. Fewer than ten here would put a single lucky episode over the limit of a tenth."
    check_baselines(examine(name, 12*len(load_app(name).families), 20*len(load_app(name).families)))


def test_every_acceptable_act_scores(name):
    "Ground truth is exact: each acceptable target matches itself, and its point lies in its box."
    device = AppDevice(name)
    for seed in range(10):
        device.reset(seed, draw=False)
        for _ in range(4):
            targets = acceptable_targets(device)
            assert all(matches(t.action, t) for t in targets)
            device.perform(targets[0].action, draw=False)


def test_between_them_they_need_every_action():
    used = Counter()
    for name in APPS:
        app = load_app(name)
        device = AppDevice(app, goals=app.families)
        for seed in range(4*len(app.families)):
            device.reset(seed, draw=False)
            used.update(a.type for a in play_oracle(device))
    assert not set(ACTION_TYPES) - {"failed", "impossible", "open_app", "triple_click"} - set(used), used


def test_screens_of_test_seeds_are_not_among_training_ones(name):
    device = AppDevice(name)
    hashes = {split: {device.reset(s).screen_hash() for s in split_seeds(split, 60)} for split in ("train", "test")}
    assert not hashes["train"] & hashes["test"]


def test_the_held_out_application_is_in_no_training_set():
    assert HELD_OUT_APP in APPS and HELD_OUT_APP not in TRAIN_APPS
    assert all(HELD_OUT_APP not in s.apps or HELD_OUT_APP in s.held_out for s in SUITES.values())


@pytest.mark.parametrize("suite", SUITES)
def test_suites_are_what_their_manifests_say(suite):
    check_manifest(SUITES[suite], pixels=True)


def test_the_tutorials_application_passes_the_examination():
    "The notebook `how to add an app`, as written: under 60 lines, and through everything."
    cells = json.loads((ROOT/"nbs"/"20a_howto.add_an_app.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    app = next(c for c in code if "class Thermostat" in c)
    assert len(app.splitlines()) < 60
    names = {}
    exec(code[0], names)
    exec(app, names)
    thermostat = names["Thermostat"]()
    check_conformance(thermostat, seeds=4)
    for s in range(4): check_app(thermostat, s, 200)
    for wrapped, size in ((Phone(thermostat), PHONE_SIZE), (Perturb(thermostat), (256, 192))):
        check_app(wrapped, 1, 60, size)
        check_oracle(wrapped, range(6), ("daylight",), size, disturbed=True)
    if not missing_browser():
        with Chromium() as chromium: assert check_renderers(thermostat, chromium, range(2)) > 0


def test_a_column_whose_name_is_cut_is_found():
    "A phone's table with large letters: of 'Swim' only 'Sw…' is to be seen."
    device = AppDevice("sheet@phone", PHONE_SIZE, goals=load_app("sheet").families)
    device.reset(497)
    assert "'Swim'" in device.goal.text
    play_oracle(device)
    assert device.solved()
    assert any(e.name == "Sw…" for e in device.read_elements())
