"The pages of tests/hostile on each kind of device that has a browser, and what of the host they reached. Also for `bench/hostile.py`."
import http.server
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from oaml.devices.catalog import DEVICE_KINDS, DeviceKind, open_device
from oaml.devices.chromium import PageDevice
from oaml.devices.device import DeviceError, StartIntent
from oaml.devices.html_page import HtmlStage
from oaml.devices.remote import RemoteDevice
from oaml.devices.serve import serve_device
from oaml.schemas.sessions import Action

PAGES = Path(__file__).with_name("hostile")
NAMES = sorted(p.stem for p in PAGES.glob("*.html"))
WORD = "xyzzy-secret-of-the-host"
COLOR = (1, 254, 3)         # of a secret picture, as no page has it
SECRETS = re.compile(f"{WORD}|root:x:0:")
SETTLE_S = .15              # real seconds that a page has for what it asks
DEADLINE_S = 2.             # that a page has for a step; what takes longer is no clear result
PATIENCE_S = 5.             # that its browser has for one call, for a page to load and for an application, which has no deadline of its own
SLACK_S = 20.               # beyond it, on a machine that is busy
IN_TIME = dict(deadline=DEADLINE_S) if "deadline" in signature(PageDevice).parameters else {}  # older checkouts have none


@dataclass
class Host:
    "What a page must not reach: a server on another port, packets, files, other programs."
    folder: Path
    heard: list[str] = field(default_factory=list)
    port: int = 0
    udp: int = 0

    def words(self, text):
        "A page's text with the host's places in it."
        places = dict(canary=f"http://127.0.0.1:{self.port}", host=f"127.0.0.1:{self.port}", port=self.port, udp=f"127.0.0.1:{self.udp}",
                      file=(self.folder/"secrets").as_uri())
        return re.sub(f"%({'|'.join(places)})%", lambda m: str(places[m[1]]), text)

    def page(self, name): return self.words((PAGES/f"{name}.html").read_text())

    def programs(self):
        "Which programs of the host were asked to open what, since the last time."
        noted = self.folder/"programs"
        if not noted.exists(): return []
        text = noted.read_text().strip()
        noted.unlink()
        return [f"opened: {text}"]


@contextmanager
def host(folder):
    "A machine with something to lose."
    (folder/"secrets").mkdir()
    (folder/"secrets/secret.txt").write_text(WORD)
    (folder/"secrets/secret.html").write_text(f"<button>{WORD}</button>")
    (folder/"secrets/secret.js").write_text(f"window.secret = '{WORD}'; document.body?.append('{WORD}')")
    (folder/"secrets/secret.css").write_text("body, html {background: rgb%s !important}" % (COLOR,))
    Image.new("RGB", (300, 90), COLOR).save(folder/"secrets/secret.png")
    (folder/"bin").mkdir()
    (folder/"bin/xdg-open").write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/programs\n")
    (folder/"bin/xdg-open").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}/bin:{path}"
    here = Host(folder)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        here.port, here.udp = tcp.getsockname()[1], udp.getsockname()[1]
        for listen in (lambda: _take(tcp, here), lambda: _packets(udp, here)): threading.Thread(target=listen, daemon=True).start()
        try: yield here
        finally:
            os.environ["PATH"] = path
            tcp.close(), udp.close()


def _take(tcp, here):
    "Note each connection and what it begins with, and answer."
    while True:
        try: s, _ = tcp.accept()
        except OSError: return
        with s:
            s.settimeout(.2)
            try: begin = s.recv(4096)
            except OSError: begin = b""
            here.heard.append(begin.split(b"\r\n")[0].decode("latin-1") or "a connection")
            try: s.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\naccess-control-allow-origin: *\r\nconnection: close\r\n\r\n<button>{WORD}</button>".encode())
            except OSError: pass


def _packets(udp, here):
    while True:
        try: udp.recv(4096)
        except OSError: return
        here.heard.append("a packet")


@contextmanager
def site(here) -> Iterator[str]:
    "The server of the pages, which the devices are lent for; its redirects lead out."
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            name = self.path.split("?")[0].lstrip("/").removesuffix(".html")
            out = dict(redirect=here.words("%canary%/redirected"), **{"to-file": here.words("%file%/secret.html")}).get(name)
            body = "<h1>own</h1>" if not name else here.page(name) if name in NAMES else (PAGES/name).read_text() if name == "sw.js" else ""
            self.send_response(302 if out else 200 if body else 404)
            if out: self.send_header("location", out)
            self.send_header("content-type", "text/javascript" if name.endswith(".js") else "text/html")
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())
        do_POST = do_GET
        def log_message(self, *_): pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try: yield f"http://127.0.0.1:{server.server_port}/"
        finally: server.shutdown()


# -- how a page comes onto a device: a function that shows it, given its name

INSERT = """html => {
  const box = document.createElement('div')
  box.innerHTML = html
  const scripts = [...box.querySelectorAll('script')].filter(s => !s.type && !s.src)
  for (const s of scripts) s.remove()
  for (const s of box.querySelectorAll('script')) {
    const live = document.createElement('script')
    for (const a of s.attributes) live.setAttribute(a.name, a.value)
    live.textContent = s.textContent
    s.replaceWith(live)
  }
  document.body.append(box)
  return scripts.map(s => s.textContent)
}"""


def inserted(tab, text):
    "The page's elements in the live document, and its scripts run there, wherever they came from."
    for script in tab.evaluate(INSERT, text): tab.post("Runtime.evaluate", expression=script, userGesture=True)


@contextmanager
def pages_noted() -> Iterator[list[PageDevice]]:
    "The page devices that are made by name meanwhile, a daemon's too: this process can look into the tab of one that it lends."
    made = []
    @wraps(PageDevice)
    def make(*args, **options):
        made.append(PageDevice(*args, **options))
        return made[-1]
    with patch.dict(DEVICE_KINDS, page=DeviceKind(make)): yield made


@contextmanager
def opened(kind, here):
    "A device of a kind after its first reset, what shows a page on it, and its tab if that is within reach."
    with ExitStack() as open_:
        if kind in ("page", "served"):
            url = open_.enter_context(site(here))
            spec = f"page:{url}"
        else: spec = "html:login" if kind == "html" else "miniwob:click-test"
        noted = open_.enter_context(pages_noted())
        if kind == "served": device = open_.enter_context(RemoteDevice(open_.enter_context(serve_device(spec, options=IN_TIME)).url, timeout=60))
        else: device = open_.enter_context(closing(open_device(spec)))
        device.reset(0)
        near = noted[-1] if noted else device  # what has the tab
        near.deadline, near.chromium.patience = DEADLINE_S, PATIENCE_S
        def tab(): return getattr(near, "_html", near).page
        def show(name):
            if kind in ("page", "served"): device.manage(StartIntent(f"{url}{name}.html"))
            else: inserted(tab(), here.page(name))
        yield device, show, tab


KINDS = "page", "html", "miniwob", "served"  # `served` looks at what is lent, a `page`, from within too: it finds all that `page` finds


# -- what came of it

def _seen(device, tab):
    "Texts of the host on the device: in its tree, in its documents, and a secret picture's colour in its frame."
    text = json.dumps([e.name for e in device.read_elements()])
    text += json.dumps(tab.send("DOMSnapshot.captureSnapshot", computedStyles=[])["strings"])
    return SECRETS.findall(text) + ["a secret picture"]*bool((np.asarray(device.look().image) == COLOR).all(-1).any())


def _act(device, tab):
    "A few steps, and what of the host is seen then. An error is an answer if it comes in time."
    begin, seen = time.monotonic(), []
    try:
        device.perform(Action("click", x=.5, y=.5))
        time.sleep(SETTLE_S)
        device.perform(Action("wait"))
        seen = [f"shown: {what}" for what in _seen(device, tab)]
    except DeviceError: pass
    took = time.monotonic() - begin
    return seen + [f"{took:.0f} s for two steps"]*(took > DEADLINE_S + SLACK_S)


def _fresh_document(device):
    "An application keeps its document, and the next page wants another; a tab that is busy with the last one is given back."
    tab = device._html.page
    try: device._html = HtmlStage(tab)
    except DeviceError: tab.close()


def tried(device, show, tab, name, here) -> list[str]:
    "What the page `name` reached, and how it left the device; empty is well."
    n, problems = len(here.heard), []
    try: show(name)
    except DeviceError: pass  # a page that is not shown in time
    problems += _act(device, tab())
    try:
        if hasattr(device, "_html"): _fresh_document(device)
        device.reset(1)
    except Exception as e: problems.append(f"not alive: {type(e).__name__}: {e}")
    return problems + [f"heard: {what}" for what in here.heard[n:]] + here.programs()


def faults(kind, here, names=NAMES, say=lambda line: None) -> dict[str, list[str]]:
    "The pages that reached something on a device of `kind`, or harmed it, each with what; `later` is what came after the next had begun."
    found = {}
    with opened(kind, here) as (device, show, tab):
        for name in names:
            if problems := tried(device, show, tab, name, here): found[name] = problems
            say(f"{name}: {'; '.join(problems)[:200] or 'well'}")
        time.sleep(1)
    late = len(here.heard) - sum(p.startswith("heard: ") for ps in found.values() for p in ps)
    if late or here.programs(): found["later"] = [*here.heard[-late:]]
    return found
