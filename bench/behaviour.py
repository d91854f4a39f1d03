"""Does oaml do what it did? Fingerprints of recorded bytes, of what nano answers and does, of baselines and manifests.

    python bench/behaviour.py before.json              writes them
    python bench/behaviour.py after.json before.json   writes them, and names what differs

For whoever rebuilds a room: run it at the commit before and at the one after, on the same machine. Results of nano are compared
only there, because another processor rounds otherwise.
"""
import hashlib
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from oaml.apps.app import split_seeds
from oaml.apps.catalog import APPS
from oaml.evals.closed_loop import run_episodes
from oaml.evals.manifests import app_hashes
from oaml.evals.suites import SUITES, evaluate_suite, load_agent, load_suite
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.schemas.sessions import to_dict

SEEDS = 2            # recorded episodes of each application
EPISODES = 3         # evaluated ones


def fingerprint(*parts):
    "Sixteen hex digits of bytes, texts and plain values."
    h = hashlib.sha256()
    for p in parts: h.update(p if isinstance(p, bytes) else json.dumps(p, sort_keys=True).encode())
    return h.hexdigest()[:16]


def recorded(app, folder):
    "Of an application's recorded sessions: every file's bytes, and what nano answers on their screens."
    sessions = generate_synthetic_sessions(SEEDS, 0, folder, app=app, recovery=.5, progress=False, held_out=True)
    files = sorted(p for d in ("sessions", "screens") for p in (folder/d).iterdir())
    steps = [(s.observation.image(), e.goal, [x.action for x in e.steps[:k]]) for q in sessions for e in q.episodes for k, s in enumerate(e.steps)]
    images, goals, histories = zip(*steps)
    answers = load_agent("nano", None).policy.predict_actions([np.asarray(i) for i in images], list(goals), list(histories), whole=True, recorded=True)
    return {"bytes": fingerprint(*(f(p) for p in files for f in (lambda p: p.name, Path.read_bytes))),
            "nano answers": fingerprint([a.text for a in answers], [a.messages for a in answers])}


def acted(suite, app, name):
    "What an agent does in the episodes of an application."
    agent, device = load_agent(name, None), partial(load_suite(suite).device, app)
    return fingerprint(*([o.seed, o.success, o.reached, o.presatisfied, o.oracle_steps, [to_dict(a) for a in o.actions]]
                         for o in run_episodes(agent, device, split_seeds("test", EPISODES))))


def main(out, before=None):
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for app in APPS:
            found |= {f"recorded {app}, {k}": v for k, v in recorded(app, Path(folder)/app).items()}
    for app in load_suite("synthetic-v1").apps:
        for name in ("nano", "random", "oracle"): found[f"{name} acts in {app}"] = acted("synthetic-v1", app, name)
    rows, _ = evaluate_suite([load_agent(n, load_suite("login-v1")) for n in ("nano", "nearest", "memoriser", "do-nothing")], "login-v1", 6)
    found["rows of login-v1"] = fingerprint(rows)
    for name, suite in SUITES.items():
        found |= {f"manifest of {name}, {app}": fingerprint(app_hashes(suite, app, 4)) for app in suite.apps}
    Path(out).write_text(json.dumps(found, indent=1))
    if before is None: return print(f"{len(found)} fingerprints in {out}")
    then = json.loads(Path(before).read_text())
    differ = [k for k in {**then, **found} if then.get(k) != found.get(k)]
    print(f"{len(differ)} of {len(found)} fingerprints differ" + "".join(f"\n  {k}" for k in differ))
    return bool(differ)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3): sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
