#!/usr/bin/env python3
"""Shown once, done again: a demonstration from a training seed, then test seeds of the same kind of goal, without a model.
    python bench/shown_once.py --seeds 4                      # the ten applications, a demonstration each, other seeds (c)
    python bench/shown_once.py --seeds 4 --demos 8            # the most similar of eight
    python bench/shown_once.py --seeds 4 --look               # the same data, another look (d)
    python bench/shown_once.py --apps worlds:3 worlds:11      # generated worlds
Arms: replay by words; the same places (literal); places with this goal's values; nearest screen; a wrong demonstration. The judge
is the application's state. A demonstration whose goal held before the first action shows nothing and is passed over.
Writes bench/shown_once.json and bench/shown_once.md (a part for each condition)."""
import argparse
import json
import time
from collections import Counter
from pathlib import Path

from oaml.apps.catalog import APPS, load_app
from oaml.datasets.demonstrations import in_words, page_title
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import acceptable_targets
from oaml.evals.baselines import thumbnail
from oaml.evals.trajectory_matching import Ratio
from oaml.datasets.binding import Halt, bind_values
from oaml.runtime.replay import Replay, similarity
from oaml.schemas.sessions import Action, SchemaError
from oaml.ui.themes import FAMILIES, HELD_OUT_FAMILY

HERE = Path(__file__).parent
TEST = 2_000_000  # the first test seed
ARMS = "replay", "literal", "places + values", "nearest screen", "wrong demonstration"


class Shown:
    "One oracle episode of a training seed: its words, its actions, its screens."
    def __init__(self, app, goals, seed, draw):
        device = AppDevice(load_app(app), goals=(goals,))
        frame = device.reset(seed, draw=draw)
        self.goal, self.solved, self.actions, self.thumbs, steps = device.goal.text, device.solved(), [], [], []
        for _ in range(device.step_budget):
            before, action = device.last_elements, acceptable_targets(device, self.actions)[0].action
            self.actions.append(action)
            if draw: self.thumbs.append(thumbnail(frame.image))
            frame = device.perform(action, draw=draw)
            steps.append((action, before, device.last_elements))
            if action.type == "done": break
        try: self.words = None if self.solved else in_words(self.goal, steps)
        except SchemaError: self.words = None  # nothing but DONE


def demonstrations(app, family, n, draw):
    "The first `n` training seeds' demonstrations that show something."
    out, seed = [], 0
    while len(out) < n and seed < 20*n:
        if (shown := Shown(app, family, seed, draw)).words: out.append(shown)
        seed += 1
    return out


def with_values(action, shown, goal):
    "An action at its place, its text with this goal's values in it."
    if action.text is None: return action
    try: values = bind_values(shown.words, goal).values
    except Halt: return action
    text = action.text
    for key, old in shown.words.values.items():
        if key in values: text = text.replace(old, values[key])
    return Action(action.type, text=text)


def run(arm, shown, device, seed, draw):
    "What became of one episode, its actions and its reason; None if its goal held at the start."
    frame = device.reset(seed, draw=draw)
    if device.solved(): return None
    goal, replay, n = device.goal.text, None, 0
    if arm in ("replay", "wrong demonstration"): replay = Replay(shown.words, goal)
    for n in range(device.step_budget):
        if replay: action = replay.next(device.last_elements)
        elif arm == "nearest screen":
            row = thumbnail(frame.image)
            action = with_values(shown.actions[min(range(len(shown.thumbs)), key=lambda k: ((shown.thumbs[k] - row)**2).sum())], shown, goal)
        else:
            action = shown.actions[n] if n < len(shown.actions) else Action("done")
            if arm == "places + values": action = with_values(action, shown, goal)
        if action.type in ("done", "failed"): break
        frame = device.perform(action, draw=draw)
    said = action.type == "done"
    outcome = "done" if said and device.solved() else "false" if said else "halt" if action.type == "failed" else "budget"
    return dict(outcome=outcome, steps=n + 1, goal=goal, shown=shown.goal, reason=replay.halted if replay else "")


def another_look(seed):
    "A theme family by turns."
    names = [f for f in FAMILIES if f != HELD_OUT_FAMILY]
    return names[seed % len(names)]


def measure(apps, seeds, demos, look, arms, first=0):
    "All episodes, as rows."
    rows = []
    for app in apps:
        families = load_app(app).families
        for f, family in enumerate(families):
            draw = "nearest screen" in arms
            known = demonstrations(app, family, demos, draw)
            wrong = demonstrations(app, families[(f + 1) % len(families)], 1, False) if "wrong demonstration" in arms else []
            for k in range(first, first + seeds) if known else ():
                for arm in arms:
                    seed = TEST + k if not look else k
                    device = AppDevice(load_app(app), goals=(family,), family=another_look(k) if look else None)
                    device.reset(seed, draw=False)
                    pool = wrong if arm == "wrong demonstration" else known
                    if not pool: continue
                    if look and arm != "wrong demonstration": shown = Shown(app, family, seed, draw)
                    elif demos == 1: shown = pool[0]
                    else: shown = max(pool, key=lambda s: similarity(s.words, device.goal.text, page_title(device.last_elements)))
                    if not shown.words: continue
                    began = time.perf_counter()
                    row = run(arm, shown, device, seed, arm == "nearest screen")
                    if row: rows.append(dict(app=app, family=family, seed=seed, arm=arm, seconds=time.perf_counter() - began, **row))
        print(app, {arm: dict(Counter(r["outcome"] for r in rows if r["app"] == app and r["arm"] == arm)) for arm in arms}, flush=True)
    return rows


def table(rows, by):
    "Markdown: a row for each value of `by`."
    lines = [f"| {by} | episodes | done | 95% | false DONE | 95% | halts | budget | ms a step |", "|---|" + "---:|"*8]
    for name in dict.fromkeys(r[by] for r in rows):
        own = [r for r in rows if r[by] == name]
        count = Counter(r["outcome"] for r in own)
        done, false = Ratio(count["done"], len(own)), Ratio(count["false"], len(own))
        span = lambda r: "–" if r.interval is None else f"{r.interval[0]:.1%} to {r.interval[1]:.1%}"
        lines.append(f"| {name} | {len(own)} | {done.value:.1%} | {span(done)} | {false.value:.1%} | {span(false)} | {count['halt']} | {count['budget']} | "
                     f"{1000*sum(r['seconds'] for r in own)/sum(r['steps'] for r in own):.1f} |")
    return "\n".join(lines)


def main():
    "Measure one condition, and put it among the others in the two files."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", nargs="+", default=[a for a in APPS if a != "procedural"])
    parser.add_argument("--seeds", type=int, default=4, help="test seeds of each kind of goal")
    parser.add_argument("--first", type=int, default=0, help="of the split's seeds: 0 to 3 were looked at while the replay was written")
    parser.add_argument("--demos", type=int, default=1, help="demonstrations to choose from")
    parser.add_argument("--look", action="store_true", help="the seed that was shown, in another look")
    parser.add_argument("--arms", nargs="+", default=["replay"], choices=ARMS)
    parser.add_argument("--name", help="of the condition; None: from the options")
    given = parser.parse_args()
    kind = "worlds" if given.apps[0].startswith("worlds:") else "apps"
    name = given.name or f"{kind}, {'another look (d)' if given.look else 'other seeds (c)'}, {given.demos} shown" + (f", from seed {given.first} on" if given.first else "")
    rows = measure(given.apps, given.seeds, given.demos, given.look, given.arms, given.first)
    path = HERE/"shown_once.json"
    parts = json.loads(path.read_text()) if path.exists() else {}
    halts = Counter(r["reason"].partition(": ")[2][:60] or r["reason"][:60] for r in rows if r["arm"] == "replay" and r["outcome"] == "halt")
    parts[name] = dict(arms=table(rows, "arm"), apps=table([r for r in rows if r["arm"] == "replay"], "app"),
                       false=[{k: r[k] for k in ("app", "family", "seed", "arm", "shown", "goal")} for r in rows if r["outcome"] == "false" and r["arm"] == "replay"],
                       halts=halts.most_common(12))
    path.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n")
    text = ["# Shown once, done again", "", "Written by bench/shown_once.py. A demonstration of a training seed, test seeds of the same kind of goal; no model. Goals that hold at the start are left out.",
            "", "The judge is the application's state; *false DONE* is DONE without the goal reached."]
    for name, part in parts.items(): text += ["", f"## {name}", "", part["arms"], "", "Replay, by application:", "", part["apps"]]
    (HERE/"shown_once.md").write_text("\n".join(text) + "\n")
    print(table(rows, "arm"))


if __name__ == "__main__": main()
