"Nothing that is tested was trained on, and a seed gives the same bytes whenever and wherever it is asked."
import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import chain

import pytest

from oaml.apps.app import digest, split_of, split_seeds
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import acceptable_targets
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.ui.themes import HELD_OUT_FAMILY, TRAIN_FAMILIES

SEEDS = 300 # of each split


def look(theme):
    "A theme's values without the names it goes by."
    return {k: v for k, v in asdict(theme).items() if k not in ("seed", "family")}


def play(seed, family=None):
    "The oracle's episode of `seed`: hashes of its screens, and of (layout, theme, goal text)."
    device, history = AppDevice("login", family=family), []
    screens = [device.reset(seed).screen_hash()]
    layout = [(e.role, e.name, e.box) for e in device.last_elements]
    triple = digest([layout, look(device.stage.theme), device.goal.text])
    while (action := acceptable_targets(device, history)[0].action).type != "done":
        history.append(action)
        screens.append(device.perform(action).screen_hash())
    return dict(screens=screens, triple=triple)


@pytest.fixture(scope="module")
def played():
    "{split: the episodes of its first seeds}"
    return {split: [play(s) for s in split_seeds(split, SEEDS)] for split in ("train", "test")}


def test_no_screen_of_a_test_episode_is_one_of_training(played):
    train, test = (set(chain(*(e["screens"] for e in played[k]))) for k in ("train", "test"))
    assert not train & test


def test_no_two_seeds_share_a_screen(played):
    every = [h for episodes in played.values() for e in episodes for h in set(e["screens"])]
    assert len(every) == len(set(every))


def test_no_layout_theme_and_goal_is_shared(played):
    triples = [e["triple"] for episodes in played.values() for e in episodes]
    assert len(triples) == len(set(triples)) == 2*SEEDS


def test_the_held_out_look_is_never_drawn():
    device = AppDevice("login")
    for split in ("train", "validation", "test"):
        for seed in split_seeds(split, 100):
            assert split_of(seed) == split
            device.reset(seed)
            assert device.stage.theme.family in TRAIN_FAMILIES and device.stage.theme.family != HELD_OUT_FAMILY


def test_training_data_takes_no_other_seed(tmp_path):
    for seed in (-1, 999_999, 1_000_000, 2_000_000):
        with pytest.raises(ValueError, match="split"):
            generate_synthetic_sessions(2, seed=seed, output_dir=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())  # refused before anything is written


def test_a_seed_gives_the_same_bytes_again():
    assert [play(s) for s in (0, 7, 2_000_003)] == [play(s) for s in (0, 7, 2_000_003)]


def test_a_seed_gives_the_same_bytes_in_another_process():
    code = ("import json, sys; sys.path.insert(0, 'tests'); from test_splits import play; "
            "print(json.dumps([play(s) for s in (0, 7, 2_000_003)] + [play(5, 'rosewood')]))")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = os.environ | dict(PYTHONHASHSEED="123")  # another order of sets and of hashes
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [play(s) for s in (0, 7, 2_000_003)] + [play(5, "rosewood")]


def files(folder): return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_data_does_not_depend_on_how_many_workers_made_it(tmp_path):
    how = dict(seed=40, recovery=.3, progress=False)
    for n in (1, 2): generate_synthetic_sessions(20, output_dir=tmp_path/str(n), workers=n, **how)
    assert files(tmp_path/"1") == files(tmp_path/"2")
