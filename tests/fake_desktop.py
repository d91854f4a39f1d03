"""A desktop without a screen: Xvfb, and programs on it that tell what reached them"""
import json, os, shutil, subprocess, sys, tempfile, time
from contextlib import contextmanager
from pathlib import Path

from oaml.schemas.packages import missing_extra

TEXT_BOX = '''
import json, sys, tkinter as tk
log = open(sys.argv[1], "a", buffering=1, encoding="utf-8")
root = tk.Tk(className=sys.argv[2]); root.title(sys.argv[2]); root.geometry("400x300+50+20")
text, said = tk.StringVar(), lambda *what: log.write(json.dumps(what) + "\\n")
box = tk.Entry(root, textvariable=text, font=("TkFixedFont", 12)); box.pack(fill="x"); box.focus_set()
text.trace_add("write", lambda *_: said("text", text.get()))
pad = tk.Canvas(root, bg="white"); pad.pack(fill="both", expand=True)
for event in ("<Button-1>", "<ButtonRelease-1>", "<Double-Button-1>", "<Button-3>", "<B1-Motion>", "<Button-4>", "<Button-5>"):
    pad.bind(event, lambda e, event=event: said(event, e.x, e.y))
pad.bind("<B1-Motion>", lambda e: pad.create_oval(e.x - 3, e.y - 3, e.x + 3, e.y + 3, fill="teal", width=0), add="+")
root.bind("<Control-Key>", lambda e: said("ctrl", e.keysym))
root.clipboard_clear(); root.clipboard_append("mine")
root.bind("<Control-Shift-F5>", lambda e: said("clipboard", root.clipboard_get()))
root.after(50, lambda: said("ready"))
root.mainloop()
'''

MANAGER = '''
import Xlib.X as X
from Xlib.display import Display
d = Display(); root = d.screen().root; atom = d.get_atom; frames = {}; d.set_error_handler(lambda *_: None)
names = "_NET_ACTIVE_WINDOW", "_NET_CLIENT_LIST"
root.change_property(atom("_NET_SUPPORTED"), 4, 32, [atom(n) for n in names])
root.change_attributes(event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
def activate(w):
    frames[w.id].configure(stack_mode=X.Above); w.set_input_focus(X.RevertToParent, X.CurrentTime)
    root.change_property(atom(names[0]), 33, 32, [w.id]); root.change_property(atom(names[1]), 33, 32, list(frames))
def manage(w):
    g = w.get_geometry()
    frames[w.id] = f = root.create_window(g.x, g.y, g.width, g.height + 20, 0, d.screen().root_depth, background_pixel=255)
    f.change_attributes(event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
    w.reparent(f, 0, 20); w.change_property(atom("WM_STATE"), atom("WM_STATE"), 32, [1, 0]); f.map(); w.map(); activate(w)
d.sync(); print("managed", flush=True)
while True:
    e = d.next_event()
    if e.type == X.MapRequest: (activate if e.window.id in frames else manage)(e.window)
    elif e.type == X.ConfigureRequest:
        w = frames.get(e.window.id, e.window)
        w.configure(**{k: getattr(e, k) for k in ("x", "y") if e.value_mask}); e.window.configure(width=e.width, height=e.height)
    elif e.type == X.ClientMessage and e.client_type == atom(names[0]) and e.window.id in frames: activate(e.window)
    elif e.type == X.DestroyNotify and e.window.id in frames: frames.pop(e.window.id).destroy()
    d.sync()
''' # a window manager with frames, that keeps to what EWMH says of active windows


def missing_desktop():
    "What a test on a desktop needs and this machine does not have; None if nothing."
    if why := missing_extra("desktop"): return why
    if not shutil.which("Xvfb"): return "Xvfb: not installed; apt install xvfb"
    try: import tkinter  # noqa: F401
    except ImportError: return "tkinter: not installed; apt install python3-tk"


def wait_for(what, seconds=30.):
    "What `what` gives, as soon as it gives something."
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end: raise TimeoutError(f"nothing came within {seconds:g} s")
        time.sleep(.02)
    return found


class Program:
    "A window with a text box above a white field, in a process of its own."
    def __init__(self, title, folder, env):
        self.path = folder/f"{title}.log"
        self.path.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, "-c", TEXT_BOX, str(self.path), title], env=env)
        wait_for(lambda: self.path.exists() and ["ready"] in self.said())

    def said(self):
        "All that reached it."
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def text(self, wanted=None):
        "What stands in the box; waits until that is `wanted`, for ten seconds."
        def now(): return next((s[1] for s in reversed(self.said()) if s[0] == "text"), "")
        try: wait_for(lambda: wanted is not None and now() == wanted, 10)
        except TimeoutError: pass
        return now()


class FakeDesktop:
    "An Xvfb that runs."
    def __init__(self, name, folder, server):
        self.name, self.folder, self.server, self.programs = name, folder, server, []
        self.env = {**os.environ, "DISPLAY": name, "ACCESSIBILITY_ENABLED": "1"}

    def start(self, *words, **more):
        "A program on it."
        self.programs.append(subprocess.Popen(words, env=self.env, **more))
        return self.programs[-1]

    def manager(self):
        "A window manager."
        wait_for(self.start(sys.executable, "-c", MANAGER, stdout=subprocess.PIPE).stdout.readline)

    def text_box(self, title="Notes"):
        "A window with a text box."
        program = Program(title, self.folder, self.env)
        self.programs.append(program.process)
        return program

    def layout(self, name):
        "Another keyboard."
        subprocess.run(["setxkbmap", *name.split()], env=self.env, check=True, stderr=subprocess.DEVNULL)
        time.sleep(.2)


@contextmanager
def fake_desktop(size="800x600"):
    "An Xvfb; DISPLAY names it inside."
    read, write = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(write), "-screen", "0", f"{size}x24", "-nolisten", "tcp", "-noreset"],  # else it begins anew whenever its last client goes, and drops who is just coming
                              pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    before = {k: os.environ.pop(k, None) for k in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE")}
    with tempfile.TemporaryDirectory() as folder, os.fdopen(read) as number:
        os.environ["DISPLAY"] = ":" + number.readline().strip()
        desktop = FakeDesktop(os.environ["DISPLAY"], Path(folder), server)
        try: yield desktop
        finally:
            for process in [*reversed(desktop.programs), server]: process.kill()
            for process in [*desktop.programs, server]: process.wait()
            del os.environ["DISPLAY"]
            os.environ.update({k: v for k, v in before.items() if v is not None})
