#!/usr/bin/env python3
"""openadapt-flow beside our replay, `literal` and `nearest`: Django's admin, eight kinds of tasks, seven conditions, one Chromium, one page, one run.
    pip install --target FLOW openadapt-flow                 # its own folder: what it needs is newer than what we need
    python bench/flow_beside.py --flow FLOW                  # one matched set of test seeds: 56 episodes an agent
    python bench/flow_beside.py --flow FLOW --split validation --kinds add_group
Each kind is shown once, in training seed 0: our player by names acts on the page, and openadapt-flow's recorder, attached to it as to a person's browser,
writes down what it hears. The fields in which values of the goal are typed are its parameters. Its replay gets the new values, ours reads them in the goal.
The judge of all is the database. Every finished episode is a line of a file in --folder; what is there is not played again, what was compiled is not
compiled again. For busy machines openadapt-flow reads with one thread (its setting OPENADAPT_FLOW_OCR_THREADS), and its clicks, which it gives up after a
second, get 15: else it halts because Playwright has not answered. Without it the others are played alone. Writes bench/flow_beside.json and bench/flow_beside.md of the test seeds."""
import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median

from oaml.apps.app import SPLITS
from oaml.devices.connection import Chromium
from oaml.evals.real_apps import PATIENCE, RealShots, play_real_task
from oaml.evals.shots import SHOWN_AGENTS, teach
from oaml.realapps.changes import find_changes
from oaml.realapps.django_admin import DJANGO_KINDS, DjangoAdmin
from oaml.realapps.player import play_names
from oaml.realapps.tasks import CONDITIONS, RealAppDevice, matched_tasks

HERE = Path(__file__).parent
FLOW = "openadapt-flow"
AGENTS = FLOW, "replay", "literal", "nearest"
FIELDS = "name", "last_name", "email", "old_path", "new_path", "url", "q"  # of Django's forms: typed there, a value is a parameter
_FIELD = "document.activeElement.name"
PUMPS = 3  # times that the recorder looks, after each action
CLICK_S = 15  # what a click of openadapt-flow's gets instead of the second that is written in its code
INSTALL = f"pip install --target FOLDER {FLOW}, then --flow FOLDER"

TRIED = f"""## What else was tried

Openadapt-flow 2.4.0 in `add_group`, validation seeds, on this machine at a load of 25 to 28. In its own reports:

- Clicks with the 1 s of its code: 2 of 2 episodes halted at the first one ("Action delivery was uncertain and was not retried", cause TimeoutError, though
  `postconditions_ok` is true: the page had changed). Hence the {CLICK_S} s above.
- Its scripted recorder (`openadapt_flow.recorder.Recorder`), which acts itself, instead of the one that listens to a person: 1 episode (`same`). It got beyond the first page, for it
  also keeps the path of a row's link, which the listening one does not; then it halted at *Save*: "visual point is not an identity-bearing actionable DOM element
  - no action was admitted". It writes down every `<input>` as a textbox (`_STRUCTURAL_LOCATOR_AT_JS` in its `playwright_backend.py`), Django's *Save* is an
  `<input type=submit>`, and so is not found again.
- Of `add_group` the episodes of openadapt-flow were played on an earlier, busier day; all the others above in one run with those of our agents.
- Every kind here begins with a click in the table of the admin's first page, whose rows all read "Add Change" beside the name that is clicked."""


class TimedDevice(RealAppDevice):
    "Knows when an episode's first screen was there."
    stopped = 0.
    def reset(self, seed):
        frame = super().reset(seed)
        self.began = time.perf_counter()
        return frame


class Recorded:
    "A device that openadapt-flow's recorder listens to; `shapes` has its parameters, with the names of the goal's values in braces."
    def __init__(self, device, pump): self.device, self.pump, self.shapes = device, pump, {}
    def __getattr__(self, name): return getattr(self.device, name)

    def perform(self, action):
        if action.type == "type" and (shape := shape_of(action.text, self.device.scene.values)) != action.text: self.shapes[self.device.page.evaluate(_FIELD)] = shape
        self.device.perform(action)
        for _ in range(PUMPS): self.pump()
        return self.device.look()


def shape_of(text, values):
    "What was typed, with the names of values in braces in their places."
    for key, value in sorted(values.items(), key=lambda v: -len(v[1])): text = text.replace(value, f"{{{key}}}")
    return text


def patient(click):
    "Playwright's `click`, for a caller that is in more of a hurry than a busy machine."
    return lambda self, *given, timeout=None, **options: click(self, *given, timeout=timeout and max(timeout, 1000*CLICK_S), **options)


class Flow:
    "openadapt-flow on the page of our device: attached to our Chromium, as it attaches to a person's own browser."
    def __init__(self, chromium, device, folder):
        from playwright.sync_api import Locator
        self.device, self.folder = device, folder
        for name in ("click", "dblclick"): setattr(Locator, name, patient(getattr(Locator, name)))
        device.reset(0)  # Chromium has written down its port by then
        self.endpoint = "http://127.0.0.1:" + (Path(chromium._process.folder)/"data/DevToolsActivePort").read_text().split()[0]

    def show(self, kind):
        "Record and compile; a row of what that gave."
        from openadapt_flow.compiler import compile_recording
        from openadapt_flow.interactive_recorder import record_interactive
        self.device.switch(kind, "same")
        self.device.reset(SPLITS["train"][0])
        place, row, demonstrated = self.folder/kind.name, dict(agent=FLOW, kind=kind.name, condition="shown", driven=False), []
        shutil.rmtree(place, ignore_errors=True)  # of a run that was stopped
        place.mkdir(parents=True)
        def demonstrate(page, pump):
            recorded = Recorded(self.device, pump)
            demonstrated[:] = play_names(recorded), recorded.shapes
        began = time.perf_counter()
        try:
            record_interactive(self.device.app.address + self.device.app.home, place/"recording", param_fields=FIELDS, cdp_endpoint=self.endpoint, script=demonstrate)
            row |= dict(record_s=time.perf_counter() - began)
            if why := demonstrated[0].halted or "; ".join(self.device.faults()): return row | dict(why=f"with its recorder listening the player does not reach the goal: {why}")
            began = time.perf_counter()
            workflow = compile_recording(place/"recording", place/"bundle", name=kind.name)
        except Exception as e: return row | dict(why=f"{type(e).__name__}: {e}"[:600])
        return row | dict(driven=True, compile_s=time.perf_counter() - began, steps=len(workflow.steps), constant=sorted(demonstrated[1].keys() - workflow.params),
                          parameters={k: v for k, v in demonstrated[1].items() if k in workflow.params})

    @contextmanager
    def backend(self):
        "Its hands and eyes on our page; pictures in CSS pixels, as it has them of a browser that it did not start."
        from playwright.sync_api import sync_playwright
        from openadapt_flow.backends.playwright_backend import PlaywrightBackend
        from openadapt_flow.interactive_recorder import select_attached_page
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(self.endpoint, timeout=1000*PATIENCE)
            yield PlaywrightBackend(select_attached_page(browser, app_url=self.device.app.address), screenshot_scale="css")

    def play(self, task, kind, shapes):
        "Replay once, with values for the parameters; what it says, not what is true."
        from openadapt_flow.ir import Workflow
        from openadapt_flow.runtime import Replayer
        self.device.switch(kind, task.condition)
        self.device.reset(task.seed)
        given = {name: shape.format(**self.device.scene.values) for name, shape in shapes.items()}
        bundle, runs = self.folder/kind.name/"bundle", self.folder/kind.name/f"{task.condition}-{task.seed}-{time.time_ns()}"
        try:
            with self.backend() as backend:
                self.device.began = time.perf_counter()  # to be attached costs our agents nothing either
                report = Replayer(backend).run(Workflow.load(bundle), params=given, bundle_dir=bundle, run_dir=runs, execution_target_kind="web")
                self.device.stopped = time.perf_counter()
        except Exception as e: return dict(said="halted", steps=0, calls=0, reason=f"it raised {type(e).__name__}: {e}"[:600])
        failed = next((f"{r.step_id} ({r.intent}): {r.error}" for r in report.results if not r.ok and not r.skipped), "")
        return dict(said="done" if report.success else "halted", steps=len(report.results), calls=report.model_calls, reason=failed[:600], outcome=report.execution_outcome)


def ours(agent, device, task):
    "Play once with an agent of ours; what it says."
    episode = play_real_task(agent, device, task)
    return dict(said={"done": "done", "halted": "halted"}.get(episode.ended, "budget"), steps=len(episode.steps), calls=0, reason=episode.meta["reason"])


def judge(device, said):
    "By the database: done, halted, false (it says DONE and it is not so) or budget; and what was written of which nobody spoke."
    faults, changes = device.faults(), find_changes(device.before, device.app.state())
    right = said == "done" and not faults and not device.scene.halt
    return dict(result="done" if right else "false" if said == "done" else said, faults=faults, wrote=bool(changes) and not right, way=device.scene.way, halt=device.scene.halt)


def read(path):
    "The rows of finished episodes."
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(given, path):
    "Play what is not in the file; all rows."
    rows = read(path)
    def add(row):
        rows.append(row)
        with open(path, "a") as f: f.write(json.dumps(row, ensure_ascii=False) + "\n")
        print({k: v for k, v in row.items() if k != "faults"}, flush=True)
    played, shown = {(r.get("split"), r["agent"], r["kind"], r["condition"]) for r in rows}, {r["kind"]: r for r in rows if r["condition"] == "shown"}
    with ExitStack() as stack:
        chromium = stack.enter_context(Chromium(flags=("--remote-debugging-port=0",), patience=PATIENCE))
        device = TimedDevice(DjangoAdmin(), DJANGO_KINDS[0], chromium=chromium, owned=True)
        stack.callback(device.close)
        flow = Flow(chromium, device, given.folder/"flow") if FLOW in given.agents else None
        agents = {name: SHOWN_AGENTS[name]() for name in given.agents if name != FLOW}
        for kind in (k for k in DJANGO_KINDS if k.name in given.kinds):
            tasks = [t for t in matched_tasks({DjangoAdmin.name: (kind,)}, given.split, 1) if t.condition in given.conditions]
            left = [(t, a) for t in tasks for a in given.agents if (given.split, a, t.kind, t.condition) not in played]
            for agent in agents.values() if any(a != FLOW for _, a in left) else (): teach(agent, RealShots(given.folder/"shown").of(device, kind, 1))
            if any(a == FLOW for _, a in left) and kind.name not in shown: add(shown.setdefault(kind.name, flow.show(kind) | dict(load=os.getloadavg()[0])))
            for task, name in left:
                if name == FLOW and not shown[kind.name]["driven"]: continue  # its row says why
                said = flow.play(task, kind, shown[kind.name]["parameters"]) if name == FLOW else ours(agents[name], device, task)
                seconds = (device.stopped if name == FLOW and device.stopped > device.began else time.perf_counter()) - device.began
                add(dict(split=given.split, agent=name, kind=kind.name, condition=task.condition, seed=task.seed, **said, seconds=seconds, load=os.getloadavg()[0], **judge(device, said["said"])))
    return rows


def table(rows):
    "Markdown: a line for each agent and condition, and all of an agent."
    lines = ["| agent | condition | episodes | done | halted | silently wrong | budget | wrote before it stopped | s an episode (median) | model calls |", "|---|---|" + "---:|"*8]
    for agent in (a for a in AGENTS if any(r["agent"] == a for r in rows)):
        for condition in (*CONDITIONS, "all"):
            mine = [r for r in rows if r["agent"] == agent and condition in ("all", r["condition"])]
            if not mine: continue
            count = Counter(r["result"] for r in mine)
            lines.append(f"| {agent} | {condition} | {len(mine)} | {count['done']} | {count['halted']} | {count['false']} | {count['budget']} | "
                         f"{sum(r['wrote'] for r in mine if r['result'] in ('halted', 'budget'))} | {median(r['seconds'] for r in mine):.1f} | {sum(r['calls'] for r in mine)} |")
    return "\n".join(lines)


def write(rows, split, to):
    "The two files of one split: only what was played."
    shown, rows = {r["kind"]: r for r in rows if r["condition"] == "shown"}, [r for r in rows if r.get("split") == split]
    both = {(r["kind"], r["condition"]) for r in rows if r["agent"] == FLOW}
    halts = Counter((r["agent"], r["kind"], r["reason"]) for r in rows if r["agent"] == FLOW and r["result"] == "halted")
    loads = [r["load"] for r in rows]
    text = ["# openadapt-flow beside our replay", "", f"Written by bench/flow_beside.py: Django's admin, {split} seeds, one matched set; {len(rows)} episodes, {len(both)} of {7*len(DJANGO_KINDS)} tasks with {FLOW}"
            + (f" {version(FLOW)}" if shown else "") + f". One demonstration each, of training seed 0, on the same page of the same Chromium. Load {min(loads):.0f} to {max(loads):.0f} on {os.cpu_count()} cores: "
            "the seconds are of a busy machine, those of an episode that halted are until it halted.",
            f"So {FLOW} reads with one thread, and its clicks get {CLICK_S} s instead of the 1 s in its code, with which it halted at the first click because Playwright had not answered yet.", "",
            "Done: it says so, and the database has what was asked for and no other change. Silently wrong: it says so, and it is not so. Under *halt* the task cannot be done, and to halt is right.",
            "Wrote: what was changed before it halted or ran out of steps.", "", "## Tasks that all four played" if both else "## All", "", table([r for r in rows if not both or (r["kind"], r["condition"]) in both])]
    if any((r["kind"], r["condition"]) not in both for r in rows) and both: text += ["", "## All that was played", "", table(rows)]
    if shown:
        text += ["", f"## What {FLOW} made of the demonstrations", "", "| kind | driven | record, s | compile, s | steps | parameters |", "|---|---|---:|---:|---:|---|"]
        text += [f"| {k} | {'yes' if r['driven'] else 'no: ' + r['why']} | {r.get('record_s', 0):.0f} | {r.get('compile_s', 0):.0f} | {r.get('steps', '–')} | "
                 f"{', '.join(f'{n}: `{s}`' for n, s in r.get('parameters', {}).items()) or 'none'} |" for k, r in shown.items()]
        text += ["", "A parameter is what was typed; of a row that was clicked one recording gives none.", "", f"## Why {FLOW} halted, in its own words", ""]
        text += [f"- {kind}, {n} times: {' '.join(reason.split())}" for (_, kind, reason), n in halts.most_common()]
    false = [r for r in rows if r["result"] == "false" and r["agent"] in (FLOW, "replay")]
    text += ["", f"## Silently wrong: {FLOW} and replay", ""] + ([f"- {r['agent']}, {r['kind']}.{r['condition']}-{r['seed']}: {'; '.join(r['faults']) or 'it could not be done, and nothing was changed'}" for r in false] or ["Never."])
    if shown: text += ["", TRIED]
    (to/"flow_beside.md").write_text("\n".join(text) + "\n")
    (to/"flow_beside.json").write_text(json.dumps(dict(split=split, shown=shown, episodes=rows), indent=1, ensure_ascii=False) + "\n")


def main():
    "Play, and write."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flow", type=Path, help=f"where {FLOW} is installed, if not here")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--kinds", nargs="+", default=[k.name for k in DJANGO_KINDS])
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/flow_beside"), help="for episodes, demonstrations and runs")
    parser.add_argument("--write", action="store_true", help="play nothing; write what has been played so far")
    given = parser.parse_args()
    os.environ.setdefault("OPENADAPT_FLOW_OCR_THREADS", "1")
    if given.flow: sys.path.append(str(given.flow))
    try: import openadapt_flow  # noqa: F401
    except ImportError as e:
        print(f"{FLOW} is not there ({e}): {INSTALL}. The others are played alone.")
        given.agents = [a for a in given.agents if a != FLOW]
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder/"episodes.jsonl"
    rows = read(path) if given.write else measure(given, path)
    write(rows, given.split, HERE if given.split == "test" else given.folder)
    print(table([r for r in rows if r.get("split") == given.split]))


if __name__ == "__main__": main()
