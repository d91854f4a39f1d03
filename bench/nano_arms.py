"""What a nano gains most from, in the same minutes: `python bench/nano_arms.py AGENT --minutes 60`, results in experiments/nano/arms.json.

Three arms begin with the same weights and learn in all applications, at a learning rate that goes down to nothing: from more of the
oracle's screens; from the oracle's labels on screens that the model itself came to (DAgger); from the episodes that the model itself
finished (filtered self-imitation). What an arm spends on acting is taken off its training. Then each acts in 300 validation episodes.
With --rate the minutes are those of an idle machine, whatever else this one does: a minute is so many screens.
"""
import argparse
import json
import time
from functools import partial
from pathlib import Path

from oaml.apps.app import split_seeds
from oaml.apps.catalog import load_app
from oaml.devices.app_device import AppDevice
from oaml.devices.device import save_observation
from oaml.devices.episode import EpisodeDriver
from oaml.runtime.agents import PolicyAgent
from oaml.evals.closed_loop import run_episodes
from oaml.evals.suites import load_agent, load_suite
from oaml.evals.trajectory_matching import wilson
from oaml.ingest.episodes import save_episodes
from oaml.ingest.store import save_sessions
from oaml.runtime.policy import AgentPolicy
from oaml.schemas.sessions import Episode, Session, Step
from oaml.scripts.demo import training_rate
from oaml.scripts.stages import collect_visits
from oaml.scripts.train import load_learner, make_stream, playable, train
from oaml.training.config import load_recipe

OUT = Path(__file__).parents[1]/"experiments/nano/arms.json"
ARMS = ("oracle", "dagger", "self")
FIRST_SEED = 800_000 # of the training split, where the model acts; no stage of the recipe trains there


def record_success(device, outcome, folder):
    "A finished episode again, with the model's own thoughts, as a session."
    driver, steps = EpisodeDriver(device), []
    driver.reset(outcome.seed)
    for step in outcome.steps:
        steps.append(Step(driver.frame.clock/1000, save_observation(driver.frame, folder/"screens"), step.action, step.thought))
        driver.act(step.action, draw=step.action.type != "done")
    name = f"{device.app.name}-{outcome.seed}".replace(":", ".").replace("@", ".")
    meta = dict(app=device.app.name, seed=outcome.seed, size=list(device.size))
    return Session(name, [Episode(name, outcome.goal, steps, None, True, outcome.workflow_id, meta)])


def collect_successes(adapter, config, episodes, folder):
    "Let the model act in all applications on the first kind of screen; keep what it finishes. How many of how many."
    (folder/"screens").mkdir(parents=True, exist_ok=True)
    agent, stream = PolicyAgent(AgentPolicy(adapter), "collecting"), make_stream(config, AgentPolicy(adapter).fmt)
    sessions, tried = [], 0
    for source in playable(stream.sources):
        make = partial(AppDevice, source.app, stream.shapes[0].size, goals=load_app(source.app).families)
        outcomes = run_episodes(agent, make, split_seeds("train", episodes, FIRST_SEED), True)
        tried += len(outcomes)
        sessions += [record_success(make(), o, folder) for o in outcomes if o.success and not o.invalid]
    save_sessions(sessions, folder)
    return len(sessions), tried


def begin_with(agent, config):
    "The recipe's last stage, from an agent's weights."
    return config.model_copy(update=dict(model=config.model.model_copy(update=dict(model_name=agent))))


def own_lessons(args, arm, config, folder):
    "What an arm collects: keys of its stream, half of which it is; and figures."
    if arm == "oracle": return {}, {}
    adapter = load_learner(config, config.prompt.prompt_format())
    if arm == "dagger":
        save_episodes(collect_visits(adapter, config, args.episodes, FIRST_SEED), folder/"visits.jsonl")
        return dict(visits=str(folder/"visits.jsonl"), visited=.5), {}
    kept, played = collect_successes(adapter, config, args.episodes, folder/"sessions")
    first, *others = config.stream.kinds
    sources = {f"sessions:{folder/'sessions'}": sum(config.stream.sources.values()), **config.stream.sources}
    return dict(kinds=[first.model_copy(update=dict(sources=sources)), *others]), dict(kept=kept, played=played)


def run_arm(args, arm):
    "Collect, train for what is left of the minutes, and act."
    folder, begun, cpu = args.folder/arm, time.perf_counter(), time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    config = begin_with(args.agent, load_recipe(args.config)["cooldown"])
    lessons, figures = own_lessons(args, arm, config, folder)
    collecting = (time.process_time() - cpu)/60  # acting is one process
    def training(samples):
        stream = config.stream.model_copy(update=lessons | dict(samples=samples, seed=600_000 + 20_000*ARMS.index(arm)))
        return config.model_copy(update=dict(output_dir=str(folder/"run"), stream=stream))
    rate = args.rate or training_rate(training(3200))
    samples = int(60*(args.minutes - collecting)*rate)//32*32
    result = train(training(samples))
    row = dict(arm=arm, collecting_minutes=collecting, **figures, samples=samples, minutes=(time.perf_counter() - begun)/60,
               loss=[r["loss"] for r in result.rows if "loss" in r][-1])
    return row | measure(str(folder/"run/agent"))


def measure(agent, episodes=34):
    "Validation episodes of all applications: finished of those that were to do, and of those whose goal held."
    suite = load_suite("synthetic-v1")
    who, seeds = load_agent(agent, suite), split_seeds("validation", episodes, 3000)
    outcomes = [o for app in suite.apps for o in run_episodes(who, partial(suite.device, app), seeds, True)]
    todo, met = [o for o in outcomes if not o.presatisfied], [o for o in outcomes if o.presatisfied]
    won = sum(o.success for o in todo)
    return dict(finished=won, open=len(todo), interval=wilson(won, len(todo)), met=len(met), met_finished=sum(o.success for o in met),
                by_app={app: [sum(o.success for o in todo if o.app == app), sum(o.app == app for o in todo)] for app in suite.apps})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="folder of the nano that all arms begin with")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--config", default="nano", help="a recipe, or the name of a shipped one (nano)")
    parser.add_argument("--minutes", type=float, default=60, help="of each arm, acting and training")
    parser.add_argument("--rate", type=float, help="screens that an arm learns from in a second (timed)")
    parser.add_argument("--episodes", type=int, default=60, help="played by the model in each application")
    parser.add_argument("--folder", type=Path, default=Path("runs/arms"))
    args = parser.parse_args()
    table = json.loads(OUT.read_text()) if OUT.exists() else []
    if not any(r["arm"] == "before" for r in table): table.append(dict(arm="before") | measure(args.agent))
    for arm in args.arms:
        table.append(run_arm(args, arm))
        OUT.write_text(json.dumps(table, indent=1) + "\n")
        print({k: v for k, v in table[-1].items() if k != "by_app"}, flush=True)
