"`import oaml` offers about twenty names, quickly; an editor, a type checker and Python agree on them."
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import oaml

MAX_IMPORT_MS = 150


def named_for_editors():
    "The names under TYPE_CHECKING: {name: module}."
    tree = ast.parse(Path(oaml.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    return {a.asname: n.module for n in block.body for a in n.names}


def test_editors_and_python_agree():
    assert named_for_editors() == {name: module for module, names in oaml._PLACES.items() for name in names}


@pytest.mark.parametrize("name", oaml.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name): assert getattr(oaml, name).__doc__


def test_a_wrong_name_is_refused():
    with pytest.raises(AttributeError, match="load_polcy"): oaml.load_polcy


def test_import_is_quick_and_light():
    "The cost is what Python counts for oaml's own modules and what they bring, without its own start."
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", "import oaml, sys; print(*sys.modules)"], capture_output=True, text=True)
    took = {line.split("|")[2].strip(): int(line.split("|")[1]) for line in done.stderr.splitlines() if "|" in line and "[us]" not in line}
    assert took["oaml"]/1000 < MAX_IMPORT_MS, took["oaml"]
    assert not {"torch", "numpy", "pydantic", "PIL"} & set(done.stdout.split())
