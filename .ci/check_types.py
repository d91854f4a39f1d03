"""Type checks as a reader's editor does them: the code of README and how-tos, and every name that `import oaml` offers.

    python .ci/check_types.py    exit code 1 if pyright or mypy finds an error, or a public name, method or result is of unknown type

pyright comes as basedpyright, whose wheel brings what it runs on: no network is used. `python .ci/dev.py check` calls this."""
import json, os, re, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT/"tests"  # a how-to imports the phone that tests play on
PYRIGHT = dict(typeCheckingMode="standard", pythonVersion="3.11", reportUnusedExpression=False,  # a cell ends with what it shows
               reportPrivateImportUsage=False)                                                  # trl's own names come late
MYPY = """[mypy]
python_version = 3.11
follow_imports = silent
ignore_missing_imports = True
allow_redefinition = True
[mypy-{heavy}]
follow_imports = skip
"""  # others' packages are pyright's to read: mypy alone takes minutes for PyTorch
HEAVY = "torch transformers trl datasets peft pandas ray mujoco stable_baselines3 gymnasium matplotlib IPython starlette openai anthropic".split()


def code():
    "What README and how-tos let a reader write: {file name: code}."
    found = {"readme.py": "\n".join(re.findall(r"```python\n(.*?)```", (ROOT/"README.md").read_text(encoding="utf-8"), re.S))}
    for path in sorted((ROOT/"nbs").glob("20*.ipynb")):
        cells = ["".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        lines = "\n\n".join(c for c in cells if not c.startswith("%%"))
        name = re.sub(r"\W", "_", path.stem)
        found[f"howto_{name}.py"] = re.sub(r"(?m)^[!%].*$", "", lines) + "\n"
    return found


def public():
    "The public names and the public methods of those that are classes, as expressions."
    import inspect
    import oaml
    for name in oaml.__all__:
        yield f"oaml.{name}"
        value = getattr(oaml, name)
        if isinstance(value, type):
            yield from (f"oaml.{name}.{m}" for m, v in vars(value).items() if not m.startswith("_") and (inspect.isroutine(v) or isinstance(v, classmethod)))


def surface():
    "A module that asks a checker for the type of every public name."
    return "import oaml\n" + "".join(f"reveal_type({name})\n" for name in public())


def environ(): return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}


def pyright(folder):
    "What pyright finds in `folder`: its errors, and what it makes of the names, {line: type}."
    config = PYRIGHT | dict(include=["."], extraPaths=[str(ROOT), str(TESTS)])
    (folder/"pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-m", "basedpyright", "-p", ".", "--pythonpath", sys.executable, "--outputjson"], cwd=folder,
                          capture_output=True, text=True, env=environ())
    try: found = json.loads(done.stdout)["generalDiagnostics"]
    except ValueError: sys.exit(f"basedpyright: {done.stdout}{done.stderr}")
    def place(d): return Path(d["file"]).name, d["range"]["start"]["line"] + 1
    errors = ["pyright: {}:{}: {}".format(*place(d), d["message"]) for d in found if d["severity"] == "error"]
    return errors, {place(d)[1]: d["message"].replace("tqdm_asyncio[Unknown]", "tqdm") for d in found if d["severity"] == "information" and place(d)[0] == "surface.py"}


def mypy(folder):
    "The same of mypy."
    (folder/"mypy.ini").write_text(MYPY.format(heavy=",".join(f"{name}.*" for name in HEAVY)))
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", "--cache-dir", str(ROOT/".mypy_cache"),
                           *sorted(p.name for p in folder.glob("*.py"))], cwd=folder, capture_output=True, text=True,
                          env=environ() | {"MYPYPATH": os.pathsep.join((str(ROOT), str(TESTS)))})
    lines = done.stdout.splitlines()
    if done.returncode and not lines: sys.exit(f"mypy: {done.stderr}")
    errors = [f"mypy: {line}" for line in lines if ": error: " in line]
    return errors, {int(m[1]): m[2] for line in lines if (m := re.match(r"surface\.py:(\d+): note: Revealed type is (.*)", line))}


def check():
    "Run both, print what is wrong and the counts."
    names, began, wrong = list(public()), time.monotonic(), []
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        for name, text in (code() | {"surface.py": surface()}).items(): (folder/name).write_text(text, encoding="utf-8")
        for checker, unknown in ((pyright, r"\bUnknown\b"), (mypy, r'^"Any"$')):
            errors, types = checker(folder)
            lost = [name for line, name in enumerate(names, 2) if re.search(unknown, types.get(line, "Unknown" if checker is pyright else '"Any"'))]
            wrong += errors + [f"{checker.__name__}: {name} is of unknown type: {types.get(names.index(name) + 2)}" for name in lost]
            print(f"{checker.__name__}: {len(errors)} errors in {len(code())} files, {len(lost)} of {len(names)} public names unknown, "
                  f"{time.monotonic() - began:.0f} s", flush=True)
    if wrong: sys.exit("\n".join(wrong))


if __name__ == "__main__": check()
