"A sentence becomes a policy in an application: what rewards and judges are given, what replay refuses, one real update, and what is on record."
import json

import pytest
import yaml

from oaml.prompt2policy.contracts import AuditRecord, StartSessionRequest
from oaml.prompt2policy.engines import EngineError, GuiEngine, env_preset
from oaml.prompt2policy.gui_agents import did_task, gui_agents, gui_trajectory, episodes_of_agents, play_agent, study_gui_judge
from oaml.prompt2policy.jail import missing_jail
from oaml.prompt2policy.judges import JudgeStudy
from oaml.prompt2policy.llm import SCRIPTED_ANSWERS
from oaml.prompt2policy.loop import new_session, open_loop, run_session_folder
from oaml.prompt2policy.records import IterationRecord, read_record

pytestmark = pytest.mark.skipif(missing_jail() is not None, reason=f"no jail: {missing_jail()}")
PROMPT = "log in without pressing Forgot"
LAX = """
def judge_fn(trajectory):
    return {"intent_score": 1.0 if trajectory["action"][-1]["type"] == "done" else 0.0, "diagnosis": "DONE was said, or not"}
"""
SEEN = {"role", "name", "value", "checked", "focused", "box"}


def answers(env): return yaml.safe_load((SCRIPTED_ANSWERS/f"gui_{env}.yaml").read_text())
def judge_of(env): return answers(env)["answers"]["judge-author-*"]["submit_judge"]["code"]
def request(**changes): return StartSessionRequest(**dict(prompt=PROMPT, env_id="gui:login", llm="scripted", max_iterations=1, seeds=[1]) | changes)


@pytest.mark.parametrize("env", ["gui:login", "gui:settings", "gui:mail", "gui:files"])
def test_rewards_and_judges_get_what_a_person_sees(env):
    "No ids of widgets, no state of the application, no word of success; every value is plain."
    episode = play_agent(env, "oracle", 100).stored("oracle")
    given = gui_trajectory(episode)
    json.dumps(given, allow_nan=False)
    assert set(given) == {"obs", "action", "next_obs", "step", "effect"} and episode.truth["success"] == 1
    for screen in given["obs"] + given["next_obs"]:
        assert set(screen) == {"goal", "elements"} and all(set(e) == SEEN for e in screen["elements"])
    assert all(s.info.keys() == {"step", "effect"} for s in episode.steps)


@pytest.mark.parametrize("env", ["login", "settings"])
def test_a_written_judge_agrees_with_the_truth_and_a_lax_one_is_named(env):
    episodes = episodes_of_agents(f"gui:{env}", 12)
    assert {e.agent for e in episodes} == set(gui_agents(f"gui:{env}")) and len(episodes) == 60
    assert all(did_task(e) for e in episodes if e.agent == "oracle")
    assert study_gui_judge(judge_of(env), episodes).verdict == "sound"
    lax = study_gui_judge(LAX, episodes)
    assert lax.verdict == "lax" and lax.passed_undone > 12 and lax.failed_done == 0 and "that did not do the task" in lax.sentence


@pytest.mark.parametrize("env, words", [("login", "spammer earns 20 an episode, oracle only 3"), ("settings", "spammer earns 22.5 an episode, oracle only 1:")])
def test_a_planted_reward_is_refused_before_training(tmp_path, env, words):
    session = new_session(tmp_path, request(env_id=f"gui:{env}", prompt=answers(env)["prompts"][0]))
    result = run_session_folder(session)
    assert (result.status, result.passed) == ("completed", False), session.read_status().error
    iteration = IterationRecord(session.path/"iter_1")
    judgment = iteration.read_judgment()
    assert judgment.diagnosis.startswith(f"Refused before training: {words}") and judgment.failure_tags == ["refused_by_replay"]
    assert "\n" not in judgment.diagnosis and not iteration.runs() and not iteration.aggregation_path.exists()


def test_a_lax_judge_is_named_on_the_record(tmp_path):
    script = answers("login")
    script["answers"]["judge-author-*"]["submit_judge"]["code"] = LAX
    (tmp_path/"answers.yaml").write_text(yaml.safe_dump(script, sort_keys=False))
    session = new_session(tmp_path, request(model=str(tmp_path/"answers.yaml")))
    assert run_session_folder(session).status == "completed"
    assert read_record(session.path/"judge_study.json", JudgeStudy).verdict == "lax"
    assert IterationRecord(session.path/"iter_1").read_judgment().warnings[0].startswith("the judge is lax: ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A whole session: the first reward is refused, the second is trained on for one update, and judged."
    pytest.importorskip("torch", reason="nano learns with PyTorch: pip install 'oaml[train]'")
    tiny = env_preset("gui:login").model_copy(update=dict(num_envs=8, num_steps=8, eval_episodes=1))
    session = new_session(tmp_path_factory.mktemp("gui"), request(max_iterations=2, train=tiny, total_timesteps=64), "session_gui")
    result = run_session_folder(session)
    assert result.status == "completed", session.read_status().error
    return session


def test_one_update_runs_and_is_on_record(trained):
    first, second = trained.iteration_records()
    assert not first.runs() and [r.derive_status() for r in second.runs()] == ["completed"]
    run, = second.runs()
    summary, (training, evaluation) = run.read_summary(), run.parse_scalars()
    assert run.validate() == [] and second.read_aggregation().missing == []
    assert len(training) == 1 and training[0]["answers"] > 0 and abs(training[0]["loss"]) < 100
    assert [e.step for e in summary.evaluations] == [0, training[0]["step"]] == [e["step"] for e in evaluation]
    assert set(summary.terms) == {"filled", "signed_in", "forgot", "done", "step"} and summary.jail_seconds > 0
    assert (run.path/"agent/model.safetensors").exists()
    judgment = second.read_judgment()
    assert judgment.seed_scores.keys() == {"base_seed1"} and judgment.judge == "code" and not judgment.passed  # a pass takes three seeds


def test_the_weights_have_changed(trained):
    from safetensors.torch import load_file
    from oaml.nano.files import shipped_nano
    after, before = (load_file(str(p/"model.safetensors")) for p in (trained.iteration_records()[1].runs()[0].path/"agent", shipped_nano()))
    moved = [k for k in before if k in after and not before[k].float().equal(after[k].float())]
    assert moved


def test_the_audit_stays_out_of_what_was_trained_and_judged(trained):
    run = trained.iteration_records()[1].runs()[0]
    assert set(read_record(run.audit_path, AuditRecord).facts) == {"success", "reached", "steps", "forgot"}
    others = [p for p in trained.path.rglob("*.json*") if p.name != "audit.json" and "agent" not in p.parts and "llm" not in p.parts]
    assert len(others) > 10 and not [p for p in others if '"reached"' in p.read_text()]
    assert set(run.read_summary().facts) == {"steps", "said_done", "with_effect"}


def test_a_complete_run_is_not_trained_again(trained):
    lab, iteration = open_loop(trained).lab, trained.iteration_records()[1]
    before = {p: p.stat().st_mtime_ns for p in iteration.runs()[0].path.rglob("*") if p.is_file()}
    assert lab.train(iteration, [1]) == iteration.read_aggregation()
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_a_stopped_run_is_cancelled_and_begins_anew(trained, tmp_path, monkeypatch):
    from oaml.prompt2policy import gui_lab
    from oaml.prompt2policy.contracts import TrainConfig
    source, config = trained.iteration_records()[1].read_reward_source(), TrainConfig(env_id="gui:login", num_envs=2)
    def interrupted(config): raise KeyboardInterrupt
    monkeypatch.setattr(gui_lab, "NanoLearner", interrupted)
    run = IterationRecord(tmp_path/"base_seed1")
    with pytest.raises(KeyboardInterrupt): gui_lab.train_nano(run, source, config)
    assert run.derive_status() == "cancelled" and run.read_summary() is None
    assert gui_lab.train_nano(run, source, config.model_copy(update=dict(ent_coef=.1))) is None
    assert run.read_status().status == "error" and run.read_status().error.startswith("ent_coef: has no effect on gui:login")


def test_pages_show_the_film_the_refusal_and_the_audit(trained):
    import httpx
    from oaml.devices.daemon import serve_in_thread
    from oaml.prompt2policy.api import P2PService, api_routes, p2p_server
    from oaml.prompt2policy.pages import page_routes
    service = P2PService(trained.path.parent, spawn=lambda job, again: None)
    with serve_in_thread(p2p_server(api_routes(service) + page_routes(service))) as server:
        page = httpx.get(f"{server.url}/e2e/session_gui", timeout=60).text
        film = httpx.get(f"{server.url}/film/session_gui/iter_2/base_seed1", timeout=60)
        missing = [httpx.get(f"{server.url}/film/{path}", timeout=60).status_code for path in ("session_gui/iter_1/base_seed1", "session_gui/iter_2/..", "no/iter_1/a")]
    assert 'src="/film/session_gui/iter_2/base_seed1"' in page and "Audit of base_seed1" in page
    assert "Refused before training: spammer earns 20 an episode" in page and "sound: it agrees with the truth" in page
    assert (film.status_code, film.headers["content-type"], film.content[8:12]) == (200, "image/webp", b"WEBP") and missing == [404]*3


@pytest.mark.parametrize("changes, words", [
    (dict(env_id="gui:logn"), "did you mean 'gui:login'?"),
    (dict(env_id="gui:settings/togle"), "did you mean 'toggle'?"),
    (dict(env_id="gui:mail"), "no hand-written answers come with oaml for gui:mail"),
])
def test_each_bad_end_is_a_status_and_a_sentence(tmp_path, changes, words):
    session = new_session(tmp_path, request(**changes))
    run_session_folder(session)
    assert session.read_status().status == "error" and words in session.read_status().error and "\n" not in session.read_status().error


def test_every_application_is_an_environment():
    engine = GuiEngine()
    for env in engine.env_ids(): assert engine.describe(env).description
    with pytest.raises(EngineError, match="it has toggle"): engine.make("gui:settings/xyz")


def test_who_looks_sees_the_episode_that_was_played(tmp_path):
    "Its actions are done again on its own seed; pictures of the held-out and of the confirming episodes."
    from oaml.prompt2policy.contracts import SessionConfig
    from oaml.prompt2policy.gui_lab import GuiLab, held_out_seeds
    lab = GuiLab(SessionConfig(prompt=PROMPT, env_id="gui:login", session_id="s", created_at=0.))
    run, config = IterationRecord(tmp_path/"base_seed1"), env_preset("gui:login").model_copy(update=dict(eval_episodes=2))
    run.path.mkdir()
    run.save_config(config)
    for name, confirm in (("trajectory_9.jsonl", False), ("confirmation.jsonl", True)):
        plays = [gui_trajectory(play_agent("gui:login", "oracle", s).stored("oracle")) for s in held_out_seeds(config, confirm)]
        (run.path/name).write_text("".join(json.dumps(p) + "\n" for p in plays))
    first, other, again = lab.frames(run), lab.frames(run, 1), lab.frames(run, 0, confirm=True)
    assert 3 <= len(first) <= 8 and all(p.startswith(b"\x89PNG") for p in first + other + again)
    assert first[-1] != other[-1] != again[-1]


def test_an_application_of_ones_own_is_an_environment(tmp_path, monkeypatch):
    "app:MODULE:CLASS: criteria from what is visible, held against `solved`; a wrong name is a sentence, and the page loads no module."
    from oaml.devices.daemon import Refusal
    from oaml.prompt2policy.api import P2PService
    from oaml.prompt2policy.authors import parse_criteria
    from oaml.prompt2policy.contracts import RolloutJudgment
    from oaml.prompt2policy.jail import Jail
    from oaml.prompt2policy.judges import audit_text, measure_in_jail
    from oaml.prompt2policy.loop import lab_of
    from oaml.prompt2policy.gui_lab import GuiLab
    (tmp_path/"own_app.py").write_text("from oaml.apps.login import Login\nclass Door(Login):\n    name = 'door'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lab_of("app:own_app:Door/login") is GuiLab
    for env, words in (("app:own_app:Dor", "has no class 'Dor'"), ("app:own_app:Door/logn", "did you mean 'login'?"), ("app:no_such:Door", "there is no module")):
        with pytest.raises(ValueError, match=words.replace("?", r"\?")): lab_of(env)
    criteria = parse_criteria('is in: shown("Signed in as " + asked[0]) or shown("Signed in as " + asked[-1]) >= 1\nsays so: ended >= 1')
    played = [play_agent("app:own_app:Door/login", agent, 100 + k).stored(agent) for agent in ("oracle", "do-nothing", "random") for k in range(2)]
    with Jail() as jail: rollouts = [RolloutJudgment(run_id="a", episode=k, values=measure_in_jail(jail, criteria, gui_trajectory(e))) for k, e in enumerate(played)]
    assert audit_text(criteria, rollouts, dict(a=[e.truth["success"] for e in played])).startswith("the criteria say what the application knows of 6 of 6 episodes")
    with pytest.raises(Refusal, match="names a module"): P2PService(tmp_path).start_session(request(env_id="app:own_app:Door"))


SHOP = """<title>Tea</title><body style="margin: 8px; font: 16px sans-serif"><h1>Tea</h1>
<button onclick="n++; said.textContent = `${n} in the basket`">Add tea</button> <button onclick="n = 0; said.textContent = 'Empty'">Empty</button><p id=said></p><script>let n = 0</script>"""

def test_a_page_of_ones_own_is_an_environment(tmp_path, monkeypatch):
    "page:URL beside html:FILE: the sentence is the goal, criteria are about what shows, and the record says that nobody knows more."
    import http.server
    import threading
    from oaml.devices.connection import missing_browser
    from oaml.devices.daemon import Refusal
    from oaml.prompt2policy.api import P2PService, loop_iteration
    from oaml.prompt2policy.engines import GoalPage
    from oaml.prompt2policy.loop import lab_of
    monkeypatch.setattr(GoalPage, "step_budget", 3)  # the way there is what is tried, not how far nano comes
    if missing_browser(): pytest.skip(missing_browser())
    pytest.importorskip("torch", reason="nano learns with PyTorch: pip install 'oaml[train]'")
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(SHOP.encode())
        def log_message(self, *_): pass
    (tmp_path/"shop.html").write_text(SHOP)
    asked = "Add one tea."
    assert [e.name for e in first_elements(f"html:{tmp_path}/shop.html") if e.role == "button"] == ["Add tea", "Empty"]
    for env, words in ((f"html:{tmp_path}/none.html", "No such file"), ("html:mail", "gui:APP"), ("page:shop", "no address")):
        with pytest.raises(ValueError, match=words): lab_of(env)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = f"page:http://127.0.0.1:{server.server_port}/"
        with pytest.raises(Refusal, match="a page or a file"): P2PService(tmp_path).start_session(request(env_id=env))
        code = "def reward_fn(obs, action, next_obs, info): return float(info['effect']), {'effect': float(info['effect'])}"
        judge = "def judge_fn(t):\n    ok = t['action'][-1]['type'] == 'done' and any(e['name'] == '1 in the basket' for e in t['next_obs'][-1]['elements'])\n    return dict(intent_score=float(ok), diagnosis='read')"
        script = {"judge-author-*": dict(submit_judge=dict(code=judge)), "reward-author-*": dict(submit_reward=dict(code=code)), "*-review_*": dict(submit_review=dict(approved=True))}
        (tmp_path/"answers.yaml").write_text(yaml.safe_dump(dict(written_by="hand", env_id=env, prompts=[asked], answers=script)))
        tiny = env_preset(env).model_copy(update=dict(num_envs=2, num_steps=8, eval_episodes=1, film=False))
        session = new_session(tmp_path, request(prompt=asked, env_id=env, model=str(tmp_path/"answers.yaml"), train=tiny, total_timesteps=8,
                                                criteria='one tea: shown("1 in the basket") >= 1\nonce: pressed("Add tea") <= 1\nsays so: ended >= 1'))
        result = run_session_folder(session)
        server.shutdown()
    assert (result.status, result.passed) == ("completed", False), session.read_status().error
    run, = session.iteration_records()[0].runs()
    assert set(read_record(run.audit_path, AuditRecord).facts) == {"steps"}
    shown = loop_iteration(session.iteration_records()[0])
    assert [c.title for c in shown.judgment.criteria] == ["one tea", "once", "says so"] and shown.audited.startswith("whether the goal was reached is unknown")
    assert {r.agent for r in shown.replay.rows} == {"random", "do-nothing", "spammer"} and shown.replay.best is None
    seen = json.loads(run.trajectory_path.read_text().splitlines()[0])["obs"][0]
    assert seen["goal"] == asked and "Add tea" in [e["name"] for e in seen["elements"]]


def first_elements(env):
    driver = GuiEngine().make(env, "look")
    try: return driver.reset(0).frame.elements
    finally: driver.close()
