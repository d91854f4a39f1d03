"Hosted models: the same results as in process, nothing paid twice after a kill, and no key anywhere."
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import pytest

for needed in ("openai", "anthropic"): pytest.importorskip(needed, reason='needs pip install "oaml[api]"')
for needed in ("starlette", "uvicorn"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')

import httpx2
import openai
from threadpoolctl import threadpool_limits

from oaml.datasets.prompts import PromptFormat
from oaml.runtime.agents import PolicyAgent
from oaml.evals.hosted import load_hosted
from oaml.evals.suites import evaluate_suite
from oaml.models.api_adapter import ApiError, ApiVLMAdapter
from oaml.models.interface import VLMAdapter
from oaml.runtime.policy import AgentPolicy, load_policy
from oaml.scripts.serve_model import lend_model

KEY = "sk-very-secret-0123456789"


class Clerk(VLMAdapter):
    "A slow model of no skill: it waits, and is done after some waits, by the goal's length. Counts what it answers."
    def __init__(self, seconds): self.seconds, self.asked, self.prompt_format = seconds, 0, asdict(PromptFormat(history=9))

    def generate_batch(self, samples, *how):
        time.sleep(self.seconds)
        self.asked += len(samples)
        prompts = [s["messages"][-1]["content"] for s in samples]
        return ["DONE()" if text.count("WAIT") > 2 + len(text.partition("\n")[0]) % 3 else "WAIT()" for text in prompts]


class OneByOne:
    "An agent that is asked about one episode at a time: what is drawn depends on its place in a batch."
    def __init__(self, agent): self.agent, self.name = agent, agent.name
    def act(self, views): return [self.agent.act([v])[0] for v in views]


@pytest.fixture(scope="module")
def nano():
    with threadpool_limits(1, "blas"): yield load_policy("nano").adapter  # threads that wait for each other cost more


def environment(folder):
    "Without keys and proxies of whoever runs the tests; `folder` has the `.env`."
    (folder/".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    variables = {k: v for k, v in os.environ.items() if not k.upper().endswith(("_API_KEY", "_PROXY", "_BASE_URL"))}
    return variables | dict(PYTHONUTF8="1")


def command(url, *words):
    "`oaml eval` of the lent nano, for one application."
    return [
        sys.executable, "-c", "from oaml.scripts.cli import main; main()", "eval", "--agent", "openai:nano", "--base-url", url,
        "--split", "validation", "--out", "results.json", *words]


def figures(rows):
    "Rows without the names of agents, and without what only hosted models have."
    return [{k: v for k, v in r.items() if k not in ("agent", "input_tokens", "cached_tokens", "output_tokens", "cost")} for r in rows]


def test_nano_over_the_network_gives_the_results_of_nano(nano, tmp_path):
    "The command, a real HTTP server and the SDK between: equal rows, and equal actions in every episode."
    with lend_model(nano) as url:
        done = subprocess.run(command(url, "--episodes", "3", "--suite", "login-v1"), cwd=tmp_path, env=environment(tmp_path),
                              capture_output=True, text=True)
        assert not done.returncode, done.stderr
        here, _ = evaluate_suite(OneByOne(PolicyAgent(AgentPolicy(nano), "nano")), "login-v1", 3, "validation")
    rows = json.loads((tmp_path/"results.json").read_text())
    assert figures(rows) == figures(here) and rows[-1]["agent"] == "openai:nano"
    assert rows[-1]["success"] > .5  # a wrong prompt format gives 0
    answers = list((tmp_path/"results.answers").glob("*.json"))
    assert len(answers) == 3 and KEY not in "".join([done.stdout, done.stderr, *(f.read_text() for f in answers)])


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_evaluation_pays_no_answer_twice(tmp_path):
    "Killed after some answers, then resumed: the rows of an unbroken run; only what was under way is asked again."
    whole, broken = Clerk(0), Clerk(.05)
    with lend_model(whole) as url:
        run = evaluate_suite(load_hosted("openai:nano", base_url=url), "login-v1", 5, "validation")[0]
    words = "--episodes", "5", "--concurrency", "2"
    with lend_model(broken) as url:
        first = subprocess.Popen(command(url, *words), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL)
        while broken.asked < 12 and first.poll() is None: time.sleep(.01)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL  # it was killed, not done
        stored = [len(json.loads(f.read_text())["answers"]) for f in (tmp_path/"results.answers").glob("*.json")]
        assert sum(stored) > 0
        refused = subprocess.run(command(url, *words), cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
        assert refused.returncode == 2 and "go on with --resume" in refused.stderr
        resumed = subprocess.run(command(url, *words, "--resume"), cwd=tmp_path, env=environment(tmp_path), capture_output=True,
                                 text=True)
    assert not resumed.returncode, resumed.stderr
    assert json.loads((tmp_path/"results.json").read_text()) == run
    assert whole.asked <= broken.asked <= whole.asked + 2  # two were under way


def test_no_key_in_what_is_written_or_printed(tmp_path, monkeypatch):
    "A server that sends the key back in its error, and the folder of a run that was cut by it."
    class Echo:
        "Stands in for a server: one answer, then an error with the key that it was sent."
        asked = 0
        def __call__(self, request):
            self.asked += 1
            if self.asked > 1: return httpx2.Response(400, json=dict(error=dict(message=f"bad {request.headers['authorization']}")))
            return httpx2.Response(200, json=dict(id="c", object="chat.completion", created=0, model="stand-in", choices=[
                dict(index=0, finish_reason="stop", message=dict(role="assistant", content="WAIT()"))]))
    agent = load_hosted("openai:stand-in", tmp_path/"answers", api_key=KEY, transport=httpx2.MockTransport(Echo()), concurrency=1)
    with pytest.raises(ApiError, match=r"bad Bearer \*\*\*") as error: evaluate_suite(agent, "login-v1", 2, "validation")
    assert error.value.__suppress_context__
    files = list((tmp_path/"answers").iterdir())
    assert files and not [f for f in files if KEY in f.read_text()]
    assert KEY not in repr(agent.adapter) + repr(vars(agent.adapter)) + repr(vars(agent))


def test_a_key_is_needed_unless_the_server_is_ones_own(monkeypatch):
    monkeypatch.setattr("oaml.config.settings", type("None", (), dict(openai_api_key=None, anthropic_api_key=None))())
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"): monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY is not set: write"): ApiVLMAdapter("openai", "m")
    with pytest.raises(ApiError, match="is the server running"):
        ApiVLMAdapter("openai", "m", base_url="http://127.0.0.1:9/v1", max_retries=0)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ValueError, match="would show the key to the network"): ApiVLMAdapter("openai", "m", base_url="http://gpu-box/v1")


def test_the_adapter_needs_no_torch():
    code = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # an import of them raises
import oaml.config, oaml.scripts.serve_model
from oaml.models.api_adapter import ApiVLMAdapter
print(ApiVLMAdapter("anthropic", "stand-in", api_key="not-a-key"))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("ApiVLMAdapter(anthropic:stand-in, dsl,"), done.stderr


def test_all_parts_of_an_answer_are_steps_and_paid_once(tmp_path):
    "Computer use answers with a text of two lines, two waits and the end: the model is asked once, and again after the last part."
    calls = [dict(type="type", text="ada\nsecret"), dict(type="wait"), dict(type="wait")]
    class StandIn:
        "Stands in for a server: calls of several parts, then words."
        asked = []
        def __call__(self, request):
            self.asked.append(json.loads(request.content))
            output = ([dict(type="computer_call", id="c", call_id="c", status="completed", pending_safety_checks=[], actions=calls)] if "WAIT(); WAIT()" not in request.content.decode() else
                      [dict(type="message", id="m", role="assistant", status="completed", content=[dict(type="output_text", text="Done.", annotations=[])])])
            return httpx2.Response(200, json=dict(id="r", object="response", created_at=0, model="stand-in", status="completed", output=output, parallel_tool_calls=False,
                                                  tool_choice="auto", tools=[], usage=dict(input_tokens=30, output_tokens=4, total_tokens=34)))
    from oaml.devices.app_device import AppDevice
    from oaml.runtime.agents import view_of
    from oaml.evals.closed_loop import run_episodes
    from oaml.devices.episode import EpisodeDriver
    server = StandIn()
    agent = load_hosted("openai:stand-in", dialect="native", api_key=KEY, transport=httpx2.MockTransport(server), concurrency=1, prices="input=1,output=1")
    [outcome] = run_episodes(agent, lambda: AppDevice("login"), [1_000_000])
    assert [repr(a) for a in outcome.actions] == ['TYPE(text="ada\\nsecret")', "WAIT()", "WAIT()", "DONE()"]
    assert len(server.asked) == 2 and (agent.budget.spent.input, agent.budget.spent.output) == (60, 8)
    assert "WAIT(); WAIT()" in json.dumps(server.asked[1]) and 'ada' in json.dumps(server.asked[1])
    drivers = [EpisodeDriver(AppDevice("login")) for _ in range(2)]  # of one goal, told apart
    for d in drivers: d.reset(1_000_000)
    for k in range(4):
        for d in drivers: d.act(agent.act([view_of(d)])[0])
    assert [len(d.actions) for d in drivers] == [4, 4] and len(server.asked) == 6


@pytest.mark.parametrize("message", [dict(content=None), dict(content=[dict(type="text", text="DONE()")]), dict(content="x \ud800"), dict(content="", tool_calls=None), None])
def test_odd_replies_are_answers_or_plain_errors(message):
    "Nulls, lists of parts, half a surrogate pair; no message at all is the server's error, in words."
    reply = dict(id="c", object="chat.completion", created=0, model="stand-in", usage=dict(prompt_tokens=None, completion_tokens=None, total_tokens=None),
                 choices=[dict(index=0, finish_reason="stop", message=message and dict(role="assistant") | message)])
    adapter = ApiVLMAdapter("openai", "m", api_key=KEY, transport=httpx2.MockTransport(lambda request: httpx2.Response(200, content=json.dumps(reply), headers={"content-type": "application/json"})))
    sample = dict(images=[load_screen()], messages=[dict(role="user", content="Goal: Log in.")])
    if message is None:
        with pytest.raises(ApiError, match="sent a reply of another form than openai's"): adapter.ask(sample)
    else: adapter.ask(sample).text.encode()


def load_screen():
    "A screen."
    from oaml.devices.app_device import AppDevice
    return AppDevice("login").reset(1_000_000).image


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5h://127.0.0.1:1"])
def test_no_proxy_stands_before_a_server_on_this_machine(proxy, monkeypatch):
    "Every proxy of the environment is dead, or of a kind that needs a package; the address comes as an argument, or from the SDK's variable."
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for n in (name, name.upper()): monkeypatch.setenv(n, proxy)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self): self.send_error(404)
        def log_message(self, *_): pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            assert not ApiVLMAdapter("openai", "m", base_url=url).served_by_oaml  # it was asked, and has no such page
            monkeypatch.setenv("OPENAI_BASE_URL", url)
            with pytest.raises(openai.NotFoundError): ApiVLMAdapter("openai", "m", KEY).client.models.retrieve("m")
        finally: server.shutdown()


def test_a_demonstration_goes_into_each_prompt(tmp_path):
    "`oaml act --agent openai:... --like`: the words of the most similar demonstration, and no other question than before without one."
    from oaml.datasets.demonstrations import from_yaml, write
    from oaml.evals.closed_loop import run_episodes
    from oaml.devices.app_device import AppDevice
    shown = from_yaml("demonstration: 1\ngoal: Sign in as {user}.\nvalues: {user: ada}\nsteps:\n- {do: enter, what: {role: textbox, name: User name}, value: '{user}', source: goal}\n")
    asked = []
    def answer(request):
        asked.append(request.content.decode())
        reply = dict(id="c", object="chat.completion", created=0, model="stand-in", choices=[dict(index=0, finish_reason="stop", message=dict(role="assistant", content="DONE()"))])
        return httpx2.Response(200, content=json.dumps(reply), headers={"content-type": "application/json"})
    agent = load_hosted("openai:stand-in", api_key=KEY, transport=httpx2.MockTransport(answer), concurrency=1)
    for demonstrations in ([shown], []):
        agent.show(demonstrations)
        run_episodes(agent, lambda: AppDevice("login"), [1_000_000])
    assert all(json.dumps(line)[1:-1] in asked[0] and json.dumps(line)[1:-1] not in asked[1] for line in write(shown).splitlines()[1:])
