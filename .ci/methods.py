"""Exported modules with each method inside its class, where editors, type checkers and `help()` look.

In a notebook a method stands in a cell of its own, beside its explanation, and `@patch` puts it into the class. `python .ci/dev.py export`
writes the modules with `nbdev_export` and then moves those methods; notebooks stay as they are. What can't be moved without a change of
meaning stays patched, and is named."""
import ast, builtins, io, re, tokenize
from pathlib import Path

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef)
MARK = re.compile(r"# %% \S+ #\w+\s*$")  # nbdev's, above each cell's code
AS = {"@patch": None, "@patch(as_prop=True)": "@property", "@patch(cls_method=True)": "@classmethod"}


def patched_class(node):
    "The name of the class that a function is patched into, or None."
    if not isinstance(node, DEFINES) or not node.decorator_list or "@" + ast.unparse(node.decorator_list[0]) not in AS: return None
    return ast.unparse(node.args.args[0].annotation)


def bound_at(body):
    "The names that a module's or a class's statements bind, with the line of the first: {name: line}."
    found = {}
    for node in body:
        if isinstance(node, (*DEFINES, ast.ClassDef)): names = [] if patched_class(node) else [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)): names = [a.asname or a.name.split(".")[0] for a in node.names]
        else: names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in names: found.setdefault(name, node.lineno)
    return found


def names_in(node): return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def arguments(node):
    "All arguments of a function."
    a = node.args
    return [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]


class Mover:
    "The text of one module, and what is to be done with it."
    def __init__(self, text):
        self.lines, self.tree = text.splitlines(keepends=True), ast.parse(text)
        self.bound = bound_at(self.tree.body)
        self.classes = {n.name: n for n in self.tree.body if isinstance(n, ast.ClassDef)}
        self.moves = {name: [] for name in self.classes}
        self.left = []
        for node in self.tree.body:
            if (name := patched_class(node)) in self.classes: self.moves[name].append(node)
            elif name: self.left.append(f"{name}.{node.name}: the class is in another module")
        for name, nodes in self.moves.items(): self.moves[name] = [n for n in nodes if self.can_move(self.classes[name], n)]

    def inside(self, cls):
        "The names that stand in the body of a class, with the methods that move there."
        return {*bound_at(cls.body), *(n.name for n in self.tree.body if patched_class(n) == cls.name)}

    def unknown(self, cls, node):
        "The names of an expression that mean something else, or nothing yet, where the class is."
        inside = self.inside(cls)
        return {n for n in names_in(node) if n in inside or self.bound.get(n, 0 if hasattr(builtins, n) else cls.lineno) >= cls.lineno}

    def can_move(self, cls, node):
        "Can the method stand in its class without a change of meaning? What needs a name that comes later, or is mangled there, stays."
        early = [*node.decorator_list[1:], *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
        why = sorted(set().union(*(self.unknown(cls, e) for e in early)))
        mangled = sorted({n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and re.match(r"__\w*[^_]_?$", n.attr)})
        if why: self.left.append(f"{cls.name}.{node.name}: needs {', '.join(why)} before the class")
        if mangled: self.left.append(f"{cls.name}.{node.name}: {mangled[0]} would be another name")
        return not why and not mangled

    def method(self, cls, node):
        "The lines of a method as they stand in its class."
        first, edits = node.decorator_list[0].lineno, []
        a = node.args.args[0]
        edits.append((a.annotation.end_lineno, a.col_offset + len(a.arg.encode()), a.annotation.end_col_offset, b""))
        for annotation in [x.annotation for x in arguments(node)[1:] if x.annotation] + [node.returns]*bool(node.returns):
            if self.unknown(cls, annotation) and annotation.lineno == annotation.end_lineno and not isinstance(annotation, ast.Constant):
                words = ast.get_source_segment("".join(self.lines), annotation).replace('"', "'")
                edits.append((annotation.lineno, annotation.col_offset, annotation.end_col_offset, f'"{words}"'.encode()))
        lines = {i: self.lines[i - 1] for i in range(first, node.end_lineno + 1)}
        for line, start, end, new in sorted(edits, reverse=True):
            raw = lines[line].encode()
            lines[line] = (raw[:start] + new + raw[end:]).decode()
        decorator = AS["@" + ast.unparse(node.decorator_list[0])]
        lines[first] = f"{decorator}\n" if decorator else ""
        return self.indented(list(lines.values()), node)

    def indented(self, lines, node):
        "Lines one level deeper, but not within a string that goes over lines, unless it is the docstring."
        text, inside = "".join(lines), set()
        doc = ast.get_docstring(node, clean=False)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE") and token.start[0] < token.end[0]:
                if not (doc is not None and token.type == tokenize.STRING and ast.literal_eval(token.string) == doc):
                    inside |= set(range(token.start[0] + 1, token.end[0] + 1))
        return "".join(line if i in inside or not line.strip() else "    " + line for i, line in enumerate(text.splitlines(keepends=True), 1))

    def mark_of(self, node):
        "The mark of the cell that a statement is in."
        return next((line for line in reversed(self.lines[:node.lineno - 1]) if MARK.match(line)), "")

    def whole(self, cls):
        "A class with its methods, in the order of the notebook."
        start, first = min([cls.lineno, *(d.lineno for d in cls.decorator_list)]), cls.body[0]
        text, mark = "".join(self.lines[start - 1:cls.end_lineno]), self.mark_of(cls)
        if first.lineno == cls.lineno:  # class Name: "All on one line."
            head, rest = self.lines[cls.lineno - 1].encode()[:first.col_offset].decode(), self.lines[cls.lineno - 1].encode()[first.col_offset:].decode()
            text = "".join(self.lines[start - 1:cls.lineno - 1]) + f"{head.rstrip()}\n    {rest}" + "".join(self.lines[cls.lineno:cls.end_lineno])
        for node in self.moves[cls.name]:
            if (new := self.mark_of(node)) != mark: text, mark = text + f"\n    {new.rstrip()}", new
            text += "\n" + self.method(cls, node)
        return start, text

    def moved(self):
        "The module's text with its methods in their classes."
        lines = dict(enumerate(self.lines, 1))
        for name, nodes in self.moves.items():
            if not nodes: continue
            cls = self.classes[name]
            start, text = self.whole(cls)
            for i in range(start, cls.end_lineno + 1): lines[i] = ""
            lines[start] = text
            for node in nodes:
                for i in range(node.decorator_list[0].lineno, node.end_lineno + 1): lines[i] = ""
        text = re.sub(r"(?m)^# %% \S+ #\w+\n\s*(?=^# %%|\Z)", "", "".join(lines.values()))  # cells from which all has moved
        return without_patch(re.sub(r"\n{3,}", "\n\n", text) if any(self.moves.values()) else text)


def without_patch(text):
    "A module's text without the import of `patch`, if nothing is patched any more."
    tree = ast.parse(text)
    if any(isinstance(n, ast.Name) and n.id == "patch" for n in ast.walk(tree)): return text
    text = re.sub(r"(?m)^from fastcore\.\w+ import patch\n", "", text)
    return re.sub(r"(?m)^(from fastcore\.\w+ import .*?)(?:, patch\b|\bpatch, )", r"\1", text)


def move_methods(folder):
    "Move the methods of all exported modules below `folder`; return those that stay patched, as lines."
    left = []
    for path in sorted(Path(folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "AUTOGENERATED!" not in text[:400] or "@patch" not in text: continue
        mover = Mover(text)
        moved = mover.moved()
        ast.parse(moved)
        path.write_bytes(moved.encode())
        left += [f"{path.relative_to(folder).as_posix()}: {why}" for why in mover.left]
    return left


if __name__ == "__main__": print(*move_methods(Path(__file__).resolve().parents[1]/"oaml"), sep="\n")
