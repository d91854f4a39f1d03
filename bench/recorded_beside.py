"""TM and EM of `evals.recorded` beside the field's evaluator, on random predictions for random steps.

python bench/recorded_beside.py FOLDER [--predictions 5000]  writes bench/recorded_beside.md.

FOLDER is a copy of OpenBMB's guievalkit, whose evaluator is behind the tables of AndroidControl, AITZ and CAGUI. Nothing of it is in oaml: it runs as
it is, and both read the same steps in the form of those data sets' files and the same answers. A single difference ends with exit code 1."""
import argparse
import contextlib
import importlib
import io
import json
import os
import random
import sys
import types
from collections import Counter
from pathlib import Path

from oaml.evals.recorded import published_match
from oaml.ingest.foreign import Found, counted_boxes
from oaml.ingest.phone_data import _wild_action
from oaml.schemas.agentcpm import agentcpm_actions
from oaml.schemas.sessions import Action

PAGE = Path(__file__).parent/"recorded_beside.md"
CODES = 0, 1, 3, 4, 4, 4, 5, 6, 7, 10, 11, 12  # of actions in the files; 4, a touch, is the commonest
WORDS = "ada", "Ada L", "lovelace", "a", " A ", "时钟"
NO_ANSWER = dict(ACTION=None, ARGS=None, STATUS=None)


def field_evaluator(folder):
    "The evaluator's class. It opens its files where it is started, and wants a library for a distance that no figure here is made of."
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.modules.setdefault("Levenshtein", types.SimpleNamespace(ratio=lambda a, b: 0.))
    for name in ("guieval", "guieval.utils", "guieval.eval"):  # without the packages' own imports, of models and data sets
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(folder)/name.replace(".", "/"))]
    return importlib.import_module("guieval.eval.evaluator").ActionEvaluator


def random_step(rng):
    "A step as it stands in a file; where it was touched, and the boxes of what was on the screen."
    touch, boxes = [rng.random(), rng.random()], [[rng.random(), rng.random(), .3*rng.random(), .3*rng.random()] for _ in range(rng.randrange(8))]
    lift = touch if rng.random() < .5 else [rng.random(), rng.random()]
    if rng.random() < .5: boxes.append([max(0, touch[0] - .02), max(0, touch[1] - .02), .04, .05])
    step = dict(subset="x", episode_id="e", step_id=0, instruction="i", result_action_type=rng.choice(CODES), result_action_text=rng.choice(WORDS),
                result_action_app_name=rng.choice(WORDS), result_touch_yx=json.dumps(touch), result_lift_yx=json.dumps(lift), duration=None,
                ui_positions=json.dumps(boxes))
    return step, touch, boxes


def random_answer(rng, touch):
    "An answer in AgentCPM-GUI's fields, near what was touched or anywhere; None: what can't be read."
    near = [min(1000, max(0, round(1000*v + rng.gauss(0, 60)))) for v in touch[::-1]]
    place = near if rng.random() < .6 else [rng.randrange(1001), rng.randrange(1001)]
    to = rng.choice(["up", "down", "left", "right", [rng.randrange(1001), rng.randrange(1001)]])
    return rng.choice([dict(POINT=place)]*3 + [dict(POINT=place, duration=1000), dict(POINT=place, to=to), dict(TYPE=rng.choice(WORDS)), dict(OPEN_APP=rng.choice(WORDS)),
                      dict(PRESS=rng.choice(["HOME", "BACK", "ENTER"])), dict(STATUS=rng.choice(["finish", "impossible", "interrupt"])), dict(duration=1000), None])


def as_theirs(answer):
    "The answer as their reader of answers hands it on: what is done, how, and the status."
    if answer is None: return NO_ANSWER
    how = {k: v for k, v in answer.items() if k in ("to", "duration")} or {}
    if "POINT" in answer: how.setdefault("duration", 200)
    return dict(ACTION={k: v for k, v in answer.items() if k not in ("to", "duration", "STATUS")}, ARGS=how, STATUS=answer.get("STATUS"))


def as_ours(answer):
    "The answer's action."
    if answer is None: return Action("failed", raw={"reason": "no action"})
    return Action("open_app", text=answer["OPEN_APP"]) if "OPEN_APP" in answer else agentcpm_actions(answer)[0]


def compare(kind, evaluator, n, rng):
    "Counts of `n` predictions; prints the first differences."
    counts = Counter()
    for _ in range(n):
        step, touch, boxes = random_step(rng)
        answer = random_answer(rng, touch)
        with contextlib.redirect_stdout(io.StringIO()): theirs = evaluator(step, dict(action_predict=dict(COA=dict(txt=as_theirs(answer)))))
        right = _wild_action(Found(step, "step"))
        kept = counted_boxes(right.x, right.y, boxes, kind == "android_control") if right.type in ("click", "long_press") else None
        ours, want = published_match(as_ours(answer), right, kept, kind), (bool(theirs["type_match"]), bool(theirs["exact_match"]))
        counts.update(n=1, tm=ours[0], em=ours[1], differ=ours != want)
        if ours != want and counts["differ"] < 6: print(kind, step, answer, f"oaml {ours}, theirs {want}", file=sys.stderr)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a copy of guievalkit")
    parser.add_argument("--predictions", type=int, default=5000, help="for each data set (default 5000)")
    args = parser.parse_args()
    evaluator = field_evaluator(args.folder.resolve())
    rows = {kind: compare(kind, evaluator(kind == "android_control"), args.predictions, random.Random(0)) for kind in ("aitz", "cagui", "android_control")}
    lines = ["# TM and EM beside the field's evaluator\n", "`python bench/recorded_beside.py FOLDER`: random answers to random steps, judged by `evals.recorded` and by guievalkit's",
             "`ActionEvaluator`. GUI-Odyssey has the rules of aitz, and one about the list of applications, for which these files have no code.\n",
             "| data set | answers | TM | EM | differ |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {kind} | {c['n']} | {c['tm']/c['n']:.1%} | {c['em']/c['n']:.1%} | {c['differ']} |" for kind, c in rows.items()]
    print("\n".join(lines))
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(any(c["differ"] for c in rows.values()))


if __name__ == "__main__": main()
