"""Every `oaml` command that README, notebooks, docstrings and configurations print: parsed, and the quick ones run, as a stranger would.

    python .ci/commands.py list                  each command, where it is printed, what it needs
    python .ci/commands.py check [--run] [--all] parse all with the `oaml` that this Python imports; --run also plays the quick ones,
                                                 --all the long ones too, shortened

`python .ci/dev.py wheel` builds the wheel, installs it outside of the repository and calls this script there."""
import argparse, ast, json, os, re, shlex, signal, subprocess, sys, tempfile, time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = re.compile(r"\b(?:CONFIG|FOLDER|FILE|MODEL|NAME|SERIAL|WORDS|APP|VALUE|HOST|PORT|ADDRESS|ID|N|RUN)\b|\.\.\.|<")
SECONDS = 600   # after which a command is taken to hang: the quick ones take 1 to 30 on an idle machine
ENDLESS = 8     # seconds in which a server must not end

# What makes a command one that is only parsed: a pattern of its words, and the need
NEEDS = [(r"\b(anthropic|openai):(?!.*--base-url)", "a key"), (r"android:|--device android", "a phone"), (r"page:https|https://", "a network"),
         (r"qwen3vl", "a GPU"), (r"real-apps", "real applications"), (r"^show \w+:", "a person"), (r"^(pretrain|dagger|rft|rft-worker|sweep|demo)\b|^miniwob (collect|train)|miniwob", "minutes to hours"),
         (r"^(miniwob|eval .*miniwob)|miniwob:|html:|page:", "Chromium"), (r"my_module", "your own module"), (r"\bray\b|ssh:", "a cluster"), (r"--base-url|--controller|http://", "a server")]
LONG = r"^train\b|^p2p|^eval .*(--app|--suite (synthetic|real))|--episodes \d{2,}|--sessions \d{3,}|^data (export|import)"  # run by --all alone
SHORTER = {"train": ["--set", "training.max_steps=2", "--set", "data.sessions=4", "--set", "training.per_device_train_batch_size=2"],
           "eval": ["--episodes", "2"], "synth": ["--sessions", "2"], "p2p run": ["--seeds", "1", "--iterations", "1"]}
SERVERS = r"^(serve-|p2p serve)"


def texts():
    "What a reader sees, in reading order: [(place, text)]."
    yield "README.md", (ROOT/"README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT/"nbs").glob("[0-9]*.ipynb")):
        for i, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "markdown": yield f"{path.name} cell {i}", "".join(cell["source"])
    for path in sorted((ROOT/"oaml").rglob("*.py")):
        if path.name == "_modidx.py": continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # docstrings, help and messages
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "oaml " in node.value:
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", node.value
    for path in sorted((ROOT/"oaml/training/configs").glob("*.yaml")):
        yield path.relative_to(ROOT).as_posix(), re.sub(r"(?m)^#( ?)", "", path.read_text(encoding="utf-8"))


def printed(text):
    "The commands in one text: lines of code blocks, and code within a line, which may be broken over two."
    text = re.sub(r"\\\n\s*", " ", text)
    found, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"): fenced = not fenced
        elif (fenced or line.startswith("    ") or line.startswith("  oaml")) and (m := re.match(r"\s*(?:\$ )?oaml (.+)", line)): found.append(m[1])
    return found + [" ".join(m[1].split()) for m in re.finditer(r"`oaml ([^`]+)`", text)]


def words(line):
    "A line's arguments, without a comment and what a shell would do next; None where it is no command."
    line = re.split(r"\s+#\s|\s*(?:;|&&| then |\|)\s", line)[0]
    try: return shlex.split(line)
    except ValueError: return None


def commands():
    "Every different command with where it is first printed: {words: place}."
    found = {}
    for place, text in texts():
        for line in printed(text):
            args = words(line)
            if args and re.match(r"[a-z0-9-]+$|--", args[0]): found.setdefault(tuple(args), place)
    return found


def need(args):
    "Why a command is only parsed, or None."
    line = " ".join(args)
    if PLACEHOLDER.search(line): return "names to fill in"
    return next((why for pattern, why in NEEDS if re.search(pattern, line)), None)


# With the installed package

def mentioned(args):
    "Is it only the name of a command, perhaps with one of its options, as in *`oaml act --like`* or *`oaml eval --shots K`*?"
    command, rest = whole_command(), list(args)
    while rest and rest[0] in getattr(command, "commands", {}): command, rest = command.commands[rest[0]], rest[1:]
    if len(rest) == 2 and re.fullmatch(r"[A-Z]+", rest[1]): rest = rest[:1]
    return not rest or len(rest) == 1 and rest[0] not in ("--help", "--version") and any(rest[0] in p.opts for p in command.params)


@cache
def whole_command():
    "The command `oaml`, as typer makes it."
    import typer
    from oaml.scripts.cli import app
    return typer.main.get_command(app)


def parse(args):
    "What a wrong command prints, or None; a bare name of a command is right if there is such a command."
    command = whole_command()
    rest, context = list(args), command.make_context("oaml", ["synth"])
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"): return None  # a group, or --help and --version
        if rest[0] not in command.commands: return f"no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    if mentioned(args): return None
    try: values = command.make_context("oaml", rest, parent=context).params
    except Exception as e:
        if type(e).__name__ == "Exit": return None  # --help
        return e.format_message() if hasattr(e, "format_message") else str(e)
    return wrong_keys(args, values)


def wrong_keys(args, values):
    "What is wrong with a configuration's name and the keys that are set, if it comes with oaml."
    from oaml.training.config import ConfigError, config_path, load_config, load_recipe, shipped_configs
    name = values.get("config") or values.get("recipe")
    if args[0] not in ("train", "sweep", "pretrain", "dagger", "rft") and args[:2] != ("miniwob", "train"): return None
    try:
        if name in shipped_configs() and not PLACEHOLDER.search(" ".join(args)):
            sets = [s.split(",")[0] if args[0] == "sweep" else s for s in values.get("overrides") or ()]
            (load_recipe if "stages:" in config_path(name).read_text(encoding="utf-8") else load_config)(name, sets)
    except ConfigError as e: return str(e)


def absent(args):
    "The inputs of a command that are not there: what another command would have made."
    outs = {b for a, b in zip(args, args[1:]) if a in ("--out", "--html")}
    return [a for a in args if re.search(r"^(runs|experiments|~)/|-shown$|^token$|\.(ya?ml|jsonl?|png|csv)$", a) and a not in outs and not Path(a).exists()
            and "=" not in a]


def play(args, long):
    "Run a command; what it printed if it failed, None if it did not, and the extra that it named if that is not installed."
    line = " ".join(args)
    short = next((more for name, more in SHORTER.items() if line.startswith(name)), []) if long else []
    cmd = [sys.executable, "-m", "oaml", *args, *short]
    if re.search(SERVERS, line):
        done = subprocess.Popen([*cmd, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(ENDLESS)
        if done.poll() is None: return done.send_signal(signal.SIGTERM)
        return named_extra(out := done.stdout.read()) or out
    try: done = subprocess.run(cmd, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired: return f"not done after {SECONDS} s"
    if args[0] == "train" and "already holds a run" in done.stderr:  # another command's, that is printed before
        with tempfile.TemporaryDirectory() as out: return play((*args, "--set", f"output_dir={out}/run"), long)
    return None if done.returncode in (0, 3) else named_extra(done.stderr) or done.stdout[-1500:] + done.stderr[-1500:]


def named_extra(printed):
    "The extra that a refusal names, as `names [train]`."
    m = re.search(r'oaml: .*: not installed; pip install "oaml(\[\w+\])"', printed)
    return m and f"names {m[1]}"


def check(run, long):
    "Parse all, and run those that can be; print a line for each that is wrong, and the counts."
    counts, wrong, started = {}, [], time.monotonic()
    def count(what): counts[what] = counts.get(what, 0) + 1
    with tempfile.TemporaryDirectory() as tmp:
        os.chdir(tmp)  # no clone in sight
        for args, place in commands().items():
            line = "oaml " + shlex.join(args)
            if problem := parse(args): wrong.append(f"{place}: {line}\n    {problem}")
            why = "wrong" if problem else need(args) or ("a bare name" if mentioned(args) else None)
            why = why or (not run and "not run today") or (re.search(LONG, " ".join(args)) and not long and "minutes: --all")
            why = why or ("what others make" if absent(args) else None)
            if why: count(f"only parsed ({why})"); continue
            began, problem = time.monotonic(), play(args, long)
            named = (problem or "").startswith("names [")
            if problem and not named: wrong.append(f"{place}: {line}\n    {problem}")
            count(problem if named else "failed" if problem else "ran")
            print(f"{time.monotonic() - began:5.1f} s  {'failed' if problem and not named else problem or 'ran'}: {line}", flush=True)
        os.chdir(ROOT)
    for line in wrong: print(line)
    print(f"{sum(counts.values())} commands in {time.monotonic() - started:.0f} s: {', '.join(f'{n} {what}' for what, n in counts.items())}; "
          f"{len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "check"))
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    if given.what == "check": check(given.run or given.all, given.all)
    for args, place in commands().items(): print(f"oaml {shlex.join(args)}   [{place}]" + (f"   needs {why}" if (why := need(args)) else ""))
