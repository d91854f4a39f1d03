"""The answers that come with oaml: does what they ask for come true, and are planted failures refused by a criterion?

python bench/prepared.py train FOLDER [ENV ...]   a session for each environment, in FOLDER; one that is there goes on
python bench/prepared.py planted                  episodes that are known not to do it, judged by the same criteria; nothing is trained
python bench/prepared.py write FOLDER             experiments/p2p/prepared.json and prepared.md of both

A prepared session's first reward is wrong on purpose. What is trained here is its second one, at once and alone: the first would cost as much
again, and what it leads to (standing, going the wrong way, falling over) is planted without training. Each session has three seeds and is
judged as any other: criteria that were fixed before, intervals over seeds, new episodes to confirm.
"""
import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path

os.environ |= dict(OMP_NUM_THREADS="1", OAML_P2P_PROCESSES=os.environ.get("OAML_P2P_PROCESSES", "1"))
import yaml

from oaml.prompt2policy.contracts import StartSessionRequest
from oaml.prompt2policy.engines import env_preset
from oaml.prompt2policy.llm import prepared_answers
from oaml.prompt2policy.loop import new_session, run_session_folder
from oaml.prompt2policy.records import SessionRecord

ROOT = Path(__file__).parents[1]
FOUND = ROOT/"experiments/p2p/prepared.json"
STEPS = {"InvertedPendulum-v5": 30_000, "InvertedDoublePendulum-v5": 80_000, "Reacher-v5": 150_000, "Swimmer-v5": 100_000, "Pusher-v5": 150_000,
         "Hopper-v5": 200_000, "Walker2d-v5": 200_000, "HalfCheetah-v5": 200_000, "Ant-v5": 200_000}  # a seed; the cheapest first
ANSWERS = {a.env_id: a for a in prepared_answers()}


def mended(env_id, folder):
    "The environment's answers with the second reward in the first one's place, as a file."
    content = yaml.safe_load(ANSWERS[env_id].path.read_text())
    content["answers"]["reward-author-*"] = dict(submit_reward=dict(code=content["answers"]["iter_1-reviser-*"]["submit_revision"]["code"]))
    path = folder/f"{env_id}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def train(folder, env_ids):
    "Run the sessions one after the other; minutes of the clock and of the processor go beside each."
    folder.mkdir(parents=True, exist_ok=True)
    for env_id in env_ids:
        session = SessionRecord(folder/f"session_{env_id.lower()}")
        if not session.config_path.exists():
            config = env_preset(env_id).model_copy(update=dict(film=False, checkpoints=1, eval_episodes=8, total_timesteps=STEPS[env_id]))
            request = StartSessionRequest(prompt=ANSWERS[env_id].prompts[0], env_id=env_id, llm="scripted", model=str(mended(env_id, folder)), max_iterations=1, train=config)
            session = new_session(folder, request, session.session_id)
        began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run_session_folder(session)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = dict(minutes=(time.time() - began)/60, cpu_minutes=(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)/60)
        old = json.loads(path.read_text()) if (path := folder/f"{env_id}.took.json").exists() else dict(minutes=0, cpu_minutes=0)
        path.write_text(json.dumps({k: v + old[k] for k, v in took.items()}))
        print(env_id, result and (result.status, result.passed, result.best_score), session.read_status().error, took, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="what", required=True)
    one = sub.add_parser("train")
    one.add_argument("folder", type=Path)
    one.add_argument("env", nargs="*", metavar="ENV", help="of: " + ", ".join(STEPS))
    args = parser.parse_args()
    if args.what == "train": train(args.folder, args.env or STEPS)
