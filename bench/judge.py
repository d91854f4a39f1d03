"""The judge's own trial: what code criteria say of trajectories whose success is known.

python bench/judge.py [--each 8]   three physics tasks and five goals on screens; writes bench/judge.json and bench/judge.md

Nobody is trained. The trajectories are those of controllers and oracles that do the task, and of the same spoiled: they let go after some steps, go the
wrong way, do nothing, act at random, say that they are done too early, type something else, do another goal's actions, or do more than was asked. Whether
one succeeded is said by who knows: the application's `solved`, or the simulator's own state step by step, which no criterion is given. The criteria are those
of the prepared answers, and for three goals on screens lines as a person would hand them in with --criteria.
"""
import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from oaml.evals.trajectory_matching import wilson
from oaml.prompt2policy.authors import parse_criteria
from oaml.prompt2policy.contracts import ElicitedCriterion
from oaml.prompt2policy.engines import GuiEngine, MujocoEngine
from oaml.prompt2policy.gui_agents import RecordedPlay, gui_agents, gui_trajectory
from oaml.prompt2policy.jail import Jail
from oaml.prompt2policy.judges import measure_in_jail, meets_criteria
from oaml.prompt2policy.llm import prepared_answers
from oaml.schemas.sessions import Action

ROOT = Path(__file__).parents[1]
AIM = .95  # of the agreement
SAVED = ('saved: (shown("Saved: ") or shown("No changes") or shown("Settings changed:") or shown("No settings changed.")) '
         'and not shown("Not saved yet:") and not shown("Changes count when they are saved.") >= 1\n')
LINES = {"gui:settings/value": "has the value: any(value(a) == b or checked(b) for a in asked for b in asked) >= 1\n" + SAVED + "says that it is done: ended >= 1",
         "gui:browser/home_page": 'is the home page, and nothing else was changed: shown("Home: " + asked[0]) or value("Home page") == asked[0] and not any(a["type"] == "type" for a in action) >= 1\n'
                                  "says that it is done: ended >= 1",
         "gui:files/rename": 'has the new name: any(ever_shown(a + " is now " + b) for a in asked for b in asked if a != b) or ever_shown(asked[1]) and not ever_shown(asked[0]) >= 1\n'
                             'was not undone: not any(pressed(n) for n in ("Undo", "Undo all")) >= 1\nsays that it is done: ended >= 1'}


def criteria_of(env_id):
    "The criteria that count, and where they are from."
    if env_id in LINES: return parse_criteria(LINES[env_id]), "a person's lines"
    script = next(a for a in prepared_answers() if a.env_id == env_id)
    return [ElicitedCriterion(**c) for c in script.answers["elicitor-*"]["submit_criteria"]["criteria"]], f'prepared for "{script.prompts[0]}"'


# Physics: a controller, the moment from which it is spoiled, and how.
def hold_pole(obs, t): return [.5*obs[0] + 8*obs[1] + obs[2] + 1.5*obs[3]]
def swim(obs, t): return [np.sin(2*t), np.sin(2*t - np.pi/3)]

def reach(obs, t, stiff=100., damp=.15, away=False):
    a, b = np.arctan2(obs[2:4], obs[:2])
    to = (2*(obs[4:6] + obs[8:10]) if away else -obs[8:10])  # the fingertip's way to the target, or away from the middle
    sa, sab, ca, cab = np.sin(a), np.sin(a + b), np.cos(a), np.cos(a + b)
    j = np.array([[-.1*sa - .11*sab, -.11*sab], [.1*ca + .11*cab, .11*cab]])
    return j.T@(stiff*to) - damp*obs[6:8]

class Physics:
    "A task with its controller, and what the simulator knows of success."
    def __init__(self, env_id, act, steps, cuts, wrong, truth): self.env_id, self.act, self.steps, self.cuts, self.wrong, self.truth = env_id, act, steps, cuts, wrong, truth

    def kinds(self):
        "By name: the controller that acts, and the step from which it does not."
        nothing, noise = lambda obs, t: [0.]*9, lambda obs, t: self.rng.uniform(-1, 1, 9)*9
        return (dict(controller=(self.act, None, nothing), shaky=(lambda obs, t: np.array(self.act(obs, t)) + self.rng.normal(0, .2, len(self.act(obs, t))), None, nothing),
                     nothing=(nothing, None, nothing), random=(noise, None, nothing)) | {f"wrong: {k}": (f, None, nothing) for k, f in self.wrong.items()}
                | {f"lets go at {k}": (self.act, k, nothing) for k in self.cuts} | {f"goes wild at {k}": (self.act, k, noise) for k in self.cuts[::2]})

    def trajectories(self, each):
        engine, env = MujocoEngine(), MujocoEngine().make(self.env_id, self.steps)
        for name, (act, until, then) in self.kinds().items():
            for seed in range(each):
                self.rng = np.random.default_rng(seed)
                obs, _ = env.reset(seed=500 + seed)
                rows, known = [], []
                for k in range(self.steps):
                    chosen = act if until is None or k < until else then
                    u = np.clip(np.array(chosen(obs, k*env.unwrapped.dt), np.float32)[:env.action_space.shape[0]], env.action_space.low, env.action_space.high)
                    now, _, over, cut, info = env.step(u)
                    rows.append(dict(obs=obs, action=u, next_obs=now) | engine.info_of(env, info))
                    known.append(self.state(env.unwrapped))
                    obs = now
                    if over or cut: break
                yield name, {k: np.array([r[k] for r in rows]) for k in rows[0]}, bool(self.truth(np.array(known), over))
        env.close()

    def state(self, u):
        "What the simulator knows: angle of the pole; distance of the fingertip and its speed; place of the centre of mass."
        if "Pendulum" in self.env_id: return [u.data.qpos[1]]
        if "Reacher" in self.env_id: return [np.linalg.norm(u.get_body_com("fingertip") - u.get_body_com("target")), np.abs(u.data.qvel[:2]).max()]
        return [u.data.subtree_com[0][0], u.data.time]

PHYSICS = (
    Physics("InvertedPendulum-v5", hold_pole, 400, (1, 40, 120, 250, 360), dict(lean=lambda o, t: [-1.], reversed=lambda o, t: [-8*o[1]]),
            lambda s, over: len(s) >= 300 and np.abs(s[:300]).max() <= .2),  # 12 s, as the criteria say in words
    Physics("Reacher-v5", reach, 50, (4, 10, 20, 35, 46), dict(away=lambda o, t: reach(o, t, away=True), spin=lambda o, t: [1., 1.], slow=lambda o, t: reach(o, t, 12, .05)),
            lambda s, over: s[-10:, 0].mean() <= .05 and s[25:, 0].mean() <= .08),
    Physics("Swimmer-v5", swim, 1000, (20, 150, 400, 700, 950), dict(backward=lambda o, t: swim(o, -t), drill=lambda o, t: [1., 1.]),
            lambda s, over: s[-1, 0] - s[0, 0] >= 1.2 and s[-1, 0] - s[len(s)//2, 0] > .05))


class Screens:
    "A kind of goals: the oracle's episodes, and the same spoiled; `solved` says which succeeded."
    def __init__(self, env_id): self.env_id = env_id

    def driver(self, seed):
        d = GuiEngine().make(self.env_id)
        d.reset(seed, draw=False)
        return d

    def right(self, seed):
        "What the oracle does."
        d = self.driver(seed)
        while not d.over: d.act(gui_agents(self.env_id)["oracle"](d), draw=False)
        return list(d.actions)

    def kinds(self, seed):
        "By name: actions, the agent that goes on behind them (None: it says that it is done)."
        acts, other, rng = self.right(seed), self.right(seed + 1), Random(seed)
        body = acts[:-1]
        typo = [replace(a, text=a.text[:-1] + rng.choice("xq7")) if a.type == "type" else a for a in body]
        shot = [a for k, a in enumerate(body) if k != len(body)//2]
        yield from dict(oracle=(acts, None), first=(body[:1], None), half=(body[:len(body)//2], None), last_left_out=(body[:-1], None), one_left_out=(shot, None),
                        typo=(typo, None), never_done=(body, Action("wait")), other_goal=(other, None), does_more=(body, "random"), slow=([Action("wait"), *acts], None)).items()
        yield from {agent: ([], agent) for agent in ("random", "do-nothing", "spammer", "memoriser")}.items()

    def trajectories(self, each):
        agents = gui_agents(self.env_id)
        for seed in range(400, 400 + each):  # the lines of LINES were written on 300 to 304
            for name, (acts, then) in self.kinds(seed):
                play = RecordedPlay(d := self.driver(seed))
                for k in range(99):
                    if d.over: break
                    play.act(acts[k] if k < len(acts) else Action("done") if then is None else then if isinstance(then, Action) else agents[then](d))
                yield name, gui_trajectory(play.stored(name)), bool(d.success)


def trial(env_id, source, each):
    "How often the criteria's verdict is what is known, and on what they differ."
    criteria, where = criteria_of(env_id)
    counts, wrong, kinds = dict(episodes=0, agreed=0, done=0, met=0), [], {}
    with Jail() as jail:
        for name, trajectory, truth in source.trajectories(each):
            values = measure_in_jail(jail, criteria, trajectory)
            right = (met := meets_criteria(criteria, values)) == truth
            kinds.setdefault(name, []).append(right)
            counts = dict(episodes=counts["episodes"] + 1, agreed=counts["agreed"] + right, done=counts["done"] + truth, met=counts["met"] + (truth and met))
            if not right: wrong.append(f"{name} ({len(trajectory['action'])} steps): {'done' if truth else 'not done'}, but {values}")
    low, high = wilson(counts["agreed"], counts["episodes"])
    return dict(counts, low=round(low, 4), high=round(high, 4), criteria=where, kinds={k: f"{sum(v)} of {len(v)}" for k, v in kinds.items()}, wrong=wrong[:5])


def main(each):
    tasks = {t.env_id: (t, each) for t in PHYSICS} | {e: (Screens(e), each) for e in ("gui:login", "gui:settings", *LINES)}
    found = {}
    for env_id, (source, n) in tasks.items():
        found[env_id] = trial(env_id, source, n)
        print(env_id, {k: v for k, v in found[env_id].items() if k != "kinds"}, flush=True)
    total, agreed = (sum(f[k] for f in found.values()) for k in ("episodes", "agreed"))
    low, high = wilson(agreed, total)
    whole = dict(episodes=total, agreed=agreed, **{k: sum(f[k] for f in found.values()) for k in ("done", "met")}, low=round(low, 4), high=round(high, 4))
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    (ROOT/"bench/judge.json").write_text(json.dumps(dict(tasks=found, all=whole, aim=AIM, machine=machine), indent=1) + "\n")
    (ROOT/"oaml/prompt2policy/answers/judge_trial.json").write_text(json.dumps({k: {n: f[n] for n in ("episodes", "agreed", "low", "high")} for k, f in dict(found, all=whole).items()}, indent=1) + "\n")
    row = lambda name, f: f"| {name} | {f['episodes']} | {f['met']} of {f['done']} | {f['agreed'] - f['met']} of {f['episodes'] - f['done']} | {f['agreed']} | **{f['agreed']/f['episodes']:.1%}** | {f['low']:.1%} to {f['high']:.1%} | {f.get('criteria', '')} |"
    lines = ["# The judge's trial", "", "Written by `python bench/judge.py`, which says how the trajectories are made and who knows their success. An agreement is how often the verdict of the code",
             f"criteria on one trajectory is what is known; intervals are Wilson's, 95%. The aim is {AIM:.0%}. The package holds these figures and shows them beside every verdict.", "",
             "| task | trajectories | done: found met | not done: refused | agreed | share | interval | criteria |", "| :-- | --: | --: | --: | --: | --: | :-- | :-- |",
             *(row(k, f) for k, f in found.items()), row("all", whole), "", "## Where they differ", "", *(f"- {k}, {w}" for k, f in found.items() for w in f["wrong"]), ""]
    if not any(f["wrong"] for f in found.values()): lines[-1] = "Nowhere.\n"
    (ROOT/"bench/judge.md").write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=8, help="trajectories of each kind of success and of failure")
    main(parser.parse_args().each)
