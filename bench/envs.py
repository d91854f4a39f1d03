"""Steps a second of every kind of device: `python bench/envs.py [PART ...]`, results in bench/envs.md.

Without a part all of them; `table` only writes the table again. Parts: `app` (in this process, with and without
drawing), `chromium` (one page and pools), `phone` (the real adb, our fake phone), `remote` (a daemon on this machine),
`miniwob` (ours). For the peers' figures beside the last, see bench/envs_peers.py; what it prints goes into
bench/envs_peers.json, a line each, and from there into the table. Every device does the same clicks. Run on an idle
machine."""
import json
import sys
import time
from pathlib import Path
from random import Random

from oaml.devices.android import AndroidDevice
from oaml.devices.app_device import AppDevice
from oaml.miniwob.device import MiniwobDevice
from oaml.devices.remote import RemoteDevice
from oaml.devices.serve import serve_device
from oaml.schemas.sessions import Action
from oaml.viz.plots import results_table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent/"tests"))
from fake_android import fake_phone  # noqa: E402

SIZE, LARGE = (192, 320), (1280, 800)
SEED = 11


def clicks(n):
    "Clicks all over the screen, the same for everyone."
    rng = Random(0)
    return [Action("click", x=round(rng.random(), 3), y=round(rng.random(), 3)) for _ in range(n)]


def rate(device, steps, warm=10, **kw):
    "Steps a second, with what each frame holds; resets are not counted."
    device.reset(SEED)
    for a in clicks(warm): device.perform(a, **kw)
    start = time.perf_counter()
    for a in clicks(steps): device.perform(a, **kw)
    return steps/(time.perf_counter() - start)


def row(device, what, rate, **more):
    print(f"{device:12} {what:40} {rate:8.1f} steps/s", flush=True)
    return dict(device=device, what=what, steps_per_s=round(rate, 1), **more)


def app():
    "In this process."
    for name in ("login", "settings", "mail"):
        yield row("app", f"{name} 192x320, not drawn", rate(AppDevice(name, SIZE), 2000, draw=False))
        yield row("app", f"{name} 192x320", rate(AppDevice(name, SIZE), 600))
    yield row("app", "mail 1280x800", rate(AppDevice("mail", LARGE), 300))


def chromium():
    "Pages of Chromium; bench/envs_chromium.py has the actions."
    from envs_chromium import rows
    for r in rows(2.):
        more = [f"{r['pages']} pages"]*(r["pages"] > 1) + ["tree each step"]*r["tree"]
        yield row("chromium", ", ".join([r["what"], *more]), r["steps_per_second"])


def phone():
    "Over the real adb; the phone is ours and does not sleep, so this is the driver and adb."
    for tree in (False, True):
        with fake_phone("mail") as fake:
            device = AndroidDevice(**fake.attached, tree=tree)
            try: yield row("adb", f"mail 192x320{', tree each step' if tree else ''}", rate(device, 60))
            finally: device.close()


def remote():
    "Through a daemon in a process of its own, over a socket of this machine."
    for size, steps in ((SIZE, 300), (LARGE, 60)):
        for compression in ("png", "zlib", "jpeg"):
            spec = "app:mail"
            with serve_device(spec, process=True, options=dict(size=list(size))) as daemon:
                with RemoteDevice(daemon.url, token=daemon.token, compression=compression) as device:
                    yield row("remote", f"mail {size[0]}x{size[1]}, {compression}", rate(device, steps))


def miniwob():
    "MiniWoB++ in one page; a click on a corner where nothing is, as bench/envs_peers.py does."
    corner = Action("click", x=2/160, y=205/210)
    for task in ("click-test-2", "enter-text"):
        device = MiniwobDevice(task)
        try:
            device.reset(0)
            start = time.perf_counter()
            for seed in range(20): device.reset(seed)
            reset = (time.perf_counter() - start)/20
            for _ in range(10): device.perform(corner)
            start = time.perf_counter()
            for _ in range(200): device.perform(corner)
            yield row("miniwob", task, 200/(time.perf_counter() - start), reset_ms=round(1000*reset, 1))
        finally: device.close()


def peers(rows):
    "The peers' rows, with how many times ours is faster on the same task."
    path = HERE/"envs_peers.json"
    ours = {r["what"]: r["steps_per_s"] for r in rows if r["device"] == "miniwob"}
    measured = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [dict(device=p["peer"], what=p["task"], steps_per_s=p["steps_per_s"], reset_ms=p["reset_ms"],
                 ours_is=f"{ours[p['task']]/p['steps_per_s']:.0f} times as fast" if p["task"] in ours else "") for p in measured]


PARTS = dict(app=app, chromium=chromium, phone=phone, remote=remote, miniwob=miniwob)


def main(names):
    path = HERE/"envs.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if name != "table": results[name] = list(PARTS[name]())
    path.write_text(json.dumps(results, indent=1))
    rows = [r for name in PARTS for r in results.get(name, [])]
    (HERE/"envs.md").write_text("# Steps a second\n\n" + __doc__.split("\n\n", 1)[1].replace("\n", " ").strip() + "\n\n"
                                + results_table(rows + peers(rows)) + "\n")


if __name__ == "__main__": main(sys.argv[1:] or PARTS)
