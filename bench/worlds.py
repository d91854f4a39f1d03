"""What the synthetic worlds must hold, measured in full: `python bench/worlds.py [PART ...]`, results in bench/worlds.md.

Parts: `oracle` (every application, goal family, theme family and 200 seeds; 500 disturbed states an application),
`baselines` (do-nothing, random, memoriser, nearest screen), `speed` (screens a second, hashes, views), `renderers` (20 seeds
an application in Pillow and in Chromium). The test suite checks a few seeds of each on every run.
"""
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from oaml.apps.app import digest
from oaml.apps.catalog import APPS, load_app
from oaml.apps.phone import PHONE_SIZE
from oaml.devices.app_device import AppDevice
from oaml.devices.oracle import play_oracle
from oaml.evals.conformance import check_baselines, check_oracle, examine
from oaml.ui.layout import layout
from oaml.ui.render import render
from oaml.ui.themes import FAMILIES
from oaml.viz.plots import results_table

HERE = Path(__file__).parent
SIZES = ((256, 192, 400), (320, 256, 250), (1280, 800, 60))  # and the screens a second that are asked for


def _sweep(job):
    "One oracle sweep: the application's name, a look, seeds and size."
    app, look, seeds, size, disturbed = job
    return app, disturbed, size, check_oracle(app, range(seeds), (look,), size, disturbed)


def oracle(pool):
    "How many episodes the oracle played and solved, for each application."
    jobs = [(a, look, 200, (256, 192), False) for a in APPS for look in FAMILIES]
    for a in APPS:
        n = -(-500//len(load_app(a).families))  # at least 500 disturbed states an application
        jobs += [(a, "daylight", n, (256, 192), True), (a, "dusk", 20, (320, 256), False),
                 (a, "paper", 5, (1280, 800), False), (a + "@phone", "meadow", 40, PHONE_SIZE, False),
                 (a + "@perturbed", "office", 40, (256, 192), False)]
    rows = {}
    for app, disturbed, size, n in pool.map(_sweep, jobs):
        key = "disturbed" if disturbed else app.partition("@")[2] or "x".join(map(str, size))
        row = rows.setdefault(app.partition("@")[0], dict(app=app.partition("@")[0]))
        row[key] = row.get(key, 0) + n
    return results_table(list(rows.values()))


def baselines(pool):
    "Success of those who do not look, 40 validation episodes a goal family; raises if one gets too far."
    tables = []
    names = list(APPS)
    sizes = [len(load_app(a).families) for a in names]
    for rows in pool.map(examine, names, [40*n for n in sizes], [100*n for n in sizes]):
        check_baselines(rows)
        tables += [{k: f"{100*v:.1f}%" if isinstance(v, float) and k != "steps" else v for k, v in r.items()} for r in rows]
    return results_table(tables)


def _states(app, size, n=40):
    "Stages and screens of an application, from the middle of episodes."
    out = []
    for seed in range(n):
        device = AppDevice(app, size)
        device.reset(seed)
        play_oracle(device, budget=seed % 5)
        out.append((device.stage, device.screen))
    return out


def _draw(stage, screen):
    "Everything from the state to the pixels: view, layout, drawing."
    theme = stage.look(screen)
    return render(layout(stage.app.view(screen.app), theme, stage.size, screen.ui), screen.ui, theme)


def _ms(f, items, rounds=5):
    "Median milliseconds of `f` on an item."
    for i in items: f(*i)
    times = []
    for _ in range(rounds):
        t = time.perf_counter()
        for i in items: f(*i)
        times.append((time.perf_counter()-t)/len(items)*1000)
    return median(times)


def speed(pool):
    "Screens a second on one core (view, layout and drawing; no PNG), state hash and view."
    rows = []
    for app in APPS:
        row = dict(app=app)
        for w, h, asked in SIZES: row[f"{w}x{h} /s (>= {asked})"] = round(1000/_ms(_draw, _states(app, (w, h))))
        small = _states(app, (256, 192))
        row["state hash, ms"] = round(_ms(lambda st, sc: digest(sc), small), 3)
        row["view, ms"] = round(_ms(lambda st, sc: st.app.view(sc.app), small), 3)
        rows.append(row)
    return results_table(rows)


def renderers(pool):
    "Oracle episodes, each with ten careless actions after it, in lockstep in Pillow and in Chromium."
    from oaml.devices.connection import Chromium
    from oaml.devices.html_page import check_renderers
    rows = []
    with Chromium() as chromium:
        for app in APPS:
            t = time.perf_counter()
            done = check_renderers(app, chromium, range(20))
            seconds = time.perf_counter() - t
            rows.append(dict(app=app, seeds=20, actions=done, seconds=round(seconds, 1)))
    return results_table(rows)


PARTS = dict(speed=speed, oracle=oracle, baselines=baselines, renderers=renderers)


def main(words):
    "Run the parts and keep what the others said last."
    path = HERE/"worlds.json"
    reports = json.loads(path.read_text()) if path.exists() else {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for part in words or PARTS:
            t = time.perf_counter()
            table = PARTS[part](pool)
            reports[part] = f"{PARTS[part].__doc__}\n\n{table}\n\n{time.perf_counter()-t:.0f} s on {os.cpu_count()} cores."
            path.write_text(json.dumps(reports, indent=1))
            print(reports[part], flush=True)
    text = "\n\n".join(f"## {p}\n\n{reports[p]}" for p in PARTS if p in reports)
    (HERE/"worlds.md").write_text(f"# The synthetic worlds, measured\n\n`python bench/worlds.py`\n\n{text}\n")


if __name__ == "__main__": main(sys.argv[1:])
