"Imports between oaml's packages point one way, and what comes before the models works without torch."
import ast
import subprocess
import sys
from pathlib import Path

import pytest

OAML = Path(__file__).parents[1]/"oaml"
ORDER = ("config schemas viz ui apps envs ingest datasets models training runtime evals rewards tasks prompt2policy "
         "scripts").split()
READS_ONLY = {"viz": {"schemas"}, "rewards": {"schemas"}}
LIGHT = ORDER[:ORDER.index("datasets") + 1]
HEAVY = {"torch", "transformers", "peft", "accelerate", "bitsandbytes"}


def module_name(path, root):
    "`oaml.apps.login` for `root`/apps/login.py."
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(("oaml", *(p for p in parts if p != "__init__")))


def imported(path, root):
    "Every module that the file at `path` imports, at the top or inside a function: [(full name, line)]."
    package = module_name(path, root).split(".")
    if path.name != "__init__.py": package = package[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import): found += [(a.name, node.lineno) for a in node.names]
        if isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            name = ".".join(base + ([node.module] if node.module else []))
            found += [(f"{name}.{a.name}", node.lineno) for a in node.names]
    return found


def arrows(root):
    "Imports between packages: {(package, imported package): ['file:line', ...]}, and heavy ones as (package, 'torch')."
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = module_name(path, root).split(".")
        if len(parts) == 1 or path.name == "_modidx.py": continue  # oaml/__init__.py stands before every package
        for name, line in imported(path, root):
            top, *rest = name.split(".")
            target = rest[0] if top == "oaml" and rest else top if top in HEAVY else None
            if target and target != parts[1] and not target.startswith("__"):  # oaml.__version__ is no package
                found.setdefault((parts[1], target), []).append(f"{path.relative_to(root).as_posix()}:{line}")
    return found


def wrong_arrows(root):
    "The arrows that break a rule, as lines that say which and where."
    def rule(a, b):
        if b in HEAVY: return f"nothing up to datasets imports {b}" if a in LIGHT else None
        if a not in ORDER or b not in ORDER: return "this package has no place in ORDER"
        if a in READS_ONLY and b not in READS_ONLY[a]: return f"{a} reads {', '.join(READS_ONLY[a])} only"
        if ORDER.index(b) > ORDER.index(a): return "this arrow points back"
    return [f"{a} -> {b} at {', '.join(where)}: {rule(a, b)}" for (a, b), where in arrows(root).items() if rule(a, b)]


def test_arrows_point_one_way():
    graph = "\n".join(f"{a} -> {b}" for a, b in arrows(OAML))
    assert not wrong_arrows(OAML), "\n".join(wrong_arrows(OAML)) + f"\n\nthe whole graph:\n{graph}"


@pytest.mark.parametrize("file, line, message", [
    ("apps/login.py", "from ..envs.env import Env", "apps -> envs at apps/login.py:1: this arrow points back"),
    ("apps/login.py", "def f():\n    import oaml.evals", "apps -> evals at apps/login.py:2: this arrow points back"),
    ("viz/screens.py", "from oaml import ui", "viz -> ui at viz/screens.py:1: viz reads schemas only"),
    ("datasets/prompts.py", "def f():\n    from torch import nn", "datasets -> torch at datasets/prompts.py:2: nothing up to"),
    ("extra/new.py", "from ..schemas import actions", "extra -> schemas at extra/new.py:1: this package has no place"),
])
def test_a_planted_arrow_is_caught(tmp_path, file, line, message):
    "The checker itself: one wrong import planted in an empty package is named with its file and line."
    (tmp_path/file).parent.mkdir()
    (tmp_path/file).write_text(line)
    assert [w for w in wrong_arrows(tmp_path) if w.startswith(message)] == wrong_arrows(tmp_path) != []


def test_light_modules_import_without_torch():
    names = [module_name(p, OAML) for package in LIGHT for p in sorted((OAML/package).rglob("*.py"))]
    # A module behind an extra (Chromium, Android) may miss its library, and nothing else.
    code = f"import importlib, sys\nfor n in {['oaml', *names]}: importlib.import_module(n)\n" \
           f"print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_shipped_nano_acts_without_torch():
    code = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # an import of them raises
from oaml.envs.app_device import AppDevice
from oaml.runtime.policy import load_policy
device = AppDevice("login")
action, _ = load_policy("nano").predict_action(device.reset(1_000_000).image, device.goal.text)
assert action.type != "failed", action.raw"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
