"""The house in figures: `python .ci/dev.py shape`. Reads notebooks and package as text; nothing is imported or run."""
import ast, json, re, sys
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
OAML = ROOT/"oaml"
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SHOWN = re.compile(r"image/|text/html|text/markdown|text/plain|text/latex|application/vnd")


def modules(root=OAML):
    "The package's modules by name, `oaml.apps.login`: their files."
    paths = [p for p in sorted(root.rglob("*.py")) if p.name != "_modidx.py"]
    dotted = lambda p: ".".join(("oaml", *p.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    return {dotted(p): p for p in paths}


def code_lines(text):
    "How many lines of `text` are code: no blank lines, no comments alone on a line, no docstrings."
    tree, lines = ast.parse(text), {i for i, line in enumerate(text.splitlines(), 1) if line.strip()[:1] not in ("", "#")}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINES)) and ast.get_docstring(node, False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def function_lengths(tree):
    "Lines of each function and method, its `def` to its last line."
    return [n.end_lineno - n.lineno + 1 for n in ast.walk(tree) if isinstance(n, DEFINES[:2])]


def public_names(tree):
    "What a module defines at its top that a reader may meet: classes, functions, constants, without those that begin with _."
    assigned = [t for n in tree.body if isinstance(n, (ast.Assign, ast.AnnAssign))
                for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    names = [n.name for n in tree.body if isinstance(n, DEFINES) and not any(_patches(d) for d in n.decorator_list)]
    names += [n.id for t in assigned for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {n for n in names if not n.startswith("_")} - {"__all__"}


def _patches(decorator):
    "Does it make the function a method of another class?"
    return getattr(getattr(decorator, "func", decorator), "id", "").startswith("patch")


def imports(name, path, known):
    "What module `name` of the package reads, at the top, in functions, and by a module's name in a string: [(module, line)]."
    package, found = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1], []
    def add(dotted, node):
        while dotted and dotted not in known: dotted = dotted.rpartition(".")[0]
        if dotted not in ("", "oaml", name): found.append((dotted, node.lineno))
    nodes = list(_nodes(ast.parse(path.read_text(encoding="utf-8"))))
    started = _programs(nodes)
    for node in nodes:
        if isinstance(node, ast.Import): [add(a.name, node) for a in node.names if a.name.startswith("oaml.")]
        if isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            full = ".".join(base + ([node.module] if node.module else []))
            if full.split(".")[0] == "oaml": [add(f"{full}.{a.name}", node) for a in node.names]
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in started:
            # Packages alone are named where data files are looked up; a module's name is an import in disguise.
            if (m := re.fullmatch(r"(oaml\.\w+\.\w+)(?:[.:]\w+)*", node.value)) and m[1] in known: add(m[1], node)
    return found


def _programs(nodes):
    "The strings behind a `-m` in a list: modules that are started as a process of their own, not read."
    lists = [node.elts for node in nodes if isinstance(node, ast.List|ast.Tuple)]
    return {b for elts in lists for a, b in zip(elts, elts[1:]) if isinstance(a, ast.Constant) and a.value == "-m"}


def _nodes(tree):
    "All nodes but those that only a script runs, behind `if __name__ == ...`."
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test): continue
        yield node
        yield from _nodes(node)


def cycles(graph):
    "Groups of modules that lead back to each other (Tarjan's strongly connected components of two and more)."
    index, low, stack, on, groups = {}, {}, [], set(), []
    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v); on.add(v)
        for w in sorted(graph.get(v, ())):
            if w not in index: visit(w); low[v] = min(low[v], low[w])
            elif w in on: low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            group = []
            while not group or group[-1] != v: group.append(stack.pop()); on.discard(group[-1])
            if len(group) > 1: groups.append(sorted(group))
    for v in sorted(graph):
        if v not in index: visit(v)
    return sorted(groups)


def notebook(path):
    "(module or None, exported cells as texts, does it show a value or a picture?) of a notebook."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = lambda c: "".join(c["source"])
    module = next((m[1] for c in cells for m in re.finditer(r"^#\|\s*default_exp\s+(\S+)", text(c), re.M)), None)
    exported = [re.sub(r"^#\|.*\n?", "", text(c), flags=re.M).strip() for c in cells
                if c["cell_type"] == "code" and re.search(r"^#\|\s*exports?i?\b", text(c), re.M)]
    shows = any(SHOWN.match(kind) for c in cells for o in c.get("outputs", []) for kind in o.get("data", ()))
    return module, exported, shows


def is_imports(source):
    "Is a cell imports alone?"
    return all(isinstance(n, (ast.Import, ast.ImportFrom, ast.Try)) for n in ast.parse(source).body)


def figures(paths, books):
    "One row: the figures of the modules at `paths` and of the notebooks `books`."
    texts = [p.read_text(encoding="utf-8") for p in paths]
    long = [n for t in texts for n in function_lengths(ast.parse(t))]
    cells = [c for _, exported, _ in books for c in exported if not is_imports(c)]
    lines = [len(c.splitlines()) for c in cells]
    defined = [sum(isinstance(n, DEFINES) for n in ast.parse(c).body) for c in cells]
    p90 = lambda xs: round(quantiles(xs, n=10, method="inclusive")[-1]) if len(xs) > 1 else (xs or [0])[0]
    middle = lambda xs: median(xs) if xs else 0
    return [len(texts), sum(len(t.splitlines()) for t in texts), sum(map(code_lines, texts)), f"{middle(long):g}", p90(long),
            f"{middle(lines):g}", p90(lines), max(lines, default=0), f"{middle(defined):g}", p90(defined),
            len(books) - sum(shows for *_, shows in books)]


HEAD = ("chapter", "modules", "lines", "code", "function", "p90", "cell", "p90", "longest", "definitions", "p90", "blind")


def table(rows):
    "Rows as a Markdown table, numbers to the right."
    return "\n".join("| " + " | ".join(map(str, r)) + " |" for r in [HEAD, [":--"] + ["--:"]*(len(HEAD)-1), *rows])


def shape():
    "The figures as Markdown: a row a chapter, cycles, and public names that occur twice."
    known = modules()
    books = {p: notebook(p) for p in sorted((ROOT/"nbs").glob("*.ipynb"))}
    chapters, read = defaultdict(list), defaultdict(list)
    for name, path in known.items(): chapters[name.split(".")[1] if "." in name else "oaml"].append(path)
    for path, book in books.items():
        read[book[0].split(".")[0] if book[0] else path.stem.partition("_")[2].split(".")[0] or path.stem].append(book)
    rows = [[c, *figures(chapters.get(c, []), read.get(c, []))] for c in sorted({*chapters, *read})]
    whole = figures(list(known.values()), list(books.values()))
    apart = figures([p for n, p in known.items() if ".nano" not in n], [b for b in books.values() if not (b[0] or "").startswith("nano")])
    rows += [["**whole**", *whole], ["**without nano**", *apart]]
    names = defaultdict(list)
    for name, path in known.items():
        for public in public_names(ast.parse(path.read_text(encoding="utf-8"))): names[public].append(name.removeprefix("oaml."))
    twice = {n: where for n, where in sorted(names.items()) if len(where) > 1}
    knots = cycles({n: {m for m, _ in imports(n, p, known)} for n, p in known.items()})
    return "\n".join([
        "Lines of functions and of exported cells (imports apart) and definitions in a cell: the median, then the 90th percentile.",
        "*code* leaves out blank lines, comments and docstrings; *blind* notebooks store no value and no picture.\n", table(rows),
        f"\nmodule cycles: {len(knots)}", *("- " + " <-> ".join(k) for k in knots),
        f"\npublic names that occur in several modules: {len(twice)}", *(f"- `{n}`: {', '.join(w)}" for n, w in twice.items())])


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    print(shape())
