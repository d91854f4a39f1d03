"From a sentence to a policy: sessions that are killed and go on, the routes, the pages, all on an environment that trains in a second."
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from oaml.prompt2policy.backends import new_job, run_job, session_command
from oaml.prompt2policy.contracts import LLMBudget, StartSessionRequest
from oaml.prompt2policy.engines import missing_mujoco
from oaml.prompt2policy.jail import Jail, missing_jail
from oaml.prompt2policy.llm import SCRIPTED_ANSWERS, ScriptedLLM
from oaml.prompt2policy.loop import new_session, run_session_folder
from oaml.prompt2policy.records import IterationRecord, SessionRecord
from oaml.prompt2policy.rewards import template_source

pytestmark = pytest.mark.skipif(missing_jail() is not None, reason=f"no jail: {missing_jail()}")
WAIT_S = 240  # seconds, the longest that a test waits for anything
REQUEST = StartSessionRequest(prompt="go right", env_id="line", llm="scripted", max_iterations=2)
CLOCK = {"at", "seconds", "train_seconds", "jail_seconds", "created_at", "updated_at", "time", "pid", "session_id"}


def plain(value):
    "A record's values without what the clock decides."
    if isinstance(value, dict): return {k: plain(v) for k, v in value.items() if k not in CLOCK}
    return [plain(v) for v in value] if isinstance(value, list) else value


def contents(session):
    "All files of a session by name, without locks, signs of life and times."
    def read(path):
        if path.suffix == ".json": return plain(json.loads(path.read_text()))
        if path.suffix == ".jsonl": return [plain(json.loads(line)) for line in path.read_text().splitlines()]
        return path.read_bytes()
    skip = {"heartbeat", "subprocess.log"}
    return {p.relative_to(session.path).as_posix(): read(p) for p in sorted(session.path.rglob("*"))
            if p.is_file() and p.name not in skip and p.suffix not in (".lock", ".part")}


def start(session):
    "The session's process, as a backend starts it."
    with open(session.log_path, "ab") as log:
        return subprocess.Popen(session_command(session), stdout=log, stderr=log, start_new_session=True, env=os.environ | dict(OMP_NUM_THREADS="1"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "A session that nothing interrupted, with its model behind a server that counts."
    with mock_server() as (url, counts):
        session = new_session(tmp_path_factory.mktemp("whole"), served(url), "session_one")
        result = run_session_folder(session)
    assert (result.status, result.passed, result.iterations, result.llm) == ("completed", True, 2, "openai"), session.read_status().error
    assert set(counts.values()) == {1}
    return session, dict(counts)


def served(url): return REQUEST.model_copy(update=dict(llm="openai", model=f"mock@{url}"))


class mock_server:
    "An OpenAI-compatible server whose answers a person wrote (answers/line.yaml); it is no model. It counts calls by name."
    def __enter__(self):
        script, counts, lock = ScriptedLLM(SCRIPTED_ANSWERS/"line.yaml"), {}, threading.Lock()
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                name = self.headers["x-oaml-call"]
                with lock: counts[name] = counts.get(name, 0) + 1
                calls = [dict(id=c.id, type="function", function=dict(name=c.name, arguments=json.dumps(c.input))) for c in script.reply(name, None).calls]
                body = json.dumps(dict(id="x", object="chat.completion", created=0, model="mock: written by hand", usage=dict(prompt_tokens=9, completion_tokens=1, total_tokens=10),
                                       choices=[dict(index=0, finish_reason="tool_calls", message=dict(role="assistant", content=None, tool_calls=calls))])).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            def log_message(self, *_): pass
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/v1", counts

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_killed_in_stages_it_ends_with_the_same_record(whole, tmp_path):
    "kill -9 as soon as another file is there, again and again; then once to the end."
    marks = ["judge_fn.py", "iter_1/reward_fn.py", "iter_1/base_seed2/summary.json", "iter_1/judgment.json", "iter_2/config.json"]
    with mock_server() as (url, counts):
        session = new_session(tmp_path, served(url), "session_one")
        kills = 0
        for mark in marks:
            process, until = start(session), time.monotonic() + WAIT_S
            while not (session.path/mark).exists() and process.poll() is None and time.monotonic() < until: time.sleep(.002)
            kills += process.poll() is None
            try: os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError: pass
            process.wait()
        assert start(session).wait(WAIT_S) == 0, session.log_path.read_text()
    assert kills >= 3
    mine, unbroken = contents(session), contents(whole[0])
    for record in (mine, unbroken): record.pop("session_config.json")  # holds the server's address
    for record in (mine, unbroken):
        for name in [n for n in record if n == "events.jsonl"]: record[name] = [e["data"] for e in record[name]]
    assert mine == unbroken
    twice = [n for n, k in counts.items() if k > 1]
    assert set(counts) == set(whole[1]) and len(twice) <= kills and max(counts.values()) <= 2, counts


def kill_at_random(session, rng, longest):
    "Start the session's process and kill -9 it after 0 to `longest` seconds, until it ends by itself; how often that was."
    kills = 0
    while True:
        process = start(session)
        try:
            process.wait(rng.uniform(0, longest))
            return kills
        except subprocess.TimeoutExpired: kills, longest = kills + 1, longest*1.1  # or one that starts slowly never ends
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_killed_at_random_moments_it_ends_with_the_same_record(tmp_path):
    "A sample; `python bench/p2p.py kills` does a hundred."
    one = lambda folder: new_session(tmp_path/folder, REQUEST, "session_one")
    unbroken, session, began = one("unbroken"), one("killed"), time.monotonic()
    assert start(unbroken).wait(WAIT_S) == 0
    longest, rng = time.monotonic() - began, random.Random(1)
    assert kill_at_random(session, rng, longest*.7) and contents(session) == contents(unbroken)


@pytest.fixture
def small_disk(tmp_path):
    "Makes a file system of so many kilobytes."
    made = []
    def make(kilobytes):
        made.append(folder := tmp_path/f"disk{len(made)}")
        folder.mkdir()
        if not shutil.which("mount") or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", folder], capture_output=True).returncode:
            made.pop()
            pytest.skip("needs the right to mount a tmpfs")
        return folder
    yield make
    for folder in made: subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_ends_in_a_status_and_a_sentence_and_the_session_goes_on(small_disk, whole):
    "Disks that fill up in different stages; then there is room, and the record is the unbroken one's."
    for kilobytes in (72, 132, 212):
        disk = small_disk(kilobytes)
        session = new_session(disk, REQUEST, "session_one")
        process = subprocess.run(session_command(session), capture_output=True, text=True, timeout=WAIT_S)
        status = session.read_status()
        assert process.returncode and status.status == "error" and "the disk is full" in status.error and "\n" not in status.error, (kilobytes, status)
        assert "Traceback" not in process.stderr and not (session.path/".reserve").exists(), process.stderr
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        assert subprocess.run(session_command(session), timeout=WAIT_S).returncode == 0, session.read_status()
        mine, want = contents(session), contents(whole[0])
        assert {n for n in mine if not n.startswith("llm/")} == {n for n in want if not n.startswith("llm/")}
        by_code = dict(judge="code", looked=mine["iter_2/judgment.json"]["looked"])  # who would look, not what was seen: there are no films
        assert mine["iter_2/judgment.json"] == want["iter_2/judgment.json"] | by_code


@pytest.mark.parametrize("change, words", [
    (dict(env_id="lime"), "did you mean 'line'?"),
    (dict(budget=LLMBudget(calls=1)), "the budget of 1 calls is spent"),
    (dict(model="nowhere.yaml"), "scripted answers: cannot read nowhere.yaml"),
    (dict(llm="recorded"), "llm: 'recorded' lacks a folder"),
    (dict(llm="openai", model="m@http://127.0.0.1:9/v1"), "is the server running?"),
])
def test_each_bad_end_is_a_status_and_a_sentence(tmp_path, change, words):
    session = new_session(tmp_path, REQUEST.model_copy(update=change))
    run_session_folder(session)
    assert session.read_status().status == "error" and words in session.read_status().error
    assert "\n" not in session.read_status().error


@pytest.mark.parametrize("code, words", [
    ("def reward_fn(", "was never closed (line 1)"),
    ("def reward_fn(obs, action, next_obs, info): return float('nan'), {'a': 1.}", "is not finite"),
    ("def reward_fn(obs, action, next_obs, info): return obs, {'a': 1.}", "plain numbers"),
    ("def reward_fn(obs, action, next_obs, info): return 1., {'a': 2.}", "not the sum of its terms"),
    ("def reward_fn(obs, action, next_obs, info):\n    print('x')\n    return 1., {'a': 1.}", "prints"),
])
def test_a_reward_that_cannot_be_used_ends_after_three_repairs(tmp_path, code, words):
    "The author of this script never learns."
    never_learns(tmp_path, code, words)


def never_learns(tmp_path, code, words):
    import yaml
    answers = yaml.safe_load((SCRIPTED_ANSWERS/"line.yaml").read_text())
    answers["answers"] |= {"reward-fix_*": dict(submit_reward=dict(code=code)), "reward-author-*": dict(submit_reward=dict(code=code))}
    (tmp_path/"answers.yaml").write_text(yaml.safe_dump(answers, sort_keys=False))
    session = new_session(tmp_path, REQUEST.model_copy(update=dict(model=str(tmp_path/"answers.yaml"))))
    run_session_folder(session)
    assert "still fails after 3 repairs" in session.read_status().error and words in session.read_status().error


def test_a_reward_that_loops_is_ended_by_the_processor_time_that_it_had(tmp_path, monkeypatch):
    "A second each time, which is a second on a busy machine too, however long that takes there."
    import resource
    from oaml.prompt2policy import loop
    had = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    monkeypatch.setattr(loop, "Jail", lambda **given: Jail(**given | dict(timeout_s=1.)))
    before = had()
    never_learns(tmp_path, "def reward_fn(obs, action, next_obs, info):\n    while True: pass", "no answer within 1 s; does the code loop?")
    assert had() - before > 4*.9  # the first try and three repairs


def test_broken_records_are_named_and_listed(tmp_path):
    from oaml.prompt2policy.api import P2PService
    for n, name in enumerate(("session_config.json", "status.json", "metadata.json", "loop_history.json")):
        session = new_session(tmp_path, REQUEST, f"session_{n}")
        (session.path/name).write_text('{"of": "another program"}')
    listed = P2PService(tmp_path).list_sessions()
    assert len(listed) == 4 and all(f"session_{n}" in s.problem for n, s in zip((3, 2, 1, 0), listed))


def test_a_job_runs_its_cases_by_the_local_backend(tmp_path):
    job = run_job(new_job(tmp_path, [REQUEST, REQUEST.model_copy(update=dict(env_id="lime"))], max_parallel=2))
    good, bad = job.sessions()
    assert (good.read_status().status, bad.read_status().status) == ("completed", "error"), good.read_status().error
    assert job.read_status().status == "completed" and "did you mean 'line'?" in bad.read_status().error


@pytest.fixture(scope="module")
def site(whole, tmp_path_factory):
    "Routes and pages over a copy of the session, and one whose every text is a script. Nothing that is begun here is run but by hand."
    from oaml.devices.daemon import serve_in_thread
    from oaml.prompt2policy.api import P2PService, api_routes, p2p_server
    from oaml.prompt2policy.contracts import JudgmentResult, RewardSpec
    from oaml.prompt2policy.pages import page_routes
    runs, bad = tmp_path_factory.mktemp("site"), "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    shutil.copytree(whole[0].path, runs/"session_one")
    session = new_session(runs, REQUEST.model_copy(update=dict(prompt=bad)), "session_bad")
    session.update_metadata(alias=bad, tags=[bad])
    iteration = IterationRecord(session.path/"iter_1")
    iteration.save_reward_source(bad)
    iteration.save_reward_spec(RewardSpec(latex=bad, terms={bad: bad}, description=bad))
    iteration.save_judgment(JudgmentResult(intent_score=.3, passed=False, diagnosis=bad, failure_tags=[bad]))
    session.set_status("error", bad)
    jobs = []
    service = P2PService(runs, spawn=lambda job, again: jobs.append(job))
    with serve_in_thread(p2p_server(api_routes(service) + page_routes(service))) as server: yield server.url, runs, jobs


def test_every_answer_fits_the_openapi_document(site):
    "schemathesis asks each route a few times; no 5xx, and nothing that the document does not say."
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
    schema = schemathesis.openapi.from_url(f"{site[0]}/openapi.json")
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    routes = [r.ok() for r in schema.get_all_operations()]
    assert len(routes) == 36
    for route in routes:
        @given(case=route.as_strategy())
        @settings(max_examples=4, deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        def ask(case): case.call_and_validate(checks=checks, timeout=WAIT_S)
        ask()


def test_no_order_of_requests_breaks_the_routes(tmp_path):
    "schemathesis walks the document's links: what was listed is labelled, stopped, thrown away, restored, purged, and asked for again."
    import schemathesis
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.errors import FlakyStrategyDefinition
    from oaml.devices.daemon import serve_in_thread
    from oaml.prompt2policy.api import P2PService, api_routes, p2p_server
    from oaml.prompt2policy.contracts import StartBenchmarkRequest
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
    service, good = P2PService(tmp_path, spawn=lambda job, again: None), set()
    with serve_in_thread(p2p_server(api_routes(service))) as server:
        class Machine(schemathesis.openapi.from_url(f"{server.url}/openapi.json").as_state_machine()):
            def setup(self):  # each walk begins with the same sessions
                for folder in tmp_path.iterdir(): shutil.rmtree(folder)
                for k in range(5): new_session(tmp_path, REQUEST, f"session_{k}")
                service.start_benchmark(StartBenchmarkRequest(csv="prompt,env_id\ngo right,line\n"))

            def validate_response(self, response, case, **_):  # a deleted session can still be read: it is in the trash
                if response.status_code == 200: good.add(case.operation.label)
                case.validate_response(response, checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance])
        try: Machine.run(settings=settings(max_examples=50, stateful_step_count=12, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                                           suppress_health_check=list(HealthCheck)))
        except FlakyStrategyDefinition: pass  # ids hold the time, so that no walk is ever the same twice
    assert len(good) >= 10 and any(label.startswith("DELETE") for label in good), good  # which ones is up to the walk


def test_known_ids_answer_on_every_route(site):
    "What schemathesis cannot guess: the ids that are there."
    import httpx
    ids = dict(session_id="session_one", iteration_id="iter_2", iter_num="2", run_id="base_seed1", seq="0")
    get = lambda path: httpx.get(site[0] + path.format(**ids), timeout=WAIT_S)
    one = "/api/sessions/{session_id}"
    for path in ("", "/loop-iterations", "/iterations/{iteration_id}", "/iterations/{iter_num}", "/iterations/{iter_num}/runs",
                 "/iterations/{iteration_id}/runs/{run_id}/metrics", "/events", "/events/{seq}"):
        assert get(one + path).status_code == 200, path
    assert get("/api/iterations/iter_2").json()["session_id"] == "session_one"
    assert get("/api/iterations/{session_id}~iter_2/metrics").json()["training"]
    assert get("/api/iterations/iter_1").status_code == 409


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if not found: pytest.skip("needs Chromium on the PATH")
    with playwright.sync_playwright() as p:
        sandbox = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        with p.chromium.launch(executable_path=found, args=[*sandbox, "--disable-gpu", "--disable-quic", "--no-first-run"]) as b:
            yield b


def open_page(browser, url):
    page = browser.new_page()
    page.set_default_timeout(WAIT_S*1000)
    page.goto(url)
    return page


def test_scripts_in_fields_do_nothing(site, browser):
    for path in ("/e2e", "/e2e/session_bad", "/trash", "/monitor", "/benchmark"):
        page = open_page(browser, site[0] + path)
        page.wait_for_load_state("load")
        assert page.title() != "owned" and page.locator("img[src=x]").count() == 0, path
        page.close()


def test_pages_start_watch_trash_restore_and_purge(site, browser):
    url, runs, jobs = site
    page = open_page(browser, f"{url}/e2e")
    page.fill("textarea[name=prompt]", "go right")
    page.click("button:has-text('Start')")
    page.wait_for_url("**/e2e/session_*")
    id = page.url.rpartition("/")[2]
    session = SessionRecord(runs/id)
    assert session.read_session_config().prompt == "go right" and jobs[-1].manifest().cases == [id]
    assert "pending" in page.inner_text("main")
    session.set_status("running")
    page.wait_for_selector(".badge.running")  # by the stream of changes, without a reload
    with page.expect_navigation(): page.click("button:has-text('Stop')")
    assert (session.path/"stop").exists()
    session.set_status("cancelled")
    page.goto(f"{url}/e2e/{id}")
    page.click("button:has-text('Put into the trash')")
    page.wait_for_url("**/trash")
    with page.expect_navigation(): page.click("button:has-text('Restore')")
    page.wait_for_selector("text=The trash is empty.")
    page.goto(f"{url}/e2e/{id}")
    page.click("button:has-text('Put into the trash')")
    page.wait_for_url("**/trash")
    page.once("dialog", lambda asked: asked.dismiss())
    page.click("button:has-text('Delete for good')")
    assert session.path.exists()  # nobody was sure
    page.once("dialog", lambda asked: asked.accept())
    with page.expect_navigation(): page.click("button:has-text('Delete for good')")
    page.wait_for_selector("text=The trash is empty.")
    assert not session.path.exists()
    page.goto(f"{url}/benchmark")
    page.fill("textarea[name=csv]", "prompt,env_id\ngo right,line\ngo left,line\n")
    page.click("button:has-text('Start')")
    page.wait_for_url("**/benchmark/benchmark_*")
    page.click("text=The job")
    page.click("text=case 1")
    page.wait_for_selector("h1:has-text('go left')")
    page.close()


def half_trained(whole, runs):
    "A copy of the session, as it stood in the middle of its second iteration's trainings."
    session = SessionRecord(runs/"session_busy")
    shutil.copytree(whole.path, session.path)
    config = json.loads(session.config_path.read_text())
    session.config_path.write_text(json.dumps(config | dict(session_id="session_busy")))
    it = IterationRecord(session.path/"iter_2")
    for name in ("aggregation.json", "judgment.json"): (it.path/name).unlink()
    run = it.runs()[1]
    run.summary_path.unlink()
    run.status_path.unlink()
    run.scalars_path.write_text("".join(line + "\n" for line in run.scalars_path.read_text().splitlines()[:4]))
    session.set_status("running")
    session.touch_heartbeat()
    return session, run


def test_a_page_shows_a_session_at_work_to_who_signs_in(whole, browser, tmp_path):
    "Stage, seeds, steps, time left, spend; a line of a training is seen without a reload; a budget is raised; light, dark and narrow, axe finds nothing serious."
    from oaml.devices.daemon import Access, serve_in_thread
    from oaml.prompt2policy.api import P2PService, api_routes, p2p_server
    from oaml.prompt2policy.pages import page_routes
    from test_inspector import axe
    session, run = half_trained(whole[0], tmp_path)
    access, service = Access("sesame", cookie="oaml_p2p"), P2PService(tmp_path, spawn=lambda job, again: None)
    with serve_in_thread(p2p_server(api_routes(service) + page_routes(service, access), access)) as server:
        context = browser.new_context(bypass_csp=True, viewport=dict(width=1100, height=800))  # or axe's script may not run
        page = context.new_page()
        page.set_default_timeout(WAIT_S*1000)
        page.goto(f"{server.url}/e2e/session_busy")
        page.fill("[name=token]", "sesame")
        page.click("button:has-text('Sign in')")
        page.wait_for_url("**/e2e/session_busy")
        words = page.inner_text("main")
        for said in ("iter_2 of 2: trains", "left", "of 200 calls", "3,200 of 8,000", "What counts, fixed before training", "Side by side", "Judge, one for all iterations",
                     "what changed since iter_1", "95% interval", "on trial, code criteria said"): assert said in words, said
        run.append_scalar("training", 4000, mean_return=9.75)
        page.wait_for_selector("text=4,000 of 8,000")
        page.fill("[name=calls]", "321")
        with page.expect_navigation(): page.click("button:has-text('Set the budget and go on')")
        assert session.read_session_config().budget.calls == 321 and "of 321 calls" in page.inner_text("main")
        for scheme, width in (("light", 1100), ("dark", 1100), ("light", 390), ("dark", 390)) if axe() else ():
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(dict(width=width, height=800))
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            page.evaluate(axe())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == [], (scheme, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()


def test_the_command_says_what_is_going_on(whole, tmp_path):
    from oaml.scripts.p2p import progress_text
    session, _ = half_trained(whole[0], tmp_path)
    assert progress_text(session).startswith("iter_2 of 2: trains; base_seed1 8,000 of 8,000 steps (return ") and "of 200 calls" in progress_text(session)


def test_the_command_runs_and_goes_on(tmp_path):
    from typer.testing import CliRunner
    from oaml.scripts.cli import app
    run = CliRunner().invoke(app, ["p2p", "run", "go right", "--env", "line", "--llm", "scripted", "--seeds", "3", "--runs-dir", str(tmp_path)])
    assert run.exit_code == 0 and "passed: best iter_2" in run.output and "written by hand" in run.output, run.output
    id = next(tmp_path.glob("session_*")).name
    again = CliRunner().invoke(app, ["p2p", "resume", id, "--runs-dir", str(tmp_path)])
    assert again.exit_code == 0 and "completed" in again.output
    wrong = CliRunner().invoke(app, ["p2p", "run", "x", "--env", "lin", "--runs-dir", str(tmp_path)])
    assert wrong.exit_code == 2 and "did you mean 'line'?" in wrong.output


def test_a_training_ends_with_whoever_started_it(tmp_path):
    "A session that is killed alone leaves no executor behind: its standard input closes."
    missing = missing_mujoco()
    if missing: pytest.skip(missing)
    (tmp_path/"reward.py").write_text(template_source("halfcheetah_idle"))
    process = subprocess.Popen([sys.executable, "-m", "oaml.prompt2policy.executor", "--reward-fn", str(tmp_path/"reward.py"), "--runs-dir",
                                str(tmp_path), "--iteration-id", "iter_1", "--until-stdin-closes"], stdin=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path/"iter_1").exists() and process.poll() is None and time.monotonic() < deadline: time.sleep(.1)
    assert process.poll() is None, process.stderr.read().decode()
    process.stdin.close()
    assert process.wait(120) == 1


def test_a_verdict_that_fails_costs_its_own_episode_alone(tmp_path):
    "A figure that is none ends the jailed process; the episodes behind it are judged in another."
    from types import SimpleNamespace

    import numpy as np

    from oaml.prompt2policy.contracts import RolloutJudgment
    from oaml.prompt2policy.loop import Loop
    judge = "def judge_fn(trajectory):\n    return {'intent_score': float(trajectory['x'][0]), 'diagnosis': 'as far as it came'}\n"
    episodes = [dict(x=np.array([x])) for x in (.2, float("nan"), .6, .8)]
    loop = SimpleNamespace(lab=SimpleNamespace(episodes=lambda record, confirm: episodes),
                           _joined=lambda it, run, k, verdict, look: RolloutJudgment(run_id=run, episode=k, score=verdict.intent_score))
    rollouts, _ = Loop._rollouts(loop, IterationRecord(tmp_path/"iter_1"), ["base_seed1"], judge)
    assert [r.score for r in rollouts] == [.2, None, .6, .8] and rollouts[1].diagnosis.startswith("the judge failed")


def test_a_training_that_was_stopped_is_not_done(tmp_path):
    "Its aggregation is not written, so that the session's next start trains."
    from types import SimpleNamespace

    from oaml.prompt2policy.loop import Loop
    from oaml.prompt2policy.training import aggregate
    it = IterationRecord(tmp_path/"iter_1")
    loop = SimpleNamespace(session=SimpleNamespace(path=tmp_path), config=SimpleNamespace(seeds=[1]),
                           lab=SimpleNamespace(train=lambda it, seeds: aggregate([IterationRecord(it.path/"base_seed1")])))
    (tmp_path/"stop").touch()
    with pytest.raises(KeyboardInterrupt): Loop._train(loop, it)
    assert not it.aggregation_path.exists()
    (tmp_path/"stop").unlink()
    Loop._train(loop, it)
    assert it.aggregation_path.exists()


def test_a_seed_whose_process_dies_is_missing_and_nothing_passes(tmp_path):
    "kill -9 of one of three trainings: its figures are not there, they are not 0, and two seeds are no pass."
    from oaml.prompt2policy.contracts import RolloutJudgment, RunConfigEntry, TrainConfig
    from oaml.prompt2policy.judges import judgment_of
    from oaml.prompt2policy.training import LocalTrainer
    missing = missing_mujoco()
    if missing: pytest.skip(missing)
    iteration = IterationRecord(tmp_path/"iter_1")
    iteration.save_reward_source(template_source("halfcheetah_forward"))
    config = TrainConfig(num_envs=2, num_steps=64, total_timesteps=4096, batch_size=64, eval_episodes=2, checkpoints=1, max_episode_steps=50, film=False)
    victim, result = IterationRecord(iteration.path/"base_seed2"), []
    training = threading.Thread(target=lambda: result.append(LocalTrainer(iteration).train([RunConfigEntry(config_id="base", train=config)], [1, 2, 3])))
    training.start()
    deadline = time.monotonic() + WAIT_S
    while not victim.scalars_path.exists() and time.monotonic() < deadline: time.sleep(.01)
    os.kill(victim.read_status().pid, signal.SIGKILL)
    training.join(WAIT_S)
    aggregation, = result
    done = [r.final_return for r in aggregation.runs if r.final_return is not None]
    assert aggregation.missing == ["base_seed2"] and len(done) == 2 and aggregation.mean_return == pytest.approx(sum(done)/2)
    dead = next(r for r in aggregation.runs if r.run_id == "base_seed2")
    assert dead.status == "error" and "ended with -9" in dead.error and dead.facts == {}
    verdict = judgment_of([RolloutJudgment(run_id=r, episode=0, score=1.) for r in ("base_seed1", "base_seed3")], [r.run_id for r in aggregation.runs], .7)
    assert verdict.missing == ["base_seed2"] and not verdict.passed and verdict.intent_score == 1.


def test_seeds_of_a_session_are_different_whole_numbers():
    for seeds in ([1, 2, 1], [0, 0], [1, -3], [1, 2**40]):
        with pytest.raises(ValueError, match="seeds"): StartSessionRequest(prompt="go", seeds=seeds)
    with pytest.raises(ValueError, match="total_timesteps"): StartSessionRequest(prompt="go", total_timesteps=10**12)


REWARD = "def reward_fn(obs, action, next_obs, info):\n    x = float({})\n    return x, {{'x': x}}\n"


@pytest.mark.parametrize("formula, words", [
    ("np.where(obs[0] > 9, np.log(np.zeros(1)), 1.).sum()", None), ("1e300", "a reward is at most 1e"), ("float('nan')", "the term 'x' is not finite")])
def test_what_rewards_may_come_to(formula, words):
    "A warning of numpy's is no print; what would overflow in a sum is refused."
    if missing := missing_jail(): pytest.skip(missing)
    from oaml.prompt2policy.rewards import JailedReward, RewardError, RewardStep
    import numpy as np
    step = RewardStep(np.zeros(2), np.zeros(1), np.zeros(2), {})
    with JailedReward(REWARD.format(formula)) as reward:
        if words is None: assert reward.rewards_of([step])[0].tolist() == [1.]
        else:
            with pytest.raises(RewardError, match=words): reward.rewards_of([step])


def test_a_reward_with_a_dataclass_and_late_annotations():
    if missing := missing_jail(): pytest.skip(missing)
    from oaml.prompt2policy.rewards import JailedReward, RewardStep
    source = ("from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Weights:\n    x: float = 2.\n\n"
              "def reward_fn(obs, action, next_obs, info):\n    return Weights().x, {'x': Weights().x}\n")
    with JailedReward(source) as reward: assert reward.rewards_of([RewardStep([0.], [0.], [0.], {})])[0].tolist() == [2.]


def test_a_case_that_was_purged_while_it_waited_leaves_no_ghost(tmp_path):
    from oaml.prompt2policy.backends import _start
    session = SessionRecord(tmp_path/"session_1")
    _start(session, 0, 1, {}, None)
    assert not session.path.exists()


def test_a_session_with_an_id_of_its_own_is_listed(tmp_path):
    from oaml.prompt2policy.records import list_records
    new_session(tmp_path, StartSessionRequest(prompt="go", env_id="line", llm="scripted"), "my_run")
    assert [s.session_id for s in list_records(tmp_path)] == ["my_run"]


def test_the_reviser_may_not_shorten_what_is_judged():
    from oaml.prompt2policy.contracts import TrainConfig
    from oaml.prompt2policy.gui_lab import GuiLab
    from oaml.prompt2policy.reviser import changed_config
    with pytest.raises(ValueError, match="max_episode_steps: is the person's"): changed_config(TrainConfig(), dict(max_episode_steps=1))
    with pytest.raises(ValueError, match="ent_coef: has no effect"): GuiLab.check_config(None, TrainConfig(env_id="gui:login", num_envs=4, ent_coef=.5))


@pytest.mark.parametrize("answers", ["{a: [1]}", "{3: text}", "{a: {tool: 1}}"])
def test_scripted_answers_of_a_wrong_form(tmp_path, answers):
    (tmp_path/"a.yaml").write_text(f"written_by: me\nanswers: {answers}\n")
    with pytest.raises(ValueError, match="is neither a text nor|is no text"): ScriptedLLM(tmp_path/"a.yaml")


def test_a_table_with_a_macs_line_ends():
    from oaml.prompt2policy.backends import cases_of_csv
    from oaml.prompt2policy.contracts import LoopConfig, RecordError
    assert [c.prompt for c in cases_of_csv("prompt\rgo\rrun\r", LoopConfig())] == ["go", "run"]
    with pytest.raises(RecordError, match="line 2: field larger"): cases_of_csv("prompt\n" + "x"*200_000, LoopConfig())
