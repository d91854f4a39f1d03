#!/usr/bin/env python3
"""Whether a notebook's own cells notice when its code is wrong.
    python bench/mutants.py                                    # 55 mutants of six modules
    python bench/mutants.py --notebooks 12a_rewards.gui --count 20 --seed 3
One place in an exported cell is changed (a comparison, a sign, a condition, a number, what is returned), and the notebook is run as `nbdev_test`
runs it: the mutant is noticed if a cell raises, or if it takes ten times as long as without. Mutants are drawn evenly over the notebooks, places by chance.
Those that nothing noticed are printed with their line, as a pointer to the cell that is missing; some of them change nothing that could be noticed."""
import argparse
import ast
import contextlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

NBS = Path(__file__).resolve().parents[1]/"nbs"
NOTEBOOKS = ("00g_schemas.actions", "02d_ui.events", "05a_tasks.expressions", "09k_datasets.binding", "12a_rewards.gui", "15b_evals.trajectory_matching")
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Div}


def exported(cell): return cell["cell_type"] == "code" and any(line.startswith("#| export") for line in cell["source"].splitlines()[:3])
def skipped(cell): return any(line.replace(" ", "").startswith(("#|eval:false", "#|slow")) for line in cell["source"].splitlines()[:3])


def changes(tree):
    "Yield every change that can be made in a cell: the node, and what makes it another."
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED: yield node, lambda n: n.ops.__setitem__(0, COMPARED[type(n.ops[0])]())
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED: yield node, lambda n: setattr(n, "op", COMPUTED[type(n.op)]())
        elif isinstance(node, ast.BoolOp): yield node, lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        elif isinstance(node, (ast.If, ast.IfExp)): yield node, lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        elif isinstance(node, ast.Return) and node.value is not None: yield node, lambda n: setattr(n, "value", ast.Constant(None))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float): yield node, lambda n: setattr(n, "value", n.value + 1)


def places(cells):
    "Every (cell, number of the change in it) within a function."
    found = []
    for k, cell in enumerate(cells):
        if not exported(cell): continue
        tree = ast.parse(cell["source"])
        inside = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) for b in f.body for n in ast.walk(b)}
        found += [(k, n) for n, (node, _) in enumerate(changes(tree)) if id(node) in inside]
    return found


def mutated(source, number):
    "A cell's source with its change of this number, and the line as it was and as it is."
    tree = ast.parse(source)
    node, change = list(changes(tree))[number]
    before = ast.unparse(node).splitlines()[0]
    change(node)
    return ast.unparse(ast.fix_missing_locations(tree)), f"line {node.lineno}: {before}  ->  {ast.unparse(node).splitlines()[0]}"


def run(cells):
    "Run the cells in this process; raises what they raise."
    from execnb.shell import CaptureShell
    shell = CaptureShell(path=str(NBS), mpl_format="png")
    for cell in cells:
        if cell["cell_type"] != "code" or skipped(cell): continue
        shell.run(cell["source"])
        if shell.exc: raise shell.exc


def outcome(cells, limit):
    "What a child process that runs the cells ends with: \"passed\", \"raised\" or \"slow\", and its seconds."
    began, child = time.monotonic(), os.fork()
    if not child:
        os.setsid()
        os.chdir(NBS)
        out = os.open(os.devnull, os.O_WRONLY)
        os.dup2(out, 1), os.dup2(out, 2)
        code = 0
        try: run(cells)
        except BaseException: code = 1
        os._exit(code)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done: return "passed" if status == 0 else "raised", time.monotonic() - began
        if time.monotonic() - began > limit:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "slow", limit
        time.sleep(.05)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", nargs="+", default=NOTEBOOKS)
    parser.add_argument("--count", type=int, default=55)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    rng, total, noticed = Random(args.seed), 0, 0
    for number, name in enumerate(args.notebooks):
        cells = [dict(cell_type=c["cell_type"], source="".join(c["source"])) for c in json.loads((NBS/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ImportError): __import__(f"oaml.{name.partition('_')[2]}")  # once for all children
        ends, seconds = outcome(cells, 600)
        if ends != "passed": sys.exit(f"{name}: {ends} as it is")
        wanted = args.count//len(args.notebooks) + (number < args.count % len(args.notebooks))
        mine = 0
        for cell, change in rng.sample(places(cells), wanted):
            source, words = mutated(cells[cell]["source"], change)
            ends, _ = outcome([dict(c, source=source) if k == cell else c for k, c in enumerate(cells)], max(20., 10*seconds))
            mine += ends != "passed"
            if ends == "passed": print(f"  not noticed: {name}, cell {cell}, {words}", flush=True)
        print(f"{name}: {mine} of {wanted} noticed, {seconds:.1f} s a run", flush=True)
        total, noticed = total + wanted, noticed + mine
    print(f"{noticed} of {total} mutants noticed")


if __name__ == "__main__": main()
