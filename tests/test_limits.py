"Clients that send half a request, or nothing, to a server that may open few files: it goes on answering everybody else."
import socket
import subprocess
import sys
import time

import pytest

for needed in ("starlette", "uvicorn", "httpx", "websockets"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')
pytest.importorskip("resource", reason="a limit on open files is POSIX's")

import httpx

SERVED = dict(serve="from oaml.devices.serve import serve_device as serve\nwhat = 'app:login'",
              openenv="from oaml.devices.app_device import AppDevice\nfrom oaml.devices.episode import EpisodeDriver\nfrom oaml.envs.openenv import serve_openenv as serve\n"
                      "what = lambda: EpisodeDriver(AppDevice('login'))")
CHILD = """
import resource, sys
%s
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
with serve(what) as served:
    print(getattr(served, "url", served), flush=True)
    sys.stdin.read()
"""
HALVES = dict(header=b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ", silent=b"", junk=b"\x00\x01 no HTTP\r\n\r\n",
              body=b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")


@pytest.fixture(params=SERVED)
def served(request, tmp_path):
    "A server in a process that may open 128 files: its address, and the file of what it complains about."
    log = tmp_path/"log"
    with open(log, "wb") as errors:
        process = subprocess.Popen([sys.executable, "-c", CHILD % SERVED[request.param]], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=errors)
        try: yield process.stdout.readline().strip(), log, b"init" if request.param == "serve" else b"reset"
        finally:
            process.stdin.close()
            try: process.wait(20)
            except subprocess.TimeoutExpired: process.kill()
            process.stdout.close()


def connected(url, data):
    "A connection that has sent `data`, and goes on with nothing."
    s = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
    try: s.sendall(data)
    except OSError: pass  # it may have made room for another already
    return s


@pytest.mark.parametrize("half", HALVES)
def test_half_requests_stop_nobody(served, half):
    url, log, route = served
    data, crowd = HALVES[half].replace(b"%s", route), []
    try:
        for _ in range(4):
            crowd += [connected(url, data) for _ in range(70)]  # in all, twice as many as it has files
            begin = time.monotonic()
            with httpx.Client(trust_env=False, timeout=9) as client:  # less than any deadline of the server: it need not wait for one
                assert client.get(f"{url}/health").status_code == 200 and client.get(f"{url}/health").status_code == 200
            assert time.monotonic() - begin < 9
    finally:
        for s in crowd: s.close()
    assert log.stat().st_size < 10_000, log.read_bytes()[-2000:]
