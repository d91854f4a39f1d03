"""Write the manifests of all suites: `python bench/manifests.py [NAME ...]`.

A manifest is written once, with its suite. Where one exists and differs, nothing is written: the suite needs a new name
(or `--replace`, before its first release).
"""
import json
import sys
from pathlib import Path

from oaml.evals.suites import SUITES, load_suite
from oaml.evals.manifests import suite_manifest

FOLDER = Path(__file__).parent.parent/"oaml"/"evals"/"manifests"


def main(words):
    "Write what is missing, compare what is there. Gives the exit code."
    changed, names = False, [w for w in words if not w.startswith("--")]
    FOLDER.mkdir(exist_ok=True)
    for name in names or SUITES:
        path, now = FOLDER/f"{name}.json", suite_manifest(load_suite(name))
        if path.exists() and json.loads(path.read_text()) != now and "--replace" not in words:
            print(f"{name}: differs from {path}; it needs a new name")
            changed = True
        else:
            path.write_text(json.dumps(now, indent=1) + "\n")
            print(f"{name}: {len(now['apps'])} applications, {now['episodes']} episodes each")
    return int(changed)


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
