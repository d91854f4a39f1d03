"""Generated worlds: how fast they are made, what the oracle and the simplest agents reach. `python bench/generated_worlds.py 2000`

Every fourth world is of the test split, the others are of the training split. A line a world goes to `--log`; a run that
was stopped goes on behind its last line. Ends with a table, written to `--out`: of each goal family how many the oracle,
doing nothing and random hands solve, how fast worlds are made and drawn, and the worlds where something is wrong."""
import argparse
import json
import time
from collections import Counter
from pathlib import Path
from random import Random

from oaml.apps.app import random_action
from oaml.apps.catalog import TRAIN_APPS, load_app
from oaml.apps.world_spec import draw_world
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import play_oracle
from oaml.ingest.engines import ProcessEngine

RANDOM_STEPS = 30
TEST_FIRST = 2_000_000


def play_family(app, seed, family):
    "Whether the oracle solves a goal, doing nothing does, random hands do; or the error's words."
    try:
        device, rng = AppDevice(app, goals=(family,)), Random(f"hands:{seed}:{family}")
        device.reset(seed, draw=False)
        held = device.solved()
        actions = play_oracle(device)
        solved = device.solved() and actions[-1].type == "done"
        device.reset(seed, draw=False)
        for _ in range(RANDOM_STEPS): device.perform(random_action(rng, device.last_elements), draw=False)
        return solved, held, device.solved() and not held
    except Exception as e: return f"{type(e).__name__}: {e}"[:200]


def play_world(seed):
    "The seed, and of each of the world's families what `play_family` says."
    app = load_app(f"worlds:{seed}")
    return seed, {family: play_family(app, seed + k, family) for k, family in enumerate(app.families)}


def play_all(seeds, log):
    "Play the worlds that the log doesn't have yet; returns all of them."
    done = dict(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else {}
    with ProcessEngine(1, 5) as engine, log.open("a") as file:
        for job in [engine.submit(play_world, s) for s in seeds if s not in done]:
            seed, result = job.result()
            done[seed] = result
            file.write(json.dumps([seed, result]) + "\n")
            file.flush()
    return {s: done[s] for s in seeds}


def frames_a_second(names, frames=20):
    "How many screens a second are drawn: one after each of some random actions."
    spent = 0
    for name in names:
        device, rng = AppDevice(load_app(name)), Random(name)
        device.reset(1)
        began = time.perf_counter()
        for _ in range(frames): device.perform(random_action(rng, device.last_elements))
        spent += time.perf_counter() - began
    return frames*len(names)/spent


def table(results, made, drawn):
    "The result in Markdown."
    total, oracle, held, hands, wrong = Counter(), Counter(), Counter(), Counter(), []
    for seed, families in results.items():
        for family, r in families.items():
            a, b, c = (False, False, False) if isinstance(r, str) else r
            total[family] += 1
            oracle[family], held[family], hands[family] = oracle[family] + a, held[family] + b, hands[family] + c
            if not a: wrong.append(f"- worlds:{seed}, {family}: {r if isinstance(r, str) else 'not solved'}")
    rows = [f"| {f} | {total[f]:,} | {oracle[f]:,} | {held[f]} | {hands[f]} |" for f in total]
    every = f"| all | {total.total():,} | {oracle.total():,} ({oracle.total()/total.total():.2%}) | {held.total()} ({held.total()/total.total():.1%}) | {hands.total()} ({hands.total()/total.total():.1%}) |"
    test = sum(s >= TEST_FIRST for s in results)
    return "\n".join([
        "# Generated worlds", "", f"`python bench/generated_worlds.py {len(results)}`: {len(results) - test:,} worlds of the training split, {test:,} of the test split, "
        "one episode of every kind of goal that each has. Random: " f"{RANDOM_STEPS} random actions.", "",
        f"Made: {made:.0f} worlds a second in one process. Drawn: {drawn[0]:.0f} screens a second, the hand-written applications {drawn[1]:.0f}.", "",
        "| goal | episodes | oracle | holds at the start | random hands |", "|---|---|---|---|---|", *rows, every, "", *(wrong or ["The oracle fails nowhere."]), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", type=int, nargs="?", default=200)
    parser.add_argument("--log", type=Path, default=Path("generated_worlds.jsonl"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    n = args.worlds
    began = time.perf_counter()
    for seed in range(900_000, 900_200): draw_world(seed)
    made = 200/(time.perf_counter() - began)
    drawn = frames_a_second([f"worlds:{s}" for s in range(20)]), frames_a_second(TRAIN_APPS)
    seeds = [TEST_FIRST + k//4 if k % 4 == 3 else k - k//4 for k in range(n)]
    text = table(play_all(seeds, args.log), made, drawn)
    if args.out: args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__": main()
