"Methods that notebooks patch into a class stand in it in the package: moved without a change of meaning, or left and named."
import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("methods", ROOT/".ci/methods.py")
methods = importlib.util.module_from_spec(spec)
spec.loader.exec_module(methods)

MODULE = '''
from fastcore.basics import patch

# %% ../nbs/x.ipynb #1
class Point: "A place."

# %% ../nbs/x.ipynb #2
@patch
def moved(self: Point, by: int=0) -> Point: # another
    """Return the point.

    Elsewhere."""
    text = """
  kept as it is"""
    return self, by, text

@patch(as_prop=True)
def size(self:Point): return Size(1)

# %% ../nbs/x.ipynb #3
class Size(int): pass

@patch(cls_method=True)
def at(cls: Point, size: Size=None) -> "Point": return cls()
'''


def test_methods_move_and_mean_the_same():
    text, names = methods.Mover(MODULE).moved(), {}
    exec(text, names)
    point = names["Point"].at()
    assert point.moved(3) == (point, 3, "\n  kept as it is") and point.size == 1
    assert "patch" not in text and text.count("class ") == 2 and "#2" in text
    assert names["Point"].moved.__doc__.splitlines()[-1] == "        Elsewhere."
    assert names["Point"].at.__annotations__ == {"size": "Size", "return": "Point"}


@pytest.mark.parametrize("source, why", [
    ("class A: pass\nLATER = 3\n@patch\ndef f(self: A, n=LATER): pass", "A.f: needs LATER before the class"),
    ("class A: x = 1\nx = 2\n@patch\ndef f(self: A, n=x): pass", "A.f: needs x before the class"),
    ("class A: pass\n@patch\ndef f(self: A): return self.__own", "A.f: __own would be another name"),
    ("from b import A\n@patch\ndef f(self: A): pass", "A.f: the class is in another module"),
])
def test_what_would_change_stays(source, why):
    mover = methods.Mover(source)
    assert mover.left == [why] and mover.moved() == source


def test_the_package_has_its_methods_in_its_classes():
    patched = [f"{path.relative_to(ROOT).as_posix()}:{node.lineno}" for path in (ROOT/"oaml").rglob("*.py")
               for node in ast.parse(path.read_text(encoding="utf-8")).body if methods.patched_class(node)]
    assert len(patched) <= 3, "run `python .ci/dev.py export`; or these can't be moved:\n" + "\n".join(patched)
