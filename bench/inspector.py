"How quick the inspector is in a real JupyterLab: python bench/inspector.py writes bench/inspector.json and bench/inspector.md."
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT/"tests"))
from lab import Kernel, browser, jupyter_lab, long_episode, run_notebook, write_notebook  # noqa: E402

from oaml.schemas.sessions import Action, Answer, Episode, Observation, Step, to_json  # noqa: E402
from oaml.viz.page import save_page  # noqa: E402
from oaml.viz.tracks import StepNotes, Track, TrackTable  # noqa: E402

READ = """import pathlib, time
from oaml.schemas.sessions import Episode, from_json
from oaml.viz.inspector import Inspector
from oaml.devices.app_device import AppDevice
from oaml.scripts.inspect import AppPlay
episode = from_json(Episode, pathlib.Path("long.json").read_text())"""
OPEN = "began = time.time()\nw = Inspector(episode)\nw"
PLAY = "q = Inspector(episode, play=AppPlay(AppDevice('mail', {size}), 7, 'played'))\nq"

# From a key's event to the frame on the canvas, in the page's own clock; the next key comes `pause` ms later.
STEP = """async ([node, keys, pause]) => {
  const stage = node.querySelector(".stage"), out = [];
  stage.focus();
  for (const key of keys) {
    const was = node.dataset.drawn, began = performance.now();
    stage.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, composed: true }));
    while (node.dataset.drawn === was) await new Promise((go) => { const c = new MessageChannel(); c.port1.onmessage = go; c.port2.postMessage(0); });
    await new Promise((go) => requestAnimationFrame(go));
    out.push(performance.now() - began);
    if (pause) await new Promise((go) => setTimeout(go, pause));
  }
  return out;
}"""
CLICK = """async ([node, n]) => {
  const frame = node.querySelector(".frame"), r = frame.getBoundingClientRect(), out = [];
  for (let k = 0; k < n; k++) {
    const was = node.dataset.live, at = { clientX: r.left + r.width * (.2 + .6 * Math.random()), clientY: r.top + r.height * (.2 + .6 * Math.random()), pointerId: 1, bubbles: true };
    frame.setPointerCapture = () => {};
    frame.dispatchEvent(new PointerEvent("pointerdown", at));
    const began = performance.now();
    frame.dispatchEvent(new PointerEvent("pointerup", at));
    while (node.dataset.live === was) await new Promise((go) => { const c = new MessageChannel(); c.port1.onmessage = go; c.port2.postMessage(0); });
    out.push(performance.now() - began);
    await new Promise((go) => setTimeout(go, 500));  // two clicks close together would be a double click
  }
  return out;
}"""


def spread(times):
    "Median and 95th percentile."
    return dict(median=round(statistics.median(times), 1), p95=round(statistics.quantiles(times, n=20)[-1], 1), n=len(times))


def in_lab(chromium, folder):
    "Opening, stepping and playing in JupyterLab."
    (folder/"long.json").write_text(to_json(long_episode(folder/"screens")))
    write_notebook(folder/"n.ipynb", READ, OPEN, *(PLAY.format(size=size) for size in ((1280, 800), (256, 192))))
    out = {}
    with jupyter_lab(folder) as address:
        page = chromium.new_page(viewport=dict(width=1400, height=1000))
        run_notebook(page, address, "n.ipynb")
        page.locator(".oaml[data-drawn]").nth(2).wait_for(timeout=180_000)
        kernel = Kernel(folder)
        out["open 200 steps of 1280x800, s"] = round(float(kernel("w.first_drawn / 1000 - began")), 3)
        widget = page.locator(".oaml").nth(0)
        widget.scroll_into_view_if_needed()
        page.wait_for_timeout(3000)
        out["step, a key every 100 ms"] = spread(page.evaluate(STEP, [widget.element_handle(), ["ArrowRight"]*100, 100]))
        page.wait_for_timeout(1000)
        out["step, key held at 30/s"] = spread(page.evaluate(STEP, [widget.element_handle(), ["ArrowLeft"]*90, 15]))
        for k, size in ((1, "1280x800"), (2, "256x192")):
            player = page.locator(".oaml").nth(k)
            player.scroll_into_view_if_needed()
            player.get_by_role("button", name="Play: act yourself").click()
            page.wait_for_function("node => node.dataset.live", arg=player.element_handle(), timeout=60_000)
            out[f"play, click to frame, {size}"] = spread(page.evaluate(CLICK, [player.element_handle(), 30]))
    return out


def on_disk(chromium, folder):
    "Opening saved pages: 200 steps of 1280x800, and a million characters in every place."
    large = "<script>x</script>\u202e" + "x"*1_000_000
    observation = Observation(None, dict(elements=[dict(role="button", name=large, box=[.1, .1, .2, .2])]))
    evil = [Step(0., observation, Action("answer", text=large), large, answer=Answer(large, [dict(role="user", content=large)]))]*3
    pages = {"saved page, 200 steps of 1280x800, s": [Track(long_episode(folder/"screens2"))],
             "saved page, hostile text of 1 MB, s": [Track(Episode("evil", large, evil), [StepNotes(False)]*3)]}
    out = {}
    for name, tracks in pages.items():
        path, size = save_page(TrackTable(tracks), folder/"page.html")
        page = chromium.new_page()
        began = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.locator(".oaml[data-drawn]").wait_for(timeout=60_000)
        out[name] = round(time.perf_counter() - began, 3)
        out[name.replace(", s", ", MB")] = round(size/1e6, 1)
    return out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "unknown"
        figures = in_lab(chromium, Path(name)) | on_disk(chromium, Path(name))
    result = dict(machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", load=load, figures=figures)
    (ROOT/"bench/inspector.json").write_text(json.dumps(result, indent=1) + "\n")
    def cell(v): return f"median {v['median']} ms, 95th percentile {v['p95']} ms ({v['n']})" if isinstance(v, dict) else str(v)
    rows = "".join(f"| {k} | {cell(v)} |\n" for k, v in figures.items())
    (ROOT/"bench/inspector.md").write_text(f"# The inspector in JupyterLab\n\n`python bench/inspector.py`: {result['machine']}, load average {load} on two "
                                           f"cores when it began. From a key or a click to the frame on the canvas, in the page's clock.\n\n| what | figure |\n|---|---|\n{rows}")
    print((ROOT/"bench/inspector.md").read_text())
