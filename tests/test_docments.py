"Every public function says what it does, and each of its parameters what it is: read from the source, without imports."
import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA_CLASSES = {"dataclass", "BaseModel", "BaseSettings"}


def comments(source):
    "{line: (comment, whether it has the line to itself)} of Python `source`."
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: (t.string, not t.line[:t.start[1]].strip()) for t in tokens if t.type == tokenize.COMMENT}


def name_of(node):
    "`dataclass` for the decorators @dataclass, @dataclass(...) and @pydantic.dataclasses.dataclass."
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def undocumented_params(func, notes, skip):
    "Names of `func`'s parameters, but for those in `skip`, without a comment where they end or alone on the line above."
    a = func.args
    args = [x for x in [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg] if x]
    ends = {x.arg: x.end_lineno for x in args}
    positional = [*a.posonlyargs, *a.args]
    for x, default in [*zip(reversed(positional), reversed(a.defaults)), *zip(a.kwonlyargs, a.kw_defaults)]:
        if default: ends[x.arg] = default.end_lineno
    last_on_line = {line: name for name, line in ends.items()}  # a comment belongs to the last parameter on its line
    documented = lambda x: ("help=" in ast.unparse(x.annotation or ast.Name(""))  # an option of the command line
                            or ends[x.arg] in notes and last_on_line[ends[x.arg]] == x.arg
                            or notes.get(x.lineno - 1, ("", False))[1])
    return [x.arg for x in args if x.arg not in skip and not documented(x)]


def missing_in_function(func, notes, owner=""):
    "What `func` lacks, as lines 'name: what'. A constructor needs no docstring of its own."
    patched = any(name_of(d) == "patch" for d in func.decorator_list) and func.args.args[0]
    name = f"{ast.unparse(patched.annotation)}.{func.name}" if patched else f"{owner}{func.name}"
    skip = {patched.arg} if patched else {"self", "cls"} if owner else set()
    lacks = [] if ast.get_docstring(func) or func.name == "__init__" else [f"{name}: no docstring"]
    return lacks + [f"{name}: no comment on `{p}`" for p in undocumented_params(func, notes, skip)]


def missing_in_class(cls, notes):
    "What the class `cls` lacks: its docstring, its public methods' and constructor's docments, its fields' comments."
    lacks = [] if ast.get_docstring(cls) else [f"{cls.name}: no docstring"]
    is_data = any(name_of(d) in DATA_CLASSES for d in [*cls.decorator_list, *cls.bases])
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            if any(name_of(d) in ("overload", "setter") for d in node.decorator_list): continue
            lacks += missing_in_function(node, notes, f"{cls.name}.")
        if is_data and isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            noted = (node.end_lineno in notes or notes.get(node.lineno - 1, ("", False))[1]
                     or node.value and "description=" in ast.unparse(node.value))
            if not noted: lacks.append(f"{cls.name}: no comment on the field `{ast.unparse(node.target)}`")
    return lacks


def is_private(node):
    "Does its name begin with _, or that of the class that it is patched into?"
    patched = isinstance(node, ast.FunctionDef) and any(name_of(d) == "patch" for d in node.decorator_list)
    return node.name.startswith("_") or patched and ast.unparse(node.args.args[0].annotation).startswith("_")


def missing(source):
    "What the public functions and classes of a module's `source` lack."
    notes, lacks = comments(source), []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not is_private(node):
            lacks += missing_in_function(node, notes) if isinstance(node, ast.FunctionDef) else missing_in_class(node, notes)
    return lacks


def test_the_package_is_documented():
    lacks = [f"{path.relative_to(ROOT).as_posix()}: {line}" for path in sorted((ROOT/"oaml").rglob("*.py"))
             if path.name != "_modidx.py" for line in missing(path.read_text(encoding="utf-8"))]
    assert not lacks, f"{len(lacks)} missing:\n" + "\n".join(lacks)


@pytest.mark.parametrize("source, expected", [
    ('@patch\ndef f(self: _C, a): "Does."', []),
    ('def f(a, # what\n      b=1): # what\n    "Does."', []),
    ('def f(\n    # what\n    a,\n    *, b=(1,\n    2), # what\n): "Does."', []),
    ('def f(a, b): # what\n    pass', ["f: no docstring", "f: no comment on `a`"]),
    ('@patch\ndef f(self:A, b):\n    "Does."', ["A.f: no comment on `b`"]),
    ('class A:\n    "Is."\n    def __init__(self, a): pass\n    def _g(self, x): pass', ["A.__init__: no comment on `a`"]),
    ('@dataclass(frozen=True)\nclass A:\n    "Is."\n    a: int # what\n    b: int = 0', ["A: no comment on the field `b`"]),
    ('class A(BaseModel):\n    "Is."\n    a: int = Field(0, description="what")', []),
    ('def f(a: Annotated[int, Option(help="what")]=0): "Does."', []),
    ('def _private(a): pass', []),
])
def test_the_checker(source, expected): assert missing(source) == expected
