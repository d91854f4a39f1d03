"""Set up, run, test and check oaml: `python .ci/dev.py setup|demo|test|realapps|export|check|types|readme|wheel-check|docs|lab|stale|shape|clean` on Linux, macOS and Windows.

The Makefile and the CI call these commands and add nothing. Only the standard library and a neighbour are imported here,
because the first command of all makes the environment in which everything else runs."""
import argparse, hashlib, json, os, posixpath, re, shutil, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from methods import move_methods

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT/".venv"
BIN = VENV/("Scripts" if os.name == "nt" else "bin")
PYTHONS = ("3.11", "3.12", "3.13")  # settings.ini's min_python up to what CI runs; the constraints are made with the first
INSTALL_FILES = ("constraints.txt", "settings.ini", "setup.py", "pyproject.toml")

DEMO_EXTRAS = "train"  # what training and acting need, so that the first command is done soonest
TEST_EXTRAS = "train,qlora,notebook,browser,realapps,mobile,desktop,ocr,serve,api,hf,rl,scale,p2p,docs,dev"

NOTEBOOKS, TESTS, MOST = 3, 4, 8  # at once on two cores, as many of them wait for a browser, a process or a deadline; at most on many
NOTEBOOK_GB, TEST_GB = 3, 1.5  # memory that a process of each may take

MAX_NOTEBOOK_BYTES = 300_000  # a notebook that opens at once, also on GitHub


def tried(*cmd, cwd=ROOT, stderr=None, **env):
    "Run `cmd` in `cwd` with `env` added; return how it ended."
    print("+", *cmd, flush=True)
    # Modules are compiled when they are first imported; where that is not kept, each of a thousand processes does it again.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([str(c) for c in cmd], cwd=cwd, env={**kept, **env}, stderr=stderr, text=True, encoding="utf-8", errors="replace")


def run(*cmd, cwd=ROOT, **env):
    "Run `cmd` in `cwd` with `env` added, and stop with its exit code if it fails."
    if code := tried(*cmd, cwd=cwd, **env).returncode: sys.exit(code)


def at_once(least, gb):
    "How many processes run at the same time: one a core, as far as there are `gb` of memory for each; never fewer than `least`."
    try: memory = os.sysconf("SC_PAGE_SIZE")*os.sysconf("SC_PHYS_PAGES")/2**30
    except (AttributeError, ValueError, OSError): return str(least)  # Windows does not say
    return str(max(least, min(os.cpu_count() or 1, int(memory/gb), MOST)))


def tool(name):
    "The path of the command `name` inside the virtual environment."
    return BIN/(name + (".exe" if os.name == "nt" else ""))


# Set-up

def find_python():
    "A Python that oaml supports: this one, or the first of `PYTHONS` on PATH."
    if "%d.%d" % sys.version_info[:2] in PYTHONS: return sys.executable
    found = [path for v in PYTHONS for path in [shutil.which(f"python{v}")] if path]
    if not found: sys.exit(f"oaml needs Python {' or '.join(PYTHONS)}, and PATH has none; this is {sys.version.split()[0]}")
    return found[0]


def install_key():
    "What the environment depends on, as a hash: the files that name versions, and where the project lies."
    parts = [str(ROOT).encode()] + [(ROOT/name).read_bytes() for name in INSTALL_FILES]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def setup(extras=TEST_EXTRAS):
    "Make `.venv` and install oaml with its `extras` and pinned versions; do nothing if they are there."
    stamp, key = VENV/"oaml-install.sha256", install_key()
    installed = stamp.read_text().split() if stamp.exists() else []
    if tool("python").exists() and installed[:1] == [key] and set(extras.split(",")) <= set(installed[1].split(",")): return
    stamp.unlink(missing_ok=True)  # an install that is cut short must not look finished
    if not tool("python").exists(): run(find_python(), "-m", "venv", "--clear", VENV)
    # Modules are compiled when they are first imported: compiling all of them takes longer than the whole of an install.
    pip = tool("python"), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "-c", ROOT/"constraints.txt"
    run(*pip, "setuptools", "wheel")
    run(*pip, "--no-build-isolation", "-e", f"{ROOT}[{extras}]")
    stamp.write_text(f"{key} {extras}")


# README.md from nbs/index.ipynb

def shown_path(link):
    "`link` as written in nbs/, seen from the top folder; addresses and anchors stay as they are."
    if re.match(r"[a-zA-Z][\w+.-]*:|[#/]", link): return link
    return posixpath.normpath(posixpath.join("nbs", link))


def relink(md):
    "Markdown `md` with its relative links and pictures seen from the top folder."
    md = re.sub(r"(\]\()([^)\s]+)", lambda m: m[1] + shown_path(m[2]), md)
    return re.sub(r"""((?:src|href)=["'])([^"']+)""", lambda m: m[1] + shown_path(m[2]), md)


def output_md(output):
    "One stored output as Markdown: its own Markdown if it has some, else its text in a fence."
    data = output.get("data", {})
    if "text/markdown" in data: return relink("".join(data["text/markdown"])).strip()
    if any(kind.startswith("image/") for kind in data):
        sys.exit("nbs/index.ipynb: a cell's output is a picture. Save it in nbs/images/, show it with ![...](images/...)")
    text = "".join(output.get("text") or data.get("text/plain") or "").rstrip()
    return f"```\n{text}\n```" if text else ""


def cell_md(cell):
    "One cell as Markdown, following nbdev's directives: hide, echo: false, output: false and the like."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown": return relink(source).strip()
    if cell["cell_type"] != "code": return ""  # front matter
    directives = {m.replace(" ", "") for m in re.findall(r"^#\|\s*(.*?)\s*$", source, re.M)}
    if directives & {"hide", "include:false"}: return ""
    code = re.sub(r"^#\|.*\n?", "", source, flags=re.M).strip()
    parts = [f"```python\n{code}\n```"] if code and not directives & {"echo:false", "hide_input"} else []
    if not directives & {"output:false", "hide_output"}: parts += [output_md(o) for o in cell["outputs"]]
    return "\n\n".join(p for p in parts if p)


def readme_text():
    "README.md's text: nbs/index.ipynb, cell by cell."
    nb = json.loads((ROOT/"nbs/index.ipynb").read_text(encoding="utf-8"))
    note = "<!-- Written from nbs/index.ipynb by `python .ci/dev.py readme`: edit that notebook. -->"
    return "\n\n".join([note] + [md for md in map(cell_md, nb["cells"]) if md]) + "\n"


def readme():
    "Write README.md."
    (ROOT/"README.md").write_bytes(readme_text().encode())


# The package from the notebooks

def export():
    "Write oaml/ from nbs/: `nbdev_export`, and then each method that a notebook patches into a class is moved there."
    if not tool("nbdev_export").exists(): setup()
    run(tool("nbdev_export"), PYTHONUTF8="1")
    for line in move_methods(ROOT/"oaml"): print(f"stays patched: {line}")


# Checks: each returns the paths that differ, and leaves the working tree as it is

def differing(ours, theirs, pattern):
    "Files matching `pattern` that differ, or lie in only one of the folders `ours` and `theirs`."
    names = {p.relative_to(d).as_posix() for d in (ours, theirs) for p in d.glob(pattern)}
    text = lambda path: path.read_text(encoding="utf-8") if path.exists() else None
    return sorted(n for n in names if text(ours/n) != text(theirs/n))


def generated(path):
    "Whether nbdev wrote the module at `path`."
    return "AUTOGENERATED!" in path.read_text(encoding="utf-8")[:400] or path.name == "_modidx.py"


def out_of_sync():
    "Notebooks that `nbdev_clean` would change, and modules that `export` would write otherwise, or not at all."
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        for name in ("nbs", "oaml"):
            skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".*")
            shutil.copytree(ROOT/name, tmp/name, ignore=skip)
        for name in ("settings.ini", "pyproject.toml"): shutil.copy(ROOT/name, tmp)
        for path in list((tmp/"oaml").rglob("*.py")):
            if generated(path): path.unlink()  # so that a module whose notebook is gone shows
        for name in ("nbdev_clean", "nbdev_export"): run(tool(name), cwd=tmp, PYTHONUTF8="1")
        move_methods(tmp/"oaml")
        return ([f"nbs/{n}: not clean (run nbdev_clean)" for n in differing(ROOT/"nbs", tmp/"nbs", "*.ipynb")]
                + [f"oaml/{n}: differs from its notebook (run `python .ci/dev.py export`, which is more than nbdev_export; delete it if it has none)"
                   for n in differing(ROOT/"oaml", tmp/"oaml", "**/*.py")])


def check():
    "No unused or undefined name; notebooks clean and small, package in sync with notebooks, README.md in sync with index.ipynb."
    setup()
    run(tool("ruff"), "check", "oaml", "tests", "bench", ".ci")
    wrong = out_of_sync() + [f"{p.relative_to(ROOT).as_posix()}: {p.stat().st_size:,} bytes, over {MAX_NOTEBOOK_BYTES:,}"
                             for p in sorted((ROOT/"nbs").glob("*.ipynb")) if p.stat().st_size > MAX_NOTEBOOK_BYTES]
    if (ROOT/"README.md").read_text(encoding="utf-8") != readme_text():
        wrong.append("README.md: differs from nbs/index.ipynb (run `python .ci/dev.py readme`)")
    if wrong: sys.exit("\n".join(wrong))
    print("notebooks clean, package and README.md in sync")
    types()


def types():
    "pyright and mypy over the code of README and how-tos, and over the public names."
    setup()
    run(tool("python"), ROOT/".ci/check_types.py")


# What a stranger runs

def demo(*args):
    "Train the small model, let it act, write runs/demo/report.html; `args` go to `oaml demo`."
    setup(DEMO_EXTRAS)
    run(tool("oaml"), "demo", *args)


def notebooks(**env):
    "Run every notebook as a test; one that fails is run once more, alone, and named."
    done = tried(tool("nbdev_test"), "--n_workers", at_once(NOTEBOOKS, NOTEBOOK_GB), "--timing", stderr=subprocess.PIPE, **env)
    print(done.stderr, file=sys.stderr, flush=True)
    if not done.returncode: return
    failed = re.findall(r"^\s+(\S+\.ipynb)$", done.stderr.rpartition("Tests Failed")[2], re.M)
    if not failed: sys.exit(done.returncode)
    for name in failed: run(tool("nbdev_test"), "--path", f"nbs/{name}", "--n_workers", "0", **env)
    print("failed beside others, and passed alone:", *failed)


def test(*args):
    """Every notebook as a test, then tests/; `args` go to pytest. What fails is played once more, and listed: many measure how long
    something waits, and a machine that stands still for seconds is no fault of theirs."""
    setup()
    # One thread each: more threads than cores slow all of them down.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    notebooks(OMP_NUM_THREADS=threads, PYTHONUTF8="1")
    run(tool("python"), "-m", "pytest", *(args or ("-n", at_once(TESTS, TEST_GB), "--durations", "40", "--reruns", "1", "-rR")), OMP_NUM_THREADS=threads)


def realapps(*args):
    "Install the real applications that CI does not, and play every one; `args` go to pytest."
    setup(TEST_EXTRAS + ",realapps_more")
    run(tool("python"), "-c", "from oaml.realapps.budget import install_actual; install_actual()")
    run(tool("python"), "-c", "from oaml.realapps.label_studio import install_label_studio; install_label_studio()")
    run(tool("python"), "-m", "pytest", "tests/test_realapps.py", *args)


def wheel_check():
    """Build the wheel, install it in fresh environments outside of the clone, from the package index, and give it every command that is
    printed: with no extra (a command that needs one must name it), then with all that the commands name, the long ones shortened."""
    setup()
    with tempfile.TemporaryDirectory() as tmp:
        run(tool("python"), "-m", "build", "--outdir", tmp, ROOT, cwd=tmp)
        wheel, env = next(Path(tmp).glob("*.whl")), Path(tmp)/"env"
        run(find_python(), "-m", "venv", env)
        python = env/BIN.name/("python.exe" if os.name == "nt" else "python")
        for extras, how in (("", "--run"), ("[train,notebook,api,browser,mobile,serve,hf,rl,p2p]", "--all")):
            run(python, "-m", "pip", "install", "--quiet", "-c", ROOT/"constraints.txt", f"{wheel}{extras}", cwd=tmp, PYTHONPATH="")
            run(python, ROOT/".ci/commands.py", "check", how, cwd=tmp, PYTHONPATH="")


def docs():
    "Write the site of all notebooks into _docs/, without running them and without a network; open _docs/index.html."
    setup()
    run(tool("python"), ROOT/".ci/docs.py", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"), PYTHONUTF8="1")


def lab(*args):
    "Open JupyterLab on the notebooks; `args` go to `jupyter lab`."
    setup()
    as_root = ["--allow-root"]*(hasattr(os, "geteuid") and os.geteuid() == 0)  # a container's only user; it listens on this machine alone, with a token
    run(tool("jupyter"), "lab", *as_root, *(args or ("index.ipynb",)), cwd=ROOT/"nbs")


def stale(*args):
    "Run notebooks and name the cells whose stored text is not what they print now; `args`: notebooks, and --write to store it."
    setup()
    run(tool("python"), ROOT/".ci/stale.py", *args, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))


def shape():
    "The house in figures: lines, functions, exported cells, module cycles, names that occur twice."
    run(sys.executable, ROOT/".ci/shape.py")


def clean():
    "Remove what the other commands made, the environment included; runs/ stays."
    for name in (".venv", "_docs", "_proc", "build", "dist", ".pytest_cache", ".hypothesis", "oaml.egg-info"):
        shutil.rmtree(ROOT/name, ignore_errors=True)


COMMANDS = {f.__name__.replace("_", "-"): f for f in (setup, demo, test, realapps, export, check, types, readme, wheel_check, docs, lab, stale, shape, clean)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(f"  {n:8} {f.__doc__}" for n, f in COMMANDS.items()))
    parser.add_argument("command", choices=COMMANDS)
    name, args = (lambda known, rest: (known.command, rest))(*parser.parse_known_args())
    if args and name not in ("demo", "test", "lab", "stale"): parser.error(f"{name} takes no arguments, got {' '.join(args)}")
    COMMANDS[name](*args)
