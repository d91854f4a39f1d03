"Imports in oaml point one way, between packages and between modules, and what comes before the models works without torch."
import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OAML = ROOT/"oaml"
spec = importlib.util.spec_from_file_location("shape", ROOT/".ci/shape.py")
shape = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shape)

# The rooms in reading order (chapter numbers of nbs/); a package may read those before it.
ORDER = ("schemas config viz ui apps devices tasks envs miniwob realapps ingest datasets models nano rewards training runtime evals "
         "service prompt2policy scripts __main__").split()
READS_ONLY = {"viz": {"schemas"}, "rewards": {"schemas"}}
NEVER_READS = {"training": {"rewards"}}  # what it needs of them comes as a callable
LIGHT = ORDER[:ORDER.index("datasets") + 1]
HEAVY = {"torch", "transformers", "peft", "accelerate", "bitsandbytes"}


def heavy_imports(path):
    "The heavy libraries that the file at `path` imports, at its top or inside a function: [(library, line)]."
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [(a.name, n.lineno) for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [(n.module, n.lineno) for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    return [(name.split(".")[0], line) for name, line in names if name.split(".")[0] in HEAVY]


def arrows(root):
    "Who reads whom among the package's modules: {(module, module or heavy library): ['file:line', ...]}."
    known, found = shape.modules(root), {}
    for name, path in known.items():
        for target, line in [*shape.imports(name, path, known), *heavy_imports(path)]:
            found.setdefault((name, target), []).append(f"{path.relative_to(root).as_posix()}:{line}")
    return found


def package_of(module):
    "`apps` for oaml.apps.login; the library's own name for a heavy one; empty for oaml itself."
    return module.split(".")[1] if module.startswith("oaml.") else module.removeprefix("oaml")


def wrong_arrows(root):
    "The arrows that break a rule, as lines that say which and where, and the groups of modules that form a knot."
    def rule(a, b):
        if b in HEAVY: return f"nothing up to datasets imports {b}" if a in LIGHT else None
        if not a or not b or a == b or a == "__main__": return None  # oaml/__init__.py stands before every package, `python -m oaml` after
        if a not in ORDER or b not in ORDER: return "this package has no place in ORDER"
        if a in READS_ONLY and b not in READS_ONLY[a]: return f"{a} reads {', '.join(READS_ONLY[a])} only"
        if b in NEVER_READS.get(a, ()): return f"{a} never reads {b}"
        return "this arrow points back" if ORDER.index(b) > ORDER.index(a) else None
    found = arrows(root)
    wrong = [f"{a} -> {b} at {', '.join(where)}: {why}" for (a, b), where in found.items()
             if (why := rule(package_of(a), package_of(b)))]
    graph = {}
    for a, b in found: graph.setdefault(a, set()).add(b)
    return wrong + [f"knot: {' <-> '.join(group)}" for group in shape.cycles(graph)]


def test_arrows_point_one_way():
    assert not wrong_arrows(OAML), "\n".join(wrong_arrows(OAML))


@pytest.mark.parametrize("files, message", [
    ({"apps/login.py": "from ..envs.episode import Env", "envs/episode.py": ""},
     "oaml.apps.login -> oaml.envs.episode at apps/login.py:1: this arrow points back"),
    ({"apps/login.py": "def f():\n    import oaml.evals", "evals/__init__.py": ""},
     "oaml.apps.login -> oaml.evals at apps/login.py:2: this arrow points back"),
    ({"devices/wire.py": "AT = dict(a='oaml.envs.episode:Env')", "envs/episode.py": ""},
     "oaml.devices.wire -> oaml.envs.episode at devices/wire.py:1: this arrow points back"),
    ({"devices/wire.py": "AT = ['python', '-m', 'oaml.envs.episode'], 'oaml.envs.episode'", "envs/episode.py": ""},
     "oaml.devices.wire -> oaml.envs.episode at devices/wire.py:1: this arrow points back"),
    ({"viz/screens.py": "from oaml import ui", "ui/__init__.py": ""},
     "oaml.viz.screens -> oaml.ui at viz/screens.py:1: viz reads schemas only"),
    ({"training/grpo.py": "from ..rewards import gui", "rewards/gui.py": ""},
     "oaml.training.grpo -> oaml.rewards.gui at training/grpo.py:1: training never reads rewards"),
    ({"datasets/prompts.py": "def f():\n    from torch import nn"},
     "oaml.datasets.prompts -> torch at datasets/prompts.py:2: nothing up to datasets imports torch"),
    ({"extra/new.py": "from ..schemas import actions", "schemas/actions.py": ""},
     "oaml.extra.new -> oaml.schemas.actions at extra/new.py:1: this package has no place in ORDER"),
    ({"ui/a.py": "from . import b", "ui/b.py": "def f():\n    from .a import x"}, "knot: oaml.ui.a <-> oaml.ui.b"),
])
def test_a_planted_arrow_is_caught(tmp_path, files, message):
    "The checker itself: one wrong import planted in an otherwise empty package is named with its file and line."
    for name, text in files.items():
        (tmp_path/name).parent.mkdir(exist_ok=True)
        (tmp_path/name).write_text(text)
    assert wrong_arrows(tmp_path) == [message]


def defined_twice(text):
    "Names of functions and classes that a module defines again, so that the first is lost; methods by their class too."
    names = []
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)): continue
        patched = any("patch" in ast.unparse(d) for d in node.decorator_list) and node.args.args
        names.append((ast.unparse(node.args.args[0].annotation) if patched else "", node.name))
    return sorted({n for n in names if names.count(n) > 1})


@pytest.mark.parametrize("name", shape.modules(OAML))
def test_no_module_defines_a_name_twice(name):
    assert not defined_twice(shape.modules(OAML)[name].read_text(encoding="utf-8"))


def test_a_name_defined_twice_is_caught():
    text = "class A: pass\n@patch\ndef f(self: A): pass\ndef f(): pass\n@patch\ndef f(self: A): pass\nclass A: pass"
    assert defined_twice(text) == [("", "A"), ("A", "f")]


def test_light_modules_import_without_torch():
    names = [name for name in shape.modules(OAML) if package_of(name) in LIGHT]
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
from oaml.devices.app_device import AppDevice
from oaml.runtime.policy import load_policy
device = AppDevice("login")
action, _ = load_policy("nano").predict_action(device.reset(1_000_000).image, device.goal.text)
assert action.type != "failed", action.raw"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
