"""What practising has brought: `python bench/rft_gain.py RUN --app files --name files_1`, the run's logs and the results
(`paired.json`) in experiments/rft/NAME.

The shipped nano and the newest checkpoint of RUN (a folder of `oaml rft`, or of any other training that began with nano) play
the same validation episodes greedily, without retries and with `PolicyAgent`'s. Goals that hold at the start are left out and
counted. Blocks of 20 episodes are written as they end, in RUN/gain, nano's own in a folder `nano` beside RUN, which other runs
share: stopped, the same command goes on. With `--split test` the results are `paired_test.json`: once, at the end.
"""
import argparse
import json
import multiprocessing
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from oaml.apps.app import split_seeds
from oaml.apps.catalog import load_app
from oaml.devices.app_device import AppDevice
from oaml.runtime.agents import PolicyAgent
from oaml.evals.closed_loop import run_episodes
from oaml.runtime.policy import load_policy
from oaml.scripts.rft import paired_figures
from oaml.training.checkpoints import latest_checkpoint

BLOCK = 20  # episodes played at once: with retries their draws depend on who is played beside
KEPT = ("resolved.yaml", "metrics.jsonl", "environment.json")


def played(folder, who, app, seeds, retries, known):
    "Rows of the episodes of `seeds`, those in the file `known` read, the others played and written."
    rows = json.loads(known.read_text()) if known.exists() else []
    policy = PolicyAgent(load_policy(folder, retries=retries), who)
    device = partial(AppDevice, app, goals=load_app(app).families)
    while len(rows) < len(seeds):
        for o in run_episodes(policy, device, seeds[len(rows):len(rows) + BLOCK]):
            rows.append(dict(seed=o.seed, family=o.workflow_id, success=o.success, reached=o.reached, steps=len(o.steps),
                             done=o.actions[-1].type == "done", presatisfied=o.presatisfied))
        known.write_text(json.dumps(rows))
        print(f"{who}, {retries} retries: {sum(r['success'] for r in rows)} of {len(rows)} succeeded", flush=True)
    return rows[:len(seeds)]


def by_family(before, after):
    "Of each goal family, how many episodes there are and in how many the agent succeeded, before and after."
    rows = {}
    for a, b in zip(before, after):
        if a["presatisfied"]: continue
        row = rows.setdefault(a["family"], dict(family=a["family"], episodes=0, before=0, after=0))
        for name, n in dict(episodes=1, before=a["success"], after=b["success"]).items(): row[name] += n
    return [rows[f] for f in sorted(rows)]


def main(run, app, split, episodes, retries, processes, out):
    seeds, checkpoint, table = split_seeds(split, episodes), latest_checkpoint(run), []
    agents = {"nano": ("nano", run.parent/"nano"), checkpoint.name: (checkpoint/"adapter", run/"gain")}
    for _, known in agents.values(): known.mkdir(exist_ok=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        columns = {(n, who): pool.submit(played, folder, who, app, seeds, n, known/f"{app}-{split}-{who}-{n}.json")
                   for n, (who, (folder, known)) in product(retries, agents.items())}
        columns = {key: future.result() for key, future in columns.items()}
    for n in retries:
        both = [columns[n, who] for who in agents]
        assert [r["seed"] for r in both[0]] == [r["seed"] for r in both[1]]
        pairs = {a["seed"]: (a["success"], b["success"]) for a, b in zip(*both) if not a["presatisfied"]}
        shares = {f"{what}_{when}": sum(r[what] for r in rows)/len(rows)
                  for when, rows in zip(("before", "after"), both) for what in ("reached", "done")}
        table.append(dict(app=app, retries=n, **paired_figures(list(pairs.values())), **shares,
                          n_presatisfied=len(seeds) - len(pairs), families=by_family(*both), pairs=pairs))
        print({name: v for name, v in table[-1].items() if name not in ("families", "pairs")})
    out.mkdir(parents=True, exist_ok=True)
    found = json.dumps(dict(checkpoint=checkpoint.name, split=split, first_seed=seeds[0], rows=table), indent=1)
    found = re.sub(r"\[\s+(true|false),\s+(true|false)\s+\]", r"[\1, \2]", found) + "\n"  # a pair a line
    (out/("paired.json" if split == "validation" else f"paired_{split}.json")).write_text(found)
    for name in KEPT: shutil.copy(run/name, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("--app", default="files", help="application (files)")
    parser.add_argument("--split", default="validation", choices=("validation", "test"), help="whose episodes (validation)")
    parser.add_argument("--episodes", type=int, default=300, help="how many (300)")
    parser.add_argument("--retries", type=int, nargs="+", default=(0, 4), help="of the agents, a table row each (0 4)")
    parser.add_argument("--processes", type=int, default=2, help="that play, one agent each (2)")
    parser.add_argument("--name", help="of the results' folder in experiments/rft (that of the application)")
    parser.add_argument("--out", type=Path, help="folder for the results instead")
    given = parser.parse_args()
    main(given.run, given.app, given.split, given.episodes, given.retries, given.processes,
         given.out or Path(__file__).parents[1]/"experiments/rft"/(given.name or given.app))
