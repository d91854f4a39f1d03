#!/usr/bin/env python3
"""nano learns in generated worlds to use what it is shown: trainings and their figures, in slices that go on where they stopped.
    python bench/worlds_training.py run --arms words marks all --samples 6400         # train each, then measure it
    python bench/worlds_training.py run --arms marks --worlds 1 10 100 1000 --samples 100000 --workers 14 --minutes 9
    python bench/worlds_training.py run --arms best --samples 100000 --where test apps  # the one with the most single steps right, longer
    python bench/worlds_training.py run --arms marks --where apps --guarded            # and the replay with it behind
    python bench/worlds_training.py replay --where test apps                          # without a model
    python bench/worlds_training.py table                                             # experiments/worlds/table.md
A run is a folder under --folder (its name says arm, worlds, samples and start); with the same options it goes on from its last checkpoint,
--minutes ends a slice. What is measured is a line of results.jsonl in --folder, and is not measured again. Every arm sees the same number of screens.
Measured: episodes in worlds that were not trained on (structures and words of the split), and in the ten hand-written applications; without and
with one demonstration (the most similar of four of the same kind of goal), replay beside. The judge is the application's state."""
import argparse
import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

from threadpoolctl import threadpool_limits

from oaml.apps.app import SPLITS
from oaml.apps.catalog import APPS, load_app
from oaml.datasets.prompts import PromptFormat
from oaml.datasets.samples import SampleConfig
from oaml.datasets.stream import ScreenSpec, Source, Stream
from oaml.devices.app_device import AppDevice
from oaml.devices.episode import EpisodeDriver
from oaml.devices.oracle import acceptable_targets, oracle_steps
from oaml.evals.trajectory_matching import matches, wilson
from oaml.ingest.engines import ProcessEngine
from oaml.ingest.store import write_atomic
from oaml.runtime.agents import PolicyAgent, ask_agent, introduce, view_of
from oaml.runtime.guarded import GUARDED, GuardedAgent, model_name
from oaml.runtime.lessons import WorldLessons, demonstration
from oaml.runtime.policy import load_policy
from oaml.runtime.replay import ReplayAgent
from oaml.runtime.showing import most_similar

OUT = Path(__file__).parents[1]/"experiments/worlds"
ARMS = { # what the prompt has of a demonstration
    "none": "words",  # and no demonstration ever
    "words": "words", "values": "words+values", "marks": "words+marks", "proposal": "proposal", "marks+values": "words+values+marks",
    "all": "words+values+marks+proposal"}
HAND_WRITTEN = [a for a in APPS if a != "procedural"]
SPARE_STEPS = 5 # an episode may take twice the oracle's steps and these
RETRIES = 1 # on a screen on which an action was tried; more cost most of the time of those who fail
ANSWER_TOKENS = 96 # the longest right answer has about 60
AMONG = 4 # demonstrations of which the most similar is shown when it is measured


def prompt_format(arm):
    "How an arm's prompts are written."
    return PromptFormat(precision=2, thought=True, goal_first=True, marks=True, shots=1, shown_as=ARMS[arm])


def run_name(arm, worlds, samples, start): return f"{arm}-{worlds}w-{samples}s-{start}"


# ---- training

def new_nano(start, fmt, seed):
    "What learns: a nano drawn at random (nano-new, nano-small), or one that begins with the shipped weights, under the vocabulary of today."
    from oaml.models.qwen_vl import QwenVLAdapter
    from oaml.nano.files import shipped_nano
    from oaml.nano.network import load_nano, take_weights
    adapter = QwenVLAdapter.from_pretrained("nano-new" if start == "nano" else start, seed=seed)
    if start == "nano":
        older, processor = load_nano(shipped_nano())
        take_weights(adapter.qwen, adapter.tokenizer, older, processor.tokenizer)
    adapter.prompt_format = asdict(fmt)
    return adapter


def training_config(args, arm, samples, folder):
    "The trainer's knobs."
    from oaml.training.config import TrainingConfig
    return TrainingConfig(
        model=dict(model_name="nano-new"), lora=None, prompt=asdict(prompt_format(arm)), output_dir=str(folder),
        training=dict(per_device_train_batch_size=args.batch, gradient_accumulation_steps=args.accumulate, learning_rate=args.rate, optimizer="muon",
                      lr_scheduler_type=args.schedule, warmup_ratio=.03, weight_decay=.02, betas=(.9, .98), threads=args.threads, processes=args.processes),
        logging=dict(logging_steps=20, save_steps=args.save, save_total_limit=1, eval_episodes=0))


class EndsAfter:
    "Stops a training in time, so that it goes on when it is called again; counts the processor's seconds of all its slices."
    def __init__(self, minutes, folder):
        self.end, self.path = time.monotonic() + 60*minutes if minutes else None, folder/"cpu_seconds"
        self.before = cpu_seconds(folder) - time.process_time()

    def after_step(self, trainer): trainer.interrupted |= self.end is not None and time.monotonic() > self.end
    def after_save(self, trainer): write_atomic(self.path, f"{self.before + time.process_time():.0f}".encode())


def cpu_seconds(folder): return float((folder/"cpu_seconds").read_text()) if (folder/"cpu_seconds").exists() else 0.


def train(args, arm, worlds, samples, folder):
    "Go on with a training; whether it is finished."
    from oaml.nano.model import SampleEncoder
    from oaml.training.trainer import Trainer
    fmt, config = prompt_format(arm), training_config(args, arm, samples, folder)
    adapter = new_nano(args.start, fmt, args.seed)
    lessons = WorldLessons(worlds=worlds, **(dict(sibling=0., none=1.) if arm == "none" else {}))
    how = SampleConfig(fmt=fmt, questions=0, screens_per_episode=8, wrong_goals=.3, presatisfied=.06)
    shapes = [ScreenSpec(share=3.), ScreenSpec((320, 256))]
    batch = args.batch*args.accumulate
    stream = Stream(samples, batch, [Source("worlds")], how, shapes, make=lessons, workers=args.workers, read=SampleEncoder(adapter), micro_batch=args.batch)
    trainer = Trainer(adapter, stream, config, hooks=[EndsAfter(args.minutes, folder)], data_manifest=stream.manifest(), progress=False)
    try: return trainer.fit(resume=True).status == "finished"
    finally: stream.close()


# ---- measuring

def chosen(app, family, goal, shots):
    "The demonstrations that an agent is shown for a goal."
    known = [d for k in range(AMONG) if (d := demonstration(app, family, k))]
    return most_similar(known, goal, "", shots) if shots else []


def first_goal(app, family, seed):
    "The goal's words, and whether it holds at the start."
    device = AppDevice(app, goals=(family,))
    device.reset(seed, draw=False)
    return device.goal.text, device.solved()


def play_one(agent_folder, shots, job):
    "One episode: (finished, said DONE though it was not, halted), single steps right and in all; None if there is nothing to do or to show."
    app, family, seed = job
    goal, holds = first_goal(app, family, seed)
    demos = chosen(app, family, goal, 1)
    if holds or not demos: return None
    make = partial(AppDevice, app, goals=(family,))
    if agent_folder == "replay": agent, right, steps = ReplayAgent(demos), 0, 0
    elif agent_folder.startswith(GUARDED): agent, right, steps = GuardedAgent(PolicyAgent(policy_of(model_name(agent_folder)), "nano"), demos), 0, 0
    else:
        policy = policy_of(agent_folder)
        policy.show(demos[:shots])
        right, steps = single_steps(policy, make(), seed)
        agent = PolicyAgent(policy, "nano")
    done, said = play(agent, make(), seed)
    return done and said, said and not done, right, steps


def play(agent, device, seed):
    "Whether a goal is reached in twice the oracle's steps and a few, and whether the agent says so."
    budget, driver = min(2*oracle_steps(device, seed) + SPARE_STEPS, device.step_budget), EpisodeDriver(device)
    driver.reset(seed)
    introduce(agent, [driver])
    for _ in range(budget):
        action, = ask_agent(agent, [view_of(driver)])
        if action.type == "done" or action.type == "failed" and not isinstance(agent, PolicyAgent): return device.solved(), action.type == "done"
        driver.act(action)
    return device.solved(), False


_POLICIES = {}

def policy_of(folder):
    "A run's agent, as it is kept in this process."
    if folder not in _POLICIES:
        threadpool_limits(1, "blas")  # beside other work, threads that wait for each other cost ten times what they bring
        _POLICIES[folder] = load_policy(folder, retries=RETRIES, eyes="tree")
        _POLICIES[folder].max_new_tokens = ANSWER_TOKENS
    return _POLICIES[folder]


def single_steps(policy, device, seed):
    "How many of the oracle's screens of an episode are answered rightly, and of how many."
    frame, asked, wanted = device.reset(seed), [], []
    for _ in range(device.step_budget):
        targets = acceptable_targets(device, [t[0].action for t in wanted])
        asked.append((frame.image, device.goal.text, [], frame.elements))
        wanted.append(targets)
        if targets[0].action.type == "done": break
        frame = device.perform(targets[0].action)
    images, goals, histories, trees = map(list, zip(*asked))
    answers = policy.predict_actions(images, goals, histories, elements=trees, recorded=True)
    return sum(any(matches(a, t) for t in ts) for (a, _), ts in zip(answers, wanted)), len(wanted)


def episodes_of(where, episodes):
    "What is played: (application, kind of goal, seed) each."
    if where == "apps": return [(app, load_app(app).families[k % len(load_app(app).families)], SPLITS["test"][0] + 700 + k) for k in range(episodes//len(HAND_WRITTEN)) for app in HAND_WRITTEN]
    first, jobs = SPLITS[where][0] + 40_000, []
    for w in range(episodes//3):
        app = f"worlds:{first + w}"
        families = load_app(app).families
        jobs += [(app, family, first + w) for family in Random(w).sample(families, min(3, len(families)))]
    return jobs


def measure(agent, shots, where, episodes, workers):
    "A row of figures."
    jobs, began = episodes_of(where, episodes), time.process_time()
    one = partial(play_one, str(agent), shots)
    if workers < 2: played = list(map(one, jobs))
    else:
        with ProcessEngine(workers, 5) as engine: played = [f.result() for f in [engine.submit(one, job) for job in jobs]]
    played = [(job[0], *p) for job, p in zip(jobs, played) if p]
    done, false, right, steps = (sum(p[k] for p in played) for k in (1, 2, 3, 4))
    return dict(where=where, shots=shots, episodes=len(played), done=done, false=false, right=right, steps=steps, cpu_s=round(time.process_time() - began),
                by_app={app: [sum(p[1] for p in played if p[0] == app), sum(p[0] == app for p in played)] for app in HAND_WRITTEN} if where == "apps" else None)


# ---- all of it

def add_row(folder, row):
    "Note a result."
    with open(folder/"results.jsonl", "a") as f: f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def rows_of(folder): return [json.loads(line) for line in (folder/"results.jsonl").read_text().splitlines()] if (folder/"results.jsonl").exists() else []


def run(args):
    "Train and measure arm after arm, as long as there is time."
    os.nice(args.nice)
    args.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60*args.minutes if args.minutes else None
    for arm in args.arms:
        arm = best_arm(args.folder) if arm == "best" else arm
        for worlds in args.worlds:
            name = run_name(arm, worlds, args.samples, args.start)
            if end: args.minutes = max(.01, (end - time.monotonic())/60)
            if not train(args, arm, worlds, args.samples, args.folder/name): return
            rows = [json.loads(line) for line in (args.folder/name/"metrics.jsonl").read_text().splitlines()]
            last = [r for r in rows if "loss" in r][-1]
            about = dict(run=name, arm=arm, worlds=worlds, samples=args.samples, start=args.start, minutes=round(last["seconds"]/60, 1), cpu_minutes=round(cpu_seconds(args.folder/name)/60, 1), loss=last["loss"])
            measure_run(args, args.folder/name/"agent", about, end)
            if args.guarded: measure_run(args, f"{GUARDED}{args.folder/name/'agent'}", about | dict(run=GUARDED + name, arm=GUARDED + arm), end)


def best_arm(folder):
    "The arm whose runs answer the most single steps rightly with a demonstration, in worlds of the validation split."
    rows = [r for r in rows_of(folder) if r["arm"] in ARMS and r["shots"] == 1 and r["where"] == "validation"]
    if not rows: raise SystemExit(f"{folder}/results.jsonl: no arm was measured in validation worlds with a demonstration yet; run some arms first")
    return max(rows, key=lambda r: r["right"]/r["steps"])["arm"]


def measure_run(args, agent, about, end):
    "The figures of a run that the results do not have yet."
    shots = (0,) if about.get("arm") == "none" else (1,) if str(agent).startswith("replay") else (0, 1)
    for where in args.where:
        for k in shots:
            if any((r["run"], r["where"], r["shots"]) == (about["run"], where, k) for r in rows_of(args.folder)): continue
            if end and time.monotonic() > end: return
            add_row(args.folder, about | measure(agent, k, where, args.episodes, args.measuring))


def table(args):
    "The results as Markdown, and beside them as JSON."
    def share(k, n): return "–" if not n else f"{k/n:.1%} ({wilson(k, n)[0]:.0%} to {wilson(k, n)[1]:.0%})"
    lines = ["| run | CPU minutes | where | shown | n | success | false DONE | single steps |", "|---|---:|---|---:|---:|---:|---:|---:|"]
    rows = rows_of(args.folder)
    for r in sorted(rows, key=lambda r: (r["where"], r["run"], r["shots"])):
        lines.append(f"| {r['run']} | {r.get('cpu_minutes', '–')} | {r['where']} | {r['shots']} | {r['episodes']} | {share(r['done'], r['episodes'])} | "
                     f"{share(r['false'], r['episodes'])} | {share(r['right'], r['steps'])} |")
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomic(args.out/"results.json", json.dumps(rows, indent=1).encode())
    head = "# Trained in generated worlds\n\nWritten by bench/worlds_training.py. Success with 95% intervals; no world and no application of the table was trained on, unless the start is nano.\n\n"
    write_atomic(args.out/"table.md", (head + "\n".join(lines) + "\n").encode())
    print("\n".join(lines))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "replay", "table"))
    parser.add_argument("--arms", nargs="+", default=["all"], choices=[*ARMS, "best"], help="best: the one that did best so far")
    parser.add_argument("--worlds", nargs="+", type=int, default=[300], help="how many are trained in")
    parser.add_argument("--samples", type=int, default=6400, help="screens")
    parser.add_argument("--start", default="nano-new", choices=("nano-new", "nano-small", "nano"), help="what learns: new weights, or the shipped ones")
    parser.add_argument("--folder", type=Path, default=Path("runs/worlds"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, help="of this slice; default: to the end")
    parser.add_argument("--where", nargs="+", default=["validation"], choices=("validation", "test", "apps"), help="what is measured")
    parser.add_argument("--episodes", type=int, default=180)
    parser.add_argument("--guarded", action="store_true", help="measure the replay with each run's agent behind it too")
    parser.add_argument("--workers", type=int, default=1, help="processes that make samples")
    parser.add_argument("--measuring", type=int, default=1, help="processes that measure")
    parser.add_argument("--processes", type=int, default=1, help="that share a training step, on a CPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--rate", type=float, default=.0015)
    parser.add_argument("--schedule", default="cosine", choices=("cosine", "linear", "constant"))
    parser.add_argument("--save", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nice", type=int, default=0)
    args = parser.parse_args(argv)
    if args.command == "run": run(args)
    elif args.command == "replay":
        args.folder.mkdir(parents=True, exist_ok=True)
        measure_run(args, "replay", dict(run="replay", arm="replay"), None)
    else: table(args)


if __name__ == "__main__": main()
