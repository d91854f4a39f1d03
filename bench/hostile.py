"""Which pages of tests/hostile reach what they must not, or harm the browser, on each kind of device. Also of another checkout:

    python bench/hostile.py                                    # this one
    PYTHONPATH=../other python bench/hostile.py --kinds page,html   # its package, these pages
"""
import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]/"tests"))
import hostile_pages
import oaml


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", default=",".join(hostile_pages.KINDS), help="of devices: page, html, miniwob, served")
    parser.add_argument("--pages", default=",".join(hostile_pages.NAMES), help="names of files in tests/hostile")
    given, bad = parser.parse_args(), {}
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder, hostile_pages.host(Path(folder)) as here:
            found = hostile_pages.faults(kind, here, given.pages.split(","), say=lambda line: print(f"{kind}: {line}", flush=True))
        for name in found: bad.setdefault(name, []).append(kind)
    bad.pop("later", None)
    print(f"\n{len(bad)} of {len(given.pages.split(','))} pages fail with {Path(oaml.__file__).parent}:")
    for name, kinds in sorted(bad.items()): print(f"  {name}: {', '.join(kinds)}")


if __name__ == "__main__": main()
