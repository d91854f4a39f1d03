"Task servers: what AgentRL's worker gets wrong, bad input, every accident at random, and others' programs unchanged."
import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason='httpx: not installed; pip install "oaml[serve]"')
pytest.importorskip("uvicorn", reason='uvicorn: not installed; pip install "oaml[serve]"')

from oaml.devices.daemon import Access, Refusal, serve_in_thread  # noqa: E402
from oaml.service.client import SampleLost, TaskClient, TaskServerError  # noqa: E402
from oaml.service.config import load_task_config  # noqa: E402
from oaml.service.controller import ServedWorker, TaskController, _connected, serve_controller  # noqa: E402
from oaml.service.records import RewardHistoryItem, TaskSampleExecutionResult  # noqa: E402
from oaml.service.task import Session, Task  # noqa: E402
from oaml.service.worker import TaskDeadlines, TaskWorker, open_server, serve_task, served_task, task_server  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT/"bench"))
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc, which this system has not")
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs process groups and signals, which this system has not")
QUICK = TaskDeadlines(turn_s=.5, cancel_s=.3, silence_s=600.)
TOOLS = [dict(type="function", function=dict(name="press", parameters=dict(type="object")))]
NOTHING = dict(current=0, abandoned=0)
logging.getLogger("oaml.service").setLevel("ERROR")


class Scripted(Task):
    "Its samples are named after what happens in them; `acts` is what was done."
    def __init__(self, concurrency=4, **kw):
        super().__init__("scripted", concurrency, **kw)
        self.acts, self.release_hung = [], threading.Event()

    def get_indices(self): return ["plain", "swallow", "hang", "tools", "late tools", "rewards", "nan", "raise", "full", "slow", "endless"]

    def sync_start_sample(self, index, session):
        if index == "tools": session.set_tools(TOOLS)
        if index == "full": session.set_full_history()
        for n in range(3):
            if index == "late tools" and n == 1: session.set_tools(TOOLS)
            if index == "rewards": session.inject([RewardHistoryItem(.25, metrics=dict(a=1)), RewardHistoryItem(.5, score=.9)])
            if index == "nan" and n: session.inject(RewardHistoryItem(float("nan")))
            if index == "raise" and n: raise KeyError("broken")
            if index == "full": session.cover([dict(role="system", content="rules"), dict(role="user", content=str(n))])
            else: session.inject(dict(role="user", content=str(n)))
            while True:
                try: answer = session.sync_action(); break
                except BaseException:
                    if index not in ("swallow", "endless"): raise
                    if index == "swallow": time.sleep(.01); index = "plain"
                    if self.release_hung.is_set(): raise
            self.acts.append(answer.content)
            if index == "hang": self.release_hung.wait(60)
            if index == "slow": time.sleep(.3)
        return TaskSampleExecutionResult(result=n)

    def calculate_overall(self, results): return dict(done=sum(r.status == "completed" for r in results))


class Coroutine(Task):
    "An asynchronous task; sample 1 waits for ever, 2 ignores every cancel."
    def __init__(self, **kw): super().__init__("coroutine", 2, full_async=True, **kw)
    def get_indices(self): return [0, 1, 2]
    async def start_sample(self, index, session):
        await session.action(dict(role="user", content="?"))
        if index == 1: await asyncio.Event().wait()
        while index == 2:
            try: await session.action(dict(role="user", content="more"))
            except BaseException: pass
        return TaskSampleExecutionResult()


def waited(check, seconds=30):
    "True as soon as `check()` is, within `seconds`."
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if check(): return True
        time.sleep(.02)
    return False


def says(text): return [dict(role="assistant", content=text)]


@pytest.fixture
def served():
    "A worker of scripted samples, a client of its address, and what asks it."
    task = Scripted()
    with serve_task(task, deadlines=QUICK) as worker, httpx.Client(base_url=worker.address, timeout=60) as http:
        worker.http_ = http
        yield worker
        task.release_hung.set()


def ask(worker, route, **body): return worker.http_.post(route, json=body)
def begin(worker, index, id=1): return ask(worker, "start_sample", index=index, session_id=id)
def interact(worker, text="go", id=1): return ask(worker, "interact", session_id=id, messages=says(text))
def detail(answer): return answer.status_code, answer.json()["detail"]


# AgentRL's defects, each failing there

@pytest.mark.parametrize("index", ["plain", "swallow"])
def test_a_cancel_frees_the_slot_whether_the_task_lets_it_through_or_swallows_it(served, index):
    begin(served, index)
    assert ask(served, "cancel", session_id=1).json() == dict(session_id=1)
    assert waited(lambda: served.status() == dict(concurrency=4) | NOTHING)
    assert begin(served, index).status_code == 200  # also the same number again


def test_a_task_that_swallows_every_cancel_keeps_no_slot_and_is_counted_while_it_goes_on(served):
    begin(served, "endless")
    ask(served, "cancel", session_id=1)
    assert served.status() == dict(concurrency=4, current=0, abandoned=1)
    served.task.release_hung.set()
    assert waited(lambda: served.status()["abandoned"] == 0)


@pytest.mark.parametrize("index", [1, 2])
def test_a_coroutine_that_waits_or_ignores_is_ended(index):
    with serve_task(Coroutine(), deadlines=QUICK) as worker, httpx.Client(base_url=worker.address, timeout=60) as worker.http_:
        begin(worker, index)
        threading.Thread(target=interact, args=(worker,)).start() if index == 1 else interact(worker)
        assert waited(lambda: worker.leases.leases[1].busy or index == 2)
        ask(worker, "cancel", session_id=1)
        assert worker.status()["current"] == 0
        assert begin(worker, 0, 2).status_code == 200


def test_tools_last_for_the_session(served):
    turns = [begin(served, "tools").json()] + [interact(served).json()["env_out"] for _ in range(2)]
    assert [t["tools"] for t in turns] == [TOOLS]*3


def test_the_rewards_of_a_turn_add_up_and_metrics_merge(served):
    turn = begin(served, "rewards").json()
    assert (turn["reward"], turn["metrics"], turn["metric"]) == (.75, dict(a=1, score=.9), dict(a=1, score=.9))
    assert interact(served).json()["env_out"]["reward"] == .75  # of this turn, not of all


def test_a_sample_that_is_played_keeps_its_rewards(served):
    with TaskClient("scripted", served.address) as client:
        output = client.run_sample("rewards", lambda *_: "x")
        assert sum(i.reward for i in output.history if isinstance(i, RewardHistoryItem)) == 2.25
        assert client.calculate_overall([output]) == dict(done=1)


def test_a_turn_that_nobody_waits_for_is_not_lost():
    async def play():
        session = Session(1)
        first = session.next_turn()
        with pytest.raises(TimeoutError): await asyncio.wait_for(session.action(dict(role="user", content="a")), .02)
        with pytest.raises(TimeoutError): await asyncio.wait_for(session.action(dict(role="user", content="b"), RewardHistoryItem(-1.)), .02)
        second, going = session.next_turn(), asyncio.ensure_future(session.action())
        return await first, await second, going.cancel()
    first, second, _ = asyncio.run(play())
    assert [[m["content"] for m in t.messages] for t in (first, second)] == [["a"], ["b"]] and second.reward == -1


def test_what_is_injected_while_the_agent_thinks_comes_next():
    async def play():
        session = Session(1)
        turn = session.next_turn()
        going = asyncio.ensure_future(session.action(dict(role="user", content="first")))
        await turn
        session.inject(dict(role="user", content="a notice"))
        turn = session.answer([dict(role="assistant", content="x")])
        await going
        going = asyncio.ensure_future(session.action(dict(role="user", content="second")))
        return await turn, session.history, going.cancel()
    turn, history, _ = asyncio.run(play())
    assert [m["content"] for m in turn.messages] == ["a notice", "second"]
    assert [m["content"] for m in history] == ["first", "x", "a notice", "second"]


def test_a_message_that_cannot_be_sent_is_the_tasks_error():
    with pytest.raises(ValueError, match="cannot be sent"): Session(1).inject(dict(role="user", content="look", png=b"x"))


@pytest.mark.parametrize("relayed", [False, True])
def test_half_an_emoji_goes_through_and_nan_does_not(served, relayed):
    with serve_controller() as (_, url):
        heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices)
        with TaskClient("scripted", f"{url}/api" if relayed else served.address) as client:
            with client.start("plain") as sample: assert [sample.interact("cut off \ud83d").status.value for _ in range(2)] == ["running"]*2
            with pytest.raises(TaskServerError, match="JSON"): client.start(-1, dict(x=float("nan")))
        answer = httpx.post(f"{url}/api/start_sample", content='{"name": "scripted", "index": "plain", "x": NaN}')
        assert (answer.status_code, answer.json()["detail"]) == (400, "is not JSON (NaN is no number)")


def test_idle_connections_lock_nobody_out():
    server = open_server(TaskWorker(Scripted()), "127.0.0.1", 0, 3)
    with serve_in_thread(server, "worker"):
        clients = [httpx.Client(base_url=server.url, trust_env=False, timeout=20) for _ in range(8)]
        assert [c.get("/health").status_code for c in clients] == [200]*8
        for c in clients: c.close()


def test_a_worker_that_no_controller_could_reach_does_not_start():
    with pytest.raises(ValueError, match="say where it reaches this worker"):
        task_server(TaskWorker(Scripted(), access=Access("sesame"), controller="http://127.0.0.1:5020/api"), "0.0.0.0")
    with pytest.raises(ValueError, match="is not such as http"): TaskWorker(Scripted(), address="127.0.0.1:5021/api")


def test_an_unknown_index_is_refused_and_takes_no_slot(served):
    assert detail(begin(served, "plian")) == (400, "index: no sample 'plian'; did you mean 'plain'?")
    assert begin(served, 3).status_code == begin(served, [1]).status_code == begin(served, None).status_code == 400
    assert served.status()["current"] == 0


def test_a_user_message_is_not_the_agents(served):
    begin(served, "plain")
    status, why = detail(ask(served, "interact", session_id=1, messages=[dict(role="user", content="hi")]))
    assert (status, why) == (400, "messages[0].role: 'user' is not assistant")
    assert interact(served).status_code == 200


def test_an_interact_repeated_after_a_timeout_acts_once(served):
    "A client without numbers, and one with them; the repeat comes while the task is at work, and after."
    begin(served, "slow")
    with pytest.raises(httpx.ReadTimeout): httpx.post(f"{served.address}/interact", json=dict(session_id=1, messages=says("a")), timeout=.1)
    assert waited(lambda: detail_or_turn(interact(served, "a"))["messages"] == [dict(role="user", content="1")], 10)
    for number, lost in ((3, True), (3, False), (3, False)):
        try: turn = httpx.post(f"{served.address}/interact", json=dict(session_id=1, messages=says("b")), headers={"X-Oaml-Number": str(number)},
                               timeout=.1 if lost else 30)
        except httpx.ReadTimeout: assert lost
    assert turn.json()["env_out"]["messages"] == [dict(role="user", content="2")]
    assert served.task.acts == ["a", "b"]
    with pytest.raises(httpx.ReadTimeout): httpx.post(f"{served.address}/interact", json=dict(session_id=1, messages=says("c")), timeout=.1)
    assert waited(lambda: served.status()["current"] == 0)
    assert interact(served, "c").json()["env_out"]["result"] == 2  # its session has ended meanwhile
    assert served.task.acts == ["a", "b", "c"]


def detail_or_turn(answer): return answer.json().get("env_out", dict(messages=None))


def test_a_hung_task_ends_with_its_turn(served):
    begin(served, "hang")
    turn = interact(served).json()["env_out"]
    assert (turn["status"], turn["finish"], turn["error"]) == ("task error", True, "the task gave no turn within 0.5 s (turn_s)")
    assert served.status() == dict(concurrency=4, current=0, abandoned=1)
    served.task.release_hung.set()
    assert waited(lambda: served.status()["abandoned"] == 0)


def test_silence_ends_a_session():
    with serve_task(Scripted(), deadlines=TaskDeadlines(silence_s=.3)) as worker, httpx.Client(base_url=worker.address) as worker.http_:
        begin(worker, "plain")
        assert waited(lambda: worker.status()["current"] == 0)
        assert detail(interact(worker))[1].startswith("No such session: 1 has ended, was silent for more than 0.3 s")


def test_a_full_history_comes_whole(served):
    turns = [begin(served, "full").json()] + [interact(served).json()["env_out"] for _ in range(2)]
    assert [[m["content"] for m in t["messages"]] for t in turns] == [["rules", str(n)] for n in range(3)]


# Bad input: a clear error, no slot taken, the server alive

def test_bad_input_changes_nothing(served):
    served.task.any_tool = False
    begin(served, "tools")
    call = dict(role="assistant", tool_calls=[dict(id="1", type="function", function=dict(name="pres", arguments="{}"))])
    post = lambda route, data, **headers: served.http_.post(route, content=data, headers=headers)
    wrong = [
        (begin(served, "plain"), 400, "Session ID already exists: 1"),
        (ask(served, "interact", session_id=1, messages=[]), 400, "messages: is empty"),
        (ask(served, "interact", session_id=1), 400, "messages: is empty"),
        (ask(served, "interact", session_id=1, messages=[call]), 400, "no tool 'pres'; did you mean 'press'?; this session offers press"),
        (ask(served, "interact", session_id=1, messages=[dict(role="assistant")]), 400, "neither content nor tool_calls"),
        (interact(served, id=2), 400, "No such session"), (ask(served, "cancel", session_id=2), 400, "No such session"),
        (ask(served, "interact", session_id="one", messages=says("x")), 400, "is no number of a session"),
        (ask(served, "start_sample", index="plain"), 400, "session_id: None"),
        (post("interact", b"not JSON"), 400, "not JSON"), (post("interact", b"[]"), 422, "object"), (post("start_sample", b'{"a":' + b"["*100_000 + b"]"*100_000 + b"}"), 400, "nested too deep"),
        (post("interact", b"x"*(served.max_body + 2**20)), 413, "bytes at most"),
        (served.http_.post("interact", json=dict(session_id=1, messages=says("x")), headers={"X-Oaml-Number": "7"}), 409, "out of order"),
        (served.http_.post("nowhere", json={}), 404, "there is no"), (served.http_.get("interact"), 405, "there is no"),
        (ask(served, "calculate_overall", results=[3]), 400, "results"),
    ]
    assert [(r.status_code, why in r.json()["detail"]) for r, _, why in wrong] == [(status, True) for _, status, _ in wrong], [r.text for r, *_ in wrong]
    assert served.status()["current"] == 1
    assert interact(served).json()["env_out"]["messages"] == [dict(role="user", content="1")]
    assert served.task.acts == ["go"]


def calling(name): return [dict(role="assistant", content="x", tool_calls=[dict(id="1", type="function", function=dict(name=name, arguments="{}"))])]


def test_a_call_of_a_tool_that_was_not_offered_reaches_the_task(served):
    "It knows what that costs; a task may ask for strictness instead."
    begin(served, "tools")
    assert ask(served, "interact", session_id=1, messages=calling("pres")).status_code == 200
    assert served.task.acts == ["x"]
    served.task.any_tool = False
    assert detail(ask(served, "interact", session_id=1, messages=calling("prss"))) == (
        400, "messages[0].tool_calls: no tool 'prss'; did you mean 'press'?; this session offers press")


def test_an_index_of_the_other_kind_or_far_too_long_is_named_in_a_line(served):
    served.known, served.indices = {0, "7"}, [0, "7"]
    for index, why in (("0", "no sample '0', but 0: a number, not a text"), (7, "no sample 7, but '7': a text, not a number"), ("x"*100_000, "no sample 'xxxx")):
        status, words = detail(begin(served, index))
        assert status == 400 and why in words and len(words) < 300


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_is_too_long_is_told_so_and_not_cut_off(served, chunked):
    "Also to a client that sends all before it reads anything."
    import socket
    from urllib.parse import urlsplit
    where, size = urlsplit(served.address), served.max_body + 2**22
    with socket.create_connection((where.hostname, where.port), timeout=60) as s:
        s.sendall(f"POST /api/interact HTTP/1.1\r\nHost: {where.netloc}\r\n{'Transfer-Encoding: chunked' if chunked else f'Content-Length: {size}'}\r\n\r\n".encode())
        if chunked: s.sendall(f"{size:x}\r\n".encode())
        for _ in range(size//2**16): s.sendall(b"x"*2**16)
        if chunked: s.sendall(b"\r\n0\r\n\r\n")
        assert s.recv(12) == b"HTTP/1.1 413"


def test_numpys_numbers_are_metrics():
    item = RewardHistoryItem(np.float32(.5), score=np.int64(1), metrics=dict(steps=np.int64(3), of=[np.float64(.25), np.bool_(True)]))
    assert json.loads(json.dumps([item.reward, item.metrics])) == [.5, dict(score=1, steps=3, of=[.25, True])]
    with pytest.raises(ValueError, match="not a finite number"): RewardHistoryItem(1., metrics=dict(a=np.float32("nan")))


def test_a_task_without_a_method_says_which_and_of_whom():
    class Empty(Task): pass
    with pytest.raises(NotImplementedError, match="get_indices: .*Empty does not say which samples there are; give it a method get_indices"): TaskWorker(Empty("empty"))


def test_an_output_says_why_its_sample_failed(served):
    with TaskClient("scripted", served.address) as client:
        output = client.run_sample("raise", lambda *_: "x")
        assert output.status.value == "task error" and output.error == "KeyError: 'broken'"
        assert client.calculate_overall([output]) == dict(done=0)


def test_kubernetes_words_for_a_service_are_no_port(tmp_path, caplog):
    (tmp_path/"greet.yaml").write_text("greet:\n  module: oaml.service.gui.SuiteTask\n  port: 5099\n")
    config = load_task_config(tmp_path/"greet.yaml", environ=dict(GREET_PORT="tcp://10.0.0.7:80", GREET_PORT_80_TCP="tcp://10.0.0.7:80", GREET_SERVICE_HOST="10.0.0.7"))
    assert config.port == 5099


class Blocker(Task):
    "Sample 1 blocks the server's loop for a while."
    def __init__(self): super().__init__("blocker", full_async=True)
    def get_indices(self): return [0, 1]
    async def start_sample(self, index, session):
        await session.action(dict(role="user", content="?"))
        if index == 1: time.sleep(3)
        await session.action(dict(role="user", content="!"))
        return TaskSampleExecutionResult()


def test_a_loop_that_was_blocked_ends_nobody_elses_session(caplog):
    with serve_task(Blocker(), deadlines=TaskDeadlines(silence_s=2.)) as worker, httpx.Client(base_url=worker.address, timeout=60) as worker.http_:
        for id in 0, 1: begin(worker, id, id)
        blocking = threading.Thread(target=interact, args=(worker,), kwargs=dict(id=1))
        blocking.start()
        time.sleep(.2)
        assert interact(worker, id=0).json()["env_out"]["messages"] == [dict(role="user", content="!")]
        blocking.join()
        assert waited(lambda: "the event loop was blocked for" in caplog.text)


def test_two_interacts_at_once(served):
    begin(served, "slow")
    answers = []
    first = threading.Thread(target=lambda: answers.append(interact(served, "a")))
    first.start()
    assert waited(lambda: served.leases.leases[1].busy)
    assert detail(interact(served, "b")) == (400, "the last request is still at work; wait for its answer")
    first.join()
    assert answers[0].status_code == 200 and served.task.acts == ["a"]


@pytest.mark.parametrize("index, why", [("nan", "SchemaError: reward: nan is not a finite number"), ("raise", "KeyError: 'broken'"),
                                        ("late tools", "RuntimeError: set_tools: too late")])
def test_a_task_that_errs_ends_its_sample_only(served, index, why):
    begin(served, index)
    turn = interact(served).json()["env_out"]
    assert turn["status"] == "task error" and why in turn["error"]
    assert served.status()["current"] == 0


def test_more_than_its_concurrency(served):
    for id in range(4): begin(served, "plain", id)
    assert detail(begin(served, "plain", 9)) == (406, "all 4 sessions of this worker are taken; ask again later")
    assert ask(served, "cancel_all").json() == dict(cancelled=[0, 1, 2, 3])
    assert served.status()["current"] == 0


def test_a_wrong_token_reaches_nothing():
    with serve_task(Scripted(), access=Access("sesame")) as worker, serve_controller(access=Access("sesame")) as (_, url):
        for base in (worker.address, f"{url}/api", f"{url}/v0.2/api"):
            for route in ("start_sample", "interact", "cancel", "cancel_all", "receive_heartbeat", "calculate_overall"):
                assert httpx.post(f"{base}/{route}", json={}, headers=dict(Authorization="Bearer other")).status_code in (401, 404)
        assert httpx.get(url).status_code == 401
        with TaskClient("scripted", worker.address, token="sesame") as client: assert client.run_sample("plain", lambda *_: "x").result == 2


def heartbeat(url, **body):
    return httpx.post(f"{url}/api/receive_heartbeat", json=dict(name="t", address="http://127.0.0.1:9/api", concurrency=1, indices=[1]) | body)


def test_heartbeats_of_strangers():
    with serve_controller() as (controller, url):
        assert heartbeat(url).status_code == 200
        for wrong, why in ((dict(indices=[2]), "served already, with other indices"), (dict(address="http://10.9.8.7:1/api"), "is not the sender"),
                           (dict(address="grpc://127.0.0.1:1"), "gRPC is not spoken here"), (dict(address=None), "speaks gRPC has none"),
                           (dict(concurrency=0), "no number of sessions"), (dict(name=""), "no name of a task")):
            assert (answer := heartbeat(url, **wrong)).status_code == 400 and why in answer.json()["detail"], (wrong, answer.text)
        spoofed = httpx.post(f"{url}/api/receive_heartbeat", json=dict(name="u", address="http://10.9.8.7:1/api", concurrency=1, indices=[1]),
                             headers={"X-Forwarded-For": "10.9.8.7"})
        assert spoofed.status_code == 400
        assert list(controller.tasks) == ["t"]


def test_a_heartbeat_sends_the_indices_once_and_again_to_a_controller_that_was_started_anew(monkeypatch):
    task, sizes, received = Scripted(), [], TaskController.receive_heartbeat
    task.get_indices = lambda: list(range(20_000))
    async def receive_heartbeat(self, request):
        sizes.append(int(request.headers["content-length"]))
        return await received(self, request)
    monkeypatch.setattr(TaskController, "receive_heartbeat", receive_heartbeat)
    with serve_controller() as (controller, url), serve_task(task, controller=f"{url}/api", beat_s=.1) as worker:
        assert waited(lambda: len(sizes) > 4)
        assert sizes[0] > 100_000 and max(sizes[1:]) < 400
        known = controller.tasks.pop("scripted")  # as if it were another
        assert waited(lambda: "scripted" in controller.tasks)
        assert controller.tasks["scripted"].indices == worker.indices == known.indices
    assert sum(size > 100_000 for size in sizes) == 2


def test_indices_of_a_wrong_kind_are_refused():
    with serve_controller() as (_, url):
        for wrong in ([[1]], [None], [1.5], [True], {}, None): assert "indices: " in detail(heartbeat(url, indices=wrong))[1]


def test_a_client_waits_for_a_controller_that_was_started_anew(served):
    with serve_controller() as (controller, url), TaskClient("scripted", f"{url}/api") as client:
        threading.Timer(1., lambda: heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices)).start()
        assert client.run_sample("plain", lambda *_: "x").result == 2
        controller.began = time.monotonic()
        assert httpx.post(f"{url}/api/start_sample", json=dict(name="other", index=1)).status_code == 503
        controller.began -= 60
        assert httpx.post(f"{url}/api/start_sample", json=dict(name="other", index=1)).status_code == 400


def test_html_in_a_workers_name_is_text():
    with serve_controller() as (_, url):
        heartbeat(url, name="<script>alert(1)</script>")
        page = httpx.get(url).text
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_file_may_name_a_task_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path/"a_task_of_the_test.py").write_text("from oaml.service.task import Task\nclass A(Task):\n    def get_indices(self): return [1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    for text, why in (("a:\n  module: os.system", "os.system is no subclass"), ("a:\n  module: a_task_of_the_test.A\n  conroller: x", "tasks.yaml, line 3: a has no conroller; did you mean 'controller'?"),
                      ("a:\n  module: a_task_of_the_test.A\n  parameters: {concurency: 2}", "tasks.yaml, line 3: a_task_of_the_test.A has no concurency"),
                      ("a: [1", "tasks.yaml, line 1, column 6: is not YAML"), ("a: !!python/object/apply:os.system [ls]", "is not YAML"), ("3", "no mapping")):
        (tmp_path/"tasks.yaml").write_text(text)
        with pytest.raises(ValueError, match="(?s).*".join(map(__import__("re").escape, [why]))): load_task_config(tmp_path/"tasks.yaml")


# Processes

HUNG = """
import os, subprocess, sys, time
from pathlib import Path
from oaml.service.records import TaskSampleExecutionResult
from oaml.service.task import Task

class Hung(Task):
    def get_indices(self): return ["hang", "exit", "plain"]
    def sync_start_sample(self, index, session):
        if index == "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            session.sync_action(dict(role="user", content=f"{os.getpid()} {child.pid}"))
            Path(__file__).with_name("hangs").touch()
            time.sleep(600)
        session.sync_action(dict(role="user", content=f"{os.getpid()}"))
        if index == "exit": os._exit(3)
        return TaskSampleExecutionResult(result=os.getpid())
"""


def lives(pid):
    "True if there is such a process, and it is no corpse."
    try: return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError: return False


@LINUX
def test_a_process_is_killed_with_what_it_started(tmp_path, monkeypatch):
    from oaml.devices.daemon import serve_in_thread
    (tmp_path/"hung_of_the_test.py").write_text(HUNG)
    monkeypatch.syspath_prepend(tmp_path)
    server = served_task("hung_of_the_test.Hung", dict(name="hung", concurrency=2), "process", dict(turn_s=20., cancel_s=.5))
    with serve_in_thread(server), TaskClient("hung", f"{server.url}/api") as client:
        first = client.run_sample("plain", lambda *_: "x").result
        assert client.run_sample("plain", lambda *_: "x").result == first  # a process that ended well plays the next sample
        with client.start("exit") as sample:
            assert "ended (code 3)" in sample.interact("x").error
        sample = client.start("hang")
        pids = [int(p) for p in sample.turn.messages[0]["content"].split()]
        assert all(map(lives, pids))
        asking = threading.Thread(target=lambda: sample.interact("x"))
        asking.start()
        assert waited((tmp_path/"hangs").exists)
        sample.cancel()
        asking.join(30)
        assert waited(lambda: not any(map(lives, pids)))
        with client.start("hang") as sample: pids = [int(p) for p in sample.turn.messages[0]["content"].split()]
        assert waited(lambda: not any(map(lives, pids)))  # cancelled while it waits for the agent: the task ends by itself, its child does not
        assert client.ask("GET", "/worker_status") == dict(concurrency=2, current=0, abandoned=0)
        last = client.run_sample("plain", lambda *_: "x").result
    assert waited(lambda: not lives(last))


def command(*words, **kw):
    "The `oaml` command as a process."
    return subprocess.Popen([sys.executable, "-c", "from oaml.scripts.cli import main; main()", *words], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **kw)


@POSIX
def test_the_commands_serve_and_end(tmp_path):
    (tmp_path/"hung_of_the_test.py").write_text(HUNG)
    (tmp_path/"tasks.yaml").write_text("hung:\n  module: hung_of_the_test.Hung\n  port: 0\n")
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(ROOT))]))
    controller = command("serve-controller", "--port", "0")
    worker = None
    try:
        url = controller.stdout.readline().split()[2]
        controller.stdout.readline()
        worker = command("serve-task", str(tmp_path/"tasks.yaml"), "--controller", f"{url}/api", env=env)
        assert "serving hung at http://127.0.0.1:" in worker.stdout.readline()
        worker.stdout.readline()
        assert waited(lambda: "hung" in httpx.get(f"{url}/api/list_workers").json())
        with TaskClient("hung", f"{url}/api") as client: assert client.run_sample("plain", lambda *_: "x").status.value == "completed"
        for process, word in ((worker, "all sessions are closed"), (controller, "ended")):
            process.send_signal(signal.SIGTERM)
            assert word in process.communicate(timeout=60)[0]
            assert process.returncode == 0
    finally:
        for process in filter(None, (worker, controller)): process.kill()


# Behind a controller

def test_a_client_behind_a_controller(served):
    with serve_controller() as (controller, url):
        assert heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices).status_code == 200
        with TaskClient("scripted", f"{url}/api", wait_s=.2) as client:
            outputs = [client.run_sample(index, lambda *_: "x") for index in ("plain", "rewards", "nan")]
            assert [o.status.value for o in outputs] == ["completed", "completed", "task error"]
            assert client.calculate_overall(outputs) == dict(done=2)
            with pytest.raises(TaskServerError, match="400: index: no sample 'nil'"): client.start("nil")
            with client.start("plain") as sample:
                with pytest.raises(TaskServerError, match="400: messages: is empty"): sample.interact([])
                assert sample.interact("y").messages  # the refused request took no number
                twice = client.ask("POST", "/interact", dict(session_id=sample.id, messages=says("y")), sample.number)
                assert twice["messages"] == sample.turn.messages and served.task.acts.count("y") == 1
            started = dict(name="scripted", index="plain", session_id=5)
            assert [client.ask("POST", "/start_sample", started, 1)["session_id"] for _ in range(2)] == [5, 5]
            assert served.status()["current"] == 1
            assert client.ask("POST", "/cancel_all", {})["cancelled"] == [5]
            assert waited(lambda: served.status()["current"] == 0) and not controller.list_sessions()


def test_a_controller_learns_of_sessions_that_ended(served):
    with serve_controller(sync_s=.2) as (controller, url):
        heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices)
        with TaskClient("scripted", f"{url}/api") as client:
            sample = client.start("plain")
            ask(served, "cancel", session_id=sample.id)
            assert waited(lambda: not controller.list_sessions())
            with pytest.raises(SampleLost, match="its worker has ended it"): sample.interact("x")


def test_a_client_that_reads_the_header_and_the_flat_reply(served):
    "As AgentRL's trainer does: the session's number is in the header only, both ways."
    with serve_controller() as (_, url), httpx.Client(base_url=f"{url}/api") as http:
        heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices)
        answer = http.post("start_sample", json=dict(name="scripted", index="rewards"))
        turns = [answer.json()]
        while not turns[-1]["finish"]:
            turns.append(http.post("interact", json=dict(messages=says("x")), headers=dict(session_id=answer.headers["session_id"])).json())
        assert [t["reward"] for t in turns] == [.75, .75, .75, 0] and turns[0]["metrics"] == dict(a=1, score=.9)


class Stub:
    "A worker that answers each request with the same bytes, or closes without a word; in this loop."
    def __init__(self, answer): self.answer, self.asked = answer, []
    async def __aenter__(self):
        async def serve(read, write):
            while head := await read.readuntil(b"\r\n\r\n"):
                self.asked.append(head)
                if size := [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]: await read.readexactly(int(size[0][15:]))
                if not self.answer: return write.close()
                if self.answer == "never": await asyncio.Event().wait()
                write.write(self.answer)
        async def ended(read, write):
            try: await serve(read, write)
            except (asyncio.IncompleteReadError, ConnectionError): write.close()
        self.server = await asyncio.start_server(ended, "127.0.0.1", 0)
        return ServedWorker(0, f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}", 1000)
    async def __aexit__(self, *_): self.server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=b\r\n\r\n{}"


@pytest.mark.parametrize("answer, status, why", [
    (OK, 200, {}), (OK.replace(b"{}", b"[1"), 200, "[1"), (OK.replace(b"200 OK", b"418 No"), 418, "{}"),
    (OK.replace(b"200 OK", b"302 Found\r\nLocation: http://127.0.0.1:1/"), 302, "{}"),  # is not followed
    (b"HTTP/1.1 406 No\r\nContent-Length: 18\r\n\r\n{\"detail\": \"full\"}", 406, "full"),
    (b"", 502, "does not answer"), (b"hello\r\n\r\n", 502, "does not answer"), ("never", 502, "does not answer")])
def test_what_a_worker_answers_is_told_whatever_it_is(answer, status, why, monkeypatch):
    "Proxies of the environment are not asked for a worker."
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"): monkeypatch.setenv(name, "socks5://127.0.0.1:1" if "all" in name.lower() else "http://127.0.0.1:1")
    async def ask():
        controller = TaskController(access=Access("sesame"), turn_s=.5 if answer == "never" else 60.)
        async with _connected(controller), (stub := Stub(answer)) as worker:
            try: return 200, await controller.call(worker, "/interact", dict(messages=["x"*3_000_000]), number=7), stub.asked
            except Refusal as e: return e.status, str(e), stub.asked
    got, words, asked = asyncio.run(ask())
    assert got == status and (words == why if status == 200 else why in words)
    assert b"Bearer sesame" in asked[0] and b"X-Oaml-Number: 7" in asked[0] and b"Content-Length: 3000017" in asked[0]


def test_relaying_costs_the_same_with_many_sessions():
    "Counted in calls of Python functions, which no other process changes."
    async def calls_each(sessions, rounds=5):
        counted = 0
        def count(frame, event, arg):
            nonlocal counted
            counted += event == "call"
        controller = TaskController()
        async with _connected(controller), Stub(OK) as worker:
            async def session(n):
                for _ in range(n): await controller.call(worker, "/interact", {})
            await asyncio.gather(*(session(1) for _ in range(sessions)))  # connections are made
            sys.setprofile(count)
            try: await asyncio.gather(*(session(rounds) for _ in range(sessions)))
            finally: sys.setprofile(None)
        return counted/sessions/rounds
    few, many = asyncio.run(calls_each(4)), asyncio.run(calls_each(200))
    assert many < 1.5*few, (few, many)


def test_nobodys_proxy_stands_between(monkeypatch):
    "Client, controller and worker on this machine, where every proxy of the environment is dead or of a kind that needs a package."
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for n in (name, name.upper()): monkeypatch.setenv(n, "socks5h://127.0.0.1:1")
    with serve_controller() as (controller, url), serve_task(Scripted(), controller=f"{url}/api"), TaskClient("scripted", f"{url}/api") as client:
        assert waited(lambda: "scripted" in controller.tasks)
        assert client.run_sample("plain", lambda *_: "x").result == 2


# Every accident at random, and nothing left

@LINUX
@pytest.mark.parametrize("isolation, sessions, first", [("none", 150, 100), ("process", 16, 24)])  # the first ones are more at once
def test_nothing_is_left_behind(isolation, sessions, first):
    import service
    found = service.leaks(sessions, isolation, first)
    assert not found["left"], found
    assert found["status"] == dict(concurrency=48, current=0, abandoned=0)
    assert not any(found["kinds"].get(wrong) for wrong in ("acts not as many as asked", "repeats that differ", "raising or hanging tasks without a task error")), found


@LINUX
@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no redis-server; apt-get install redis-server")
def test_killed_workers_and_leased_environments_leave_nothing():
    "A small sample of what bench/soak_service.py does ten thousand times."
    import soak_service
    folder = Path(tempfile.mkdtemp(prefix="oaml-k"))  # a socket's path has 108 characters
    with soak_service.redis_server(folder) as redis: found = soak_service.soak(40, redis, folder, at_once=16, kill_every=3.)
    shutil.rmtree(folder)
    assert found["kills"] and not soak_service.complaints(found), found


# Others' programs, unchanged: in environments of their own, named by variables

def theirs(*names):
    "The variables' values; the test is skipped if one is missing."
    missing = [n for n in names if not os.environ.get(n)]
    if missing: pytest.skip(f"{' and '.join(missing)}: not set; an environment with others' programs, see this test")
    return [os.environ[n] for n in names]


AGENTBENCH = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
package = types.ModuleType("src.client")  # its own __init__ wants fastchat
package.__path__ = [sys.argv[1] + "/src/client"]
sys.modules["src.client"] = package
from src.client.task import TaskClient
class Agent:
    def inference(self, history): return "heard " + history[-1]["content"]
client = TaskClient("scripted", sys.argv[2])
output = client.run_sample("plain", Agent())
print(json.dumps([client.get_indices(), client.get_concurrency(), json.loads(output.json()), client.calculate_overall([output.output])], default=str))
"""


def test_agentbenchs_client_runs_a_sample(served):
    "OAML_AGENTBENCH: AgentBench v0.2's checkout; OAML_AGENTBENCH_PYTHON: a Python with pydantic 1, requests and numpy."
    folder, python = theirs("OAML_AGENTBENCH", "OAML_AGENTBENCH_PYTHON")
    with serve_controller() as (_, url):
        heartbeat(url, name="scripted", address=served.address, concurrency=4, indices=served.indices)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        run = subprocess.run([python, "-c", AGENTBENCH, folder, f"{url}/v0.2/api"], capture_output=True, text=True, timeout=120, env=env)
    assert run.returncode == 0, run.stderr
    indices, free, output, overall = json.loads(run.stdout.splitlines()[-1])
    assert indices == served.indices and free == 4
    assert output["error"] is None and output["output"]["status"] == "completed" and output["output"]["result"] == 2
    assert [m["role"] for m in output["output"]["history"]] == ["user", "agent"]*3
    assert overall["custom"] == dict(done=1) and served.task.acts == ["heard 0", "heard 1", "heard 2"]


def test_agentrls_worker_serves_behind_our_controller():
    "OAML_AGENTRL_PYTHON: a Python with agentrl-worker 0.4."
    python, = theirs("OAML_AGENTRL_PYTHON")
    import service
    with serve_controller() as (controller, url), service.theirs(python, f"{url}/api"):
        assert waited(lambda: "echo" in controller.tasks, 60)
        with TaskClient("echo", f"{url}/api") as client:
            with client.start(3) as sample:
                assert sample.turn.tools == service.TOOLS
                assert sample.interact("hello").messages == [dict(role="user", content="hello")]
                assert sample.turn.reward == .5
                assert sample.interact("end").finish
            with client.start(4): pass
        assert not controller.list_sessions()
