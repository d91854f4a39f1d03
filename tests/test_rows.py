"`oaml act --rows` killed at any moment and gone on with: each row exactly once, as far as the record can know."
import json
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from oaml.devices.connection import missing_browser

if why := missing_browser(): pytest.skip(why, allow_module_level=True)

from orders import DEMO, open_shop
from oaml.devices.connection import sweep_folders
from oaml.scripts.act import CODES
from oaml.scripts.rows import act_rows

NAMES = ["Ann", "Bob", "Cem", "Dee", "Eli", "Fay"]


@pytest.fixture
def place(tmp_path):
    (tmp_path/"demo.yaml").write_text(DEMO)
    (tmp_path/"values.csv").write_text("name,amount\n" + "".join(f"{n},{k}\n" for k, n in enumerate(NAMES, 1)))
    with open_shop() as shop: yield tmp_path, shop


def counts(shop): return {n: sum(o["name"] == n for o in shop.orders) for n in NAMES}


def rows(place, **options):
    folder, shop = place
    return act_rows(f"page:{shop.url}", folder/"values.csv", folder/"run", like=[str(folder/"demo.yaml")], say=lambda line: None, **options)


def test_killed_at_random_moments(place):
    folder, shop = place
    command = [sys.executable, "-c", "from oaml.scripts.cli import main; main()", "act", f"page:{shop.url}", "--like", "demo.yaml", "--rows", "values.csv", "--out", "run", "--resume"]
    rng, kills = Random(0), 0
    for _ in range(3):
        run = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        begun, before = folder/"run"/"begun.jsonl", len(shop.orders)
        while run.poll() is None and not (begun.exists() and len(shop.orders) > before): time.sleep(.02)  # in the middle of rows
        time.sleep(rng.uniform(0, .7))
        if run.poll() is None:  # it may have come to the table's end by now
            os.killpg(run.pid, signal.SIGKILL)
            kills += 1
        run.wait()
        sweep_folders()
    assert kills
    result = rows(place, resume=True)
    cut = [r.row.values["name"] for r in result.rows if r.outcome == "cut"]
    assert len(cut) <= 3 and {r.outcome for r in result.rows} <= {"unchecked", "cut"} and result.code == CODES["lost" if cut else "unchecked"]
    assert all(n == 1 or name in cut and n == 0 for name, n in counts(shop).items()), (counts(shop), cut)
    assert all(f"row {r.row.number}" in result.words or str(r.row.number) in result.words for r in result.rows if r.outcome == "cut")
    before = counts(shop)
    again = rows(place, resume=True, again=True)
    assert [r.outcome for r in again.rows] == ["unchecked"]*6 and counts(shop) == {n: c + (n in cut) for n, c in before.items()}
    assert rows(place, resume=True, again=True).code == CODES["unchecked"] and counts(shop) == {n: c + (n in cut) for n, c in before.items()}


def test_side_by_side_and_a_stop_after_halts(place):
    folder, shop = place
    shop.script = "<script>$('order').addEventListener('click', e => { if ($('name').value == 'Bob') { e.stopImmediatePropagation(); $('said').textContent = 'No tea left' } }, true)</script>"
    first = rows(place, stop_after_halts=1)
    assert [r.outcome for r in first.rows] == ["unchecked", "halted", *["open"]*4] and first.code == CODES["halted"] and "stopped after 1 halt" in first.words
    begun = [json.loads(line) for line in (folder/"run"/"begun.jsonl").read_text().splitlines()]
    assert [(line["row"], line["step"]) for line in begun[:6]] == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1)] and begun[4]["words"] == "press the button 'Order'"
    rest = rows(place, resume=True, concurrency=2)
    assert [r.outcome for r in rest.rows] == ["unchecked", "halted", *["unchecked"]*4]
    assert counts(shop) == {n: int(n != "Bob") for n in NAMES}
    lines = (folder/"run"/"rows.csv").read_text().splitlines()
    assert lines[0] == "row,line,outcome,reason,film,goal" and lines[2].startswith("2,3,halted,") and "'Bob'" in lines[2]


def test_a_device_that_cannot_be_opened_leaves_rows_as_they_were(place):
    folder, shop = place
    shop.url = "http://127.0.0.1:9/"
    result = rows(place)
    assert [r.outcome for r in result.rows] == ["open"]*6 and result.code == CODES["lost"] and "127.0.0.1:9" in result.words

