"""Notebooks whose stored outputs are not what their cells print today: `python .ci/dev.py stale [NOTEBOOK ...] [--write]`.

CI runs every cell, but compares no output, so what a reader sees may be of last month. Here each text output is compared with the stored
one, numbers aside (times, addresses and rounding differ from machine to machine). Pictures, widgets and bars are not compared, nor are
cells with `#| eval: false`. `--write` stores what the stale cells print now."""
import argparse, json, os, re, sys
from pathlib import Path

from execnb.nbio import read_nb
from execnb.shell import CaptureShell

NBS = Path(__file__).resolve().parents[1]/"nbs"
SHOWN = 300  # characters of an output
VARIES = re.compile(r"0x[0-9a-f]+|\d+(?:[.,]\d+)*(?:e[-+]?\d+)?|/tmp/\w+")
PICTURED = ("image/", "application/", "text/html")


def text_of(outputs):
    "Everything that a cell printed, as text; None where it also shows a picture, a page or a widget."
    parts = []
    for o in outputs or []:
        if any(kind.startswith(PICTURED) for kind in o.get("data", {})): return None
        if o.get("name") != "stderr": parts.append("".join(o.get("text") or o.get("data", {}).get("text/plain", "")))
    return "".join(parts)


def skipped(cell): return bool(re.search(r"^#\|\s*(eval:\s*false|slow)", cell.source, re.M))


def stale_cells(path):
    "Yield (number, cell as it ran, text that is stored, text of today) for the cells of a notebook that print something else."
    nb = read_nb(path)
    stored = [text_of(c.get("outputs")) for c in nb.cells]
    shell = CaptureShell(path=str(path), mpl_format="png")
    shell.run_all(nb, exc_stop=True, preproc=lambda c: c.cell_type != "code" or skipped(c))
    for k, (cell, old) in enumerate(zip(nb.cells, stored)):
        new = text_of(cell.get("outputs")) if cell.cell_type == "code" and not skipped(cell) else None
        if None not in (old, new) and VARIES.sub("#", old) != VARIES.sub("#", new): yield k, cell, old, new


def store(path, cells):
    "Put new outputs in the place of the old ones, by the number of the cell."
    nb = json.loads(path.read_text(encoding="utf-8"))
    for k, cell in cells.items(): nb["cells"][k]["outputs"] = cell.outputs
    path.write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", help="names; default: all")
    parser.add_argument("--write", action="store_true", help="store what stale cells print now")
    args, stale = parser.parse_args(argv), 0
    os.environ["IN_TEST"] = "1"  # as nbdev_test says it
    os.chdir(NBS)
    for path in [NBS/Path(n).name for n in args.notebooks] or sorted(NBS.glob("*.ipynb")):
        try: found = list(stale_cells(path))
        except Exception as e: sys.exit(f"{path.name}: a cell raises {type(e).__name__}: {e}")
        for k, _, old, new in found: print(f"{path.name}, cell {k}\n  stored: {old[:SHOWN]!r}\n  today:  {new[:SHOWN]!r}")
        print(f"{path.name}: {len(found)} stale", flush=True)
        stale += len(found)
        if args.write and found: store(path, {k: cell for k, cell, *_ in found})
    if args.write and stale: print("stored; look at them, and run nbdev_clean")
    return int(bool(stale) and not args.write)


if __name__ == "__main__": sys.exit(main())
