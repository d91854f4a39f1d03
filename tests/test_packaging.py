"The wheel that a stranger installs: built from a clean copy, put in a fresh environment, its command run there."
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = "Scripts" if os.name == "nt" else "bin"
MAX_WHEEL_MB = 35  # DESIGN: small enough for a course's wireless network


def run(*cmd, cwd=None):
    "Run `cmd` without oaml's source on the path, and return what it printed."
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([str(c) for c in cmd], cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, f"{cmd}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "A wheel built by way of the source archive, as `pip install .` and a release do; no network."
    tmp = tmp_path_factory.mktemp("build")
    hidden = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__", "_docs", "_proc")
    shutil.copytree(ROOT, tmp/"oaml", ignore=hidden)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp/"dist", tmp/"oaml", cwd=tmp)
    return next((tmp/"dist").glob("*.whl"))


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    "A new environment with only the wheel in it, which borrows its dependencies from this one (but not this oaml)."
    env = tmp_path_factory.mktemp("fresh")/"venv"
    run(sys.executable, "-m", "venv", "--without-pip", env)
    python = env/BIN/("python.exe" if os.name == "nt" else "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site/"borrowed.pth").write_text(sysconfig.get_path("purelib"))  # a plain path: .pth files in it are not read
    return python


def names(wheel):
    "The files inside the archive `wheel`."
    with zipfile.ZipFile(wheel) as z: return set(z.namelist())


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    ours = {p.relative_to(ROOT).as_posix() for p in (ROOT/"oaml").rglob("*.py") if "__pycache__" not in p.parts}
    assert ours <= names(wheel)
    assert {n.split("/")[0] for n in names(wheel)} == {"oaml", "oaml-" + wheel.name.split("-")[1] + ".dist-info"}
    assert wheel.stat().st_size < MAX_WHEEL_MB*1e6


def test_weights_are_in_the_wheel(wheel):
    weights = {p.relative_to(ROOT).as_posix() for p in (ROOT/"oaml").rglob("*.safetensors")}
    assert weights and weights <= names(wheel)


@pytest.mark.parametrize("pattern", ["training/configs/*.yaml", "viz/inspector.js", "viz/show.*", "datasets/rft_samples/*", "prompt2policy/answers/*", "prompt2policy/rewards/*"])
def test_data_that_code_opens_is_in_the_wheel(wheel, pattern):
    files = {p.relative_to(ROOT).as_posix() for p in (ROOT/"oaml").glob(pattern) if p.is_file()}
    assert files and files <= names(wheel)


def test_fonts_and_licences_are_in_the_wheel(wheel):
    fonts = [p.name for p in (ROOT/"oaml/ui/fonts").glob("*")]
    assert fonts and {f"oaml/ui/fonts/{f}" for f in fonts} <= names(wheel)
    licences = {n.split("/licenses/")[1] for n in names(wheel) if "/licenses/" in n}
    assert licences == {"LICENSE"} | {f"oaml/ui/fonts/{f}" for f in fonts if f.startswith("LICENSE")}


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as z:
        text = z.read(next(n for n in z.namelist() if n.endswith("dist-info/METADATA"))).decode()
    meta = message_from_string(text)
    assert meta["License"] == "Apache-2.0" and meta["Requires-Python"] == "<3.14,>=3.11"
    core = [r for r in meta.get_all("Requires-Dist") if "extra ==" not in r]
    assert core and not [r for r in core if r.startswith(("torch", "transformers"))], "the core works without torch"
    assert {"train", "notebook", "dev", "all"} <= set(meta.get_all("Provides-Extra"))


def test_the_installed_wheel_works(fresh, tmp_path):
    where = run(fresh, "-c", "import oaml; print(oaml.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(fresh.parents[1]), where
    modules = "import oaml.ui.themes, oaml.schemas.actions"
    assert run(fresh, "-c", modules, cwd=tmp_path) == ""


def test_the_command_of_the_installed_wheel(fresh, tmp_path):
    helped = run(fresh.with_name("oaml.exe" if os.name == "nt" else "oaml"), "--help", cwd=tmp_path)
    assert all(command in helped for command in ("synth", "train", "eval", "demo", "predict"))


def test_the_commands_that_are_printed_work_with_the_wheel_alone(fresh, tmp_path):
    "All are parsed, configuration keys included; the quick ones are run in an empty folder. `make wheel-check` runs the others."
    counts = run(fresh, ROOT/".ci/commands.py", "check", "--run", cwd=tmp_path).splitlines()[-1]
    assert counts.endswith("; 0 wrong") and int(re.search(r"(\d+) ran", counts)[1]) > 6, counts


def test_a_wrong_command_in_print_is_found():
    spec = importlib.util.spec_from_file_location("commands", ROOT/".ci/commands.py")
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    text = "Try `oaml train\n  login_nano --set training.max_step=2`:\n```\noaml sytnh --app mail  # ten\n```\n    oaml eval --agent nano \\\n      --episode 5"
    found = [commands.words(line) for line in commands.printed(text)]
    assert found == [["sytnh", "--app", "mail"], ["eval", "--agent", "nano", "--episode", "5"], ["train", "login_nano", "--set", "training.max_step=2"]]
    assert all(commands.parse(tuple(args)) for args in found)
    assert not commands.parse(("train", "login_nano", "--set", "training.max_steps=2")) and not commands.parse(("act", "--like"))
