"Demonstrations as files: random damage is refused with its place; every application's oracle fits into short lines without places."
import re
from random import Random

import pytest

from oaml.apps.catalog import APPS, load_app
from oaml.datasets.demonstrations import MAX_STEP_TOKENS, count_tokens, from_yaml, in_words, load_demonstration, to_yaml, write
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import acceptable_targets
from oaml.runtime.replay import Replay


def shown_in(app, family, seed):
    "What the oracle does in one episode, in words; None if it had nothing to do."
    device, done, steps = AppDevice(load_app(app), goals=(family,)), [], []
    device.reset(seed, draw=False)
    if device.solved(): return None
    while not done or done[-1].type != "done" and len(done) < device.step_budget:
        before = device.last_elements
        done.append(acceptable_targets(device, done)[0].action)
        device.perform(done[-1], draw=False)
        steps.append((done[-1], before, device.last_elements))
    return in_words(device.goal.text, steps)


def damaged(text, rng):
    "A demonstration's file with one thing wrong: bytes, lines, keys, types or nesting."
    lines, kind = text.splitlines(keepends=True), rng.randrange(9)
    at, line = rng.randrange(len(text)), rng.randrange(len(lines))
    if kind == 0: return (text[:at] + rng.choice("{}[]:'\"\0\t&*!%@`#-,|>") + text[at:]).encode()
    if kind == 1: return text[:at].encode()
    if kind == 2: return (text[:at] + text[at + rng.randint(1, 12):]).encode()
    if kind == 3: return "".join(lines[:line] + lines[line:][1:]).encode()
    if kind == 4: return "".join(lines[:line] + [lines[line]] + lines[line:]).encode()
    if kind == 5:  # a byte, or a mark of another encoding
        data = bytearray(text.encode())
        data[at] = rng.randrange(256)
        return rng.choice([bytes(data), text.encode("utf-16"), b"\xff" + text.encode(), text.encode()[:at] + b"\x00" + text.encode()[at:]])
    if kind == 6:  # a value of another type
        key = rng.choice(["goal", "title", "do", "steps", "values", "demonstration"])
        wrong = rng.choice(["3", "true", "null", "[1, 2]", "{a: 1}", "1e400", ".nan", "!!python/object:os.system x", "2020-01-01"])
        return re.sub(rf"(?m)^(- |  )?{key}: .*$", lambda m: f"{m[1] or ''}{key}: {wrong}", text, count=1).encode()
    if kind == 7:  # nested deep
        deep = rng.choice(["[" * 500 + "]" * 500, "{a: " * 500 + "1" + "}" * 500, "[" * 50_000, "- " * 300 + "a"])
        return (text[:at] + deep + text[at:] if rng.random() < .5 else f"{text}extra: {deep}\n").encode()
    word = rng.choice([("do: press", "do: prss"), ("source: goal", "source: goals"), ("role:", "rôle:"), ("name:", "nam:"), ("{", "{x"), ("demonstration: 1", "demonstration: one"), ("title:", "titel:")])
    return (text.replace(*word, 1) if word[0] in text else text + "extra: 1\n").encode()


def test_random_damage_is_refused_with_its_place_or_reads_as_a_demonstration(tmp_path):
    texts = [to_yaml(shown_in(app, load_app(app).families[0], seed)) for app, seed in (("login", 0), ("mail", 1), ("files", 0), ("settings", 0))]
    rng, refused, file = Random(0), 0, tmp_path/"demo.yaml"
    for k in range(1000):
        file.write_bytes(damaged(texts[k % len(texts)], rng))
        try: again = load_demonstration(file)
        except ValueError as e:
            refused += 1
            problems = getattr(e, "problems", [str(e)])
            assert all(p.startswith((f"{file}:", f"{file}, line ")) for p in problems), problems
        else: assert from_yaml(to_yaml(again)) == again  # a name with a letter less is still a name
    assert refused > 550


@pytest.mark.parametrize("app", [a for a in APPS if a != "procedural"])
def test_steps_are_short_without_places_and_come_back_from_the_file(app):
    for family in load_app(app).families:
        shown = next(s for seed in range(20) if (s := shown_in(app, family, seed)))
        lines = write(shown).splitlines()
        assert all(count_tokens(line) <= MAX_STEP_TOKENS for line in lines[1:])
        assert from_yaml(to_yaml(shown)) == shown


def test_a_replay_ends_with_done_or_a_reason_and_gives_the_same_actions_again():
    for app in ("login", "mail", "sheet"):
        family = load_app(app).families[0]
        shown = next(s for seed in range(20) if (s := shown_in(app, family, seed)))
        runs = []
        for _ in range(2):
            device = AppDevice(load_app(app), goals=(family,))
            device.reset(2_000_000, draw=False)
            replay, actions = Replay(shown, device.goal.text), []
            for _ in range(device.step_budget):
                actions.append(replay.next(device.last_elements))
                if actions[-1].type in ("done", "failed"): break
                device.perform(actions[-1], draw=False)
            assert actions[-1].type != "failed" or replay.halted and actions[-1].raw["reason"].endswith(replay.halted)
            runs.append(actions)
        assert runs[0] == runs[1]
