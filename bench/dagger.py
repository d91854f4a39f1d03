"""What DAgger brings: `python bench/dagger.py [APPLICATION] [--rounds N]`, results in experiments/dagger. Three
quarters of an hour on two cores.

Two trainings on as many screens of one application begin with the same weights: one goes through the states that the
policy itself came to (`oaml dagger`), the other only through the oracle's. Then both, and the policy
they began with, play the same 100 test episodes.
"""
import argparse
import json
import shutil
from pathlib import Path

from oaml.runtime.agents import PolicyAgent
from oaml.evals.suites import Suite, evaluate_suite
from oaml.runtime.policy import load_policy
from oaml.scripts.eval_policy import write_results
from oaml.scripts.stages import dagger
from oaml.scripts.train import train
from oaml.training.config import load_config

ROOT = Path(__file__).parents[1]
OUT = ROOT/"experiments/dagger"
KEPT = ("resolved.yaml", "metrics.jsonl", "environment.json")


def main(app, rounds):
    config = load_config("dagger", [f"stream.sources={{{app}: 1}}", f"output_dir=runs/dagger/{app}"])
    out = OUT/app
    table = dagger(config, rounds)
    longer = config.stream.model_copy(update=dict(samples=rounds*config.stream.samples))
    control = train(config.model_copy(update=dict(stream=longer, output_dir=f"{config.output_dir}/control")), resume=True)
    folders = dict(nano="nano", oracle_states=control.agent, dagger=Path(config.output_dir)/f"round-{rounds}/agent")
    agents = [PolicyAgent(load_policy(folder), name) for name, folder in folders.items()]
    suite = Suite("synthetic-v1", (app,))  # its episodes of this application
    rows, _ = evaluate_suite(agents, suite, progress=True)
    out.mkdir(parents=True, exist_ok=True)
    write_results(rows, out/"results.json")
    (out/"dagger.json").write_text(json.dumps(table, indent=1))
    for name in ("control", *(f"round-{k + 1}" for k in range(rounds))):
        (out/name).mkdir(exist_ok=True)
        for file in KEPT: shutil.copy(Path(config.output_dir)/name/file, out/name)
    for row in rows: print({k: row[k] for k in ("app", "goal_family", "agent", "success", "step_accuracy")})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", nargs="?", default="login", help="application (login)")
    parser.add_argument("--rounds", type=int, default=3, help="of acting and training (3)")
    named = parser.parse_args()
    main(named.app, named.rounds)
