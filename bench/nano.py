"""What the nano that oaml ships can do: `python bench/nano.py [SUITE ...]`, results in experiments/nano.

For each suite: nano beside the oracle, do-nothing, random, the memoriser and the nearest screen, 100 test episodes an
application; for synthetic-v1 what was wrong in the episodes that failed, for the robust suite what came between. Half
an hour a suite on one core.
"""
import argparse
import json
from collections import Counter
from pathlib import Path

import torch

from oaml.evals.closed_loop import beside_oracle
from oaml.evals.suites import AGENTS, evaluate_suite, load_agent, load_suite
from oaml.scripts.eval_policy import write_results

OUT = Path(__file__).parents[1]/"experiments/nano"
SUITES = ("synthetic-v1", "synthetic-v1-ood", "synthetic-v1-mobile", "synthetic-v1-robust")


def what_was_wrong(suite, app, outcome):
    "The first act that no oracle would have done: what was wanted, and what was done instead."
    for action, wanted, right in beside_oracle(suite.device(app), outcome):
        if right: continue
        kinds = sorted({t.action.type for t in wanted})
        how = {"click": "clicked elsewhere", "type": "typed something else"}.get(action.type, "did it wrongly")
        mistake = how if action.type in kinds else f"{action.type} instead"
        return f"{'/'.join(kinds)} was due: {mistake}"
    return "no time left" if outcome.actions[-1].type != "done" else "done, and a goal not met"


def failures(suite, reports):
    "How often each was the first mistake, by application."
    return {r.app: dict(Counter(what_was_wrong(suite, r.app, o) for o in r.outcomes if not o.success).most_common())
            for r in reports}


def by_kind(suite, reports):
    "Of what came between, for each agent: episodes and how many succeeded. Whoever draws the seeds draws that too."
    kinds = {a: {} for a in AGENTS}
    for agent, mine in zip(AGENTS, reports):
        for r in mine:
            device = suite.device(r.app)
            for o in (o for o in r.outcomes if not o.presatisfied):  # as `success` has it
                device.reset(o.seed, draw=False)
                counts = kinds[agent].setdefault(device.start.app.kind, dict(episodes=0, succeeded=0))
                counts["episodes"] += 1
                counts["succeeded"] += o.success
    return kinds


def main(names):
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        suite = load_suite(name)
        rows, reports = evaluate_suite([load_agent(a, suite) for a in AGENTS], suite, progress=True)
        write_results(rows, OUT/f"{name}.json")
        if name == "synthetic-v1":
            (OUT/"failures.json").write_text(json.dumps(failures(suite, reports[AGENTS.index("nano")]), indent=1))
        if suite.variant == "@perturbed":
            (OUT/f"{name}-kinds.json").write_text(json.dumps(by_kind(suite, reports), indent=1))
        print(name, {r["agent"]: r["success"] for r in rows if r["app"] == "mean"}, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: all")
    named = parser.parse_args().suites
    for name in named: load_suite(name)  # complain before the first hour, not after it
    main(named or SUITES)
