"A device over the network: equal episodes, faults in between, crowds, hostile requests, and nothing left behind."
import asyncio
import gzip
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

for needed in ("starlette", "uvicorn", "httpx"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')

import httpx
import numpy as np
from hypothesis import given, settings, strategies as st

from oaml.apps.app import ANY_TYPES, random_action
from oaml.devices.android import missing_adb
from oaml.devices.app_device import AppDevice
from oaml.devices.connection import missing_browser
from oaml.devices.device import DeviceError, Frame, InstallApk, Rotate, StartActivity
from oaml.devices.oracle import play_oracle
from oaml.devices.remote import SessionLost, Unreachable, RemoteDevice
from oaml.devices.serve import DEVICE_REQUESTS, serve_device
from oaml.devices.catalog import open_device
from oaml.devices.wire import FRAME_TYPE, FrameFormat, decode_frame, encode_frame
from oaml.schemas.sessions import Action
from oaml.ui.events import Tick
from oaml.ui.layout import Element

from fake_android import fake_phone

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and process groups of POSIX")


def facts(frame): return frame.screen_hash(), frame.elements, frame.clock, frame.log, frame.orientation


def oracle_actions(app, seed, size=None):
    device = AppDevice(app, size)
    device.reset(seed)
    return play_oracle(device)


def episode(device, seed, actions):
    "The facts of an episode's frames."
    return [facts(f) for f in (device.reset(seed), *map(device.perform, actions))]


def waited(what, seconds=10):
    "True as soon as `what` is, within `seconds`."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what(): return True
        time.sleep(.02)
    return False


HTTP = httpx.Client(trust_env=False, verify=False, timeout=10)


def health(url): return HTTP.get(f"{url}/health").json()


class Counted:
    "A device that notes what it is asked to do, and when it is closed."
    def __init__(self, app="login"): self.device, self.done, self.closed, self.threads = AppDevice(app), [], 0, set()
    size = (256, 192)
    def reset(self, seed): return self.noted(("reset", seed), self.device.reset, seed)
    def perform(self, action): return self.noted(action, self.device.perform, action)
    def feed(self, events): return self.noted(tuple(events), self.device.feed, events)
    def look(self): return self.device.look()
    def close(self): self.closed += 1
    def noted(self, what, do, asked):
        self.done.append(what)
        self.threads.add(threading.current_thread().name)
        return do(asked)


class Blocked(Counted):
    "A device that hangs in `perform` until it is let go."
    def __init__(self):
        super().__init__()
        self.go = threading.Event()
    def perform(self, action):
        self.go.wait(30)
        return super().perform(action)


def made(kind):
    "A maker of devices, and the list of those it made."
    devices = []
    def make():
        devices.append(kind())
        return devices[-1]
    return make, devices


# Equal episodes

@pytest.mark.parametrize("app", ["login", "mail", "sheet@perturbed", "contacts@phone"])
def test_local_and_remote_episodes_are_equal(app):
    with serve_device(f"app:{app}") as served, RemoteDevice(served.url, compression="zlib") as remote, \
            RemoteDevice(served.url) as png:
        for seed in (0, 1_000_003):
            actions = oracle_actions(app, seed)
            assert episode(remote, seed, actions) == episode(AppDevice(app), seed, actions)
        assert facts(png.reset(5)) == facts(AppDevice(app).reset(5))


def test_careless_actions_give_equal_frames():
    local, rng = AppDevice("files"), Random(3)
    with serve_device("app:files") as served, RemoteDevice(served.url) as remote:
        assert facts(local.reset(9)) == facts(remote.reset(9))
        for _ in range(40):
            action = random_action(rng, local.last_elements, ANY_TYPES)
            assert facts(local.perform(action)) == facts(remote.perform(action)), action
            assert remote.read_elements() == local.read_elements()


fraction = st.floats(0, 1)
words, flags = st.text(max_size=9), [st.booleans()]*3
elements = st.builds(Element, words, words, st.tuples(*[fraction]*4), words, words, st.none()|st.booleans(), *flags)
frames = st.builds(
    lambda w, h, seed, *rest: Frame(np.random.default_rng(seed).integers(0, 256, (h, w, 3), np.uint8), *rest),
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 99), st.lists(elements, max_size=4).map(tuple),
    st.integers(0, 2**53), st.lists(st.text(st.characters(), max_size=20), max_size=3).map(tuple), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(frames, st.sampled_from(["png", "zlib"]))
def test_frames_survive_the_wire(frame, compression):
    assert facts(decode_frame(encode_frame(frame, FrameFormat(compression)))) == facts(frame)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2000), st.data())
def test_no_bytes_break_the_reader(junk, at, data):
    whole = encode_frame(AppDevice("login").reset(1), FrameFormat("zlib"))
    for bad in (junk, whole[:at], whole[:at] + junk + whole[at+len(junk):]):
        try: decode_frame(bad)
        except ValueError: pass


def both_ways(spec, **options):
    "An episode on the device that `spec` names, here and through a daemon: facts of the frames, and the tree."
    actions = [Action("click", x=.5, y=.6), Action("type", text="naïve"), Action("key_press", key="Tab")]
    def played(device): return episode(device, 3, actions), device.read_elements(), device.activity(), device.size
    with closing(open_device(spec, **options)) as local: here = played(local)
    with serve_device(spec, options=options) as served, RemoteDevice(served.url, timeout=30) as remote:
        return here, played(remote)


def test_a_page_through_a_daemon():
    if missing := missing_browser(): pytest.skip(missing)
    here, there = both_ways("html:login")
    assert here == there


def test_a_phone_through_a_daemon():
    if missing := missing_adb(): pytest.skip(missing)
    def played():
        with fake_phone("login") as phone:
            options = dict(phone.attached)
            spec = f"android:{options.pop('serial')}"
            with serve_device(spec, options=options) as served, RemoteDevice(served.url, timeout=30) as remote:
                shown = [remote.reset(3), remote.perform(Action("click", x=.5, y=.6))]
                upright, hierarchy = remote.size, remote.hierarchy()
                with pytest.raises(DeviceError, match="none of its files"): remote.manage(InstallApk("/etc/passwd"))
                remote.manage(StartActivity(f"{phone.package}/.Main", ("; setprop debug.oaml.owned 1",)))
                assert phone.run("getprop debug.oaml.owned")[0] in ([], [(1, b"\n")])
                remote.manage(Rotate(1))
                return [f.screen_hash() for f in shown], upright, hierarchy, remote.look().orientation, remote.size
    hashes, upright, hierarchy, orientation, size = played()
    assert (hashes, upright, hierarchy) == played()[:3]
    assert upright == size[::-1] and orientation and "<hierarchy" in hierarchy


# Each action once

class Proxy:
    "Between client and daemon: a `share` of requests or answers it loses, cuts or delays, in turn."
    def __init__(self, url, seed, share=.2, late=.4):
        self.to, self.rng, self.share, self.late = int(url.rpartition(":")[2]), Random(seed), share, late
        self.lock, self.faults, self.listening = threading.Lock(), [], socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try: client, _ = self.listening.accept()
            except OSError: return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def fault(self):
        with self.lock:
            kind = KINDS[sum(map(bool, self.faults)) % len(KINDS)] if self.rng.random() < self.share else ""
            self.faults.append(kind)
            return kind

    def serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self.to)) as daemon:
            try:
                while request := message(client):
                    kind = self.fault()
                    if kind == "lose request": return
                    if kind == "late request": time.sleep(self.late)  # the client has asked again; this one comes too
                    daemon.sendall(request)
                    answer = message(daemon)
                    if kind == "lose answer": return
                    if kind == "late answer": time.sleep(self.late)
                    client.sendall(answer[:len(answer)//2] if kind == "cut answer" else answer)
                    if kind == "cut answer": return
            except OSError: pass

    def __enter__(self): return self
    def __exit__(self, *_): self.listening.close()


KINDS = ("lose request", "lose answer", "cut answer", "late request", "late answer")


def message(connection):
    "One HTTP message, whole; b'' at the end."
    data = b""
    while b"\r\n\r\n" not in data:
        if not (part := connection.recv(65536)): return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.I)
    while len(body) < (int(length[1]) if length else 0):
        if not (part := connection.recv(65536)): return b""
        body += part
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("seed", range(3))
def test_a_fifth_of_the_requests_lost_or_late(seed):
    make, devices = made(Counted)
    actions = oracle_actions("login", 0) + [Action("wait")]*15
    with serve_device(make) as served, Proxy(served.url, seed) as proxy, \
            RemoteDevice(proxy.url, timeout=.3, retry=20) as remote:
        shown = [x for _ in range(2) for x in episode(remote, 0, actions)]
    assert shown == 2*episode(AppDevice("login"), 0, actions)
    assert len(devices) == 1 and devices[0].done == 2*[("reset", 0), *actions]
    assert {*KINDS, ""} == {*proxy.faults}, proxy.faults
    assert devices[0].closed == 1 and len(devices[0].threads) == 1


class Forgetful(RemoteDevice):
    "A client that gives each attempt a number of its own, which is as good as none."
    def perform(self, action):
        while True:
            try: return super().perform(action)
            except Unreachable: self._number, self._lost = self._number + 1, None
            except SessionLost: self._number, self._lost = self._number - 1, None  # the request was lost, its number is free


def test_a_client_without_numbers_acts_twice():
    make, devices = made(Counted)
    with serve_device(make) as served, RemoteDevice(served.url), Proxy(served.url, 1, .5) as proxy:
        with Forgetful(proxy.url, timeout=.3, retry=20) as forgetful:
            forgetful.reset(0)
            forgetful.retry = 1
            for _ in range(10): forgetful.perform(Action("wait"))
            forgetful.retry = 20
    assert len(devices[1].done) > 11, proxy.faults


def numbered(url, session, route, body, number, **headers):
    "A request of the protocol, by hand."
    return HTTP.post(f"{url}/{route}", content=body if isinstance(body, bytes) else json.dumps(body),
                     headers={"X-Oaml-Session": session, "X-Oaml-Number": str(number)} | headers)


def test_late_duplicates_do_nothing():
    make, devices = made(Counted)
    with serve_device(make) as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        wait, done = dict(action=dict(type="wait")), dict(action=dict(type="done"))
        first = numbered(served.url, remote._session, "act", wait, 3)
        assert numbered(served.url, remote._session, "act", wait, 3).content == first.content
        assert numbered(served.url, remote._session, "act", done, 3).status_code == 409
        assert numbered(served.url, remote._session, "act", wait, 4).status_code == 200
        for number in (1, 2, 3, 6, 10**12):
            assert numbered(served.url, remote._session, "act", wait, number).status_code == 409
        assert devices[0].done == [("reset", 0), Action("wait"), Action("wait")]


def test_a_closed_session_stays_closed():
    with serve_device("app:login") as served:
        with RemoteDevice(served.url) as remote: session = remote._session
        assert numbered(served.url, session, "init", b"", 0).status_code == 404  # a late request for a place
        assert health(served.url)["sessions"] == 0


def test_a_full_daemon_says_when_to_come_again():
    with serve_device("app:login", max_sessions=1) as served, RemoteDevice(served.url):
        answer = numbered(served.url, "another-client-0001", "init", b"", 0)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


def test_a_retry_waits_for_the_first_attempt():
    make, devices = made(Blocked)
    with serve_device(make) as served, RemoteDevice(served.url, timeout=.2, retry=30) as remote:
        remote.reset(0)
        threading.Timer(1, devices[0].go.set).start()
        remote.perform(Action("wait"))
        assert devices[0].done == [("reset", 0), Action("wait")]


class Between:
    "Between a client and its daemon: the next request to `route` arrives, but its answer is replaced by `answer`."
    def __init__(self, client, route, answer):
        self.post, self.route, self.answer, client._http.post = client._http.post, route, answer, self
    def __call__(self, url, **kw):
        reply = self.post(url, **kw)
        if not url.endswith(self.route) or self.answer is None: return reply
        answer, self.answer = self.answer, None
        return answer


def test_an_error_of_something_in_between_is_asked_again():
    make, devices = made(Counted)
    with serve_device(make) as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        for status in (500, 502, 503, 504):
            Between(remote, "/act", httpx.Response(status, text="upstream timed out"))
            remote.perform(Action("wait"))
        assert devices[0].done == [("reset", 0)] + [Action("wait")]*4


@pytest.mark.parametrize("status, error", [(200, Unreachable), (409, SessionLost)])
def test_an_answer_without_a_number_ends_the_episode_and_no_more(status, error):
    with serve_device("app:login", max_sessions=1) as served, RemoteDevice(served.url, wait=5) as remote:
        remote.reset(0)
        Between(remote, "/act", httpx.Response(status, json={}))
        with pytest.raises(error, match="without a number|out of step"): remote.perform(Action("wait"))
        with pytest.raises(DeviceError, match=r"reset\(\) begins a new episode"): remote.look()
        remote.reset(0)
        assert remote.perform(Action("wait")).clock == 1000


# Failures are told, and survived

def test_a_blocked_device_holds_up_nobody():
    make, devices = made(Blocked)
    with serve_device(make) as served, RemoteDevice(served.url, timeout=.2, retry=2) as stuck, \
            RemoteDevice(served.url) as free:
        stuck.reset(0), free.reset(0)
        with pytest.raises(Unreachable, match="does not answer /act"): stuck.perform(Action("wait"))
        began = time.monotonic()
        assert health(served.url)["sessions"] == 2
        free.look()
        assert time.monotonic() - began < 5
        with pytest.raises(DeviceError, match=r"reset\(\) begins a new episode"): stuck.look()
        devices[0].go.set()
        assert facts(stuck.reset(7)) == facts(AppDevice("login").reset(7))
        for device in devices: device.go.set()


def test_an_interrupt_leaves_no_doubt():
    with serve_device("app:login") as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        exchange, remote._exchange = remote._exchange, lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt): remote.perform(Action("wait"))
        remote._exchange = exchange
        with pytest.raises(DeviceError, match="KeyboardInterrupt"): remote.perform(Action("wait"))
        remote.reset(0), remote.perform(Action("wait"))


class Written(Counted):
    "A device with a hierarchy of its own, and frames without elements."
    def reset(self, seed): return replace(super().reset(seed), elements=())
    def hierarchy(self): return "<hierarchy/>"
    def read_elements(self): return self.device.read_elements()


def test_what_a_device_has_of_its_own():
    with serve_device(Written) as served, RemoteDevice(served.url) as plain, \
            RemoteDevice(served.url, elements=True) as full:
        assert (plain.reset(0).elements, plain.hierarchy()) == ((), "<hierarchy/>")
        assert full.reset(0).elements == plain.read_elements() == AppDevice("login").reset(0).elements
    with serve_device(Counted) as served, RemoteDevice(served.url, elements=False, resize_to=(64, 48)) as small:
        frame = small.reset(0)
        assert (frame.elements, frame.size, small.size) == ((), (64, 48), (256, 192))
        assert not hasattr(small, "hierarchy")


class Broken(Counted):
    "A device that breaks in a way that nobody foresaw."
    def perform(self, action): raise RuntimeError("the screen fell off")


def test_a_device_that_breaks_says_so():
    with serve_device(Broken) as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        began = time.monotonic()
        with pytest.raises(DeviceError, match="RuntimeError: the screen fell off"): remote.perform(Action("wait"))
        assert time.monotonic() - began < 5  # its last word: not asked again
        remote.look()


def test_a_device_that_cannot_be_made_frees_its_place():
    with serve_device(lambda: AppDevice("logn"), max_sessions=1) as served:
        for _ in range(2):
            with pytest.raises(ValueError, match="'logn' is unknown"): RemoteDevice(served.url)
        assert waited(lambda: health(served.url)["sessions"] == 0)


def test_a_place_that_was_told_too_late_is_given_back(monkeypatch):
    post = httpx.Client.post
    def late(client, url, **kw):
        answer = post(client, url, **kw)
        if url.endswith("/init"): raise httpx.ReadTimeout("late")
        return answer
    with serve_device("app:login", max_sessions=1) as served:
        monkeypatch.setattr(httpx.Client, "post", late)
        with pytest.raises(Unreachable): RemoteDevice(served.url, timeout=.2)
        monkeypatch.undo()
        RemoteDevice(served.url).close()


class Slow(Counted):
    "A device on which ticks take their time, and being prepared too."
    def feed(self, events):
        time.sleep(sum(e.ms for e in events)/1000)
        return super().feed(events)
    def manage(self, call):
        time.sleep(1.5)
        return ""


def test_what_takes_long_is_waited_for():
    with serve_device(Slow) as served, RemoteDevice(served.url, timeout=.2, retry=2) as remote:
        remote.reset(0)
        assert remote.feed([Tick(500), Tick(1000)]).clock == 1500
        remote.manage(Rotate())


def restarted(first, port):
    "Kill a daemon; the next one on its port."
    first.process.kill()
    first.process.wait()
    return serve_device("app:login", process=True, port=port)


@pytest.mark.parametrize("recover", [None, "replay"])
def test_killed_and_restarted_in_mid_episode(recover):
    actions = oracle_actions("login", 4)
    with serve_device("app:login", process=True) as first:
        port = int(first.url.rpartition(":")[2])
        with RemoteDevice(first.url, recover=recover, timeout=2) as remote:
            shown = [facts(f) for f in (remote.reset(4), *map(remote.perform, actions[:3]))]
            with restarted(first, port):
                if not recover:
                    with pytest.raises(SessionLost, match="was restarted: the episode is lost"): remote.perform(actions[3])
                    shown = episode(remote, 4, actions)
                else: shown += [facts(remote.perform(a)) for a in actions[3:]]
    assert shown == episode(AppDevice("login"), 4, actions)


def test_recovery_waits_until_the_daemon_is_back():
    with serve_device("app:login", process=True) as first:
        port = int(first.url.rpartition(":")[2])
        with RemoteDevice(first.url, recover="replay", timeout=1, retry=1) as remote:
            remote.reset(1)
            first.process.kill()
            first.process.wait()
            with ThreadPoolExecutor(1) as pool:
                acting = pool.submit(remote.perform, Action("wait"))
                time.sleep(.7)
                with serve_device("app:login", process=True, port=port): assert acting.result(20).clock == 1000


def test_a_replay_that_shows_something_else_is_no_recovery():
    with serve_device("app:login", process=True) as first:
        port = int(first.url.rpartition(":")[2])
        with RemoteDevice(first.url, recover="replay", timeout=2) as remote:
            remote.reset(1), remote.perform(Action("wait"))
            first.process.kill()
            first.process.wait()
            with serve_device("app:login", process=True, port=port, options=dict(family="rosewood")):
                with pytest.raises(SessionLost, match=r"its replay differs at request 1 of 2 \(/restart\)"):
                    remote.perform(Action("wait"))
                remote.reset(1)


class Hiccup(Counted):
    "A device, the second of which fails at its second action."
    made = 0
    def __init__(self):
        super().__init__()
        Hiccup.made += 1
        self.left = 1 if Hiccup.made == 2 else 99
    def perform(self, action):
        self.left -= 1
        if self.left < 0: raise DeviceError("a hiccup")
        return super().perform(action)


def end_session(remote):
    "As the daemon does when a client is silent for too long."
    numbered(remote.url, remote._session, "close", b"", 0)


def test_a_replay_that_fails_leaves_no_half_episode():
    Hiccup.made = 0
    with serve_device(Hiccup) as served, RemoteDevice(served.url, recover="replay") as remote:
        remote.reset(0), remote.perform(Action("wait")), remote.perform(Action("wait"))
        end_session(remote)
        with pytest.raises(SessionLost, match=r"its replay failed at request 3 of 3 \(/act\): a hiccup"):
            remote.perform(Action("wait"))
        with pytest.raises(DeviceError, match=r"reset\(\) begins a new episode"): remote.perform(Action("wait"))
        remote.reset(0)
        assert remote.perform(Action("wait")).clock == 1000


def test_a_replay_that_finds_no_place_leaves_no_empty_episode():
    with serve_device("app:login", max_sessions=1) as served, RemoteDevice(served.url, recover="replay") as remote:
        remote.reset(0)
        end_session(remote)
        with RemoteDevice(served.url):
            for why in ("503: all 1 devices are lent", r"503.*reset\(\) begins"):
                with pytest.raises(DeviceError, match=why): remote.perform(Action("wait"))
        remote.reset(0)


def test_a_reset_that_is_refused_ends_no_episode():
    with serve_device("app:login") as served, RemoteDevice(served.url, recover="replay") as remote:
        remote.reset(0), remote.perform(Action("wait"))
        with pytest.raises(ValueError, match="is in no split"): remote.reset(3_000_000)
        end_session(remote)
        assert remote.perform(Action("wait")).clock == 2000
        end_session(remote)
        assert remote.reset(1).clock == 0


def test_a_silent_client_loses_its_device():
    make, devices = made(Counted)
    with serve_device(make, lease=.5, max_sessions=1) as served, RemoteDevice(served.url) as silent:
        for _ in range(6):  # any request renews
            silent.look() if silent._number > 1 else silent.reset(0)
            time.sleep(.2)
        assert waited(lambda: devices[0].closed == 1)
        with RemoteDevice(served.url, wait=5) as other:
            other.reset(0)
            with pytest.raises(SessionLost, match="no request came for 0.5 s"): silent.perform(Action("wait"))


# Many, and from anywhere

@pytest.mark.parametrize("wait", [0, 60])
def test_fifty_clients_at_once(wait):
    served_, refused = [], []
    expected = [facts(AppDevice("login").reset(s)) for s in range(50)]
    def one(seed):
        try:
            with RemoteDevice(served.url, wait=wait, timeout=30, token="sesame") as device:
                served_.append((seed, facts(device.reset(seed))))
        except DeviceError as e: refused.append(str(e))
    with serve_device("app:login", process=True, max_sessions=8, token="sesame") as served:
        with ThreadPoolExecutor(50) as pool: list(pool.map(one, range(50)))
        assert waited(lambda: health(served.url)["sessions"] == 0)
    assert len(served_) + len(refused) == 50 and len(served_) >= 8
    assert all("503: all 8 devices are lent; ask again later" in why for why in refused)
    assert not (wait and refused)
    assert all(shown == expected[seed] for seed, shown in served_)


def test_one_device_from_many_threads():
    make, devices = made(Counted)
    with serve_device(make) as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        with ThreadPoolExecutor(8) as pool: frames = list(pool.map(lambda _: remote.perform(Action("wait")), range(24)))
        assert sorted(f.clock for f in frames) == [1000*(n+1) for n in range(24)]


def test_from_asyncio():
    async def acting(url):
        device = await asyncio.to_thread(RemoteDevice, url)
        shown = [await asyncio.to_thread(device.reset, 2), await asyncio.to_thread(device.perform, Action("wait"))]
        await asyncio.to_thread(device.close)
        return [f.clock for f in shown]
    async def all_of_them(url): return await asyncio.gather(*(acting(url) for _ in range(4)))
    with serve_device("app:login") as served: assert asyncio.run(all_of_them(served.url)) == [[0, 1000]]*4


def test_the_log_is_followed_as_it_comes():
    followed, actions = [], oracle_actions("login", 0)
    with serve_device("app:login") as served, RemoteDevice(served.url) as remote:
        following = threading.Thread(target=lambda: followed.extend(remote.logs()))
        following.start()
        lines = [line for _, _, _, log, _ in episode(remote, 0, actions) for line in log]
        assert waited(lambda: followed == lines), followed
        assert next(remote.logs(since=2)) == lines[2]
        remote.close()
        following.join(10)
    assert not following.is_alive() and len(lines) > 3


# Hostile and broken requests

def raw(url, data, half=False):
    "What comes back for raw bytes; `half`: the sender then goes away."
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as s:
        try:
            s.sendall(data)
            return b"" if half else s.recv(65536)
        except OSError: return b"reset"


HEAD = b"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Oaml-Session: %s\r\nX-Oaml-Number: 3\r\n"


def test_the_daemon_outlives_what_it_is_sent():
    deep, long = b"["*100_000 + b"]"*100_000, b'{"action": {"type": "type", "text": "' + b"x"*50_000 + b'"}}'
    with serve_device("app:login", max_body=20_000) as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        me = remote._session
        ask = lambda body, route="act", number=3, **kw: numbered(served.url, me, route, body, number, **kw).status_code
        bodies = b"", b"\xff\xfe", b"nonsense", b"null", b"[]", b'{"action": 7}', b'{"action": {"type": "type"}}'
        assert [ask(b) for b in bodies] == [422, 400, 400, 422, 422, 422, 422]
        assert ask(b'{"action": {"type": "click", "x": NaN, "y": 0.5}}') in (400, 422)
        assert ask(b'{"seed": %s}' % (b"9"*5000), "restart") in (400, 422)
        assert [ask(deep), ask(long)] == [413, 413]
        assert ask(deep[:500] + deep[-500:]) == 400 or ask(deep[:500] + deep[-500:]) == 422
        assert [ask({}, r) for r in ("act/../../health", "ACT", "%00")] == [404]*3
        assert [ask({}, number=n) for n in ("", "-1", "1.5", "9"*20, "0")] == [400]*5
        assert [ask({}, **{"X-Oaml-Session": s}) for s in ("", "x", "../../etc/passwd", "y"*5000)] == [404]*4
        assert raw(served.url, b"\x16\x03\x01\x02\x00 hello").startswith(b"HTTP/1.1 400")
        chunked = b"Transfer-Encoding: chunked\r\n\r\n7530\r\n" + b"x"*30_000 + b"\r\n0\r\n\r\n"
        assert b"413" in raw(served.url, HEAD % me.encode() + chunked)
        raw(served.url, HEAD % me.encode() + b"Content-Length: 5000\r\n\r\n{", half=True)
        raw(served.url, b"GET /" + b"x"*200_000 + b" HTTP/1.1\r\n\r\n")
        with pytest.raises(DeviceError, match="413: a request has 20000 bytes at most"):
            remote.perform(Action("answer", text="x"*50_000))
        assert remote.perform(Action("wait")).clock == 1000  # nothing of all that was done, or counted
        assert health(served.url)["status"] == "ok"


def test_the_token_guards_every_route():
    with serve_device("app:login", token="sesame") as served, RemoteDevice(served.url, token="sesame") as remote:
        remote.reset(0)
        for route in ("init", "close", "nonsense", *DEVICE_REQUESTS):
            for wrong in ({}, *(dict(Authorization=a) for a in ("Bearer sesam", "sesame", "Basic c2VzYW1l"))):
                assert numbered(served.url, remote._session, route, {}, 3, **wrong).status_code == 401
        assert HTTP.get(f"{served.url}/logs", headers={"X-Oaml-Session": remote._session}).status_code == 401
        assert "sesame" not in json.dumps(health(served.url)) + repr(served) + repr(remote)
        with pytest.raises(DeviceError, match="401: wrong token"): RemoteDevice(served.url, token="open")
        remote.look()


def test_without_a_token_only_this_machine():
    with serve_device("app:login") as served:
        assert numbered(served.url, "a-session-of-mine", "init", b"", 0, Host="evil.example").status_code == 403
        assert numbered(served.url, "a-session-of-mine", "init", b"", 0, Host="localhost:1").status_code == 200


def test_a_forked_device_is_refused():
    if not hasattr(os, "fork"): pytest.skip("no fork on this system")
    with serve_device("app:login") as served, RemoteDevice(served.url) as remote:
        remote.reset(0)
        remote._process += 1  # as a child would see it
        with pytest.raises(DeviceError, match="belongs to another process"): remote.look()
        remote._process -= 1


def test_only_a_caller_who_knows_the_machine_asks_for_its_health():
    with serve_device("app:login") as near, serve_device("app:login", token="sesame") as guarded:
        for served, host, status in ((near, "evil.example", 403), (near, "localhost:1", 200), (guarded, "evil.example", 401),
                                     (guarded, "192.168.0.7:8720", 200), (guarded, "[::1]", 200)):
            assert HTTP.get(f"{served.url}/health", headers=dict(Host=host)).status_code == status, (host, status)
        known = dict(Host="gpu7:8720", Authorization="Bearer sesame")
        assert HTTP.get(f"{guarded.url}/health", headers=known).status_code == 200


def test_a_picture_is_at_most_four_times_the_screen():
    make, devices = made(Counted)
    with serve_device(make) as served, RemoteDevice(served.url, resize_to=(512, 384)) as large:
        assert large.reset(0).size == (512, 384)
        for size in ((513, 384), (16384, 16384), (1, 16384)):
            with RemoteDevice(served.url, resize_to=size) as greedy:
                if size == (1, 16384): assert greedy.reset(0).size == size
                else:
                    with pytest.raises(ValueError, match=r"more than 4 times the screen's 256x192 pixels"): greedy.reset(0)
    assert [d.done for d in devices] == [[("reset", 0)], [], [], [("reset", 0)]]  # refused before it was done


def liar(launched, shown, headers=()):
    "A daemon that says what it likes: what it tells at the launch, and bytes that it calls a frame."
    class Liar(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            reply = dict(init=dict(lease=9, boot="x"), launch=launched, close={}).get(self.path[1:])
            body = shown if reply is None else json.dumps(reply).encode()
            self.send_response(200)
            for name, value in dict({"X-Oaml-Number": self.headers["X-Oaml-Number"], "Content-Length": len(body)},
                                    **({"Content-Type": FRAME_TYPE} | dict(headers) if reply is None else {})).items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_): pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.mark.parametrize("screen, size, packed", [((256, 192), (10_000, 10_000), False), ((16384, 16384), (10_000, 10_000), False),
                                                  ((256, 192), (10_000, 10_000), True), ((256, 192), (513, 384), False)])
def test_a_daemon_that_lies_fills_no_memory(screen, size, packed):
    head = json.dumps(dict(size=size, screen=size, compression="zlib", clock=0, log=[], orientation=0, elements=[])).encode()
    message = len(head).to_bytes(4, "big") + head + zlib.compress(bytes(size[0]*size[1]*3), 9)
    if packed: message = gzip.compress(message)
    with liar(dict(size=screen, hierarchy=False), message, {"Content-Encoding": "gzip"} if packed else ()) as server:
        with RemoteDevice(f"http://127.0.0.1:{server.server_port}") as device:
            tracemalloc.start()
            with pytest.raises(DeviceError, match="packed with gzip" if packed else "pixels at most"): device.reset(0)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000 + 2*len(message)
            tracemalloc.stop()
        server.shutdown()


# Nothing left behind

def command(*words, **kw):
    "The `oaml` command as a process."
    return subprocess.Popen([sys.executable, "-c", "from oaml.scripts.cli import main; main()", *words], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **kw)


@POSIX
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_cleanly(how, tmp_path):
    (tmp_path/"token").write_text("sesame\n")
    (tmp_path/"android-envd.conf.yaml").write_text("device: app:mail\nlease: 30\nport: 0\n")
    process = command("serve-device", "--device", "app:login", "--token-file", str(tmp_path/"token"), cwd=tmp_path)
    try:
        first = process.stdout.readline()
        url = re.search(r"serving app:login at (http://[\d.:]+) to whoever has the token; 16 at once", first)[1]
        remote = RemoteDevice(url, token="sesame")
        remote.reset(0)
        following = threading.Thread(target=lambda: list(remote.logs()))
        following.start()
        process.send_signal(how)
        rest, _ = process.communicate(timeout=20)
        following.join(10)
    finally: process.kill()
    assert process.returncode == 0 and "ended; the devices are closed" in rest, rest
    assert "sesame" not in first + rest and "Traceback" not in rest
    with pytest.raises(DeviceError): RemoteDevice(url, token="sesame", retry=1)


@POSIX
def test_a_daemon_sweeps_what_a_killed_one_left(request):
    if missing := missing_browser(): pytest.skip(missing)
    tmp_path = Path(tempfile.mkdtemp(prefix="s"))  # short: Chromium has its sockets there, whose paths have 108 characters at most
    request.addfinalizer(lambda: shutil.rmtree(tmp_path, ignore_errors=True))
    env = os.environ | dict(TMPDIR=str(tmp_path))
    first = command("serve-device", "--device", "html:login", "--port", "0", env=env)
    RemoteDevice(re.search(r"at (http://[\d.:]+) ", first.stdout.readline())[1], timeout=30).reset(0)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    def left(): return list(tmp_path.glob("oaml-chromium-*"))
    assert left()
    def cleaned():
        "A daemon that starts, and ends without having had a client; the browser of the first may take a moment to end."
        second = command("serve-device", "--device", "html:login", "--port", "0", env=env)
        second.stdout.readline()
        os.killpg(second.pid, signal.SIGKILL)
        second.communicate()
        return not left()
    assert waited(cleaned, 30)


@POSIX
def test_no_orphan_when_the_parent_is_killed():
    code = ("import time\nfrom oaml.devices.serve import serve_device\n"
            "with serve_device('app:login', process=True) as s:\n"
            "    print(s.url, s.process.pid, flush=True)\n    time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    url, pid = parent.stdout.readline().split()
    assert health(url)["status"] == "ok"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    def ended():
        try:
            state = open(f"/proc/{pid}/stat").read().split()[2] if os.path.exists("/proc") else os.kill(int(pid), 0)
            return state == "Z"
        except (FileNotFoundError, ProcessLookupError): return True
    assert waited(ended, 15)
    with pytest.raises(httpx.TransportError): health(url)


def test_devices_are_closed_at_the_end_and_a_hanging_one_does_not_keep_the_daemon():
    make, devices = made(Blocked)
    with serve_device(make) as served:
        stuck, free = (RemoteDevice(served.url, timeout=.2, retry=1) for _ in range(2))
        stuck.reset(0), free.reset(0)
        with pytest.raises(Unreachable): stuck.perform(Action("wait"))
        began = time.monotonic()
    assert time.monotonic() - began < 12
    assert [d.closed for d in devices] == [0, 1]
    devices[0].go.set()


def test_a_commands_options_stand_beside_the_files(tmp_path):
    from oaml.devices.serve import load_daemon_config
    (tmp_path/"c.yaml").write_text("device: app:login\ntoken: sesame\noptions: {goals: [login]}\n")
    (tmp_path/"token").write_text("another")
    config = load_daemon_config(tmp_path/"c.yaml", options=dict(size=(256, 192)), token_file=str(tmp_path/"token"))
    assert config.options == dict(goals=["login"], size=(256, 192)) and config.token.get_secret_value() == "another"


def test_a_token_file_of_a_served_process(tmp_path):
    (tmp_path/"token").write_text("sesame")
    with serve_device("app:login", process=True, token_file=str(tmp_path/"token")) as served: assert served.token.get_secret_value() == "sesame"
