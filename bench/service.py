"""What a task server costs, and what it leaves behind: `python bench/service.py speed|many|screens|leaks|relay|lend`.

`speed`: 200 sessions, an interact a second each, for some seconds: latency, and the server's CPU time an interact; with
the Python of an environment that has `agentrl-worker` (--agentrl), that one beside it in the same run. `relay`: the CPU time
of a controller for each interact, by sessions at once that never rest. `lend`: how long a session waits for an environment that is
used again, with Redis, when so many are in use. Both with another checkout's folder (--beside) measure that one in turn. `many`: 1,000 sessions at
once, their memory, and connections that are idle for a minute. `screens`: steps a second with the login application's
screens, and the bare device's. `leaks`: sessions with every accident at random, and what is left afterwards
(`bench/soak_service.py`: many more, with environments and killed workers). Linux (reads /proc)."""
import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from oaml.devices.daemon import listen_on, serve_in_process
from oaml.devices.episode import EpisodeDriver
from oaml.devices.oracle import acceptable_targets
from oaml.service.controller import TaskController, controller_server
from oaml.service.gui import SuiteTask, tool_arguments
from oaml.service.records import RewardHistoryItem, TaskSampleExecutionResult
from oaml.service.task import Task
from oaml.service.worker import more_files, served_task

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
TOOLS = [dict(type="function", function=dict(name="act", description="Act.", parameters=dict(type="object", properties={})))]


class EchoTask(Task):
    "Says back what it hears, a reward each time; `async`, so that a session costs no thread."
    def __init__(self, name="echo", **kw): super().__init__(name, full_async=True, tools=TOOLS, **kw)
    def get_indices(self): return list(range(100))
    async def start_sample(self, index, session):
        text = "begin"
        while text != "end":
            text = (await session.action(dict(role="user", content=text))).content
            session.inject(RewardHistoryItem(reward=.5))
        return TaskSampleExecutionResult(result=index)


class ChaosTask(Task):
    "Does what it is told, badly too: raises, hangs for a while, swallows its cancel."
    def __init__(self, name="chaos", hang_s=3., **kw):
        super().__init__(name, **kw)
        self.hang_s = hang_s
    def get_indices(self): return [0]
    def act(self, session, number): "Called for each action."
    def sync_start_sample(self, index, session):
        text, acts = "begin", 0
        while text != "end":
            try: text = session.sync_action(dict(role="user", content=f"{acts}")).messages[0]["content"]
            except BaseException:
                if text != "swallow": raise
                text = "swallowed"  # and asks on, once
                continue
            acts += 1
            self.act(session, acts)
            if text == "raise": raise ValueError("as told")
            if text == "hang": time.sleep(self.hang_s)
        return TaskSampleExecutionResult(result=acts)


THEIRS = '''
from agentrl.worker.task import Task
from agentrl.worker.typings import RewardHistoryItem, TaskSampleExecutionResult
class EchoTask(Task):
    def get_indices(self): return list(range(100))
    async def start_sample(self, index, session):
        text = "begin"
        while text != "end":
            text = (await session.action(dict(role="user", content=text))).messages[0]["content"]
            session.inject(RewardHistoryItem(reward=.5))
        return TaskSampleExecutionResult(result=index)
'''


class Connection:
    "One kept connection: JSON there and back, with as little of the load generator's own time as can be."
    async def open(self, port):
        self.read, self.write = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        return self

    async def post(self, path, body, **headers):
        data = json.dumps(body).encode()
        more = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        self.write.write(f"POST /api/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = await self.read.readuntil(b"\r\n\r\n")
        if b"content-length:" not in head.lower(): raise ConnectionError(head.partition(b"\r")[0].decode())  # given up: too slow
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return int(head.split()[1]), await self.read.readexactly(length)

    def close(self): self.write.close()


def says(text): return [dict(role="assistant", content=text)]


def process_cost(pid):
    "CPU seconds and resident MB of a process."
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12]))/TICK, int(fields[21])*os.sysconf("SC_PAGE_SIZE")/1e6


def holdings(pid):
    "Threads and descriptors of a process, and its children."
    task = Path(f"/proc/{pid}/task")
    children = [c for t in task.iterdir() for c in (t/"children").read_text().split()]
    return dict(threads=len(list(task.iterdir())), files=len(list(Path(f"/proc/{pid}/fd").iterdir())), children=len(children))


def find_this():
    "Processes to come find this module."
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(HERE), *path]))


@contextmanager
def ours(task, **given):
    "Our worker in a process of its own: its port and its process's id."
    find_this()
    with serve_in_process(served_task, dict(module=f"service.{task}", **given)) as (url, process):
        yield int(url.rpartition(":")[2]), process.pid


@contextmanager
def theirs(python, controller="http://127.0.0.1:9/api"):
    "AgentRL's worker, with the same task, in an environment of its own."
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder)/"their_echo.py").write_text(THEIRS)
        (Path(folder)/"echo.yaml").write_text("echo:\n  module: their_echo.EchoTask\n  parameters: {name: echo, concurrency: 2000, full_async: true, tools: " + json.dumps(TOOLS) + "}\n")
        with listen_on("127.0.0.1", 0) as free: port = free.getsockname()[1]
        process = subprocess.Popen([python, "-m", "agentrl.worker", "echo", "-c", "echo.yaml", "-C", controller, "--host", "127.0.0.1",
                                    "-p", str(port), "-s", f"http://127.0.0.1:{port}/api", "--log-level", "ERROR"], cwd=folder, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | dict(PYTHONPATH=folder),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(answering(port))
            yield port, process.pid
        finally: process.kill(); process.wait()


async def answering(port):
    "Returns once a server listens."
    for _ in range(300):
        try: (await Connection().open(port)).close(); return
        except OSError: await asyncio.sleep(.1)
    raise TimeoutError(f"nobody listens on {port}")


async def conversation(port, id, seconds, period, latencies):
    "A session that interacts once a period."
    connection = await Connection().open(port)
    await asyncio.sleep(random.random()*period)
    status, _ = await connection.post("start_sample", dict(name="echo", index=id % 100, session_id=id))
    assert status == 200, status
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        status, _ = await connection.post("interact", dict(session_id=id, messages=says("x"*200)))
        assert status == 200, status
        latencies.append(time.perf_counter() - began)
        await asyncio.sleep(max(0, period - (time.perf_counter() - began)))
    await connection.post("interact", dict(session_id=id, messages=says("end")))
    connection.close()


async def drive(port, pid, sessions, seconds, period=1):
    "Latencies, and the server's CPU time an interact."
    warm = []
    await asyncio.gather(*(conversation(port, 10_000 + n, 1, 1, warm) for n in range(20)))
    latencies, before = [], process_cost(pid)[0]
    await asyncio.gather(*(conversation(port, n, seconds, period, latencies) for n in range(sessions)))
    cpu, latencies = process_cost(pid)[0] - before, sorted(latencies)
    return dict(interacts=len(latencies), p50_ms=round(1e3*latencies[len(latencies)//2], 2), p99_ms=round(1e3*latencies[int(.99*len(latencies))], 2),
                cpu_ms=round(1e3*cpu/(len(latencies) + 2*sessions), 3))


def speed(sessions=200, seconds=20, agentrl=None):
    "200 sessions, an interact a second each."
    with ours("EchoTask", parameters=dict(concurrency=2000)) as (port, pid): found = dict(oaml=asyncio.run(drive(port, pid, sessions, seconds)))
    if agentrl:
        with theirs(agentrl) as (port, pid): found["agentrl-worker"] = asyncio.run(drive(port, pid, sessions, seconds))
    return found


@contextmanager
def checkout(root):
    "Processes to come have the package and this module of a folder."
    before = dict(os.environ)
    os.environ |= dict(PYTHONPATH=os.pathsep.join([str(root), str(HERE), *before.get("PYTHONPATH", "").split(os.pathsep)]), PYTHONSAFEPATH="1")
    try: yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def in_turn(measure, amounts, beside):
    "What `measure` gives for each amount: here, and in another checkout in the same minute."
    roots = dict(here=HERE.parent) | (dict(beside=beside) if beside else {})
    return {n: {name: measure(root, n) for name, root in roots.items()} for n in amounts}


def relay(seconds=5, beside=None):
    "Sessions that never rest, behind a controller: its CPU time for an interact."
    def measure(root, sessions):
        with checkout(root), serve_in_process(served_controller, {}) as (url, process):
            with checkout(HERE.parent), ours("EchoTask", parameters=dict(concurrency=2000), controller=f"{url}/api"):
                port = int(url.rpartition(":")[2])
                settled(lambda: "echo" in get(port, "list_workers"), True)
                return asyncio.run(drive(port, process.pid, sessions, seconds, 0))
    return in_turn(measure, (2, 10, 50, 150), beside)


def lend_here(sessions, folder, turns=20):
    "Environments that are used again, all in use: how long a session waits for one that is given back, and for one that is made."
    from oaml.service.delegation import EnvironmentController, EnvironmentDelegation
    from oaml.service.state import RedisState
    class Reusable(EnvironmentDelegation):
        def get_concurrency_limit(self, subtype): return 1
        def supports_reuse(self, subtype): return True
    class Notes(EnvironmentController):
        "Environments that cost nothing."
        async def make(self, environment, subtype, variables): there.add(environment)
        async def unmake(self, environment): there.discard(environment)
        async def reachable(self): return set(there)
    there = set()
    async def measure():
        controller = Notes(Reusable("notes"), RedisState(dict(unix_socket_path=f"{folder}/s"), prefix=f"notes{os.getpid()}"))
        used, times = [await controller.start_session("default") for _ in range(sessions)], dict(again=[], new=[], end=[])
        async def timed(what, doing):
            began = time.perf_counter()
            done = await doing
            times[what].append(1e3*(time.perf_counter() - began))
            return done
        for _ in range(turns):
            await timed("end", controller.end_session(used.pop(0)[0]))
            used.append(await timed("again", controller.start_session("default")))
            used.append(await timed("new", controller.start_session("default")))
        await controller.close()
        return {f"{what}_ms": round(sorted(t)[turns//2], 2) for what, t in times.items()}
    print(json.dumps(asyncio.run(measure())))


def lend(beside=None, sessions=None):
    "With a Redis server of its own, and a median of twenty."
    from soak_service import redis_server
    with tempfile.TemporaryDirectory(prefix="oaml-r") as folder, redis_server(Path(folder)):
        def measure(root, sessions):
            with checkout(root): return json.loads(subprocess.check_output([sys.executable, "-c", f"import service; service.lend_here({sessions}, {folder!r})"]))
        return in_turn(measure, [sessions] if sessions else [100, 300, 1000], beside)


async def keep(port, pid, sessions, idle):
    "Sessions at once: memory of each, and how many connections answer after a while of silence."
    before, connections = process_cost(pid)[1], []
    for n in range(sessions):
        connections.append(connection := await Connection().open(port))
        assert (await connection.post("start_sample", dict(index=0, session_id=n)))[0] == 200
    for n, c in enumerate(connections): await c.post("interact", dict(session_id=n, messages=says("x"*200)))
    memory = process_cost(pid)[1] - before
    await asyncio.sleep(idle)
    kept = 0
    for n, c in enumerate(connections):
        try: kept += (await c.post("interact", dict(session_id=n, messages=says("end"))))[0] == 200
        except (OSError, asyncio.IncompleteReadError): pass
        c.close()
    return dict(sessions=sessions, kb_each=round(1e3*memory/sessions, 1), idle_s=idle, kept=kept)


def many(sessions=1000, idle=60):
    "1,000 sessions at once."
    more_files()
    with ours("EchoTask", parameters=dict(concurrency=2000)) as (port, pid): return asyncio.run(keep(port, pid, sessions, idle))


async def play_served(port, scripts, at_once):
    "Every script as tool calls, some sessions at once; how many steps."
    waiting, steps = iter(enumerate(scripts.items())), 0
    async def one_after_the_other():
        nonlocal steps
        connection = await Connection().open(port)
        for id, (index, script) in waiting:
            status, _ = await connection.post("start_sample", dict(index=index, session_id=id))
            assert status == 200
            for k, action in enumerate(script):
                call = dict(id=f"c{k}", type="function", function=dict(name="act", arguments=json.dumps(tool_arguments(action))))
                status, reply = await connection.post("interact", dict(session_id=id, messages=[dict(role="assistant", content=None, tool_calls=[call])]))
                assert status == 200
                steps += 1
            assert json.loads(reply)["env_out"]["reward"] == 1
        connection.close()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return steps


def screens(episodes=60, at_once=4):
    "Steps a second with the login application's screens: of the bare device, and behind the server."
    given = dict(suite="login-v1", split="validation", episodes=episodes)
    task, scripts = SuiteTask(**given), {}
    def play(index):
        device, seed = task.open_sample(index)
        driver, actions = EpisodeDriver(device), scripts.get(index)
        driver.reset(seed)
        while not driver.over:
            driver.act(actions[driver.steps] if actions else acceptable_targets(driver.device, driver.actions)[0].action)
            driver.frame.image
        return list(driver.actions)
    scripts |= {index: play(index) for index in task.get_indices()}
    began, cpu = time.perf_counter(), time.process_time()
    steps = sum(len(play(index)) for index in scripts)
    bare = dict(steps_s=round(steps/(time.perf_counter() - began)), cpu_ms=round(1e3*(time.process_time() - cpu)/steps, 2))
    with serve_in_process(served_task, dict(module="oaml.service.gui.SuiteTask", parameters=given)) as (url, process):
        port = int(url.rpartition(":")[2])
        asyncio.run(play_served(port, dict(list(scripts.items())[:4]), at_once))  # whatever is made once
        began, cpu = time.perf_counter(), process_cost(process.pid)[0]
        steps = asyncio.run(play_served(port, scripts, at_once))
        served = dict(steps_s=round(steps/(time.perf_counter() - began)), cpu_ms=round(1e3*(process_cost(process.pid)[0] - cpu)/steps, 2))
    return dict(steps=steps, bare=bare, served=served)


ACCIDENTS = "plain", "cancel", "lost", "lost in turn", "raise", "repeat", "hang", "swallow"


async def accident(port, id, rng, counts):
    "One session with one accident; whether it ended as it should, and no action was done twice."
    kind, number = rng.choice(ACCIDENTS), 0
    connection, other = await Connection().open(port), None
    async def ask(route, again=False, **body):
        nonlocal number
        number += not again
        status, reply = await connection.post(route, dict(session_id=id, **body), **({"X-Oaml-Number": number} if route in ("start_sample", "interact") else {}))
        return status, json.loads(reply)
    async def begin():
        nonlocal number
        while (await ask("start_sample", name="chaos", index=0))[0] in (406, 502):
            number = 0
            await asyncio.sleep(.05 + .2*rng.random())
    try:
        await begin()
        for _ in range(rng.randrange(3)): await ask("interact", messages=says("go"))
        counts[kind] += 1
        if kind == "lost": return
        if kind == "lost in turn":
            other = asyncio.ensure_future(ask("interact", messages=says("hang")))
            return await asyncio.sleep(.05)
        if kind in ("raise", "hang", "swallow"): last = await ask("interact", messages=says(kind))
        if kind in ("cancel", "swallow"): return await ask("cancel")
        if kind in ("plain", "repeat"):
            if kind == "repeat":
                first, again = await ask("interact", messages=says("go")), await ask("interact", True, messages=says("go"))
                counts["repeats that differ" if again[0] == 200 else "repeats lost with their worker"] += again != first
            last = await ask("interact", messages=says("end"))
            turn = last[1].get("env_out", last[1])
            if last[0] != 200: counts["lost with its worker"] += 1
            elif "gave no turn within" in turn.get("error", ""): counts["late on a busy machine"] += 1
            else: counts["acts not as many as asked"] += turn["result"] != number - 1
        else: counts["raising or hanging tasks without a task error"] += last[0] == 200 and last[1].get("env_out", last[1])["status"] != "task error"
    except (OSError, asyncio.IncompleteReadError): counts["connections lost"] += 1
    finally:
        connection.close()
        if other: await asyncio.wait({other}), other.exception()


async def accidents(port, sessions, first, at_once=64, seed=0, done=lambda: None):
    "Many of them, some at once."
    rng, counts, waiting = random.Random(seed), Counter(), iter(range(first, first + sessions))
    async def one_after_the_other():
        for id in waiting:
            await accident(port, id, rng, counts)
            done()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return counts


def steady(look, still=1., seconds=60):
    "What `look` gives, once it gives the same for some seconds."
    found, since, until = look(), time.monotonic(), time.monotonic() + seconds
    while time.monotonic() < min(until, since + still):
        time.sleep(.1)
        if (new := look()) != found: found, since = new, time.monotonic()
    return found


def settled(look, want, seconds=60):
    "What `look` gives, once it is `want` or the time is over."
    until = time.monotonic() + seconds
    while (found := look()) != want and time.monotonic() < until: time.sleep(.1)
    return found


QUICK = dict(turn_s=1., cancel_s=.5, silence_s=2.)


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}") as answer: return json.load(answer)


def leaks(sessions=10_000, isolation="none", first=100):
    """What a worker holds before, and what more afterwards; fewer processes may wait: one whose sample raised is not kept.

    `first` sessions make whatever is made once; with processes most of them cost one, so a small sample takes few."""
    with ours("ChaosTask", parameters=dict(concurrency=48), deadlines=QUICK, isolation=isolation) as (port, pid):
        asyncio.run(accidents(port, first, 0))
        free = dict(concurrency=48, current=0, abandoned=0)
        settled(lambda: get(port, "worker_status"), free)
        before, began = steady(lambda: holdings(pid)), time.monotonic()
        counts = asyncio.run(accidents(port, sessions, 1000))
        took = time.monotonic() - began
        status = settled(lambda: get(port, "worker_status"), free)
        left = settled(lambda: {what: n - before[what] for what, n in holdings(pid).items() if n > before[what]}, {}, 20)
    return dict(sessions=sessions, seconds=round(took), kinds=dict(counts), before=before, left=left, status=status)


def served_controller(**given): return controller_server(TaskController(**given))


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("part", choices=["speed", "many", "screens", "leaks", "relay", "lend"])
    asked.add_argument("--sessions", type=int)
    asked.add_argument("--seconds", type=int, default=20)
    asked.add_argument("--isolation", default="none")
    asked.add_argument("--agentrl", help="Python of an environment that has agentrl-worker")
    asked.add_argument("--beside", help="folder of another checkout")
    a = asked.parse_args()
    more = dict(sessions=a.sessions) if a.sessions else {}
    import service  # by its name, so that processes find what is in it
    found = dict(speed=lambda: service.speed(seconds=a.seconds, agentrl=a.agentrl, **more), many=lambda: service.many(**more), screens=service.screens,
                 leaks=lambda: service.leaks(isolation=a.isolation, **more),
                 relay=lambda: service.relay(a.seconds, a.beside), lend=lambda: service.lend(a.beside, **more))[a.part]()
    print(json.dumps(found, indent=1))
