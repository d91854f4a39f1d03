"Environments are lent once, kept while they are used, and given back: on real Redis, Docker and Ray, each started here."
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from oaml.service.state import EnvironmentRecord, MemoryState, RedisState, StateUnavailable, check_state

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
    "An append-only server on a socket of its own."
    def __init__(self, folder):
        self.folder, self.socket = folder, str(folder/"s")
        self.start()

    def start(self):
        self.process = subprocess.Popen([REDIS, "--port", "0", "--unixsocket", self.socket, "--dir", str(self.folder), "--save", "",
                                         "--appendonly", "yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
