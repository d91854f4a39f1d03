"Readers of others' recordings: what is damaged is refused with its file, whatever the damage; and a long recording is read as a stream."
import copy
import json
import random
import re
import tracemalloc
from dataclasses import replace

import pytest
from PIL import Image

from oaml.ingest import desktop_data, phone_data
from oaml.ingest.foreign import DATA_FORMATS, DataError
from oaml.schemas.packages import is_installed
from oaml.schemas.sessions import Action, Episode, Observation, Step, Target

SIZE = 108, 240


def episode(folder, *acts, id="e0"):
    "An episode with a box for each click."
    folder.mkdir(parents=True, exist_ok=True)
    def step(k, a):
        Image.new("RGB", SIZE, (9*k, 90, 120)).save(path := folder/f"src{k}.png")
        target = [Target(a, (.25, .25, .75, .75))] if a.type == "click" else None
        return Step(float(k), Observation(str(path)), a, "so", target)
    return Episode(id, "Set an alarm", [step(k, a) for k, a in enumerate(acts)])


CLICK, SCROLL, DONE = Action("click", .5, .5), Action("scroll", .5, .5, dx=0., dy=.5), Action("done")


def make(kind, folder):
    "A small data set of a format; the files that say what is in it."
    long = episode(folder.parent/"src", CLICK, SCROLL, Action("type", text="ada"), Action("key_press", key="BACK"), DONE)
    flat = episode(folder.parent/"src2", CLICK, Action("type", text="ada"), Action("key_press", key="Enter"))
    folder.mkdir(parents=True)
    match kind:
        case "android_control": phone_data.write_android_control([long], folder/"android_control-0")
        case "aitz" | "cagui": phone_data.write_wild(long, folder/"e0"/"e0.json", kind == "aitz")
        case "gui_odyssey": phone_data.write_odyssey(long, folder)
        case "agentnet": desktop_data.write_agentnet([flat], folder/"agentnet.jsonl")
        case "mind2web": desktop_data.write_mind2web([replace(flat, steps=flat.steps[:1])], folder/"test.parquet")
        case "openadapt_capture": desktop_data.write_capture(flat, folder/"capture")
        case "plain":
            (folder/"goal.txt").write_text("Go")
            (folder/"actions.txt").write_text("CLICK(x=0.5, y=0.5)")
            Image.new("RGB", SIZE).save(folder/"1.png")
        case _: desktop_data.write_screenspot([replace(flat, steps=flat.steps[:1])], folder/"web.json", {"screenspot_pro": "corners", "screenspot_fractions": "fractions"}.get(kind, "sides"))
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".png")


KINDS = [k for k in DATA_FORMATS if k != "mind2web" or is_installed("pyarrow")]


@pytest.mark.parametrize("kind", KINDS)
def test_200_damaged_bytes_are_refused_with_their_file_or_change_nothing_but_a_value(kind, tmp_path):
    files = make(kind, tmp_path/"data")
    whole = len(list(DATA_FORMATS[kind].read(tmp_path/"data")))
    assert whole == 1
    refused = 0
    for seed in range(200):
        rng, file = random.Random(seed), files[seed % len(files)]
        data = bytearray(before := file.read_bytes())
        way = rng.randrange(4)
        if way == 0: data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif way == 1: del data[rng.randrange(len(data)):]
        elif way == 2: data[rng.randrange(len(data)):rng.randrange(len(data))] = b""
        else: data[rng.randrange(len(data)):0] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        file.write_bytes(bytes(data))
        try: list(DATA_FORMATS[kind].read(tmp_path/"data"))
        except DataError as e:
            refused += 1
            assert str(tmp_path) in str(e), str(e)
            assert len(str(e)) < 600
        finally: file.write_bytes(before)
    assert refused >= (20 if kind == "openadapt_capture" else 60)  # a database's free pages and a picture's pixels say nothing


def mutations(value, path=()):
    "Every place of a JSON value."
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for k, v in items: yield from mutations(v, (*path, k))


WRONG = [None, True, -7, 1e9, "", "x", [], {}, [[]], {"a": 1}]
FREE = re.compile(r"coat_|thought|observation|low_|ps$|episode_length|step_length|result_action_app_name|product|ui_type|data_|index|action_text|category|instruction|"
                  r"task_completed|image_height|image_width|subset|sam2|goal|\bw$|\bh$|lift|task_id|episode_id|confirmed|question|ui_positions|\.action$")


@pytest.mark.parametrize("kind", ["aitz", "cagui", "gui_odyssey", "agentnet", "screenspot", "screenspot_pro", "screenspot_fractions"])
def test_a_field_of_another_kind_is_refused_with_file_and_field(kind, tmp_path):
    file, = (f for f in make(kind, tmp_path/"data") if f.suffix in (".json", ".jsonl"))
    value = json.loads(file.read_text())
    rng, n = random.Random(0), 0
    places = [p for p in mutations(value) if p and isinstance(p[-1], str) and not any(k for k in p if isinstance(k, int)) and not FREE.search(".".join(map(str, p)))]
    for path in places:
        for wrong in rng.sample(WRONG, 4):
            changed = copy.deepcopy(value)
            inner = changed
            for k in path[:-1]: inner = inner[k]
            if inner[path[-1]] == wrong: continue
            inner[path[-1]] = wrong
            file.write_text(json.dumps(changed))
            try: list(DATA_FORMATS[kind].read(tmp_path/"data"))
            except DataError as e:
                n += 1
                assert str(file) in str(e), (path, wrong, str(e))
            else: assert path[-1] in ("info", "code", "sides") or wrong in ("x",) or isinstance(inner[path[-1]], int | float), (path, wrong)
    assert n >= 8


def test_a_long_recording_is_read_as_a_stream(tmp_path):
    make("agentnet", tmp_path/"data")
    line = (tmp_path/"data"/"agentnet.jsonl").read_text()
    with open(tmp_path/"data"/"agentnet.jsonl", "w") as f:
        for k in range(3_400): f.write(line.replace('"task_id": "e0"', f'"task_id": "e{k}"'))
    tracemalloc.start()
    steps = sum(len(r.episode.steps) for r in DATA_FORMATS["agentnet"].read(tmp_path/"data"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert steps > 10_000 and most < 20e6, (steps, most)
