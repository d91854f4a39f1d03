"""Generated worlds: how fast they are made, what the oracle and the simplest agents reach. `python bench/generated_worlds.py 2000`

Prints a line a split: worlds a second, episodes, and of each goal family how many the oracle, doing nothing and random hands solve."""
import json
import sys
import time
from collections import Counter
from random import Random

from oaml.apps.app import random_action
from oaml.apps.catalog import load_app
from oaml.apps.world_spec import draw_world
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import play_oracle
from oaml.ingest.engines import ProcessEngine

RANDOM_STEPS = 30


def play_world(seed):
    "Families of a world's goals: (oracle solves, goal holds at the start, random hands solve)."
    app, out = load_app(f"worlds:{seed}"), {}
    for k, family in enumerate(app.families):
        device, rng = AppDevice(app, goals=(family,)), Random(f"hands:{seed}:{k}")
        device.reset(seed + k, draw=False)
        held = device.solved()
        actions = play_oracle(device)
        solved = device.solved() and actions[-1].type == "done"
        device.reset(seed + k, draw=False)
        for _ in range(RANDOM_STEPS): device.perform(random_action(rng, device.last_elements), draw=False)
        out[family] = (solved, held, device.solved() and not held)
    return out


def main(n):
    began = time.perf_counter()
    for seed in range(900_000, 900_200): draw_world(seed)
    print(f"made: {200/(time.perf_counter() - began):.0f} worlds a second, one process")
    with ProcessEngine(2, 5) as engine:
        for split, first, worlds in (("train", 0, n*3//4), ("test", 2_000_000, n - n*3//4)):
            total, oracle, held, hands = Counter(), Counter(), Counter(), Counter()
            for job in [engine.submit(play_world, s) for s in range(first, first + worlds)]:
                for family, (a, b, c) in job.result().items():
                    total[family] += 1
                    oracle[family], held[family], hands[family] = oracle[family] + a, held[family] + b, hands[family] + c
            print(json.dumps(dict(split=split, worlds=worlds, episodes=total.total(), oracle=oracle.total(), held_at_start=held.total(),
                                  random=hands.total(), by_family={f: f"{oracle[f]}/{total[f]}" for f in total})))


if __name__ == "__main__": main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
