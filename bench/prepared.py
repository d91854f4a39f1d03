"""The answers that come with oaml: does what they ask for come true, and are planted failures refused by a criterion?

python bench/prepared.py train FOLDER [ENV ...]   a session for each environment, in FOLDER; one that is there goes on
python bench/prepared.py planted                  episodes that are known not to do it, judged by the same criteria; nothing is trained
python bench/prepared.py write FOLDER             experiments/p2p/prepared.json and prepared.md of both

A prepared session's first reward is wrong on purpose. What is trained here is its last one, at once and alone: the first would cost as much
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

import numpy as np

from oaml.prompt2policy.contracts import ElicitedCriterion, RolloutJudgment, StartSessionRequest
from oaml.prompt2policy.engines import MujocoEngine, env_preset, is_gui
from oaml.prompt2policy.gui_agents import gui_trajectory, play_agent
from oaml.prompt2policy.jail import Jail
from oaml.prompt2policy.judges import judge_in_jail, judgment_of, measure_in_jail, number_text
from oaml.prompt2policy.llm import prepared_answers
from oaml.prompt2policy.loop import _NO_REWARD, new_session, play_line, run_session_folder, unpaid
from oaml.prompt2policy.records import EventLog, SessionRecord
from oaml.prompt2policy.training import evaluate_policy

ROOT = Path(__file__).parents[1]
FOUND = ROOT/"experiments/p2p/prepared.json"
STEPS = {"InvertedPendulum-v5": 30_000, "InvertedDoublePendulum-v5": 80_000, "Reacher-v5": 150_000, "Swimmer-v5": 100_000, "Pusher-v5": 150_000,
         "Hopper-v5": 200_000, "Walker2d-v5": 200_000, "HalfCheetah-v5": 200_000, "Ant-v5": 200_000}  # a seed; the cheapest first
ANSWERS = {a.env_id: a for a in prepared_answers()}


def mended(env_id, folder):
    "The environment's answers with the last reward in the first one's place, as a file."
    content = yaml.safe_load(ANSWERS[env_id].path.read_text())
    last = max(name for name in content["answers"] if name.endswith("-reviser-*"))
    content["answers"]["reward-author-*"] = dict(submit_reward=dict(code=content["answers"][last]["submit_revision"]["code"]))
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
        if result and result.status == "cancelled": raise SystemExit(f"{env_id}: stopped; the same command goes on here")
        print(env_id, result and (result.status, result.passed, result.best_score), session.read_status().error, took, flush=True)


def found(): return json.loads(FOUND.read_text()) if FOUND.exists() else {}


# Planted failures: what each does, as an action of its observations (n, obs) and the time in steps.
def still(obs, t): return np.zeros((len(obs), 32))
def noise(obs, t): return np.random.default_rng(t).uniform(-1, 1, (len(obs), 32))
def spam(obs, t): return np.full((len(obs), 32), 1. if t % 2 else -1.)  # the largest push to and fro
def stiff(obs, t): return np.ones((len(obs), 32))                          # every joint one way, without end: a hopper falls forward, a walker backward
def away(obs, t): return -np.sign(obs[:, 1:2])*np.ones((1, 32))            # pushes the cart from under the pole
def swim_back(obs, t): return np.tile(np.r_[np.sin(.08*t - np.pi/3), np.sin(.08*t), np.zeros(30)], (len(obs), 1))
def spin(obs, t): return np.tile(np.r_[1., 1., np.zeros(30)], (len(obs), 1))
POLES = {"stands still": still, "wrong direction": away, "spams": spam}
def walkers(name): return {"stands still": still, name: stiff, "spams": spam, "flails": noise}
PLANTED = {"InvertedPendulum-v5": POLES, "InvertedDoublePendulum-v5": {"stands still": still, "wrong direction": stiff, "spams": spam},
           "Reacher-v5": {"stands still": still, "spins": spin, "spams": spam}, "Swimmer-v5": {"stands still": still, "wrong direction": swim_back, "spams": spam},
           "Pusher-v5": {"stands still": still, "pushes one way": stiff, "spams": spam}, "HalfCheetah-v5": walkers("stiffens"), "Hopper-v5": walkers("falls forward"), "Walker2d-v5": walkers("falls backward"),
           "Ant-v5": walkers("stiffens"), "line": {"stands still": (0, 0, 0), "wrong direction": (0, 0, -2), "too slow": (0, 0, .3)},
           "gui:login": dict.fromkeys(("do-nothing", "spammer", "random", "memoriser")), "gui:settings": dict.fromkeys(("do-nothing", "spammer", "random", "memoriser"))}
SEEDS, EPISODES = (1, 2, 3), 2  # as if each planted failure had been trained three times


def failed_episodes(env_id, name, act, seed):
    "Episodes of a planted failure, as a judge is given them."
    if is_gui(env_id): return [gui_trajectory(play_agent(env_id, name, 1000*seed + k).stored(name)) for k in range(EPISODES)]
    if env_id == "line":
        played = play_line(np.tile(np.array(act, float), (EPISODES, 1)), np.random.default_rng(seed))
        return [{k: v[n] for k, v in played.items()} for n in range(EPISODES)]
    steps, size = iter(range(10**6)), len(MujocoEngine().make(env_id).action_space.low)
    policy = lambda obs: act(obs, next(steps))[:, :size]*10  # clipped to what the motors take
    return [unpaid(e) for e in evaluate_policy(policy, env_preset(env_id).model_copy(update=dict(seed=seed)), _NO_REWARD, EPISODES)]


def verdict_on(env_id, name, act):
    "The whole verdict on a planted failure, by the criteria and the judge that are prepared."
    answers, rollouts = ANSWERS[env_id].answers, []
    criteria = [ElicitedCriterion(**c) for c in answers["elicitor-*"]["submit_criteria"]["criteria"]]
    judge = answers["judge-author-*"]["submit_judge"]["code"]
    for seed in SEEDS:
        with Jail() as jail:
            for k, e in enumerate(failed_episodes(env_id, name, act, seed)):
                said = judge_in_jail(jail, judge, e)
                rollouts.append(RolloutJudgment(run_id=f"base_seed{seed}", episode=k, code_score=said.intent_score, score=said.intent_score, diagnosis=said.diagnosis))
                values = measure_in_jail(jail, criteria, e)
                rollouts[-1] = rollouts[-1].model_copy(update=dict(values={t: v for t, v in values.items() if not isinstance(v, str)}))
    return judgment_of(rollouts, [f"base_seed{s}" for s in SEEDS], .7, criteria=criteria)


def plant(env_ids):
    "Judge every planted failure and say by which criteria it is refused."
    rows = []
    for env_id in env_ids:
        for name, act in PLANTED[env_id].items():
            verdict = verdict_on(env_id, name, act)
            unmet = {c.title: c.evidence for c in verdict.criteria if c.verdict == "unmet"}
            rows.append(dict(env=env_id, sentence=ANSWERS[env_id].prompts[0], planted=name, passed=verdict.passed, score=verdict.intent_score, unmet=unmet,
                             met=[c.title for c in verdict.criteria if c.verdict == "met"]))
            print(env_id, name, "PASSED" if verdict.passed else "refused", verdict.intent_score, unmet, flush=True)
    return rows


def session_row(session, took):
    "What a session came to, in plain figures."
    config, it = session.read_session_config(), session.iteration_records()[-1]
    j, status = it.read_judgment(), session.read_status()
    return dict(env=config.env_id, sentence=config.prompt, steps=it.read_config()["total_timesteps"], seeds=len(config.seeds), iterations=len(session.iteration_records()), **took,
                passed=j.passed, confirmed=j.confirmed, score=j.intent_score, low=j.low, high=j.high, status=status.status, agreement=j.agreement,
                criteria=[c.model_dump(include={"title", "wanted", "value", "low", "high", "seeds", "verdict", "evidence"}) for c in j.criteria])


def report(data):
    "The tables."
    mark = dict(met="met", unmet="**not met**")
    lines = ["# The prepared answers, tried", "", "Written by `python bench/prepared.py`, which says what was trained and what was planted. Trained on machines that did other work at the "
             "same time: the minutes of the clock say little, those of the processor what it costs. One iteration is the last prepared reward alone; two are the whole session, the reward that is wrong on purpose first. Three seeds each; an interval is Student's, 95%, over seeds.", "", "## Sessions", "",
             "| environment | sentence | iterations | steps a seed | minutes: clock, processor | verdict | criteria |", "| :-- | :-- | --: | --: | --: | :-- | :-- |"]
    for r in data["sessions"]:
        verdict = "**passed**, confirmed on new episodes" if r["passed"] else "not passed"
        minutes = f"{r['minutes']:.1f}, {r['cpu_minutes']:.1f}" if r["cpu_minutes"] else f"{r['minutes']:.1f}, not measured"
        lines.append(f"| {r['env']} | {r['sentence']} | {r['iterations']} | {r['steps']:,} | {minutes} | {verdict} | " + "; ".join(f"{c['title']}: {number_text(c['value'])} ({number_text(c['low'])} to {number_text(c['high'])}), {c['wanted']}: {mark[c['verdict']]}" for c in r["criteria"]) + " |")
    lines += ["", "Begun and not judged: " + ("; ".join(f"{r['env']} ({r['trained']} of {r['seeds']} seeds trained)" for r in data["unfinished"]) or "none") + ". Prepared and not begun here: "
              + (", ".join(data["not_begun"]) or "none") + ". (An earlier version's session with HalfCheetah-v5, film and all, is in `experiments/p2p/halfcheetah`.)"]
    refused = sum(not r["passed"] and bool(r["unmet"]) for r in data["planted"])
    lines += ["", "## Planted failures", "", f"{refused} of {len(data['planted'])} are refused by a criterion, on {len({r['env'] for r in data['planted']})} environments. Nothing was trained: each acts as its name says, "
              f"for {len(SEEDS)} seeds and {EPISODES} episodes, and the whole verdict is given on it.", "", "| environment | sentence | planted | refused by |", "| :-- | :-- | :-- | :-- |"]
    lines += [f"| {r['env']} | {r['sentence']} | {r['planted']} | " + ("; ".join(f"{t}: {e}" for t, e in r["unmet"].items()) or "**nothing**") + " |" for r in data["planted"]]
    return "\n".join(lines) + "\n"


def write(folder):
    "Both files, of the sessions that are judged in a folder, those that the files have from other folders, and the planted failures that were."
    sessions = [SessionRecord(p.parent) for p in sorted(folder.glob("session_*/session_config.json"))]
    judged = [s for s in sessions if s.iteration_records() and s.iteration_records()[-1].read_judgment()]
    def took(s):
        if (path := folder/f"{s.read_session_config().env_id}.took.json").exists(): return json.loads(path.read_text())
        return dict(minutes=(EventLog(s.events_path).read()[-1].time - s.read_session_config().created_at)/60, cpu_minutes=None)  # begun by the command
    order = [*PLANTED]
    new = [session_row(s, took(s)) for s in judged]
    earlier = [r for r in found().get("sessions", []) if r["env"] not in {n["env"] for n in new}]  # of folders that are gone
    rows = sorted(new + earlier, key=lambda r: order.index(r["env"]))
    unfinished = [dict(env=c.env_id, seeds=len(c.seeds), trained=sum(r.summary_path.exists() for i in s.iteration_records() for r in i.runs()))
                  for s in sessions if s not in judged for c in [s.read_session_config()]]
    begun = {r["env"] for r in rows + unfinished}
    data = found() | dict(sessions=rows, unfinished=unfinished, not_begun=[e for e in PLANTED if e not in begun], machine=f"{platform.machine()}, {os.cpu_count()} cores", python=platform.python_version())
    FOUND.write_text(json.dumps(data, indent=1) + "\n")
    FOUND.with_suffix(".md").write_text(report(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="what", required=True)
    one = sub.add_parser("train")
    one.add_argument("folder", type=Path)
    one.add_argument("env", nargs="*", metavar="ENV", help="of: " + ", ".join(STEPS))
    two = sub.add_parser("planted")
    two.add_argument("env", nargs="*", metavar="ENV", help="of: " + ", ".join(PLANTED))
    three = sub.add_parser("write")
    three.add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.what == "write": write(args.folder)
    if args.what == "planted":
        kept = [r for r in found().get("planted", []) if args.env and r["env"] not in args.env]
        FOUND.write_text(json.dumps(found() | dict(planted=kept + plant(args.env or PLANTED)), indent=1) + "\n")
    if args.what == "train": train(args.folder, args.env or STEPS)
