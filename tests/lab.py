"A real JupyterLab on this machine, and a notebook in it that runs: for the tests and figures of the widgets."
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
PATIENCE = 120  # seconds for what a busy machine may take long over


def chromium_path():
    "A Chromium on this machine, or None."
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else ["chromium", "chromium-browser", "google-chrome"])), None)


@contextmanager
def browser():
    "Chromium by Playwright."
    from playwright.sync_api import sync_playwright
    root = hasattr(os, "getuid") and os.getuid() == 0
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=chromium_path(), args=FLAGS + ["--no-sandbox"] * root)
        try: yield chromium
        finally: chromium.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def jupyter_lab(folder):
    "A JupyterLab that serves `folder`; its address."
    port, own = free_port(), Path(folder)/".jupyter"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), OMP_NUM_THREADS="1",
               **{f"JUPYTER_{k}_DIR": str(own/k) for k in ("CONFIG", "RUNTIME", "DATA")}, JUPYTERLAB_WORKSPACES_DIR=str(own/"w"),
               JUPYTERLAB_SETTINGS_DIR=str(own/"s"))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--IdentityProvider.token=",
               "--allow-root", f"--ServerApp.root_dir={folder}", "--LabApp.news_url=",
               "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    settings = own/"s"/"@jupyterlab"/"apputils-extension"/"notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}')
    log = open(Path(folder)/"lab.log", "wb")
    server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        until = time.time() + PATIENCE
        while True:
            try: urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5); break
            except OSError:
                if server.poll() is not None or time.time() > until:
                    raise RuntimeError((Path(folder)/"lab.log").read_text(errors="replace")[-2000:])
                time.sleep(.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try: server.wait(30)
        except subprocess.TimeoutExpired: server.kill()
        log.close()


def write_notebook(path, *cells):
    "A notebook of code cells."
    kernel = dict(display_name="python3", language="python", name="python3")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata=dict(kernelspec=kernel)), path)


def run_notebook(page, address, name):
    "Open a notebook of the lab and run all its cells, once its kernel is there."
    page.goto(f"{address}/doc/tree/{name}")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=PATIENCE * 1000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=PATIENCE * 1000)
    if page.locator(".jp-Dialog").count():  # a slow machine asks for the kernel that the notebook names
        page.get_by_role("button", name="Select Kernel").or_(page.get_by_role("button", name="Select", exact=True)).first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()


class Kernel:
    "The kernel of the one notebook that runs in the lab of `folder`."
    def __init__(self, folder):
        from jupyter_client import BlockingKernelClient
        files = sorted((Path(folder)/".jupyter"/"RUNTIME").glob("kernel-*.json"), key=lambda p: p.stat().st_mtime)
        self.client = BlockingKernelClient(connection_file=str(files[-1]))
        self.client.load_connection_file()
        self.client.start_channels()

    def __call__(self, expression):
        "The value of a Python expression, as `repr` writes it."
        reply = self.client.execute("", user_expressions=dict(v=expression), reply=True, timeout=PATIENCE)["content"]["user_expressions"]["v"]
        if reply["status"] != "ok": raise AssertionError(f"{expression}: {reply['ename']}: {reply['evalue']}")
        return reply["data"]["text/plain"]


def long_episode(folder, n=200, size=(1280, 800)):
    "A recorded episode of `n` different screens, with an action on each."
    from PIL import ImageDraw
    from PIL import Image
    from oaml.devices.app_device import AppDevice
    from oaml.devices.device import Frame, save_observation
    from oaml.schemas.sessions import Action, Episode, Step, Target
    import numpy as np
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    device, steps = AppDevice("mail", size), []
    frame = device.reset(0)
    for k in range(n):
        image = Image.fromarray(frame.image)
        ImageDraw.Draw(image).text((size[0] // 2, size[1] - 60), f"screen {k}", "#e0115f", font_size=40)
        x, y = .1 + .8*(k % 17)/17, .1 + .8*(k % 13)/13
        act = Action("click", x=x, y=y) if k % 5 else Action("type", text=f"words {k}")
        targets = [Target(act, (max(0, x - .05), max(0, y - .05), x + .05, y + .05) if act.x else None, "button", f"Button {k}")]
        steps.append(Step(float(k), save_observation(Frame(np.asarray(image), frame.elements), folder), act, f"Because of {k}.", targets))
    return Episode(f"long-{n}", f"Go through {n} screens.", steps, success=True, meta=dict(app="mail", seed=0))
