"""A reader that tells more symbols than it was taught: `python widen.py OLD NEW`, folders with a reader.safetensors.

Symbols that are new in `datasets.lines.SYMBOLS` begin unlikely; all else stays as it was.
"""
import sys
from pathlib import Path

import torch

from oaml.datasets.lines import CELL, SYMBOLS
from oaml.nano.reader import Reader, load_reader

UNLIKELY = -6. # logits of a new symbol, where others come to 3 and more


def widened(reader):
    "The reader with a row of its head for each of `SYMBOLS` in each column of a cell."
    new, known = Reader(), reader.symbols
    state = {k: v for k, v in reader.state_dict().items() if not k.startswith("head")}
    for name, v in reader.head.named_parameters():
        rows = torch.full((CELL[0], len(SYMBOLS), *v.shape[1:]), UNLIKELY) if name == "bias" else .01*torch.randn(CELL[0], len(SYMBOLS), *v.shape[1:])
        rows[:, :known] = v.unflatten(0, (CELL[0], known))
        state[f"head.{name}"] = rows.flatten(0, 1)
    new.load_state_dict(state)
    return new


def main(old, new):
    torch.manual_seed(0)
    new.mkdir(parents=True, exist_ok=True)
    widened(load_reader(old)).save(new)


if __name__ == "__main__": main(*map(Path, sys.argv[1:]))
