"What a session may say: answers for their own sentence alone, a verdict made of criteria, films that are looked at, records that answer again."
import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from oaml.prompt2policy.contracts import ElicitedCriterion, SessionConfig, StartSessionRequest
from oaml.prompt2policy.engines import MUJOCO_ENVS, EngineError, MujocoEngine, missing_mujoco, obs_names
from oaml.prompt2policy.jail import missing_jail
from oaml.prompt2policy.llm import RecordedLLM, ScriptedLLM, SCRIPTED_ANSWERS, prepared_answers
from oaml.prompt2policy.loop import LineLab, get_lab, new_session, run_session_folder

pytestmark = pytest.mark.skipif(missing_jail() is not None, reason=f"no jail: {missing_jail()}")
needs_mujoco = pytest.mark.skipif(missing_mujoco() is not None, reason=f"{missing_mujoco()}")
REQUEST = StartSessionRequest(prompt="go right", env_id="line", llm="scripted", max_iterations=2)
SEEN = "moves right: np.mean(x_velocity) >= 1.4 m/s\nkeeps its temper: seen it does not shake"


class Server:
    "An OpenAI-compatible server whose answers a person wrote; `look` is its verdict on every film. It is no model. It keeps what it was sent."
    def __init__(self, look="met", tools=True): self.look, self.tools, self.sent, self.keys = look, tools, [], []
    def __enter__(self):
        outer, script = self, ScriptedLLM(SCRIPTED_ANSWERS/"line.yaml")
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked, name = json.loads(self.rfile.read(int(self.headers["content-length"]))), self.headers["x-oaml-call"]
                outer.sent.append((name, asked))
                outer.keys.append(self.headers.get("authorization"))
                if not outer.tools and "tools" in asked: return self.say(400, dict(error=dict(message="this model does not support tools")))
                if "look" in name:
                    titles = [line[2:].partition(":")[0] for line in str(asked["messages"][-1]["content"]).replace("\\n", "\n").partition("Criteria:")[2].splitlines() if line.startswith("- ")]
                    calls = [("submit_look", dict(criteria=[dict(title=t, evidence="as the film shows", verdict=outer.look) for t in titles], diagnosis="looked"))]
                elif "join" in name: calls = [("submit_synthesis", dict(rule="between", score=.9, diagnosis="."))]
                else: calls = [(c.name, c.input) for c in script.reply(name, None).calls]
                message = dict(role="assistant", content=None, tool_calls=[dict(id=str(k), type="function", function=dict(name=n, arguments=json.dumps(i))) for k, (n, i) in enumerate(calls)])
                if not outer.tools: message = dict(role="assistant", content="\n".join(f"```json\n{json.dumps(dict(tool=n, input=i))}\n```" for n, i in calls))
                self.say(200, dict(id="x", object="chat.completion", created=0, model="hand", usage=dict(prompt_tokens=9, completion_tokens=1, total_tokens=10),
                                   choices=[dict(index=0, finish_reason="stop", message=message)]))
            def say(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            def log_message(self, *_): pass
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        return self
    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def judged(session): return session.iteration_records()[-1].read_judgment()


def test_a_prepared_answer_is_for_its_own_sentence_and_environment(tmp_path):
    "By command, by route, in a table, and by a file of one's own: any other sentence is refused with the way to a model, and leaves no folder."
    from oaml.devices.daemon import Refusal
    from oaml.prompt2policy.api import P2PService
    from oaml.scripts.cli import app
    from oaml.scripts.p2p import benchmark_p2p
    from typer.testing import CliRunner
    run = CliRunner().invoke(app, ["p2p", "run", "go left", "--env", "line", "--runs-dir", str(tmp_path)])
    assert run.exit_code == 2 and all(w in run.output for w in ("go left", "ollama:MODEL", "oaml p2p models")), run.output
    for llm, model in (("scripted", ""), ("scripted", str(SCRIPTED_ANSWERS/"line.yaml"))):
        with pytest.raises(Refusal, match="no answers are prepared for 'go left' on line"):
            P2PService(tmp_path).start_session(REQUEST.model_copy(update=dict(prompt="go left", llm=llm, model=model)))
    with pytest.raises(Refusal, match="did you mean 'line'"): P2PService(tmp_path).start_session(REQUEST.model_copy(update=dict(env_id="lime")))
    assert not list(tmp_path.iterdir())
    (tmp_path/"cases.csv").write_text("prompt\ngo right\ngo left\n")
    rows = benchmark_p2p(tmp_path/"cases.csv", tmp_path, say=lambda line: None, env="line", iterations=2)
    assert [(r["status"], r.get("passed")) for r in rows] == [("completed", True), ("error", None)] and "no answers are prepared" in rows[1]["error"]


def test_each_prepared_answer_is_found_by_its_sentence():
    from oaml.prompt2policy.llm import find_prepared
    found = prepared_answers()
    assert len({a.env_id for a in found}) >= 10
    for a in found:
        assert all(find_prepared(p.upper() + ".", a.env_id).path == a.path for p in a.prompts) and a.prompts
        criteria = [ElicitedCriterion(**c) for c in a.answers["elicitor-*"]["submit_criteria"]["criteria"]]
        assert all(c.measure for c in criteria if c.default_on) and any(c.default_on for c in criteria), a.path


@pytest.mark.parametrize("look, passed, verdict", [("met", True, "met"), ("not", False, "unmet"), ("unknown", False, "not seen")])
def test_what_has_to_be_seen_is_looked_at_on_every_seed_and_again(tmp_path, monkeypatch, look, passed, verdict):
    "Score and speed are alike; the films decide, and the confirmation looks, too."
    png = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
    monkeypatch.setattr(LineLab, "frames", lambda self, run, episode=0, confirm=False: [png])
    with Server(look) as server:
        session = new_session(tmp_path, REQUEST.model_copy(update=dict(film_llm=f"openai:eye@{server.url}", criteria=SEEN)))
        result = run_session_folder(session)
    found = judged(session)
    assert result.status == "completed" and result.passed is passed, session.read_status().error
    assert [c.verdict for c in found.criteria][1] == verdict and found.judge == "code + eye"
    looked = [name for name, _ in server.sent if name.startswith("iter_2-look")]
    again = [name for name, _ in server.sent if name.startswith("iter_2-confirm_look")]
    assert len(looked) == 9 and len(again) == (9 if passed else 0) and "eye looked at" in found.looked
    if not passed: assert found.diagnosis.startswith("Vetoed: ")


def test_nobody_looked_is_no_pass(tmp_path):
    session = new_session(tmp_path, REQUEST.model_copy(update=dict(criteria=SEEN)))
    assert run_session_folder(session).passed is False
    found = judged(session)
    assert found.intent_score > .7 and found.criteria[1].verdict == "not seen" and "nobody looked" in found.looked
    scripted = new_session(tmp_path, REQUEST.model_copy(update=dict(film_llm="scripted")), "session_two")
    run_session_folder(scripted)
    assert "cannot look at a film" in scripted.read_status().error


def test_the_wrong_way_is_refused_by_a_named_criterion(tmp_path):
    "A judge that likes any speed is sent back; one that was taken is overruled by the numbers."
    import yaml
    script = yaml.safe_load((SCRIPTED_ANSWERS/"line.yaml").read_text())
    left = "def reward_fn(obs, action, next_obs, info):\n    v = -info['x_velocity']\n    return v, {'left': v}\n"
    script["answers"]["reward-author-*"]["submit_reward"]["code"] = left
    (tmp_path/"left.yaml").write_text(yaml.safe_dump(script, sort_keys=False))
    session = new_session(tmp_path, REQUEST.model_copy(update=dict(model=str(tmp_path/"left.yaml"), max_iterations=1)))
    assert run_session_folder(session).passed is False
    assert {c.title: c.verdict for c in judged(session).criteria} == {"moves right": "unmet", "is fast": "unmet"}
    script["answers"]["judge-author-*"]["submit_judge"]["code"] = "def judge_fn(t):\n    v = abs(float(np.mean(t['x_velocity'])))\n    return {'intent_score': min(1., v/2), 'diagnosis': f'{v:.2f}'}\n"
    (tmp_path/"lax.yaml").write_text(yaml.safe_dump(script, sort_keys=False))
    lax = new_session(tmp_path, REQUEST.model_copy(update=dict(model=str(tmp_path/"lax.yaml"))), "session_lax")
    run_session_folder(lax)
    assert "judge-fix_1-1" in lax.read_status().error and "does not meet the criteria" in (lax.path/"llm").joinpath("judge-review_1-1.json").read_text() + "does not meet the criteria"


def test_a_model_without_tools_and_a_key_that_stays_at_home(tmp_path, monkeypatch):
    "The whole session in text; OpenAI's key is not shown to another server."
    monkeypatch.setenv("OPENAI_API_KEY", "the-key-of-openai")
    with Server(tools=False) as server:
        session = new_session(tmp_path, REQUEST.model_copy(update=dict(llm="openai", model=f"small@{server.url}", film_llm="none")))
        result = run_session_folder(session)
    assert (result.status, result.passed) == ("completed", True), session.read_status().error
    assert not any("the-key-of-openai" in str(k) for k in server.keys)
    assert json.loads((session.path/"llm/reward-author-1.json").read_text())["reply"]["form"] == "text"


def test_a_recorded_session_answers_again_to_its_end(tmp_path):
    "Judge's name and score are the same; a call that is not recorded is named."
    with Server() as server:
        first = new_session(tmp_path, REQUEST.model_copy(update=dict(llm="openai", model=f"hand@{server.url}")), "session_first")
        run_session_folder(first)
    again = new_session(tmp_path, REQUEST.model_copy(update=dict(llm="recorded", model=str(first.path))), "session_again")
    result = run_session_folder(again)
    assert (result.status, result.passed, result.llm) == ("completed", True, "recorded"), again.read_status().error
    assert judged(again) == judged(first)
    (first.path/"llm/iter_1-reviser-2.json").unlink()
    short = new_session(tmp_path, REQUEST.model_copy(update=dict(llm="recorded", model=str(first.path))), "session_short")
    run_session_folder(short)
    assert short.read_status().error.startswith("iter_1-reviser-2: has no record in")
    asked = RecordedLLM(first.path)
    assert asked.model.startswith("hand")


@needs_mujoco
@pytest.mark.parametrize("env_id", MUJOCO_ENVS)
def test_the_author_is_told_every_index(env_id):
    "Each number of obs and qpos has a name; where the name is of qpos or qvel, the number is that one."
    env = MujocoEngine().make(env_id)
    names, info = obs_names(env), MujocoEngine().describe(env_id)
    u = env.unwrapped
    assert len(names) == env.observation_space.shape[0] and not any(n.startswith("entry") for n in names), names
    assert all(f"qpos[{k}]: " in info.body for k in range(u.model.nq)) and all(f"qvel[{k}]: " in info.body for k in range(u.model.nv))
    assert all(f"action[{k}]: motor" in info.body for k in range(u.model.nu)) and "Time: " in info.body and "xpos[k]" in info.body
    env.reset(seed=3)
    for _ in range(3): obs = env.step(env.action_space.sample()*.1)[0]
    for k, name in enumerate(names):
        if name.startswith(("qpos[", "qvel[")) and "within" not in name:
            at = int(name[5:name.index("]")])
            assert abs(obs[k] - np.clip(getattr(u.data, name[:4])[at], *((-10, 10) if env_id.startswith(("Hopper", "Walker")) and name[1] == "v" else (-1e9, 1e9)))) < 1e-6, (k, name)


@needs_mujoco
def test_an_environment_of_ones_own_and_arguments(tmp_path, monkeypatch):
    "MODULE:ID with a dict to see and numbered actions; terminate_when_unhealthy=False; a wrong argument is named."
    (tmp_path/"own_envs.py").write_text("""
import gymnasium as gym
import numpy as np
class Own(gym.Env):
    observation_space = gym.spaces.Dict(place=gym.spaces.Box(-9, 9, (2,), np.float64), goal=gym.spaces.Box(-9, 9, (1,), np.float64))
    action_space = gym.spaces.Discrete(3)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x = np.zeros(2)
        return dict(place=self.x, goal=np.ones(1)), {}
    def step(self, action):
        self.x = self.x + [action - 1, .1]
        return dict(place=self.x, goal=np.ones(1)), 0., False, False, dict(is_success=bool(self.x[0] > 3), note="text")
gym.register("Own-v0", Own, max_episode_steps=12)
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    lab = get_lab(SessionConfig(prompt="x", env_id="own_envs:Own-v0", session_id="s", created_at=0.))
    assert "entry 0 of goal" in lab.env.body and "is_success" in lab.env.info_keys
    assert [len(t["action"]) for t in lab.trials()][:2] == [12, 1] and lab.trials()[0]["obs"].shape == (12, 3)
    hopper = lambda **kwargs: get_lab(SessionConfig(prompt="x", env_id="Hopper-v5", env_kwargs=kwargs, session_id="s", created_at=0.))
    assert len(hopper(terminate_when_unhealthy=False).played["do-nothing"]["action"]) == 1000
    with pytest.raises(EngineError, match="gymnasium cannot make it"): hopper(legs=3)
    with pytest.raises(ValueError, match="env_kwargs: line takes none"): get_lab(SessionConfig(prompt="x", env_id="line", env_kwargs=dict(a=1), session_id="s", created_at=0.))
