"""What the jail costs, how long a list of 500 sessions takes, and whether a session that is killed again and again ends with the same record.

python bench/p2p.py jail [--steps 16384 --turns 5]   the same training with the reward in this process and in the jail, in turns
python bench/p2p.py list [--sessions 500]            the route, the page, and both again when one session has changed
python bench/p2p.py kills [--kills 100]              kill -9 at random moments, sessions on `line`, each compared with an unbroken one

Each writes its figures to bench/p2p.json and all of them to bench/p2p.md.
"""
import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parents[1]


class InProcess:
    "A reward as the jail computes it, without the jail; for a reward that this repository wrote."
    def __init__(self, source, envs):
        from oaml.prompt2policy.jail import Inmate
        self.inmate, self.envs = Inmate(), envs
        self.inmate.load(source, envs)
    def bind(self, fields):
        self.inmate.layout(self.envs, [[name, list(shape)] for name, shape in fields])
        return self.inmate.width
    def vector(self, rows):
        import numpy as np
        values = np.frombuffer(self.inmate.vector_step(rows.tobytes())).reshape(self.envs, -1)
        return values[:, 0], values[:, 1:]
    def close(self): pass


def train_once(kind, steps):
    "Seconds of the clock and of the processor (this process and the jail) for a training, and its policy's weights."
    import numpy as np

    from oaml.prompt2policy.engines import MujocoEngine, env_preset
    from oaml.prompt2policy.rewards import JailedReward, template_source
    from oaml.prompt2policy.training import RewardedEnvs, _ppo, _vec_env, mlp_policy
    config, source = env_preset("HalfCheetah-v5"), template_source("halfcheetah_forward")
    reward = kind(source, config.num_envs) if kind is InProcess else JailedReward(source, envs=config.num_envs)
    envs = RewardedEnvs(MujocoEngine(), config, reward, range(config.num_envs))
    model, venv = _ppo(config, _vec_env(envs))
    inside = 0. if kind is InProcess else cpu_of(reward.jail.process.pid)
    began, cpu = time.perf_counter(), time.process_time()
    model.learn(steps)
    took = dict(wall=time.perf_counter() - began, cpu=time.process_time() - cpu)
    if kind is not InProcess: took["cpu"] += cpu_of(reward.jail.process.pid) - inside
    weights = np.concatenate([w.ravel() for w, _ in mlp_policy(model, venv).layers])
    reward.close()
    envs.close()
    return took, weights


def cpu_of(pid):
    "Seconds of the processor that another process has used."
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used))/os.sysconf("SC_CLK_TCK")


def jail_cost(steps, turns):
    "The same training in turns, after one of each that is not counted."
    import numpy as np

    from oaml.prompt2policy.rewards import JailedReward
    sides = {"in process": InProcess, "in the jail": JailedReward}
    took = {name: [] for name in sides}
    for turn in range(-1, turns):
        weights = {}
        for name in (list(sides) if turn%2 else list(sides)[::-1]):
            figures, weights[name] = train_once(sides[name], 2048 if turn < 0 else steps)
            if turn >= 0: took[name].append(figures)
        assert np.array_equal(*weights.values()), "the two trainings must be one and the same"
    out = dict(steps=steps, turns=turns)
    for what in ("cpu", "wall"):
        plain, jailed = ([t[what] for t in took[name]] for name in sides)
        ratios = [j/p for p, j in zip(plain, jailed)]
        out[what] = dict(in_process_s=round(median(plain), 2), in_the_jail_s=round(median(jailed), 2), ratio=round(median(ratios), 3),
                         least=round(min(ratios), 3), most=round(max(ratios), 3))
    out["steps per CPU second, in the jail"] = round(steps/out["cpu"]["in_the_jail_s"])
    return out


def list_times(sessions):
    "Seconds for the route and the page, over HTTP, with sessions that have run."
    import httpx

    from oaml.devices.daemon import serve_in_thread
    from oaml.prompt2policy.api import P2PService, api_routes, p2p_server
    from oaml.prompt2policy.loop import run_session_folder
    from oaml.prompt2policy.pages import page_routes
    out = dict(sessions=sessions)
    with tempfile.TemporaryDirectory() as folder:
        first = line_session(folder, "session_0")
        run_session_folder(first)
        for k in range(1, sessions):
            shutil.copytree(first.path, first.path.parent/f"session_{k}")
            path = first.path.parent/f"session_{k}/session_config.json"
            path.write_text(path.read_text().replace("session_0", f"session_{k}"))
        service = P2PService(folder)
        with serve_in_thread(p2p_server(api_routes(service) + page_routes(service))) as server:
            for name, path in (("route", "/api/sessions"), ("page", "/e2e")):
                times = []
                for k in range(6):
                    began = time.perf_counter()
                    answer = httpx.get(server.url + path, timeout=120)
                    times.append(time.perf_counter() - began)
                    assert answer.status_code == 200 and answer.text.count("session_") >= sessions
                out[name] = dict(first_s=round(times[0], 3), median_s=round(median(times[1:]), 3), kilobytes=len(answer.content)//1000)
    return out


def line_session(folder, name):
    "A scripted session that two iterations end."
    from oaml.prompt2policy.contracts import StartSessionRequest
    from oaml.prompt2policy.loop import new_session
    return new_session(folder, StartSessionRequest(prompt="go right", env_id="line", llm="scripted", max_iterations=2), name)


def kill_soak(kills, seed=0):
    "Sessions killed at random moments, each compared with an unbroken one."
    sys.path.insert(0, str(ROOT/"tests"))
    from test_p2p import contents, kill_at_random, start
    out, rng = dict(kills=0, sessions=0, different=[]), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, began = line_session(Path(folder)/"whole", "session_one"), time.monotonic()
        start(whole).wait()
        longest, want = time.monotonic() - began, contents(whole)
        try:
            while out["kills"] < kills:
                session = line_session(Path(folder)/str(out["sessions"]), "session_one")
                n, have = kill_at_random(session, rng, longest), contents(session)
                if names := sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name)):
                    out["different"].append(f"session {out['sessions']} ({session.read_status()}): {', '.join(names)}")
                out |= dict(kills=out["kills"] + n, sessions=out["sessions"] + 1)
                print(out, flush=True)
        except KeyboardInterrupt: pass  # the figures of what was done until then
    return out


def write_figures(name, figures):
    "Beside the figures of the other commands, and as a page."
    path = ROOT/"bench/p2p.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = dict(figures, load=os.getloadavg()[0], machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    path.write_text(json.dumps(known, indent=1) + "\n")
    lines = ["# prompt2policy\n", "Written by `python bench/p2p.py`. The load is that of the whole machine at the end; with a load above the number of cores the",
             "clock's times say little, and the processor's are what counts.\n"]
    if found := known.get("jail"):
        lines += [f"## The jail\n\nThe same HalfCheetah-v5 training ({found['steps']:,} steps, 8 environments) with the reward in the training's process and in the",
                  f"jail, {found['turns']} turns of each; both come to the same weights. {found['steps per CPU second, in the jail']:,} steps a second of the processor. Load {found['load']:.1f}.\n",
                  "| seconds of | in process | in the jail | ratio (median) | least to most |", "|---|---|---|---|---|",
                  *(f"| {label} | {f['in_process_s']} | {f['in_the_jail_s']} | **{f['ratio']}** | {f['least']} to {f['most']} |"
                    for label, f in (("the processor", found["cpu"]), ("the clock", found["wall"]))), ""]
    if found := known.get("list"):
        lines += [f"## A list of {found['sessions']} sessions\n\nOver HTTP; load {found['load']:.1f}.\n", "| what | first time, s | again, s (median of 5) | kB |", "|---|---|---|---|",
                  *(f"| {what} | {found[what]['first_s']} | {found[what]['median_s']} | {found[what]['kilobytes']} |" for what in ("route", "page")), ""]
    if found := known.get("kills"):
        lines += [f"## kill -9\n\n{found['kills']} kills at random moments in {found['sessions']} sessions on `line`; files that differ from those of an unbroken session but for",
                  f"times: {', '.join(found['different']) or 'none'}.\n"]
    (ROOT/"bench/p2p.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, options in dict(jail=dict(steps=16384, turns=5), list=dict(sessions=500), kills=dict(kills=100)).items():
        one = commands.add_parser(command)
        for option, default in options.items(): one.add_argument(f"--{option}", type=int, default=default)
    args = vars(parser.parse_args())
    name = args.pop("command")
    write_figures(name, dict(jail=jail_cost, list=list_times, kills=kill_soak)[name](**args))
