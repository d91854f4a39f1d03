"Environments are lent once, kept while they are used, and given back: on real Redis, Docker and Ray, each started here."
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

import pytest

from oaml.devices.catalog import open_device
from oaml.service.delegation import EnvironmentController, EnvironmentDelegation, EnvironmentFailed, EnvironmentsBusy, SessionExpired
from oaml.service.environments import create_controller
from oaml.service.records import TaskSampleExecutionResult
from oaml.service.state import EnvironmentRecord, MemoryState, RedisState, StateUnavailable, check_state
from oaml.service.task import Session, Task, play_sample

REDIS = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(not REDIS, reason="there is no redis-server; apt-get install redis-server")
PATIENCE = 120  # seconds for what takes two on an idle machine


def wait_until(holds, what):
    "Wait until `holds()`, which takes as long as the machine is busy."
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(.05)


# ---- Redis ----

class Redis:
    "A server on a socket of its own that writes every step down before it answers: `everysec` may keep two seconds back while the disk is busy."
    def __init__(self, folder):
        self.folder, self.socket = folder, str(folder/"s")
        self.start()

    def start(self):
        self.process = subprocess.Popen([REDIS, "--port", "0", "--unixsocket", self.socket, "--dir", str(self.folder), "--save", "",
                                         "--appendonly", "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        import redis
        def answers():
            assert self.process.poll() is None, "redis-server ended"
            try:
                with redis.Redis(unix_socket_path=self.socket) as client: return client.ping()
            except redis.exceptions.RedisError: return False
        wait_until(answers, "Redis answers")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def keys(self):
        import redis
        with redis.Redis(unix_socket_path=self.socket) as client: return sorted(client.keys())

    def state(self, **kw): return RedisState(dict(unix_socket_path=self.socket), **kw)


@pytest.fixture(scope="session")
def redis_server():
    if not REDIS: pytest.skip("there is no redis-server; apt-get install redis-server")
    folder = Path(tempfile.mkdtemp(prefix="oaml-r"))  # a socket's path has 108 characters
    server = Redis(folder)
    yield server
    server.kill()
    shutil.rmtree(folder)


def test_redis_keeps_its_word(redis_server):
    asyncio.run(check_state(redis_server.state(prefix="words")))
    assert not redis_server.keys()


def test_one_environment_and_many_clients(redis_server):
    "Eight clients with connections of their own: never more than three have it."
    async def main():
        states = [redis_server.state(prefix="many") for _ in range(8)]
        await states[0].add("one", EnvironmentRecord("shop"), "first", 3600)
        await states[0].end("first")
        having, most = set(), []
        async def use(k):
            state, session = states[k % 8], f"s{k}"
            while not await state.claim("one", session, 3, 0, 3600): await asyncio.sleep(.002)
            having.add(session)
            most.append(len(having))
            await asyncio.sleep(.002)
            having.discard(session)
            await state.end(session)
        await asyncio.gather(*(use(k) for k in range(60)))
        assert max(most) == 3 and (await states[0].listing())["one"]["uses"] == 61
        assert await states[0].retire("one")
        await states[0].forget("one")
        for s in states: await s.close()
    asyncio.run(main())
    assert not redis_server.keys()


def test_redis_killed_and_away_for_longer_than_a_lease(redis_server):
    "Clear errors meanwhile; then the live session still has its environment, and nobody else gets it."
    lease = 2.
    async def main():
        state = redis_server.state(prefix="away", tick_s=lease/4)
        await state.add("e", EnvironmentRecord("shop", True), "ann", lease)
        redis_server.kill()
        with pytest.raises(StateUnavailable, match="does not answer .* sessions keep their environments"): await state.renew("ann", lease)
        with pytest.raises(StateUnavailable): await state.claim("e", "bob", 1, 0, lease)
        await asyncio.sleep(1.5*lease)
        redis_server.start()
        assert not await state.claim("e", "bob", 1, 0, lease)
        assert await state.renew("ann", 3600)
        assert await state.end("ann") == ["e"] and await state.claim("e", "bob", 1, 0, lease)
        await state.retire("e", force=True)
        await state.forget("e")
        await state.close()
    asyncio.run(main())
    assert not redis_server.keys()


class Lines(EnvironmentController):
    "Environments that are lines in a set, used again by one session after the other."
    class Kinds(EnvironmentDelegation):
        def get_concurrency_limit(self, subtype): return 1
        def supports_reuse(self, subtype): return True
    def __init__(self, state, **kw):
        super().__init__(self.Kinds("lines"), state, **kw)
        self.there = set()
    async def make(self, environment, subtype, variables): self.there.add(environment)
    async def unmake(self, environment): self.there.discard(environment)
    async def reachable(self): return set(self.there)


def test_lending_one_that_is_used_again_takes_as_many_steps_however_many_are_in_use(redis_server):
    "Counted in Redis's own commands, those within scripts among them."
    async def main():
        import redis
        def commands():
            with redis.Redis(unix_socket_path=redis_server.socket) as client: return sum(c["calls"] for c in client.info("commandstats").values())
        controller, used, steps = Lines(redis_server.state(prefix="shelf")), [], {}
        for many in 5, 100:
            while len(used) < many: used.append(await controller.start_session("default"))
            before = commands()
            for _ in range(10):
                await controller.end_session(used.pop(0)[0])          # given back,
                used.append(await controller.start_session("default"))  # lent again,
                used.append(await controller.start_session("default"))  # and one more made
            steps[many] = (commands() - before)/10
            assert len({e for _, ids, _ in used for e in ids.values()}) == len(used) == len(controller.there)
        await controller.close()
        assert steps[100] < 1.2*steps[5], steps
    asyncio.run(main())
    assert not redis_server.keys()


def test_one_shelf_and_many_clients(redis_server):
    "Eight clients take from twelve environments, two sessions each: never more, and nobody waits while there is room."
    async def main():
        states, having = [redis_server.state(prefix="shelf") for _ in range(8)], {f"e{n}": set() for n in range(12)}
        for e in having:
            await states[0].add(e, EnvironmentRecord("shop"))
            await states[0].offer(e, "shops")
        async def use(k):
            state, session = states[k % 8], f"s{k}"
            while not (e := await state.take("shops", session, 2, 0, 3600)): await asyncio.sleep(.002)
            having[e].add(session)
            assert len(having[e]) <= 2
            await asyncio.sleep(.002)
            having[e].discard(session)
            assert await state.end(session) == [e]
        taken = await asyncio.gather(*(states[k % 8].take("shops", f"a{k}", 2, 0, 3600) for k in range(30)))
        assert taken.count(None) == 6 and all(taken.count(e) == 2 for e in having)
        for k in range(30): await states[0].end(f"a{k}")
        await asyncio.gather(*(use(k) for k in range(160)))
        for e in having: assert await states[0].retire(e); await states[0].forget(e)
        for s in states: await s.close()
    asyncio.run(main())
    assert not redis_server.keys()


def test_what_has_died_is_lent_to_nobody_and_ended(redis_server):
    async def main():
        controller = Lines(redis_server.state(prefix="shelf"))
        dead, alive = [await controller.start_session("default") for _ in range(2)]
        for session, *_ in dead, alive: await controller.end_session(session)
        controller.there -= set(dead[1].values())
        lent = [await controller.start_session("default") for _ in range(2)]
        assert alive[1] in [ids for _, ids, _ in lent] and dead[1] not in [ids for _, ids, _ in lent]
        await controller.reap()
        assert set(await controller.state.listing()) == controller.there
        await controller.close()
    asyncio.run(main())
    assert not redis_server.keys()


# ---- Redis that answers, and refuses ----

class Refusing:
    "A Redis server with options, for a `with`: a state with it, and a client of its own."
    def __init__(self, *options): self.options = options
    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="oaml-r"))
        self.socket = str(self.folder/"s")
        self.process = subprocess.Popen([REDIS, "--port", "0", "--unixsocket", self.socket, "--dir", str(self.folder), "--save", "", *self.options],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(Path(self.socket).exists, "Redis listens")
        return self
    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)
    def client(self, **kw):
        import redis
        return redis.Redis(unix_socket_path=self.socket, **kw)
    def words(self, **connection):
        "What a step says; the first may come before the server is ready."
        async def step():
            state = RedisState(dict(unix_socket_path=self.socket, **connection))
            try: return await state.claim("e", "ann")
            except StateUnavailable as e: return str(e)
            finally: await state.close()
        return asyncio.run(step())


def fill(client):
    with pytest.raises(Exception, match="maxmemory"):
        for n in range(10_000): client.set(f"k{n}", "x"*1000)


@needs_redis
@pytest.mark.parametrize("options, before, words", [
    (("--maxmemory", "3mb", "--maxmemory-policy", "noeviction"), fill, "is out of memory; raise its maxmemory"),
    (("--replicaof", "127.0.0.1", "1"), None, "is a replica, which takes no writes"),
    (("--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "no"), None, "is a replica that has lost its primary"),
    (("--requirepass", "secret"), None, "wants another password"),
    (("--user", "default", "on", "nopass", "+@all", "-@scripting", "~*"), None, "does not permit it"),
    (("--min-replicas-to-write", "1"), None, "has too few replicas"),
    (("--enable-debug-command", "yes"), lambda client: client.set("oaml:records", "another's"), "has other data under this prefix"),
    (("--maxclients", "1"), "hold", "has as many clients as it may")])
def test_what_redis_refuses_is_said_in_words(options, before, words):
    with Refusing(*options) as server, server.client() as client:
        if before == "hold": client.ping()
        elif before: before(client)
        told = server.words()
        for _ in range(20 if before == "hold" else 0):  # what the server says as it hangs up is lost where our line is written after that
            if "as many clients" in told: break
            told = server.words()
        assert f"state: Redis at {server.socket} {words}" in told and "sessions keep their environments" in told
        if "secret" in options: assert "wants another password" in (told := server.words(password="wrong words")) and "wrong words" not in told


@needs_redis
def test_redis_that_is_stuck_or_ends_is_said_in_words():
    quick = dict(socket_timeout=.3, retry=None)
    with Refusing("--enable-debug-command", "yes", "--busy-reply-threshold", "50") as server:
        script = "while true do end"
        for hang, words in ((("DEBUG", "SLEEP", "2"), "does not answer"), (("EVAL", script, "0"), "is busy with somebody's script")):
            client = server.client(socket_timeout=60)
            hanging = threading.Thread(target=lambda: suppress(client.execute_command, *hang))
            hanging.start()
            time.sleep(.3)
            assert words in server.words(**quick)
            if hang[0] == "EVAL":
                with server.client() as killer: killer.execute_command("SCRIPT", "KILL")
            hanging.join()
            client.close()
        server.process.terminate()
        server.process.wait()
        assert "does not answer" in server.words(**quick)


def suppress(do, *args):
    try: do(*args)
    except Exception: pass


@needs_redis
@pytest.mark.parametrize("raised, words", [
    ("BusyLoadingError: Redis is loading the dataset in memory", "is loading its data"),
    ("ResponseError: MISCONF Redis is configured to save RDB snapshots", "can't write to its disk"),
    ("MovedError: 1 127.0.0.1:1", "is a cluster"), ("MaxConnectionsError: too many", "has as many clients"),
    ("ResponseError: ERR something new", "refuses (ERR something new)"), ("InvalidResponse: Protocol Error: b'HTTP'", "refuses"),
    ("TimeoutError: ", "does not answer (TimeoutError)")])
def test_what_cannot_be_provoked_here_is_said_in_words_too(raised, words):
    from redis import exceptions
    kind, _, told = raised.partition(": ")
    async def step():
        state = RedisState()
        async def script(**kw): raise getattr(exceptions, kind)(told)
        state._script, state._turns = lambda: script, asyncio.Semaphore()
        await state.claim("e", "ann")
    with pytest.raises(StateUnavailable) as e: asyncio.run(step())
    assert f"state: Redis at localhost:6379 {words}" in str(e.value)


# ---- Docker ----

DOCKERD, BUSYBOX = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin"), shutil.which("busybox")
IMAGE = "oaml-test:1"


@pytest.fixture(scope="session")
def docker_url():
    "A daemon on a socket and data root of its own, with one image: static busybox."
    for what, there in ("dockerd", DOCKERD), ("busybox", BUSYBOX), ("root's rights", hasattr(os, "getuid") and os.getuid() == 0):
        if not there: pytest.skip(f"there is no {what}; apt-get install docker.io busybox-static, as root")
    folder = Path(tempfile.mkdtemp(prefix="oaml-d"))
    log = open(folder/"log", "w")
    daemon = subprocess.Popen([DOCKERD, "--data-root", folder/"D", "--exec-root", folder/"E", "-H", f"unix://{folder}/S", "--pidfile",
                               folder/"P", "--default-ulimit", "nofile=1024:4096", "--storage-driver", "vfs"], stdout=log, stderr=log)
    url = f"unix://{folder}/S"
    try:
        import docker
        def answers():
            try: return docker.DockerClient(base_url=url).ping()
            except docker.errors.DockerException: return daemon.poll() is not None
        wait_until(answers, "the Docker daemon answers")
        if daemon.poll() is not None: pytest.skip(f"dockerd does not run here: {(folder/'log').read_text()[-300:]}")
        (folder/"root/bin").mkdir(parents=True)
        shutil.copy(BUSYBOX, folder/"root/bin/busybox")
        for name in "sh sleep echo cat env id mount httpd touch ls".split(): (folder/"root/bin"/name).symlink_to("busybox")
        tar = subprocess.run(["tar", "-C", folder/"root", "-c", "."], capture_output=True, check=True).stdout
        repository, tag = IMAGE.split(":")
        docker.APIClient(base_url=url).import_image_from_data(tar, repository, tag, changes=['CMD ["/bin/sleep","100000"]'])
        yield url
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def containers(url):
    import docker
    return docker.APIClient(base_url=url).containers(all=True)


# ---- Ray ----

@pytest.fixture(scope="module")  # a process is on one cluster at a time, and other files have their own
def ray_address():
    "A cluster of one raylet for the actors of these tests; those of two raylets are in test_engines.py."
    if not find_spec("ray"): pytest.skip("ray is not installed; pip install 'oaml[scale]'")
    import ray
    from oaml.ingest.engines import join_ray
    try: join_ray("local")
    except Exception as e: pytest.skip(f"Ray does not start here: {e}")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


# ---- one set of checks for every pair of driver and state ----

class Town(EnvironmentDelegation):
    "Sites of every kind."
    def __init__(self): super().__init__("town")
    def get_subtypes(self): return ["own", "site", "brief", "broken"]
    def is_exclusive(self, subtype): return subtype in ("own", "brief", "broken", "home")
    def get_concurrency_limit(self, subtype): return 2 if subtype == "site" else 1
    def get_reuse_limit(self, subtype): return 3 if subtype == "site" else 1
    def get_max_execution_time(self, subtype): return 1 if subtype == "brief" else 3600
    def get_container_images(self): return dict.fromkeys(["own", "site", "brief", "home"], IMAGE) | dict(broken="nowhere:1")
    def make_environment(self, subtype, variables): return partial(open_device, "app:nothing" if subtype == "broken" else "app:login")


class HomeTown(Town):
    "With a homepage, which knows where the sites are."
    def has_homepage(self): return True
    def get_homepage_subtype(self): return "home"
    def get_homepage_envs(self, site_urls): return {f"{k.upper()}_URL": v for k, v in site_urls.items()}


DRIVERS = "manual", "inprocess", "process", "docker", "ray"


@pytest.fixture(params=["memory", "redis"])
def state(request):
    if request.param == "memory": return MemoryState()
    return request.getfixturevalue("redis_server").state(prefix="pair", tick_s=.5)


@pytest.fixture(params=DRIVERS)
def make_controller(request, state):
    "A function of a delegation that makes a controller; at the end nothing of it is left."
    made, options = [], {}
    if request.param == "docker": options = dict(connection=dict(base_url=request.getfixturevalue("docker_url")))
    if request.param == "ray": options = dict(address=request.getfixturevalue("ray_address"))
    if request.param == "manual": options = dict(urls=dict(own="http://own", site="http://site", brief="http://brief", home="http://home"))
    def make(delegation, lease_s=60.):
        made.append(create_controller(request.param, delegation, state, lease_s=lease_s, **options))
        return made[-1]
    make.driver, make.state = request.param, state
    yield make
    async def end():
        for controller in made: await controller.close()
        assert not await state.listing() and not await state.expired()
    asyncio.run(end())
    for controller in made: assert not getattr(controller, "executors", {})
    if request.param == "docker": assert not containers(options["connection"]["base_url"])
    if isinstance(state, RedisState): assert not request.getfixturevalue("redis_server").keys()


def test_lent_and_given_back(make_controller):
    async def main():
        controller = make_controller(Town())
        session, ids, urls = await controller.start_session(["own", "site"])
        assert set(ids) == set(urls) == {"own", "site"} and set(ids.values()) <= await controller.reachable()
        await controller.renew_session(session)
        with pytest.raises(ValueError, match="did you mean 'site'"): await controller.start_session("sit")
        await controller.end_session(session)
        await controller.end_session(session)
        with pytest.raises(SessionExpired, match="has ended"): await controller.renew_session(session)
        listed = await make_controller.state.listing()
        assert {row["record"].subtype for row in listed.values()} <= {"site"}  # the exclusive one is gone
    asyncio.run(main())


def test_shared_by_two_and_used_thrice(make_controller):
    async def main():
        controller = make_controller(Town())
        first, second = [await controller.start_session("site") for _ in range(2)]
        assert first[1] == second[1]
        if make_controller.driver == "manual":
            with pytest.raises(EnvironmentsBusy, match="as many sessions as may use it at once, 2"): await controller.start_session("site")
            for session, *_ in first, second: await controller.end_session(session)
            return
        third = await controller.start_session("site")
        assert third[1] != first[1]
        await controller.end_session(first[0])
        fourth = await controller.start_session("site")  # in the one with most room: the third use of one of them
        await controller.end_session(second[0])
        for session, *_ in third, fourth: await controller.end_session(session)
        assert all(row["uses"] < 3 for row in (await make_controller.state.listing()).values())
    asyncio.run(main())


def test_the_second_does_not_start_and_the_first_is_gone(make_controller):
    async def main():
        controller = make_controller(Town())
        with pytest.raises(EnvironmentFailed): await controller.start_session(["own", "broken"])
        assert not await make_controller.state.listing()
        if make_controller.driver != "manual": assert not await controller.reachable()
    asyncio.run(main())


def test_homepage(make_controller):
    async def main():
        controller = make_controller(HomeTown())
        async with controller.session("own") as lent:
            assert set(lent.ids) == {"own", "home"}
            variables = await controller.get_env_variables(lent.ids["home"])
            if make_controller.driver != "manual": assert variables["OWN_URL"] == lent.urls["own"]
        assert not await make_controller.state.listing()
    asyncio.run(main())


def test_used_for_longer_than_its_maximal_time(make_controller):
    "Although its session is alive."
    async def main():
        controller = make_controller(Town())
        session, *_ = await controller.start_session("brief")
        end = time.monotonic() + PATIENCE
        while True:
            await controller.reap()
            try: await controller.renew_session(session)
            except SessionExpired: break
            assert time.monotonic() < end
            await asyncio.sleep(.2)
        assert not await make_controller.state.listing()
    asyncio.run(main())


def test_silent_for_longer_than_a_lease(make_controller):
    async def main():
        controller = make_controller(Town(), lease_s=2.)
        session, ids, _ = await controller.start_session("own")
        end = time.monotonic() + PATIENCE
        while await make_controller.state.listing() or await make_controller.state.expired():  # a lease may end within a step
            assert time.monotonic() < end
            await asyncio.sleep(.2)
            await controller.reap()
        with pytest.raises(SessionExpired): await controller.renew_session(session)
    asyncio.run(main())


def test_cut_off_while_it_starts(make_controller):
    async def main():
        controller = make_controller(Town())
        starting = [asyncio.ensure_future(controller.start_session(["own", "site"])) for _ in range(2)]
        await asyncio.sleep(.05)
        for task in starting: task.cancel()
        for result in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(result, tuple): await controller.end_session(result[0])  # it had started already
        async def left(): return [row for row in (await make_controller.state.listing()).values() if row["users"] or row["record"].exclusive]
        for _ in range(50):  # what was being made when it was cut off is taken down behind it
            if not await left(): break
            await asyncio.sleep(.1)
        assert not await left()
    asyncio.run(main())


def test_from_a_thread(make_controller):
    async def main():
        controller = make_controller(Town())
        with pytest.raises(RuntimeError, match="loop is not set"): await asyncio.to_thread(controller.sync_start_session, "own")
        controller.loop = asyncio.get_running_loop()
        def task():
            session, ids, _ = controller.sync_start_session("own")
            controller.sync_renew_session(session)
            controller.sync_end_session(session)
        await asyncio.to_thread(task)
        if make_controller.driver != "docker":
            with pytest.raises(NotImplementedError, match="docker driver"): await controller.execute_command("x", "id")
    asyncio.run(main())


# ---- Docker alone ----

class Box(EnvironmentDelegation):
    "A container with a service."
    def __init__(self): super().__init__("box")
    def is_exclusive(self, subtype): return True
    def get_container_images(self): return dict(default=IMAGE)


@pytest.fixture
def boxes(docker_url):
    "A function of a delegation and options that makes a docker controller; at the end no container is left."
    made = []
    def make(delegation, **options):
        made.append(create_controller("docker", delegation, connection=dict(base_url=docker_url), **options))
        return made[-1]
    yield make
    for controller in made: asyncio.run(controller.close())
    assert not containers(docker_url)


def test_commands_and_shells(boxes):
    async def main():
        controller = boxes(Box())
        async with controller.session("default") as lent:
            box = lent.ids["default"]
            assert await controller.execute_command(box, "echo one two") == (0, b"one two\n", b"")
            code, out, err = await controller.execute_command(box, ["/bin/sh", "-c", "echo bad >&2; exit 3"])
            assert (code, out, err) == (3, b"", b"bad\n")
            assert await controller.execute_shell(box, "X=5; cd /bin") == b""
            words = await controller.execute_shell(box, "echo $X; cd nowhere; echo $PWD")
            assert words.startswith(b"5\n") and b"can't cd" in words and words.endswith(b"\n/bin\n")
            with pytest.raises(TimeoutError, match="took longer than 1 s"): await controller.execute_shell(box, "sleep 100", timeout=1)
            assert await controller.execute_shell(box, "echo $X new") == b"new\n"
            with pytest.raises(EnvironmentFailed, match="the shell has ended"): await controller.execute_shell(box, "exit")
        with pytest.raises(EnvironmentFailed, match="is not there"): await controller.execute_command(box, "id")
    asyncio.run(main())


def test_a_container_has_no_privileges(boxes, docker_url):
    async def main():
        controller = boxes(Box(), memory="64m", processes=20)
        async with controller.session("default") as lent:
            box = lent.ids["default"]
            import docker
            host = docker.APIClient(base_url=docker_url).inspect_container(box)["HostConfig"]
            assert host["CapDrop"] == ["ALL"] and not host["Privileged"] and host["SecurityOpt"] == ["no-new-privileges"]
            assert host["Memory"] == host["MemorySwap"] == 64*2**20 and host["PidsLimit"] == 20
            assert not host["Binds"] and host["NetworkMode"] == "none"
            _, status, _ = await controller.execute_command(box, "cat /proc/self/status")
            assert b"CapEff:\t0000000000000000" in status and b"NoNewPrivs:\t1" in status
            code, _, err = await controller.execute_command(box, "mount -t tmpfs none /tmp")
            assert code and b"denied" in err or b"permitted" in err
            code, _, _ = await controller.execute_command(box, ["/bin/sh", "-c", "for i in $(seq 60); do sleep 9 & done; wait"])
            assert code  # it could not fork so often
    asyncio.run(main())


class Mounted(Box):
    "Asks for a mount and a network, and gets them."
    def get_service_port(self, subtype): return 8000
    async def create_docker_container(self, attrs, subtype, folder=None):
        attrs["Env"]["COLOUR"] = "blue"
        attrs["HostConfig"]["Binds"] = [f"{folder}:/data:ro"]
        return attrs | dict(Image=IMAGE, Cmd=["/bin/httpd", "-f", "-p", "8000", "-h", "/data"])
    async def post_create_docker_container(self, subtype, environment_id, environment_url): self.created = environment_id, environment_url


def test_the_delegation_asks_for_more(boxes, tmp_path):
    from urllib.request import urlopen
    (tmp_path/"page.txt").write_text("hello")
    async def main():
        delegation = Mounted()
        controller = boxes(delegation)
        async with controller.session("default", folder=str(tmp_path)) as lent:
            assert delegation.created == (lent.ids["default"], lent.urls["default"])
            assert (await controller.get_env_variables(lent.ids["default"]))["COLOUR"] == "blue"
            def page():
                try: return urlopen(lent.urls["default"] + "/page.txt", timeout=5).read()
                except OSError: return None
            await asyncio.to_thread(wait_until, lambda: page() == b"hello", "the service answers")
    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc, which this system has not")
def test_no_connection_stays_open(boxes):
    async def main():
        controller = boxes(Box())
        async def lend():
            async with controller.session("default"): pass
        def sockets(): return sum(os.readlink(f).startswith("socket:") for f in Path("/proc/self/fd").iterdir() if f.is_symlink())
        await lend()
        before = sockets()
        await asyncio.gather(*(lend() for _ in range(6)))
        assert sockets() <= before
    asyncio.run(main())


class Failing(Box):
    "Its container ends before it is healthy."
    async def create_docker_container(self, attrs, subtype):
        check = dict(Test=["CMD", "/bin/false"], Interval=3600*10**9)  # without one a container that still runs for a moment is lent
        return attrs | dict(Image=IMAGE, Cmd=["/bin/sh", "-c", "echo no disk; exit 7"], Healthcheck=check)


def test_a_container_that_ends_before_it_is_healthy_says_its_last_words(boxes):
    async def main():
        controller = boxes(Failing())
        with pytest.raises(EnvironmentFailed, match="exit code 7: no disk"):
            async with controller.session("default"): await asyncio.sleep(PATIENCE)
    asyncio.run(main())


WORKER = """
import asyncio, sys
from oaml.service.environments import EnvironmentDelegation, create_controller
class Box(EnvironmentDelegation):
    def __init__(self): super().__init__("box")
    def is_exclusive(self, subtype): return subtype == "default"
    def get_subtypes(self): return ["default", "shared"]
    def supports_reuse(self, subtype): return True
    def get_container_images(self): return dict.fromkeys(["default", "shared"], "oaml-test:1")
async def main():
    state = dict(state_driver="redis", state_options=dict(connection=dict(unix_socket_path=sys.argv[2]), tick_s=.5)) if sys.argv[2] else {}
    controller = create_controller("docker", Box(), connection=dict(base_url=sys.argv[1]), lease_s=2., **state)
    session, ids, _ = await controller.start_session(["default", "shared"])
    print("ready", flush=True)
    while True:
        await asyncio.sleep(.5)
        await controller.renew_session(session)
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_killed_worker_leaves_nothing(kind, docker_url, request):
    "Its exclusive container is gone within a lease, ended by another worker; one that others may use again stays, and is ended with them."
    server = request.getfixturevalue("redis_server") if kind == "redis" else None
    root = Path(__file__).parents[1]
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, docker_url, server.socket if server else ""], stdout=subprocess.PIPE, text=True, env=env)
    assert worker.stdout.readline() == "ready\n"
    worker.kill()
    worker.wait()
    assert len(containers(docker_url)) == 2
    class Boxes(Box):
        def get_subtypes(self): return ["default", "shared"]
        def is_exclusive(self, subtype): return subtype == "default"
        def supports_reuse(self, subtype): return True
    state = server.state(prefix="oaml:box:docker", tick_s=.5) if server else "memory"
    async def main():
        other = create_controller("docker", Boxes(), connection=dict(base_url=docker_url), state_driver=state, lease_s=2.)
        end = time.monotonic() + PATIENCE
        while len(containers(docker_url)) > bool(server):
            assert time.monotonic() < end
            await other.reap()
            await asyncio.sleep(.3)
        if server:  # shared, and known to the state: lent again
            session, ids, _ = await other.start_session("shared")
            assert set(ids.values()) == await other.reachable()
            await other.end_session(session)
            for environment in await other.state.listing(): await other._end_environment(environment)
            while any(str(worker.pid).encode() in key for key in server.keys()): # the dead worker counts as alive until its lock runs out
                assert time.monotonic() < end
                await other.reap()
                await asyncio.sleep(.3)
        await other.close()
    asyncio.run(main())
    assert not containers(docker_url) and not (server and server.keys())


# ---- AgentRL's sample ----

class DemoEnvironmentDelegation(Box):
    def __init__(self):
        super().__init__()
        self.name = "demo"


class DemoTask(Task):
    "As AgentRL's documentation prints it."
    def __init__(self,
                 env_driver: str = 'docker',
                 env_options: Optional[dict] = None,
                 **kwargs):
        super().__init__(**kwargs)
        self.env_delegation = DemoEnvironmentDelegation()
        self.env_controller = create_controller(env_driver, self.env_delegation, **env_options)
        self.env_controller_background_task = None

    async def start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
        self.env_controller.loop = asyncio.get_running_loop()
        if not self.env_controller_background_task:
            self.env_controller_background_task = asyncio.create_task(self.env_controller.background_task())
            weakref.finalize(self, self.env_controller_background_task.cancel)

        # Create an environment for the session
        session_id, container_ids, urls = await self.env_controller.start_session('default')

        try:
            for _ in range(20):  # main interaction loop
                await self.env_controller.renew_session(session_id)
                await session.action()
        finally:
            # ensure the environment is cleaned up
            await self.env_controller.end_session(session_id)


def test_the_seeds_sample_runs_as_printed(docker_url, redis_server):
    "Docker, a network by name, Redis; one session plays its twenty turns, another is cancelled: no container is left, and no key."
    import docker
    docker.APIClient(base_url=docker_url).create_network("demo_default")
    options = dict(network_name="demo_default", connection=dict(base_url=docker_url), state_driver="redis",
                   state_options=dict(connection=dict(unix_socket_path=redis_server.socket)))
    async def main():
        task = DemoTask(name="demo", env_options=options)
        for turns in 20, 3:
            session, turn = Session(turns), None
            turn = session.next_turn()
            playing = asyncio.ensure_future(play_sample(task, session, 0))
            for k in range(turns):
                assert not (await turn).finish
                if not k: assert len(containers(docker_url)) == 1
                if k < turns - 1 or turns == 20: turn = session.answer([dict(role="assistant", content="go on")])
            if turns < 20: session.cancel()
            await playing
            assert not containers(docker_url)
        task.env_controller_background_task.cancel()
        await task.env_controller.close()
    asyncio.run(main())
    assert not redis_server.keys()


# ---- AgentBench's OS task, unchanged ----

LINUX = "bash", "comm", "getent", "python3"


def import_linux(folder, url, *names):
    "An image of busybox's commands, and of some that it lacks with what they load, from this machine."
    import docker
    root, python = folder/"root", Path("/usr/bin/python3").resolve()
    for d in "bin", "usr/bin", "tmp", "root", "proc", "etc", "var/log": (root/d).mkdir(parents=True)
    for name in "passwd", "group": shutil.copy(f"/etc/{name}", root/"etc")
    shutil.copy(BUSYBOX, root/"bin/busybox")
    for name in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if name not in ("busybox", *LINUX): (root/"bin"/name).symlink_to("busybox")
    for name in LINUX: shutil.copy(f"/usr/bin/{name}", root/"bin")
    library = Path("/usr/lib")/python.name
    shutil.copytree(library, root/"usr/lib"/python.name, ignore=shutil.ignore_patterns("dist-packages", "test", "__pycache__", "config-*", "idlelib", "tkinter"))
    loaded = subprocess.run(["ldd", *(f"/usr/bin/{name}" for name in LINUX), *map(str, library.glob("lib-dynload/*.so"))], capture_output=True, text=True).stdout
    for path in {w for line in loaded.splitlines() for w in line.split() if w.startswith("/") and not w.endswith(":")}:
        (root/path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root/path[1:])
    tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    for name in names: docker.APIClient(base_url=url).import_image_from_data(tar, name, "latest", changes=["ENV PATH=/bin:/usr/bin"])


def as_agentrl(monkeypatch):
    "The modules that AgentRL's tasks import, each with our names."
    from types import ModuleType
    from oaml.service import environments, records, task
    for name, *ours in ("agentrl",), ("agentrl.worker",), ("agentrl.worker.environment", environments), ("agentrl.worker.task", task), ("agentrl.worker.typings", records, task):
        module = ModuleType(name)
        for m in ours: vars(module).update({k: v for k, v in vars(m).items() if not k.startswith("_")})
        monkeypatch.setitem(sys.modules, name, module)


def test_agentbenchs_os_task_in_docker(docker_url, redis_server, tmp_path, monkeypatch):
    """OAML_AGENTBENCH_FC: AgentBench's checkout of its main branch. Its task's module, its YAML and its data, over HTTP, two samples at a
    time; the agent does what each sample's own example does. The scripts that check the answers are the task's."""
    folder = os.environ.get("OAML_AGENTBENCH_FC")
    if not folder: pytest.skip("OAML_AGENTBENCH_FC: not set; AgentBench's checkout (main), whose OS task this runs")
    pytest.importorskip("openai", reason="openai: not installed; pip install 'oaml[api]', for the task imports it")
    for name in LINUX:
        if not Path("/usr/bin", name).exists(): pytest.skip(f"there is no /usr/bin/{name}, for the image of the task's containers")
    import json
    from concurrent.futures import ThreadPoolExecutor
    from oaml.service.client import TaskClient
    from oaml.service.config import read_tasks
    from oaml.service.worker import serve_task
    import_linux(tmp_path, docker_url, "local-os/default", "local-os/packages")
    as_agentrl(monkeypatch)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    entry = read_tasks(f"{folder}/configs/tasks/os.yaml")["os-std"]
    given = entry["parameters"] | dict(concurrency=2, env_options=dict(
        connection=dict(base_url=docker_url), state_driver="redis", state_options=dict(connection=dict(unix_socket_path=redis_server.socket))))
    given["data_config"] = given["data_config"] | dict(files=given["data_config"]["files"][:3])
    from importlib import import_module
    module, _, name = entry["module"].rpartition(".")
    task = getattr(import_module(module), name)(**given)
    problems = {index: p["config"] for index, p in task.problem_configs.items() if p["config"].example_script}

    def play(index):
        def agent(history, tools):
            called = lambda name, **arguments: dict(role="assistant", content="", tool_calls=[
                dict(id="1", type="function", function=dict(name=name, arguments=json.dumps(arguments)))])
            if history[-1]["role"] != "tool": return called("bash_action", script=problems[index].example_script[1])
            return called("answer_action", answer=history[-1]["content"].partition("OS:\n\n")[2].strip())
        with TaskClient("os-std", worker.address) as client: return client.run_sample(index, agent)

    with serve_task(task) as worker, ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(play, problems))
        with TaskClient("os-std", worker.address) as client: overall = client.calculate_overall(outputs)["overall"]
    assert overall["total"] == len(problems) > 15 and overall["acc"] == 1, [(i, o.status, o.result) for i, o in zip(problems, outputs) if not (o.result or {}).get("result")]
    assert not containers(docker_url)
    wait_until(lambda: not [k for k in redis_server.keys() if b":had:" in k or b":users:" in k], "no session has an environment")
