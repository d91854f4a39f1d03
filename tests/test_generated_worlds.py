"Generated worlds: the oracle reaches every kind of goal, on a phone and in Chromium too; nothing of a test world is in training."
from itertools import combinations

import pytest

from oaml.apps.app import check_app
from oaml.apps.catalog import load_app
from oaml.apps.lexicon import WORD_KEYS, synonyms, trades
from oaml.apps.phone import PHONE_SIZE
from oaml.apps.world_spec import draw_world, structure_of, world_from_json, world_to_json
from oaml.devices.app_device import AppDevice
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.html_page import check_renderers
from oaml.devices.oracle import play_oracle

TEST = 2_000_000


def unsolved(seed, wrapper=""):
    "The goal families of a world that its oracle does not reach."
    app, out = load_app(f"worlds:{seed}{wrapper}"), []
    for k, family in enumerate(app.families):
        device = AppDevice(app, goals=(family,))
        device.reset(seed + k, draw=False)
        actions = play_oracle(device)
        if not (device.solved() and actions[-1].type == "done"): out.append(family)
    return out


@pytest.mark.parametrize("first", [100, 110, 120, TEST + 100, TEST + 110, TEST + 120])
def test_the_oracle_reaches_every_kind_of_goal(first):
    assert not {seed: wrong for seed in range(first, first + 10) if (wrong := unsolved(seed))}


@pytest.mark.parametrize("wrapper", ["@phone", "@perturbed"])
def test_the_oracle_reaches_goals_of_wrapped_worlds(wrapper):
    assert not {seed: wrong for seed in range(200, 210) if (wrong := unsolved(seed, wrapper))}


@pytest.mark.parametrize("seed", range(300, 306))
def test_random_hands_never_break_one(seed):
    check_app(load_app(f"worlds:{seed}"), seed, 100)
    check_app(load_app(f"worlds:{seed}@phone"), seed, 40, PHONE_SIZE)


def screen_words(worlds):
    "All that the worlds call things: verbs, places, fields and options, and their trades."
    return {t for w in worlds for t in (w.trade, *(word for _, word in w.words), *(e.plural for e in w.entities),
                                        *(t for e in w.entities for f in e.fields for t in (f.label, *(f.options if f.kind != "ref" else ()))))}


def trade_words(held_out):
    "The same of all trades and synonyms of a lexicon's part."
    nouns = [n for ns in trades(held_out).values() for n in ns]
    return {*trades(held_out), *(w for k in WORD_KEYS for w in synonyms(k, held_out)), *(n.plural.capitalize() for n in nouns),
            *(t for n in nouns for f in n.fields for t in (f.label, *(f.options if f.kind != "ref" else ())))}


def test_splits_share_no_structure_and_no_held_out_word():
    worlds = {split: [draw_world(first + k) for k in range(n)] for split, first, n in (("train", 0, 2000), ("validation", 1_000_000, 200), ("test", TEST, 500))}
    structures = {split: {structure_of(w) for w in ws} for split, ws in worlds.items()}
    assert all(not structures[a] & structures[b] for a, b in combinations(structures, 2))
    held_out = trade_words(True) - trade_words(False)
    assert not held_out & screen_words(worlds["train"])
    assert not held_out & screen_words(worlds["validation"])
    assert len(held_out & screen_words(worlds["test"])) > .9*len(held_out)  # and the test worlds do show them
    assert not {w.trade for w in worlds["train"] if w.trade} & {w.trade for w in worlds["test"]}


def test_a_world_is_the_same_after_json():
    for seed in range(200): assert world_from_json(world_to_json(draw_world(seed))) == draw_world(seed)


@pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))
def test_both_renderers_agree():
    with Chromium() as chromium:
        for seed in range(400, 404): assert check_renderers(f"worlds:{seed}", chromium, range(1)) > 0
