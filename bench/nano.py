"""What the nano that oaml ships can do: `python bench/nano.py [SUITE ...]`, results in experiments/nano.

For each suite: nano beside the oracle, do-nothing, random, the memoriser and the nearest screen, 100 test episodes an
application; for synthetic-v1 what was wrong in the episodes that failed, and how many nano finishes without the rule
against circles; for the robust suite what came between. Half an hour a suite on one core, nano alone (`--agent nano`)
ten minutes: what the files say of the others stays.
"""
import argparse
import json
from collections import Counter
from pathlib import Path

import torch

from oaml.runtime.agents import PolicyAgent
from oaml.evals.closed_loop import beside_oracle, run_episodes
from oaml.evals.suites import AGENTS, evaluate_suite, load_agent, load_suite
from oaml.runtime.policy import load_policy
from oaml.scripts.eval_policy import write_results

OUT = Path(__file__).parents[1]/"experiments/nano"
SUITES = ("synthetic-v1", "synthetic-v1-ood", "synthetic-v1-mobile", "synthetic-v1-robust")


def what_was_wrong(outcome):
    "The first action that no oracle would have done: what was wanted, and what was done instead."
    for action, wanted, right in beside_oracle(outcome):
        if right: continue
        kinds = sorted({t.action.type for t in wanted})
        how = {"click": "clicked elsewhere", "type": "typed something else"}.get(action.type, "did it wrongly")
        mistake = how if action.type in kinds else f"{action.type} instead"
        return f"{'/'.join(kinds)} was due: {mistake}"
    return "no time left" if outcome.actions[-1].type != "done" else "done, and a goal not met"


def failures(suite, reports):
    "How often each was the first mistake, by application."
    return {r.app: dict(Counter(what_was_wrong(o) for o in r.played if not o.success).most_common())
            for r in reports}


def circles(suite, reports):
    "With and without the rule against circles, by application: of how many open episodes how many nano finishes."
    def count(outcomes): return sum(o.success for o in outcomes if not o.presatisfied)
    plain = PolicyAgent(load_policy("nano", retries=0), "nano")
    table = {}
    for r in reports:
        without = run_episodes(plain, lambda: suite.device(r.app), [o.seed for o in r.played], True)
        table[r.app] = {"open": sum(not o.presatisfied for o in without), "with": count(r.played), "without": count(without)}
    return table


def by_kind(suite, reports, agents):
    "Of what came between, for each agent: episodes and how many succeeded. Whoever draws the seeds draws that too."
    kinds = {a: {} for a in agents}
    for agent, mine in zip(agents, reports):
        for r in mine:
            device = suite.device(r.app)
            for o in (o for o in r.played if not o.presatisfied):  # as `success` has it
                device.reset(o.seed, draw=False)
                counts = kinds[agent].setdefault(device.start.app.kind, dict(episodes=0, succeeded=0))
                counts["episodes"] += 1
                counts["succeeded"] += o.success
    return kinds


def kept(path, agents):
    "What a file says of other agents."
    rows = json.loads(path.read_text()) if path.exists() else []
    return [r for r in rows if r["agent"] not in agents]


def write(name, data): (OUT/name).write_text(json.dumps(data, indent=1))


def main(names, agents):
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        suite, path, kinds = load_suite(name), OUT/f"{name}.json", OUT/f"{name}-kinds.json"
        rows, reports = evaluate_suite([load_agent(a, suite) for a in agents], suite, progress=True)
        write_results(sorted(kept(path, agents) + rows, key=lambda r: AGENTS.index(r["agent"])), path)
        if name == "synthetic-v1" and "nano" in agents:
            mine = reports[agents.index("nano")]
            write("failures.json", failures(suite, mine))
            write("circles.json", circles(suite, mine))
        if suite.variant == "@perturbed":
            before = json.loads(kinds.read_text()) if kinds.exists() else {}
            write(kinds.name, before | by_kind(suite, reports, agents))
        print(name, {r["agent"]: r["success"] for r in rows if r["app"] == "mean"}, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--agent", action="append", choices=AGENTS, help="measure this one (again for more); default: all")
    args = parser.parse_args()
    for name in args.suites: load_suite(name)  # complain before the first hour, not after it
    main(args.suites or SUITES, args.agent or list(AGENTS))
