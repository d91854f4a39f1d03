"Sessions: a run that is killed and gone on with leaves the same folder; an application of one's own has a name."
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oaml.datasets.prompts import PromptFormat
from oaml.datasets.stream import episode_samples
from oaml.ingest.store import StoreError, load_sessions, save_sessions
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.scripts.train import make_dataset, stream_sources
from oaml.training.config import TrainingConfig

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, with which runs are killed here")
ROOT = Path(__file__).parents[1]
HOW = dict(num_sessions=5, seed=40, recovery=.5, progress=False)
PATIENCE = 120  # seconds for something that takes two on an idle machine


def files(folder): return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def python(code, *args, cwd=ROOT, **kw):
    "A process that runs `code`, which does not find modules in its folder by itself: as a command would not."
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    return subprocess.Popen([sys.executable, "-P", "-c", code, *map(str, args)], cwd=cwd, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)


def oaml(*args, **kw): return python("from oaml.scripts.cli import main; main()", *args, **kw)


def done(process):
    "Exit code, output and errors of a process that ends by itself."
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


# ---- one process, killed at a chosen place ----

KILLED = """
import os, signal, sys
from pathlib import Path
from oaml.ingest.synthetic import generate_synthetic_sessions
folder, place, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner, name = {"fsync": (os, "fsync"), "rename": (os, "replace"), "screen": (Path, "replace"), "clean": (Path, "unlink")}[place]
inner, calls = getattr(owner, name), []
def deadly(*a, **k):
    calls.append(a)
    if len(calls) == nth: os.kill(os.getpid(), signal.SIGKILL)
    return inner(*a, **k)
setattr(owner, name, deadly)
generate_synthetic_sessions(num_sessions=5, seed=40, recovery=.5, output_dir=folder, progress=False)
"""
# of five sessions, files are written so: 1 is the record, 2 to 6 the sessions, 7 the manifest
PLACES = dict(before_anything=("rename", 1), the_first_session_half_written=("fsync", 2), a_screen_half_written=("screen", 9),
              between_sessions=("rename", 4), the_last_session=("rename", 6), the_manifest_half_written=("fsync", 7),
              after_the_manifest=("clean", 1))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    generate_synthetic_sessions(**HOW, output_dir=folder)
    return folder


@posix
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_to_the_same_bytes(place, tmp_path, unbroken):
    code, _, err = done(python(KILLED, tmp_path, *PLACES[place]))
    assert code == -signal.SIGKILL, err
    assert files(tmp_path) != files(unbroken)
    whole = {p: p.stat().st_ino for p in tmp_path.glob("sessions/*.json")}
    sessions = generate_synthetic_sessions(**HOW, output_dir=tmp_path, resume=True)
    assert files(tmp_path) == files(unbroken) and sessions == load_sessions(tmp_path)
    assert all(p.stat().st_ino == node for p, node in whole.items())  # what was whole is not made again


def test_a_folder_with_sessions_is_gone_on_with_only_on_request(tmp_path, unbroken):
    for name, data in files(unbroken).items():
        (tmp_path/name).parent.mkdir(exist_ok=True)
        (tmp_path/name).write_bytes(data)
    with pytest.raises(StoreError, match="already holds sessions.*resume=True"):
        generate_synthetic_sessions(**HOW, output_dir=tmp_path)
    with pytest.raises(StoreError, match="num_sessions is 5 there and 6 here"):
        generate_synthetic_sessions(**HOW | dict(num_sessions=6), output_dir=tmp_path, resume=True)
    assert files(tmp_path) == files(unbroken)


# ---- the command, with workers ----

MANY = ("synth", "--sessions", 60, "--seed", 900, "--recovery", ".3")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    "What the command makes when nobody stops it, in one process."
    folder = tmp_path_factory.mktemp("many")/"data"
    code, _, err = done(oaml(*MANY, "--out", folder))
    assert code == 0, err
    return folder


def begun(folder, workers):
    "The command under way in a group of processes of its own: two sessions are whole."
    process = oaml(*MANY, "--out", folder, "--workers", workers, start_new_session=True,
                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.glob("sessions/*.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(.01)
    return process


def gone_on_with(folder, many):
    "The command again, with --resume: the folder is then as if nothing had happened."
    code, out, err = done(oaml(*MANY, "--out", folder, "--resume"))
    assert code == 0 and out.startswith("60 sessions"), err
    assert files(folder) == files(many)


@posix
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_command(workers, tmp_path, many):
    process = begun(tmp_path/"data", workers)
    process.kill()
    process.wait()
    with pytest.raises(StoreError, match="not all made yet"): load_sessions(tmp_path/"data")
    gone_on_with(tmp_path/"data", many)


@posix
@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_command(workers, tmp_path, many):
    process = begun(tmp_path/"data", workers)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the workers too
    code, _, err = done(process)
    assert code == 130 and "of 60 sessions are in" in err and "--resume" in err
    gone_on_with(tmp_path/"data", many)


@posix
def test_one_writer(tmp_path, many):
    process = begun(tmp_path/"data", 1)
    process.send_signal(signal.SIGSTOP)  # it holds the lock for as long as this takes
    code, _, err = done(oaml(*MANY, "--out", tmp_path/"data", "--resume"))
    assert code == 2 and "another process writes there now" in err
    process.kill()
    process.wait()
    gone_on_with(tmp_path/"data", many)  # a dead process holds no lock


def living(group):
    "How many processes of a group are not over."
    stats = [p.read_text().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat") if p.exists()]
    return sum(int(fields[2]) == group and fields[0] not in "ZX" for fields in stats)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux for its processes")
def test_workers_do_not_outlive_the_command(tmp_path):
    process = begun(tmp_path/"data", 2)
    assert living(process.pid) > 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE
    while living(process.pid) and time.monotonic() < deadline: time.sleep(.05)
    assert not living(process.pid)


# ---- an application of one's own ----

HEATING = '''
from dataclasses import dataclass, replace
from oaml.apps.app import ClickOn, Finish, Goal
from oaml.ui.events import Pressed
from oaml.ui.widgets import bar, text, tool, window

@dataclass(frozen=True)
class Heating:
    task: Goal
    degrees: int

class Thermostat:
    name, families, step_budget = "thermostat", ("warm",), 20
    def start(self, rng, family=None):
        want = rng.randint(16, 24)
        return Heating(Goal(f"Make it {want} degrees.", "warm", (("degrees", want),)), want - rng.randint(1, 5))
    def goal(self, s): return s.task
    def view(self, s): return window("Heating", bar(text(f"{s.degrees}", "now"), tool("up", "Warmer", "up")))
    def update(self, s, m): return replace(s, degrees=s.degrees + 1) if m == Pressed("up") else s
    def solved(self, start, s): return s.degrees == s.task["degrees"]
    def plan(self, seen, goal, history):
        now = int(next(e.name for e in seen if e.id == "now"))
        return [ClickOn("up")] if now < goal["degrees"] else [Finish()]
'''
OWN = "my_module:Thermostat"


@pytest.fixture
def here(tmp_path, monkeypatch):
    "A folder with an application in a file, and with an installed package that names it in the group `oaml.apps`."
    (tmp_path/"my_module.py").write_text(HEATING)
    info = tmp_path/"installed"/"heating-1.0.dist-info"
    info.mkdir(parents=True)
    (info/"METADATA").write_text("Metadata-Version: 2.1\nName: heating\nVersion: 1.0\n")
    (info/"entry_points.txt").write_text("[oaml.apps]\nwarmer = my_module:Thermostat\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path/"installed")])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_synth_and_eval_take_my_application(here):
    code, out, err = done(oaml("synth", "--app", OWN + "@phone", "--sessions", 3, "--workers", 2, "--out", "data", cwd=here))
    assert code == 0 and out.startswith("3 sessions"), err
    sessions = load_sessions(here/"data")
    assert [s.id for s in sessions] == [f"my_module.Thermostat@phone-000000{k}" for k in range(3)]
    assert {s.meta["app"] for s in sessions} == {OWN + "@phone"}
    code, out, err = done(oaml("eval", "--app", OWN, "--episodes", 4, "--out", "r.json", cwd=here))
    assert code == 0, err
    rows = json.loads((here/"r.json").read_text())
    assert {(r["suite"], r["app"], r["success"]) for r in rows} == {(f"app:{OWN}", app, 1.) for app in (OWN, "mean")}


def test_training_takes_my_application(here):
    config = TrainingConfig(data=dict(app=OWN, sessions=2), prompt=dict(thought=True), output_dir=str(here/"run"))
    data, manifest = make_dataset(config, PromptFormat(thought=True), progress=False)
    assert manifest["app"] == OWN and data[0]["messages"][2]["content"] == (
        "Thought: 'Warmer', button\nAction: " + data[0]["messages"][2]["content"].split("Action: ")[1])
    source, = stream_sources(TrainingConfig(stream=dict(sources={OWN: 1.})))
    assert len(episode_samples(source.app, 0)) == 4


def test_an_installed_package_gives_its_application_a_name(here):
    sessions = generate_synthetic_sessions(2, seed=0, app="warmer", progress=False)
    assert [s.id for s in sessions] == ["warmer-0000000", "warmer-0000001"]
    assert sessions[0].episodes[0].meta["app"] == "thermostat"
    with pytest.raises(ValueError, match="'warm' is unknown; there are login, .*, warmer;"):
        generate_synthetic_sessions(1, seed=0, app="warm")


# ---- thoughts ----

def test_thoughts_are_not_learnt_from_sessions_without(tmp_path):
    sessions = generate_synthetic_sessions(2, seed=0, output_dir=tmp_path/"data", progress=False)
    assert all(s.thought for session in sessions for s in session.episodes[0].steps)
    assert all(session.episodes[0].summary for session in sessions)
    config = TrainingConfig(data=dict(path=str(tmp_path/"data")), prompt=dict(thought=True))
    make_dataset(config, PromptFormat(thought=True), progress=False)
    sessions[1].episodes[0].steps[2].thought = None
    save_sessions(sessions, tmp_path/"data")
    with pytest.raises(ValueError, match=r"login-1: steps\[2\] has no thought.*prompt.thought: false"):
        make_dataset(config, PromptFormat(thought=True), progress=False)
