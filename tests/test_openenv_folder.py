"The folder that OpenEnv publishes: its own checks, its own server, and the folder's client, by a Python that has them."
import json
import os
import subprocess
from pathlib import Path

import pytest

from oaml.devices.app_device import AppDevice
from oaml.devices.episode import EpisodeDriver
from oaml.devices.oracle import play_oracle
from oaml.envs.openenv import OpenTask
from oaml.envs.openenv_folder import write_openenv_folder
from oaml.schemas.sessions import to_dict

ROOT = Path(__file__).parents[1]

THERE = """
import base64, json, socket, subprocess, sys, time, urllib.request
from pathlib import Path
from openenv.cli._cli_utils import validate_env_structure
from openenv.cli._validation import validate_multi_mode_deployment, validate_running_environment
folder, actions = Path(sys.argv[1]), json.loads(sys.argv[2])
validate_env_structure(folder)
_, missing = validate_multi_mode_deployment(folder)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
server = subprocess.Popen([sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "warning"], cwd=folder)
try:
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try: urllib.request.urlopen(url + "/health")
        except OSError: time.sleep(.2)
        else: break
    report = validate_running_environment(url, 60)
    sys.path.insert(0, str(folder.parent))
    module = __import__(folder.name)
    with module.OamlLoginEnv(base_url=url).sync() as env:
        results = [env.reset(seed=7)]
        for a in actions: results.append(env.step(module.OamlLoginAction(**a)))
        state = env.state()
        try: env.step(module.OamlLoginAction(type="wait"))
        except RuntimeError as e: over = str(e)
    print(json.dumps(dict(missing=missing, failed=report["summary"]["failed_criteria"], rewards=[r.reward for r in results], done=[r.done for r in results],
                          goal=results[0].observation.goal, screens=[r.observation.screen for r in results], steps=state.step_count, seed=state.seed, over=over)))
finally: server.kill()
"""


def test_openenvs_checks_and_the_folders_client(tmp_path):
    "OAML_OPENENV_PYTHON: a Python with openenv-core 0.3 and what oaml requires."
    if not (python := os.environ.get("OAML_OPENENV_PYTHON")): pytest.skip("OAML_OPENENV_PYTHON: not set; a Python of an environment with openenv-core 0.3 and what oaml requires")
    folder = write_openenv_folder("login", tmp_path/"oaml_login_env")
    device, here = AppDevice("login"), OpenTask(EpisodeDriver(AppDevice("login")))
    device.reset(7)
    script = [to_dict(a) for a in play_oracle(device)]
    results = [here.reset(seed=7)] + [here.step(a) for a in script]
    done = subprocess.run([python, "-c", THERE, str(folder), json.dumps(script)], capture_output=True, text=True, timeout=300, env=os.environ | dict(PYTHONPATH=str(ROOT)))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["missing"] == ["Missing uv.lock - run 'uv lock' to generate it"] and not found["failed"]
    assert found["rewards"] == [r["reward"] for r in results] and found["rewards"][-1] == 1 and found["done"] == [r["done"] for r in results]
    assert found["screens"] == [r["observation"]["screen"] for r in results] and found["goal"] == results[0]["observation"]["goal"]
    assert found["steps"] == len(script) and found["seed"] == 7 and "the episode has ended" in found["over"]
