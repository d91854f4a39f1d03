"""Thousands of sessions with every accident at random, and what is left afterwards: `python bench/soak_service.py OUT [--sessions N]`.

A controller, two workers and Redis; each session leases an environment. Clients cancel, vanish, time out, repeat; tasks
raise, hang, swallow their cancel; one of the workers is killed again and again. It goes in rounds, and each round is a line
of OUT/rounds.jsonl: run it again to go on. `--driver docker` leases containers, of a daemon that it starts (as root).
The exit status is 1 if anything was left, or an action was done twice. Linux (reads /proc); needs redis-server."""
import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tqdm.auto import tqdm

import service
from oaml.devices.daemon import serve_in_process
from oaml.service.environments import DOCKER_CALLS, EnvironmentDelegation, create_controller
from oaml.service.state import RedisState

LEASE_S = 10.
DEADLINES = dict(turn_s=8., cancel_s=1., silence_s=10.)
HANG_S = 10.           # how long a hung task hangs: more than its turn
KILL_EVERY_S = 20.
UNUSED_S = 6.           # in which the controller has asked each worker once, and closed what it needs no more
IMAGE = "oaml-soak:1"
PREFIX = "oaml:soak"


class Room:
    "An environment of a session."
    def close(self): pass


class Rooms(EnvironmentDelegation):
    "One for each session."
    def __init__(self): super().__init__("soak")
    def is_exclusive(self, subtype): return True
    def make_environment(self, subtype, variables): return Room
    def get_container_images(self): return dict(default=IMAGE)


class SoakTask(service.ChaosTask):
    "Each sample has a leased environment, and writes down what was done."
    def __init__(self, redis, acts, driver="inprocess", docker=None, **kw):
        super().__init__(hang_s=HANG_S, **kw)
        self.acts, self.background = os.open(acts, os.O_WRONLY|os.O_APPEND|os.O_CREAT), None
        options = dict(connection=dict(base_url=docker)) if docker else {}
        state = dict(connection=dict(unix_socket_path=redis), prefix=PREFIX)
        self.controller = create_controller(driver, Rooms(), "redis", state, LEASE_S, **options)
        if docker:  # begin with all threads that its calls may have: they come as they are needed, and stay
            all_there = threading.Barrier(DOCKER_CALLS)
            for _ in range(DOCKER_CALLS): self.controller._threads.submit(all_there.wait)

    def act(self, session, number): os.write(self.acts, f"{session.id} {number}\n".encode())

    async def start_sample(self, index, session):
        if self.background is None: self.background = asyncio.ensure_future(self.controller.background_task())
        async with self.controller.session("default"): return await super().start_sample(index, session)


@contextmanager
def redis_server(folder):
    "A Redis of its own; where it listens."
    path = str(folder/"s")
    process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--dir", str(folder), "--save", "", "--appendonly", "yes"],
                               stdout=subprocess.DEVNULL)
    try:
        service.settled(lambda: Path(path).exists(), True)
        yield path
    finally: process.kill(); process.wait()


@contextmanager
def docker_daemon(folder):
    "A daemon of its own with an image of static busybox; where it listens."
    import docker
    url = f"unix://{folder}/S"
    with open(folder/"log", "w") as log:
        process = subprocess.Popen([shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin"), "--data-root", folder/"D", "--exec-root", folder/"E", "-H", url,
                                    "--pidfile", folder/"P", "--storage-driver", "vfs"], stdout=log, stderr=log)
        try:
            def answers():
                try: return docker.DockerClient(base_url=url).ping()
                except docker.errors.DockerException: return process.poll() is not None
            if not service.settled(answers, True, 120) or process.poll() is not None: raise RuntimeError((folder/"log").read_text()[-500:])
            (folder/"root/bin").mkdir(parents=True)
            shutil.copy(shutil.which("busybox"), folder/"root/bin/busybox")
            (folder/"root/bin/sleep").symlink_to("busybox")
            tar = subprocess.run(["tar", "-C", folder/"root", "-c", "."], capture_output=True, check=True).stdout
            docker.APIClient(base_url=url).import_image_from_data(tar, *IMAGE.split(":"), changes=['CMD ["/bin/sleep","100000"]'])
            yield url
        finally: process.terminate(); process.wait()


def redis_keys(path):
    "What is in Redis, after a step that tidies it."
    async def tidy():
        state = RedisState(dict(unix_socket_path=path), PREFIX)
        left = await state.listing()
        await state.close()
        return left
    import redis
    left = asyncio.run(tidy())
    with redis.Redis(unix_socket_path=path) as client: return sorted(left), sorted(k.decode() for k in client.keys())


def containers(url):
    import docker
    return len(docker.APIClient(base_url=url).containers(all=True)) if url else 0


def start_worker(url, **parameters):
    "A worker as a process that can be killed."
    code = ("from oaml.service.worker import served_task\n"
            f"served_task('soak_service.SoakTask', {parameters!r}, deadlines={DEADLINES!r}, controller={url + '/api'!r}, beat_s=1).run()")
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def serving(port): return len(service.get(port, "list_workers").get("chaos", dict(workers=()))["workers"])


def idle(port, workers_there=2):
    "Nothing is at work: no session, no slot, no task that goes on after its cancel."
    workers = service.get(port, "list_workers").get("chaos", dict(workers={}))["workers"].values()
    try: abandoned = sum(service.get(int(w["address"].split(":")[2].split("/")[0]), "worker_status")["abandoned"] for w in workers)
    except OSError: return False  # it was killed a moment ago
    return service.get(port, "list_sessions") == {} and not abandoned and [w["current"] for w in workers] == [0]*workers_there


def soak(sessions, redis, folder, first=1000, docker=None, driver="inprocess", at_once=32, kill_every=KILL_EVERY_S, done=lambda: None):
    "A round: what was held before and after, and what happened."
    service.find_this()
    acts, seed = folder/f"acts-{first}", first
    given = dict(redis=redis, acts=str(acts), driver=driver, docker=docker, concurrency=at_once)
    with serve_in_process(service.served_controller, dict(dead_s=8., silence_s=15., sync_s=2.)) as (url, process):
        port = int(url.rpartition(":")[2])
        workers = [None, start_worker(url, **given)]
        held = lambda: [service.holdings(p.pid) for p in (process, workers[1])] + [containers(docker)]
        stop, kills = threading.Event(), 0
        try:
            rest = lambda n=2: service.settled(lambda: idle(port, n), True, 120)
            rest(1)
            asyncio.run(service.accidents(port, 4*at_once, first - 500, at_once))  # whatever is made once; this worker has all, as when the other dies
            workers[0] = start_worker(url, **given)
            rest()
            before, began = service.steady(held, UNUSED_S), time.monotonic()
            def kill():
                nonlocal kills
                while not stop.wait(kill_every):
                    workers[0].kill(); workers[0].wait()
                    kills += 1
                    workers[0] = start_worker(url, **given)
                    while serving(port) < 2 and not stop.wait(1): pass  # on a busy machine it takes long to start
            killing = threading.Thread(target=kill)
            killing.start()
            counts = asyncio.run(service.accidents(port, sessions, first, at_once, seed, done))
            took = time.monotonic() - began
            stop.set(); killing.join()
            at_rest = rest()
            after = service.settled(held, before, 60)
        finally:
            stop.set()
            for w in filter(None, workers): w.send_signal(signal.SIGTERM)
            for w in filter(None, workers): w.wait(60)
    left = service.settled(lambda: redis_keys(redis), ([], []), 3*LEASE_S)
    twice = [line for line, n in Counter(acts.read_text().split("\n")[:-1]).items() if n > 1]
    acts.unlink()
    return dict(sessions=sessions, seconds=round(took), kills=kills, kinds=dict(counts), at_rest=at_rest, before=before, after=after,
                containers=containers(docker), redis=left[1], acts_twice=twice)


WRONG = "repeats that differ", "acts not as many as asked", "raising or hanging tasks without a task error"


def complaints(round):
    "What is not as it should be in a round."
    found = [f"{k}: {round[k]}" for k in ("containers", "redis", "acts_twice") if round[k]]
    found += [f"{k}: {round['kinds'][k]}" for k in WRONG if round["kinds"].get(k)]
    more = [(b, a) for b, a in zip(round["before"], round["after"]) if (any(a[k] > b[k] for k in a) if isinstance(a, dict) else a > b)]
    return found + [f"before {b}, after {a}" for b, a in more] + ["not at rest"]*(not round["at_rest"])


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path)
    asked.add_argument("--sessions", type=int, default=10_000)
    asked.add_argument("--round", type=int, default=500)
    asked.add_argument("--at-once", type=int, default=32)
    asked.add_argument("--driver", default="inprocess", choices=["inprocess", "docker"])
    a = asked.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    rounds = a.out/"rounds.jsonl"
    rows = [json.loads(line) for line in rounds.read_text().splitlines()] if rounds.exists() else []
    folder = Path(tempfile.mkdtemp(prefix="oaml-s"))
    with redis_server(folder) as redis, (docker_daemon(folder) if a.driver == "docker" else nullcontext()) as docker:
        with tqdm(total=a.sessions, initial=min(a.sessions, sum(r["sessions"] for r in rows)), unit="session") as bar:
            while (made := sum(r["sessions"] for r in rows)) < a.sessions:
                n = min(a.round, a.sessions - made)
                rows.append(soak(n, redis, folder, 1000 + 10*made, docker, a.driver, a.at_once, done=bar.update))
                with open(rounds, "a") as out: print(json.dumps(rows[-1]), file=out)
                bar.set_postfix(complaints=sum(map(len, map(complaints, rows))))
    shutil.rmtree(folder, ignore_errors=True)
    total = Counter()
    for r in rows: total.update(r["kinds"])
    wrong = [c for r in rows for c in complaints(r)]
    print(json.dumps(dict(sessions=sum(r["sessions"] for r in rows), seconds=sum(r["seconds"] for r in rows), kills=sum(r["kills"] for r in rows),
                          kinds=dict(total), complaints=wrong), indent=1))
    return bool(wrong)


if __name__ == "__main__":
    import soak_service  # by its name, so that processes find what is in it
    sys.exit(soak_service.main())
