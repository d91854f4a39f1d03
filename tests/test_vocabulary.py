"Applications in other words: the oracle reaches every goal, on a phone too; no label keeps its word; what is held out stays out."
import re
from collections import Counter
from random import Random

import pytest

from oaml.apps.app import check_app, random_action
from oaml.apps.catalog import APPS, load_app
from oaml.apps.phone import PHONE_SIZE
from oaml.apps.vocabulary import draw_vocabulary, glossary
from oaml.apps.words import word_list
from oaml.devices.app_device import AppDevice
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.html_page import check_renderers
from oaml.devices.oracle import play_oracle

TEST = 2_000_000
TEN = [a for a in APPS if a != "procedural"]
VOCABULARIES = [f"{kind}{seed}" for kind in ("words", "invented") for seed in (0, TEST)]
LABELLED = ("button", "link", "tab", "menuitem", "checkbox", "switch", "radio", "combobox", "textbox", "label", "heading", "application", "dialog")
SMALL_WORDS = {*"a after and at auto before by for go i in instead key me more no not ok on only out pop the to up ups use".split(),
               *"day month year hours first every some none nobody seconds seen wi fi e yes now do when where thanks tool net com org io".split()}  # belong to no trade
DATA = {*"csv jpg mp pdf txt zip job note notes test trip bags cafe club guest lamp main rules small spare staff tent third budget stock taxi".split(),
        *"chat maps studio survey allow meet rooms vans villa mono".split()}  # names and subjects that the applications draw, and are not in the word lists


def walk(w):
    "A widget and all in it."
    yield w
    for c in (*w.children, *w.menu): yield from walk(c)


def labels(root):
    "The words on a screen's controls, in small letters."
    return {t.lower() for w in walk(root) if w.role in LABELLED for t in re.findall(r"[A-Za-z]+", re.sub(r"\S+\.\w\S*", "", f"{w.name} {w.tip}"))}  # addresses are nobody's label


def states(app, seeds, steps=15):
    "States that random hands come by."
    for seed in seeds:
        device, rng = AppDevice(app, goals=(app.families[seed % len(app.families)],)), Random(seed)
        device.reset(seed, draw=False)
        for _ in range(steps):
            yield device.screen.app
            device.perform(random_action(rng, device.last_elements), draw=False)


@pytest.mark.parametrize("name", TEN)
def test_the_oracle_reaches_every_goal_in_every_vocabulary(name):
    for k, vocabulary in enumerate(VOCABULARIES):
        app = load_app(f"{name}@{vocabulary}")
        for n, family in enumerate(app.families):
            device = AppDevice(app, goals=(family,))
            device.reset(100*k + n, draw=False)
            actions = play_oracle(device)
            assert device.solved() and actions[-1].type == "done", (vocabulary, family, 100*k + n)


@pytest.mark.parametrize("name", TEN)
def test_on_a_phone_and_disturbed(name):
    for wrappers in ("@words3@phone", "@invented4@perturbed"):
        app = load_app(name + wrappers)
        device = AppDevice(app)
        device.reset(7, draw=False)
        actions = play_oracle(device)
        assert device.solved() and actions[-1].type == "done", wrappers
    check_app(load_app(f"{name}@words5"), 5, 60)
    check_app(load_app(f"{name}@invented6@phone"), 6, 40, PHONE_SIZE)


@pytest.mark.parametrize("name", TEN)
def test_no_label_keeps_its_word(name):
    app, known = load_app(name), {w for forms, _, _ in glossary() for w in forms}
    data = {w.lower() for lists in ("words", "first_names", "surnames") for w in word_list(lists)} | DATA
    reworded, seen = load_app(f"{name}@words0"), Counter()
    new = {b for _, b in reworded.vocabulary.words}
    for state in states(app, range(12)):
        before, after = labels(app.view(state)), labels(reworded.view(state))
        assert not (before & known) & after - new - data, sorted((before & known) & after - new)
        seen.update(before - known - SMALL_WORDS - data)
    fixed = {w for w, n in seen.items() if n > 30}  # what stands on many screens is no name that was drawn
    assert not fixed, f"{name}: no line of the glossary has {sorted(fixed)}"


@pytest.mark.parametrize("name", TEN)
def test_goal_and_screen_say_the_same(name):
    app, other = load_app(name), load_app(f"{name}@words1")
    say = other.vocabulary.exchange
    for seed in range(2*len(app.families)):
        state = app.start(Random(seed), app.families[seed % len(app.families)])
        plain, worded = app.goal(state), other.goal(state)
        quoted = re.findall(r"'([^']+)'", plain.text)
        assert all(f"'{say(q)}'" in worded.text for q in quoted), worded.text
        assert worded.facts == plain.facts and say(say(plain.text)) == plain.text


def test_test_vocabularies_have_words_that_no_training_one_has():
    held = {w for _, _, held in glossary() for forms in held for w in forms}
    train = {b for seed in range(100) for _, b in draw_vocabulary(seed).words}
    assert not held & train
    for seed in range(20): assert len(held & {b for _, b in draw_vocabulary(TEST + seed).words}) > len(held)/3
    made_up = [{b for _, b in draw_vocabulary(seed, True).words} for seed in range(20)]
    assert not any(words & (held | train | {w for forms, _, _ in glossary() for w in forms}) for words in made_up)


@pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))
def test_both_renderers_agree():
    with Chromium() as chromium:
        for name in ("mail@words1", "settings@invented1"): assert check_renderers(name, chromium, range(1)) > 0
