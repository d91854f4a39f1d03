#!/usr/bin/env python3
"""A replay, the same with nano behind it, and nano alone, on the same episodes: what the model adds, and what it spoils.
    python bench/guarded.py --split validation --least 0 0.25 0.5 0.75 0.9 --agents replay replay+nano   # how LEAST was chosen
    python bench/guarded.py                                                                              # the table
One demonstration of a training seed for each kind of goal; kinds of goals in turn. The judge is the application's state. nano learnt in
nine of the applications (not in the calendar), and takes no demonstrations. Writes bench/guarded.json and bench/guarded.md, a part for each split."""
import argparse
import json
import time
from functools import partial
from pathlib import Path

from oaml.apps.app import split_seeds
from oaml.evals.shots import app_shots, teach
from oaml.evals.suites import app_suite, load_agent
from oaml.evals.trajectory_matching import Ratio
from oaml.runtime.guarded import GUARDED
from oaml.runtime.play import FreshDevices, play

HERE = Path(__file__).parent
APPS = "calendar", "sheet", "mail", "contacts", "files"
COUNTS = "done", "halted", "false", "budget"


def by_kind(suite, app, seeds):
    "The seeds of each kind of goal, those left out whose goal holds before anything is done."
    device, kinds = suite.device(app), {}
    for seed in seeds:
        device.reset(seed, draw=False)
        if not device.solved(): kinds.setdefault(device.goal.family, []).append(seed)
    return kinds


def measure(agent, suite, app, kinds, shown):
    "What came of an agent's episodes, the model's actions among its own, and seconds."
    episodes, began = [], time.time()
    for family, seeds in kinds.items():
        if shown: teach(agent, app_shots(suite.device(app), family, 1))
        episodes += play(agent, FreshDevices(partial(suite.device, app)), seeds)
    helped = [a for e in episodes for a in e.actions if (a.raw or {}).get("by") not in (None, "replay") and a.type not in ("done", "failed")]
    return dict(app=app, episodes=len(episodes), done=sum(bool(e.success) for e in episodes), halted=sum(e.ended == "halted" for e in episodes),
                false=sum(e.ended == "done" and not e.success for e in episodes), budget=sum(e.ended == "budget" for e in episodes),
                actions=sum(len(e.steps) for e in episodes), helped=len(helped), seconds=round(time.time() - began, 1))


def line(row):
    "One line of the table."
    def share(k): return f"{row[k]} ({row[k]/row['episodes']:.0%})"
    low, high = Ratio(row["false"], row["episodes"]).interval
    return (f"| {row['app']} | {row['agent']} | {'' if row['least'] is None else row['least']} | {row['episodes']} | {share('done')} | {share('halted')} | {row['false']} "
            f"| {low:.1%} to {high:.1%} | {row['budget']} | {row['helped']} of {row['actions']} | {row['seconds']/max(1, row['actions']):.2f} |")


def table(rows):
    "All rows, and for each arm their sum."
    arms = list(dict.fromkeys((r["agent"], r["least"]) for r in rows))
    sums = [dict(app="all", agent=a, least=b) | {k: sum(r[k] for r in rows if (r["agent"], r["least"]) == (a, b)) for k in ("episodes", *COUNTS, "actions", "helped", "seconds")} for a, b in arms]
    return "\n".join(["| app | agent | sure from | episodes | done | halted | false | 95% | budget | actions of the model | s an action |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
                      *map(line, [*rows, *sums])])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--apps", nargs="+", default=APPS)
    p.add_argument("--agents", nargs="+", default=["replay", "replay+nano", "nano"])
    p.add_argument("--split", default="test", choices=["test", "validation"])
    p.add_argument("--episodes", type=int, default=40, help="of each application")
    p.add_argument("--least", nargs="+", type=float, help="how sure the model has to be; by default its own LEAST")
    args, rows = p.parse_args(), []
    for app in args.apps:
        suite = app_suite(app)
        kinds = by_kind(suite, app, split_seeds(args.split, args.episodes, 0))
        for name in args.agents:
            for least in (args.least or [None]) if name.startswith(GUARDED) else [None]:
                agent = load_agent(name, None, shots=1)
                if least is not None: agent.least = least
                rows.append(measure(agent, suite, app, kinds, "replay" in name) | dict(agent=name, least=getattr(agent, "least", None)))
                print(line(rows[-1]), flush=True)
    kept = HERE/"guarded.json"
    parts = (json.loads(kept.read_text()) if kept.exists() else {}) | {args.split: rows}
    kept.write_text(json.dumps(parts, indent=1) + "\n")
    head = __doc__.split("\n")[0]
    (HERE/"guarded.md").write_text(f"# A replay with a model behind it\n\nWritten by bench/guarded.py. {head} One demonstration of a training seed for each kind of goal.\n\n"
                                   + "\n\n".join(f"## {split} seeds\n\n{table(mine)}" for split, mine in parts.items()) + "\n")


if __name__ == "__main__": main()
