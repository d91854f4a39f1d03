"""How well readers read web pages: `python bench/web_reader.py nano runs/miniwob/reader/agent` writes experiments/miniwob/reader.json.

Validation seeds of MiniWoB++'s tasks with an oracle, without the ten that transfer is measured on: how many lines are read exactly, words
and signs, and how often a sign is found. Needs Chromium."""
import argparse
import json
from collections import Counter
from pathlib import Path

from oaml.apps.app import split_seeds
from oaml.datasets.letters import letter_samples
from oaml.datasets.lines import COLUMN, read_lines, split_symbols
from oaml.datasets.samples import SampleConfig
from oaml.nano.files import reader_folder
from oaml.nano.reader import MARGIN, ReaderAdapter, load_reader
from oaml.ui.render import COLORS

OUT = Path(__file__).parents[1]/"experiments/miniwob/reader.json"


def measure(reader, samples):
    "Counts of lines and signs: read, and there."
    lines, signs = Counter(), Counter()
    for s in samples:
        read = read_lines(reader.scores(s["image"]))
        for line in s["lines"]:
            near = [split_symbols(r.text) for r in read if abs(r.y - line.y) <= COLUMN[1] + 1 and min(r.x1, line.x1) - max(r.x0, line.x0) >= -MARGIN]
            words, names = split_symbols(line.text)
            lines.update(there=1, read=(words, names) in near)
            for name in names:
                kind = "coloured" if set(name.split()) & set(COLORS) else name
                signs.update({(kind, "there"): 1, (kind, "read"): any(name in seen for _, seen in near)})
    kinds = sorted({kind for kind, _ in signs})
    return dict(lines=[lines["read"], lines["there"]], letters=ReaderAdapter(reader).letter_accuracy(samples),
                signs={kind: [signs[kind, "read"], signs[kind, "there"]] for kind in kinds})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="+", help="nano, or folders of trained readers")
    parser.add_argument("--episodes", type=int, default=110, help="of validation seeds, one a task")
    args = parser.parse_args()
    size = SampleConfig((160, 224), screens_per_episode=3)
    samples = [s for seed in split_seeds("validation", args.episodes) for s in letter_samples("miniwob", seed, size)]
    table = [dict(reader=name, screens=len(samples)) | measure(load_reader(reader_folder(name)), samples) for name in args.readers]
    OUT.write_text(json.dumps(table, indent=1) + "\n")
    for row in table: print(row)
