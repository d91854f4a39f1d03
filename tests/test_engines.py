"The same results by seed on every engine; what is killed in mid-job is made again, once; a sweep goes on after kill -9."
import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from oaml.evals.suites import AgentByName, evaluate_suite
from oaml.ingest.engines import ActorEngine, RayEngine, open_engine
from oaml.ingest.store import load_sessions
from oaml.ingest.synthetic import generate_synthetic_sessions
from oaml.scripts.eval_policy import eval_policy
from oaml.scripts.sweep import sweep

ROOT = Path(__file__).parents[1]
PATIENCE = 300  # seconds for something that takes twenty on an idle machine
EPISODES = 100  # four parts of 25, as an evaluation is handed out: two for each of two workers
HOW = dict(num_sessions=EPISODES, seed=40, recovery=.5, progress=False)


def files(folder): return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")  # a process is on one cluster at a time, and other files have their own
def cluster():
    "A Ray cluster of two raylets on this machine, with one core each."
    if not find_spec("ray"): pytest.skip("ray is not installed; pip install 'oaml[scale]'")
    from ray.cluster_utils import Cluster
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), str(ROOT/"tests"), os.environ.get("PYTHONPATH"))))  # for the workers, which read this file too
    memory = 80_000_000
    for attempt in range(3):  # Ray gives up after half a minute, and a busy machine may need longer
        made = None
        try:
            made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, object_store_memory=memory, include_dashboard=False))
            made.second = made.add_node(num_cpus=1, object_store_memory=memory)
            break
        except Exception as e:
            if made: made.shutdown()
            if attempt == 2: pytest.skip(f"Ray does not start here: {e}")
    yield made
    import ray
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="session")
def sessions(tmp_path_factory):
    "The folder of sessions that this process makes by itself."
    folder = tmp_path_factory.mktemp("inline")
    generate_synthetic_sessions(**HOW, output_dir=folder, workers=1)
    return folder


@pytest.fixture(scope="session")
def rows(): return evaluate(None)


def evaluate(engine):
    "Rows of three agents on as many episodes, and what each did."
    agents = [AgentByName(name, name) for name in ("oracle", "random", "do-nothing")]
    rows, reports = evaluate_suite(agents, "login-v1", EPISODES, "validation", engine=engine)
    return rows, [[(o.seed, o.actions) for o in app.played] for mine in reports for app in mine]


@pytest.mark.parametrize("engine", ["threads:2", "processes:2"])
def test_synth_and_eval_are_the_same(engine, sessions, rows, tmp_path):
    made = generate_synthetic_sessions(**HOW, output_dir=tmp_path/"data", engine=engine)
    assert len(made) == EPISODES and files(tmp_path/"data") == files(sessions)
    assert evaluate(engine) == rows


def test_synth_and_eval_are_the_same_on_two_raylets(cluster, sessions, rows, tmp_path):
    engine = f"ray:{cluster.address}"
    with open_engine(engine) as calls:
        import ray
        nodes = set(calls.map(where_it_runs, range(8)))
        assert len(nodes) == 2
        generate_synthetic_sessions(**HOW, output_dir=tmp_path/"data", engine=calls)
        assert files(tmp_path/"data") == files(sessions)
        assert evaluate(calls) == rows
    assert not ray.is_initialized()


def where_it_runs(_):
    import ray
    time.sleep(1)  # so that both have something to do
    return ray.get_runtime_context().get_node_id()


def test_the_errors_are_those_of_the_call(cluster):
    with open_engine(f"ray:{cluster.address}") as calls:
        with pytest.raises(ZeroDivisionError): calls.submit(divmod, 1, 0).result()
        waiting = calls.submit(time.sleep, 600)
        assert waiting.cancel()
        with pytest.raises(ValueError, match="is on the Ray cluster"): RayEngine("10.0.0.1:6379")
        actor = ActorEngine(cluster.address)
        assert len({actor.submit(os.getpid).result() for _ in range(3)}) == 1
        actor.shutdown()


def test_a_raylet_killed_in_mid_job_loses_and_doubles_nothing(cluster, sessions, rows, tmp_path):
    "The second raylet dies after some sessions are made: the folder is the same, and so are the episodes of an evaluation."
    folder = tmp_path/"data"
    with open_engine(f"ray:{cluster.address}") as calls:
        def kill():
            end = time.monotonic() + PATIENCE
            while len(list(folder.glob("sessions/*.json"))) < 20 and time.monotonic() < end: time.sleep(.02)
            cluster.remove_node(cluster.second, allow_graceful=False)
        killer = threading.Thread(target=kill)
        killer.start()
        made = generate_synthetic_sessions(**HOW, output_dir=folder, engine=calls)
        killer.join()
        assert [s.id for s in made] == [f"login-{seed:07d}" for seed in range(40, 40 + EPISODES)]
        assert files(folder) == files(sessions)
        cluster.second = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        assert load_sessions(folder) == made


@pytest.mark.parametrize("engine", ["threads:2", "processes:2"])
def test_the_bar_of_an_engine_moves_with_each_episode_and_action(engine, monkeypatch):
    "Although a worker gives its 25 episodes back together: what it counts reaches the bar before."
    from oaml.runtime import play
    bars, moved = [], []
    class Watched(play.tqdm):
        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            bars.append(self)
        def update(self, n=1):
            super().update(n)
            if n: moved.append(n)
        def set_postfix(self, *args, **kw): moved.append(dict(*args, **kw))
    monkeypatch.setattr(play, "tqdm", Watched)
    evaluate_suite([AgentByName("random", "random")], "login-v1", 10, "validation", progress=True, engine=engine)
    counts = [m for m in moved if isinstance(m, dict)]
    assert [bar.total for bar in bars] == [10] and bars[0].n == 10
    assert len(counts) > 10 and counts[-1]["recording"] == 10 and counts[-1]["actions"] > 10 and counts[-1]["step"] > 10
    assert max(m for m in moved if isinstance(m, int)) < 10  # not all at once


def test_a_model_is_loaded_by_the_workers():
    one, two = (eval_policy(agent="nano", episodes=3, split="validation", progress=False, engine=e) for e in ("threads:1", "processes:2"))
    assert one == two


# ---- a sweep ----

CONFIG = dict(model=dict(model_name="reader"), stream=dict(lesson="reading", screens_per_episode=2, workers=0, samples=24, sources=dict(login=1)),
              training=dict(per_device_train_batch_size=2, gradient_accumulation_steps=1), logging=dict(eval_episodes=0, save_steps=2))
SETTINGS = "training.seed=0,1,2", "training.learning_rate=0.001,0.0003"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_sweep_of_six_runs_goes_on_after_kill(tmp_path):
    "The command is killed while two processes train for it, and this process goes on; beside it, the same sweep without a break."
    (tmp_path/"tiny.yaml").write_text(json.dumps(CONFIG))
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    process = subprocess.Popen([sys.executable, "-c", "from oaml.scripts.cli import main; main()", "sweep", tmp_path/"tiny.yaml", "--out", tmp_path/"killed",
                                "--engine", "processes:2", *(w for o in SETTINGS for w in ("--set", o))], env=env, start_new_session=True)
    go = lambda name: sweep(tmp_path/"tiny.yaml", SETTINGS, tmp_path/name, progress=False)
    def kill():
        end = time.monotonic() + PATIENCE
        while len(list((tmp_path/"killed").glob("*/agent"))) < 2 and process.poll() is None and time.monotonic() < end: time.sleep(.02)
        os.kill(process.pid, signal.SIGKILL)
    killer = threading.Thread(target=kill)
    killer.start()
    first = go("whole")  # meanwhile
    killer.join()
    assert process.wait() == -signal.SIGKILL, "it had ended before it was killed"
    assert 2 <= len(list((tmp_path/"killed").glob("*/agent"))) < 6
    second = go("killed")
    assert [r["status"] for r in first] == [r["status"] for r in second] == ["finished"]*6
    assert [r["loss"] for r in first] == [r["loss"] for r in second] and len({r["loss"] for r in first}) == 6
    for k in range(6):
        weights = [(tmp_path/name/f"{k:03d}"/"agent").rglob("*.safetensors") for name in ("whole", "killed")]
        assert [p.read_bytes() for p in weights[0]] == [p.read_bytes() for p in weights[1]] != []
