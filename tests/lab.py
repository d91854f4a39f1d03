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


def kernel_says(page, code, at=-1, patience=PATIENCE):
    "Run `code` in a new last cell and return the text that it prints."
    page.locator(".jp-Notebook .jp-Cell").last.locator(".cm-content").click()
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    cell = page.locator(".jp-Notebook .jp-Cell").last
    cell.locator(".cm-content").click()
    page.keyboard.insert_text(f"print(({code}), 'END')")
    page.keyboard.press("Shift+Enter")
    cell.locator(".jp-OutputArea-output", has_text="END").wait_for(timeout=patience * 1000)
    return cell.locator(".jp-OutputArea-output").inner_text().rpartition(" END")[0]
