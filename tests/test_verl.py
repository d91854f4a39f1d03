"verl's own parts learn from oaml's rows on a CPU, beside oaml's loss: bench/verl_cpu.py, in an environment of its own."
import os
import subprocess
from pathlib import Path

import pytest

ROOT, PYTHON = Path(__file__).parents[1], os.environ.get("OAML_VERL_PYTHON")


@pytest.mark.skipif(not PYTHON, reason="OAML_VERL_PYTHON names no environment with verl (bench/verl.md says how to make one)")
def test_an_update_by_verl():
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    done = subprocess.run([PYTHON, ROOT/"bench/verl_cpu.py", "--updates", "2", "--no-write"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "| 2 | " in done.stdout and "78 of 78 tensors moved" in done.stdout, done.stdout + done.stderr[-2000:]
