"README.md says what nbs/index.ipynb says, and the repository's scripts and workflows agree with each other."
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("dev", ROOT/".ci/dev.py")
dev = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dev)


def code(source, *outputs): return {"cell_type": "code", "source": source, "outputs": list(outputs)}
def shows(kind, text): return {"output_type": "execute_result", "data": {kind: text}}


def test_readme_is_in_sync():
    assert (ROOT/"README.md").read_text(encoding="utf-8") == dev.readme_text(), "run `python .ci/dev.py readme`"


def notebook_faults(notebook):
    """What would make a notebook open badly, or its page lose words: the first cell is title and subtitle alone, since nbdev takes
    all of it as front matter; a kernel is named, so that JupyterLab asks for none; no widget's state is stored that nothing shows."""
    faults = []
    if not re.fullmatch(r"# [^\n]+\n\n> [^\n]+", "".join(notebook["cells"][0]["source"])):
        faults.append("the first cell is more or less than '# title', an empty line and '> subtitle': other words need a cell of their own")
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        faults.append("metadata.kernelspec doesn't name python3: JupyterLab would ask for a kernel")
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
    shown = any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)
    if "widgets" in notebook["metadata"] and not shown: faults.append("a progress bar's state: delete metadata.widgets")
    return faults


def test_no_two_notebooks_share_a_place_in_the_reading_order():
    places = [p.name.partition("_")[0] for p in (ROOT/"nbs").glob("[0-9]*.ipynb")]
    assert not {p for p in places if places.count(p) > 1}


@pytest.mark.parametrize("path", sorted((ROOT/"nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_opens_and_its_page_keeps_its_words(path):
    assert not notebook_faults(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("fault, plant", [
    ("words need a cell", lambda nb: nb["cells"][0].update(source=nb["cells"][0]["source"] + ["\n\nA paragraph below."])),
    ("words need a cell", lambda nb: nb["cells"][0].update(source=["# A title alone"])),
    ("ask for a kernel", lambda nb: nb["metadata"].pop("kernelspec")),
    ("metadata.widgets", lambda nb: nb["metadata"].update(widgets={})),
])
def test_a_planted_fault_in_a_notebook_is_found(fault, plant):
    notebook = json.loads((ROOT/"nbs/00d_schemas.arguments.ipynb").read_text(encoding="utf-8"))
    assert not notebook_faults(notebook)
    plant(notebook)
    assert len(notebook_faults(notebook)) == 1 and fault in notebook_faults(notebook)[0]


def test_readme_links_lead_somewhere():
    text = re.sub(r"```.*?```", "", dev.readme_text(), flags=re.S)
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r"""(?:src|href)=["']([^"'#]+)""", text)
    missing = [link for link in links if not re.match(r"[a-z]+:", link) and not (ROOT/link).exists()]
    assert not missing


@pytest.mark.parametrize("cell, md", [
    ({"cell_type": "markdown", "source": "![a](images/a.png) [b](01a_viz.screens.ipynb) [c](https://c.org) [d](#d)"},
     "![a](nbs/images/a.png) [b](nbs/01a_viz.screens.ipynb) [c](https://c.org) [d](#d)"),
    ({"cell_type": "markdown", "source": '<img src="images/a.png"> [up](../CONTRIBUTING.md)'},
     '<img src="nbs/images/a.png"> [up](CONTRIBUTING.md)'),
    ({"cell_type": "raw", "source": "---\ntitle: oaml\n---"}, ""),
    (code("#| hide\nimport os"), ""),
    (code("#| eval: false\nf()"), "```python\nf()\n```"),
    (code("f()", shows("text/plain", ["CLICK(x=0.5, y=0.5)"])), "```python\nf()\n```\n\n```\nCLICK(x=0.5, y=0.5)\n```"),
    (code("#| echo: false\nf()", shows("text/markdown", "|a|\n|-|")), "|a|\n|-|"),
    (code("#| output: false\nf()", {"output_type": "stream", "text": "noise"}), "```python\nf()\n```"),
])
def test_cell_to_markdown(cell, md): assert dev.cell_md(cell) == md


def test_a_picture_in_an_output_is_refused():
    with pytest.raises(SystemExit, match="nbs/images"): dev.cell_md(code("f()", shows("image/png", "iVBOR")))


@pytest.mark.parametrize("path", sorted((ROOT/".github/workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_call_commands_that_exist(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    called = re.findall(r"\.ci/dev\.py ([\w-]+)", "\n".join(step.get("run", "") for step in steps))
    assert called and set(called) <= set(dev.COMMANDS)
    assert all("uses" in step or "run" in step for step in steps)


def test_constraints_pin_every_direct_requirement():
    pinned = {re.split(r"==", line)[0].lower() for line in (ROOT/"constraints.txt").read_text().splitlines() if "==" in line}
    settings = (ROOT/"settings.ini").read_text(encoding="utf-8")
    extras = dev.TEST_EXTRAS.split(",")
    wanted = re.findall(rf"^(?:(?:{'|'.join(extras)})_)?requirements = (.*)$", settings, re.M)
    names = {re.split(r"[<>=\[;]", req)[0].lower() for line in wanted for req in line.split()}
    assert len(wanted) == len(extras) + 1 and names <= pinned, names - pinned


def test_check_catches_a_planted_fault(tmp_path, monkeypatch):
    "A notebook with noise, an edited module and a module without a notebook are each named."
    for name in ("nbs", "oaml"): shutil.copytree(ROOT/name, tmp_path/name)
    for name in ("settings.ini", "pyproject.toml"): shutil.copy(ROOT/name, tmp_path)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    notebook, module, stale = (tmp_path/n for n in ("nbs/index.ipynb", "oaml/ui/themes.py", "oaml/ui/stale.py"))
    notebook.write_text(notebook.read_text(encoding="utf-8").replace('"metadata": {}', '"metadata": {"noise": 1}', 1),
                        encoding="utf-8")
    stale.write_text(module.read_text(encoding="utf-8"), encoding="utf-8")
    module.write_text(module.read_text(encoding="utf-8") + "# edited by hand\n", encoding="utf-8")
    found = {line.split(":")[0] for line in dev.out_of_sync()}
    assert {"nbs/index.ipynb", "oaml/ui/stale.py", "oaml/ui/themes.py"} <= found


def test_nothing_large_or_accidental_is_tracked():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")[:-1]
    if not tracked: pytest.skip("needs a git checkout: this folder has no .git, so nothing says what is tracked")
    assert not [name for name in tracked if name.startswith("nbs/runs/")]
    large = {name for name in tracked if (ROOT/name).exists() and (ROOT/name).stat().st_size > 1e6}
    assert large <= {"oaml/nano/weights/model.safetensors", "oaml/_modidx.py"}  # nbdev's index of names


def test_a_stored_output_of_yesterday_is_named(tmp_path, monkeypatch, capsys):
    pytest.importorskip("execnb", reason="needs execnb, of the extra `dev`")
    spec = importlib.util.spec_from_file_location("stale", ROOT/".ci/stale.py")
    stale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stale)
    monkeypatch.setattr(stale, "NBS", tmp_path)
    monkeypatch.chdir(tmp_path)
    cells = [code("'new'", shows("text/plain", "'old'")), code("3.5", shows("text/plain", "2.25")), code("'same'", shows("text/plain", "'same'")),
             code("#| eval: false\n'new'", shows("text/plain", "'old'"))]
    (tmp_path/"a.ipynb").write_text(json.dumps(dict(nbformat=4, nbformat_minor=5, metadata={}, cells=[dict(c, id=str(k), metadata={}, execution_count=None) for k, c in enumerate(cells)])), encoding="utf-8")
    assert stale.main([]) == 1 and "a.ipynb, cell 0\n  stored: \"'old'\"\n  today:  \"'new'\"\na.ipynb: 1 stale" in capsys.readouterr().out
    assert stale.main(["a.ipynb", "--write"]) == 0 and stale.main([]) == 0
    stored = [c["outputs"][0]["data"]["text/plain"] for c in json.loads((tmp_path/"a.ipynb").read_text(encoding="utf-8"))["cells"]]
    assert ["".join(s) for s in stored] == ["'new'", "2.25", "'same'", "'old'"]
