"""What two rules around nano are worth: `python bench/nano_rules.py [margin] [circles]`, results in experiments/nano/rules.json.

margin: a thought that all is done must lead by two nats, or need not; 34 validation episodes of each of the nine
applications, 306 in all. circles: with and without `AgentPolicy`'s retries; `files` on the hundred test seeds that are
published and on sixty others. One thread, NumPy; a quarter of an hour each on an idle core.
"""
import argparse
import json
from pathlib import Path

from threadpoolctl import threadpool_limits

from oaml.apps.app import split_seeds
from oaml.apps.catalog import TRAIN_APPS
from oaml.ui.reasons import OVER
from oaml.runtime.agents import PolicyAgent
from oaml.evals.closed_loop import run_episodes
from oaml.evals.suites import load_suite
from oaml.ingest.store import write_atomic
from oaml.runtime.policy import load_policy

OUT = Path(__file__).parents[1]/"experiments/nano/rules.json"
SUITE = load_suite("synthetic-v1")


def counts(outcomes):
    "Successes among episodes that were open at the start, and among those whose goal was met there."
    def of(met): return [o.success for o in outcomes if o.presatisfied == met]
    return dict(open=len(of(False)), succeeded=sum(of(False)), met_at_start=len(of(True)), met_succeeded=sum(of(True)))


def play(app, seeds, nats=0., retries=4):
    "Episodes of nano on one application."
    policy = load_policy("nano", retries=retries)
    token, *_ = policy.adapter.tokenizer.encode(OVER["done"], add_special_tokens=False).ids
    policy.adapter.bias[token] = -nats
    return run_episodes(PolicyAgent(policy, "nano"), lambda: SUITE.device(app), seeds, progress=True)


def margin():
    "Both ways on the same episodes, and how many were won and lost by dropping it."
    seeds = split_seeds("validation", 34, 4000)
    runs = {nats: {app: play(app, seeds, nats) for app in TRAIN_APPS} for nats in (2., 0.)}
    rows = [dict(app=app, nats=nats, **counts(of[app])) for nats, of in runs.items() for app in TRAIN_APPS]
    pairs = [(a.success, b.success) for app in TRAIN_APPS for a, b in zip(runs[2.][app], runs[0.][app]) if not a.presatisfied]
    return dict(rows=rows, gained_without=pairs.count((False, True)), lost_without=pairs.count((True, False)))


def circles():
    "`files` with and without the rule."
    seeds = dict(published=split_seeds("test", 100, 0), others=split_seeds("test", 60, 100))
    return [dict(seeds=name, retries=retries, nats=nats, **counts(play("files", of, nats, retries)))
            for name, of in seeds.items() for nats in (2., 0.) for retries in (0, 4)]


if __name__ == "__main__":
    measures = dict(margin=margin, circles=circles)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="margin, circles; default: both", default=[])
    what = parser.parse_args().what or list(measures)
    if unknown := set(what) - set(measures): parser.error(f"{', '.join(unknown)}: there are {', '.join(measures)}")
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in what:
        with threadpool_limits(1): results[name] = measures[name]()
        write_atomic(OUT, json.dumps(results, indent=1).encode())
