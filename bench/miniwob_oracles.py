"""What the oracles of MiniWoB++ reach: `python bench/miniwob_oracles.py [TASK ...] [--episodes N] [--first K]`.

Each in a real Chromium, within the steps of the task's environment, a success being a strict one. Results go into
bench/miniwob_oracles.json, a task at a time (others that are there stay), and as a table into the .md beside it."""
import argparse
import json
from pathlib import Path

from oaml.devices.connection import Chromium
from oaml.miniwob.device import MiniwobDevice, task_budget
from oaml.miniwob.oracles import ORACLES, miniwob_targets

OUT = Path(__file__).with_suffix(".json")


def episode(device, seed):
    "Steps of the oracle's episode, whether it is a success, and whether to do nothing would have been one."
    device.reset(seed)
    nothing, acts = device.solved(), []
    while not device.ended and len(acts) < task_budget(device.task):
        acts.append(miniwob_targets(device, acts)[0].action)
        device.perform(acts[-1])
    return len(acts), device.solved(), nothing


def measure(task, seeds, chromium):
    "A row of the table."
    device = MiniwobDevice(task, chromium=chromium)
    steps, won, nothing = zip(*(episode(device, s) for s in seeds))
    device.close()
    return dict(task=task, episodes=len(won), successes=sum(won), mean_steps=round(sum(steps)/len(steps), 2),
                most_steps=max(steps), budget=task_budget(task), do_nothing=sum(nothing),
                failed_seeds=[s for s, w in zip(seeds, won) if not w])


def write(rows, first):
    "The results, in the order of tasks, and the table."
    rows = sorted(rows.values(), key=lambda r: r["task"])
    OUT.write_text(json.dumps(dict(first_seed=first, tasks=rows), indent=1) + "\n")
    won, episodes, nothing = (sum(r[k] for r in rows) for k in ("successes", "episodes", "do_nothing"))
    head = [f"# Oracles of MiniWoB++\n\n{len(rows)} tasks, {won} of {episodes} episodes; do-nothing: {nothing}.\n",
            "| task | episodes | strict successes | mean steps | most steps | budget |", "|---|---|---|---|---|---|"]
    shown = "task", "episodes", "successes", "mean_steps", "most_steps", "budget"
    lines = [f"| {' | '.join(str(r[k]) for k in shown)} |" for r in rows]
    OUT.with_suffix(".md").write_text("\n".join(head + lines) + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("tasks", nargs="*")
    args.add_argument("--episodes", type=int, default=50)
    args.add_argument("--first", type=int, default=0)
    args = args.parse_args()
    rows = {r["task"]: r for r in json.loads(OUT.read_text())["tasks"]} if OUT.exists() else {}
    with Chromium() as chromium:
        for task in args.tasks or ORACLES:
            rows[task] = measure(task, range(args.first, args.first+args.episodes), chromium)
            write(rows, args.first)
            print({k: v for k, v in rows[task].items() if k not in ("budget", "do_nothing")}, flush=True)


if __name__ == "__main__": main()
