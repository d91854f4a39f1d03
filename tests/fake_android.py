"""A phone that is not there: the real adb talks to it.

A driver for Android has to be tested without an Android. Here is the device's end of the cable: a program that speaks adb's
wire protocol, so that the real `adb`, server and client, connects to it, and behind it a shell, a log, a package manager and
one synthetic application. It is as strict as a phone where that is known, and its clock moves by input and `sleep` only. With
`fake_phone` a test, a notebook or a benchmark attaches one; `test_fake_android.py` says what it promises."""


import atexit
import io
import os
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time
import zipfile
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image

from oaml.apps.app import App, Stage
from oaml.apps.phone import PHONE_SIZE
from oaml.devices.android import KEYBOARD, find_adb, run_adb
from oaml.devices.app_device import AppDevice, package_of
from oaml.devices.device import ClearCache, DeviceError, ForceStop, StartActivity
from oaml.devices.hierarchy import to_xml
from oaml.ui.events import (PRESS_MS, Event, KeyDown, PointerDown, PointerMove, PointerUp, Text, Tick)
from oaml.ui.themes import form_of, theme_for


# The words of a shell
#
# Most mistakes of a driver are made here: a space that splits an argument, a quote that is never closed, a `&` that
# sends half of the command to the background. So the fake reads quotes as a shell does. It knows `;`, `&&`, `||`,
# `$?` and redirection; what else a shell knows is an error and not a guess.

WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|<>()`'"\\])+"""
TOKEN = re.compile(rf"(?P<blank>[ \t]+|#[^\n]*|<\s*/dev/null)|(?P<then>&&|\|\||;|\n)"
                   rf"|(?P<fd>[12]?)(?P<to>>>?)\s*(?P<file>&[12]|{WORD})|(?P<word>{WORD})", re.DOTALL)
PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|\$(\?|\w+)|(.)""", re.DOTALL)
IN_QUOTES = re.compile(r"""\\([$`"\\])|\$(\?|\w+)""")

class ShellError(Exception):
    "A command failed: what it printed, and its status."
    def __init__(self,
        text: str,       # for the standard error
        status: int=255, # 1 to 255
    ):
        super().__init__(text)
        self.status = status

@dataclass(frozen=True)
class Command:
    "A command of a line, as written."
    after: str                                # "&&", "||" or ";": when it is run
    words: tuple[str, ...]                    # with their quotes
    to: tuple[tuple[str, str, str], ...]=()   # redirections: "1" or "2", ">" or ">>", file or "&1"

def parse_line(
    line: str,         # what stands after `adb shell`
) -> list[Command]:
    "The commands of a line. Raises ShellError."
    found, at, after, words, to = [], 0, ";", [], []
    while at < len(line):
        m = TOKEN.match(line, at)
        if not m: raise ShellError(_unreadable(line[at]), 1)
        at = m.end()
        if m["word"]: words.append(m["word"])
        elif m["to"]: to.append((m["fd"] or "1", m["to"], m["file"]))
        elif m["then"]:
            found.append(Command(after, tuple(words), tuple(to)))
            after, words, to = m["then"].replace("\n", ";"), [], []
    return [c for c in (*found, Command(after, tuple(words), tuple(to))) if c.words]

def _unreadable(char: str) -> str:
    "What the shell says of a character that it cannot read."
    if char in "'\"\\": return f"/system/bin/sh: no closing quote for {char}"
    return f"/system/bin/sh: syntax error: unexpected '{char}' (this fake knows ; && || and redirection, no more)"

def unquote(
    word: str,    # as written
    status: int,  # of the last command, for `$?`
) -> str:
    "What a word of a line is. There are no variables."
    def known(name): return str(status) if name == "?" else ""
    def in_quotes(m): return m[1] or known(m[2])
    def piece(m):
        single, double, escaped, name, plain = m.groups()
        if double is not None: return IN_QUOTES.sub(in_quotes, double)
        return next((s for s in (single, escaped, plain) if s is not None), None) or known(name or "")
    return PIECE.sub(piece, word)


# The phone
#
# What it holds: the application, a screen that can be turned, packages, settings, files, and a log, which as on a phone
# is a ring. `hands` is the only way in for input: events go to the application, ticks move the clock, and what the
# application hears is logged.

LATIN = "com.android.inputmethod.latin/.LatinIME" # selected at first
BOOTED = 1_700_000_000_000  # wall clock at boot, milliseconds of the epoch: the same for every fake
LOG_LINES = 4096            # as many as the ring holds; the oldest go first
COMMANDS: dict[str, Callable] = {} # name: what it does, of a phone and words to what it says; ShellError if it fails

def command(
    do: Callable, # of a phone and the words after the name; gives str or bytes for the standard output
) -> Callable:    # the same
    "Make a function a command of the shell, under its own name without underscores."
    COMMANDS[do.__name__.strip("_")] = do
    return do

@dataclass(frozen=True)
class LogLine:
    "A line of the log."
    ms: int        # since boot
    priority: str  # one of V D I W E F
    tag: str       # who logged it
    text: str      # the message

class FakePhone:
    "A phone with one synthetic application. A lock keeps its commands apart, whoever sends them."
    def __init__(self,
        app: App|str="login",                # an application or its name
        size: tuple[int, int]=PHONE_SIZE,    # of the screen held upright, pixels
        family: str|None=None,               # theme family; None: by seed
        vary: bool=True,                     # a look by seed
        goals: tuple[str, ...]|None=None,    # goal families, in turn by seed
        keyboard: bool=True,                 # is ADBKeyboard installed?
        sdk: int=34,                         # level of Android's interface; 34 is Android 14
    ):
        self.device = AppDevice(app, size, family, vary, goals)
        self.physical = self.override = tuple(size)
        self.package, self.ms, self.rotation = package_of(self.device.app), 0, 0
        self.props = {"ro.build.version.sdk": str(sdk), "ro.product.model": "oaml", "sys.boot_completed": "1"}
        self.keyboards = [LATIN] + [KEYBOARD]*keyboard
        self.packages = {self.package, "android", *(k.split("/")[0] for k in self.keyboards)}
        self.settings = {"system": {"user_rotation": "0", "accelerometer_rotation": "0"}, "global": {},
                         "secure": {"default_input_method": LATIN, "enabled_input_methods": LATIN}}
        self.files: dict[str, bytes] = {}
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.faults: dict[str, int] = {}     # how often something is still to go wrong: "dump", "log", "ime" (its list), "select", "picture"
        self.awake, self.locked, self.secret = True, False, False # is the screen on, locked, forbidden to be pictured?
        self.upright_pictures = False        # does `screencap` give the panel as it is built, however it is held?
        self.trusts = True                   # does it let this computer in?
        self.attached: dict = {}             # where adb finds it, once `fake_phone` has connected it
        self.lock = threading.RLock()
        self.finger = False                  # is one on the screen, by `input motionevent`?
        self.reset(0)

    def reset(self,
        seed: int, # of the episode
    ):
        "Begin the episode of `seed`: `setprop debug.oaml.seed` does it from outside."
        self.device.reset(seed, draw=False)
        self._lay_out()

    @property
    def size(self) -> tuple[int, int]:
        "Of the screen as it is turned."
        return self.override[::-1] if self.rotation % 2 else self.override

    def _lay_out(self):
        "The application on the screen as it is now. Raises ValueError if it does not fit."
        seed = self.device.seed if self.device.vary else 0
        stage = Stage(self.device.app, theme_for(seed, self.device.family, form_of(self.size)), self.size)
        stage.placed(self.device.screen)
        self.device.stage, self.device.size = stage, self.size

    def hands(self,
        *events: Event, # in pixels
    ) -> str:           # nothing to say
        "Input: the application hears it, the log names each event that it took, ticks move the clock."
        output = self.device.feed(events, draw=False).log
        self.ms += sum(e.ms for e in events if isinstance(e, Tick))
        self.log += [LogLine(self.ms, line[0], *line[2:].split(": ", 1)) for line in output]
        return ""

    def fault(self,
        kind: str, # one of `faults`
    ) -> bool:
        "Is this one to go wrong? Counts it."
        left = self.faults.get(kind, 0)
        self.faults[kind] = max(0, left-1)
        return left > 0

    def run(self,
        line: str, # what stands after `adb shell`
    ) -> tuple[list[tuple[int, bytes]], int]: # what was printed, each on 1 (output) or 2 (error), and the status
        "Run a line of commands."
        try: commands = parse_line(line)
        except ShellError as e: return [(2, f"{e}\n".encode())], e.status
        output, status = [], 0
        with self.lock:
            for c in commands:
                if (c.after == "&&" and status) or (c.after == "||" and not status): continue
                new, status = self._call([unquote(w, status) for w in c.words])
                output += self._redirected(new, c.to)
        return output, status

    def _call(self, words: list[str]) -> tuple[list[tuple[int, bytes]], int]:
        "Run one command."
        name, *args = words
        try:
            if name not in COMMANDS: raise ShellError(f"/system/bin/sh: {name}: inaccessible or not found", 127)
            out = COMMANDS[name](self, args)
            return [(1, out.encode() if isinstance(out, str) else out)], 0
        except ShellError as e: return [(2, f"{e}\n".encode())], e.status
        except (LookupError, ValueError, TypeError): return [(2, f"{name}: bad arguments: {args}\n".encode())], 1

    def _redirected(self, output: list[tuple[int, bytes]], to) -> list[tuple[int, bytes]]:
        "What is left to hear of `output` after redirections, which are made from left to right."
        sink: dict[int, int|str] = {1: 1, 2: 2}
        for fd, how, file in to:
            sink[int(fd)] = sink[int(file[1])] if file[0] == "&" else file
            if file[0] != "&" and how == ">": self.files[file] = b""
        for fd, data in output:
            if isinstance(sink[fd], str): self.files[sink[fd]] = self.files.get(sink[fd], b"") + data
        self.files.pop("/dev/null", None)
        return [(sink[fd], data) for fd, data in output if isinstance(sink[fd], int)]

REFUSED = "java.lang.IllegalArgumentException"

def _wanted(args: list[str], n: int, name: str) -> list[str]:
    "`args`, at least `n` of them. Raises ShellError if there are less."
    if len(args) >= n: return args
    raise ShellError(f'{REFUSED}: Argument expected after "{(name, *args)[-1]}"')

@command
def _echo(phone, args): return " ".join(args) + "\n"

@command
def _true(phone, args): return ""

@command
def _sleep(phone, args):
    "Seconds of the virtual clock; nobody waits."
    try: return phone.hands(Tick(round(1000*float(_wanted(args, 1, "sleep")[0]))))
    except ValueError: raise ShellError(f"sleep: not a number '{args[0]}'", 1) from None

@command
def _date(phone, args):
    "The wall clock in UTC; of the formats, seconds and their fraction."
    now = BOOTED + phone.ms
    form = args[0][1:] if args and args[0].startswith("+") else "%s"
    return form.replace("%s", str(now//1000)).replace("%N", f"{now%1000*10**6:09d}") + "\n"

@command
def _cat(phone, args):
    def read(path):
        if path == "/proc/uptime": return f"{phone.ms/1000:.2f} {phone.ms/1000:.2f}\n".encode()
        if path in phone.files: return phone.files[path]
        raise ShellError(f"cat: {path}: No such file or directory", 1)
    return b"".join(map(read, args))

@command
def _rm(phone, args):
    for path in args:
        if path.startswith("-"): continue
        if phone.files.pop(path, None) is None and "-f" not in args:
            raise ShellError(f"rm: {path}: No such file or directory", 1)
    return ""

@command
def _getprop(phone, args): return phone.props.get(args[0], "") + "\n"

@command
def _setprop(phone, args):
    "A property. An application of ours follows `debug.oaml.seed`."
    key, value = _wanted(args, 2, "setprop")[:2]
    if key == "debug.oaml.seed":
        try: phone.reset(int(value))
        except ValueError as e: raise ShellError(f"setprop: {e}", 1) from None
    phone.props[key] = value
    return ""


# Input
#
# A tap is the press of `compile_action`, a swipe its drag; so a driver and an `AppDevice` can be compared event by
# event. A finger that comes down beside the screen touches nothing.

INPUTS: dict[str, Callable] = {} # `input`'s own commands
SOURCES = "keyboard dpad gamepad touchscreen mouse stylus trackball touchpad touchnavigation joystick".split()

def _gesture(do: Callable) -> Callable:
    "Make a function one of `input`'s commands; words that are no numbers are refused as on a phone."
    name = do.__name__.strip("_")
    def checked(phone, args):
        try: return do(phone, args)
        except ValueError: raise ShellError(f"Error: Invalid arguments for command: {name}") from None
    INPUTS[name] = checked
    return do

@command
def _input(phone, args):
    if args and args[0] in SOURCES: args = args[1:]
    if args[:1] == ["-d"]: args = args[2:]
    kind, *rest = args or ["help"]
    if kind not in INPUTS: raise ShellError(f"Unknown command: {kind}")
    return INPUTS[kind](phone, rest)

def _touch(phone: FakePhone, at: tuple[float, float], *after: Event) -> str:
    "A finger comes down, and what it does then; beside the screen only time passes."
    phone.finger = all(0 <= v < side for v, side in zip(at, phone.size))
    if phone.finger: return phone.hands(PointerMove(*at), PointerDown(*at), *after)
    return phone.hands(*(e for e in after if isinstance(e, Tick)))

@_gesture
def _tap(phone, args):
    at = tuple(map(float, _wanted(args, 2, "tap")[:2]))
    return _touch(phone, at, Tick(PRESS_MS), PointerUp(*at))

@_gesture
def _swipe(phone, args):
    x, y, x2, y2 = map(float, _wanted(args, 4, "swipe")[:4])
    ms = int(args[4]) if len(args) > 4 else 300
    if (x, y) == (x2, y2): return _touch(phone, (x, y), Tick(ms), PointerUp(x, y))
    return _touch(phone, (x, y), Tick(ms//2), PointerMove(x2, y2), Tick(ms-ms//2), PointerUp(x2, y2))

HOLD_MS = 500  # how long `draganddrop` holds before it moves

@_gesture
def _draganddrop(phone, args):
    x, y, x2, y2 = map(float, _wanted(args, 4, "draganddrop")[:4])
    ms = int(args[4]) if len(args) > 4 else 300
    return _touch(phone, (x, y), Tick(HOLD_MS+ms//2), PointerMove(x2, y2), Tick(ms-ms//2), PointerUp(x2, y2))

@_gesture
def _motionevent(phone, args):
    kind, at = _wanted(args, 3, "motionevent")[0], tuple(map(float, args[1:3]))
    if kind not in ("DOWN", "MOVE", "UP", "CANCEL"): raise ShellError(f"{REFUSED}: Unknown motionevent {kind}")
    if kind == "DOWN": return _touch(phone, at)
    if not phone.finger: return ""
    if kind == "MOVE": return phone.hands(PointerMove(*at))
    phone.finger = False
    return phone.hands(PointerUp(*at)) if kind == "UP" else ""

@_gesture
def _text(phone, args):
    "Typed by a keyboard that has only what is printed on its keys. `%s` is a space."
    text = _wanted(args, 1, "text")[0].replace("%s", " ")
    if not (text.isascii() and text.isprintable()):
        raise ShellError("Exception occurred while executing 'text':\njava.lang.NullPointerException: Attempt to get "
                         "length of null array\n\tat com.android.server.input.InputShellCommand.sendText")
    return phone.hands(Text(text)) if text else ""

CODES = dict(HOME=3, BACK=4, STAR=17, POUND=18, DPAD_UP=19, DPAD_DOWN=20, DPAD_LEFT=21, DPAD_RIGHT=22, COMMA=55,
             PERIOD=56, ALT_LEFT=57, ALT_RIGHT=58, SHIFT_LEFT=59, SHIFT_RIGHT=60, TAB=61, SPACE=62, ENTER=66, DEL=67,
             GRAVE=68, MINUS=69, EQUALS=70, LEFT_BRACKET=71, RIGHT_BRACKET=72, BACKSLASH=73, SEMICOLON=74,
             APOSTROPHE=75, SLASH=76, AT=77, PLUS=81, PAGE_UP=92, PAGE_DOWN=93, ESCAPE=111, FORWARD_DEL=112,
             CTRL_LEFT=113, CTRL_RIGHT=114, META_LEFT=117, META_RIGHT=118, MOVE_HOME=122, MOVE_END=123, INSERT=124,
             **{str(i): 7+i for i in range(10)}, **{chr(65+i): 29+i for i in range(26)},
             **{f"F{i}": 130+i for i in range(1, 13)})  # android.view.KeyEvent
MEANS = {3: "HOME", 4: "BACK", 19: "Up", 20: "Down", 21: "Left", 22: "Right", 61: "Tab", 62: "Space", 66: "Enter",
         67: "Backspace", 92: "PageUp", 93: "PageDown", 111: "Escape", 112: "Delete", 122: "Home", 123: "End",
         124: "Insert", 17: "*", 18: "#", 55: ",", 56: ".", 68: "`", 69: "-", 70: "=", 71: "[", 72: "]", 73: "\\",
         74: ";", 75: "'", 76: "/", 77: "@", 81: "+", **{7+i: str(i) for i in range(10)},
         **{29+i: chr(97+i) for i in range(26)}, **{130+i: f"F{i}" for i in range(1, 13)}}  # our key, or a character
HELD = {113: "ctrl", 114: "ctrl", 57: "alt", 58: "alt", 59: "shift", 60: "shift", 117: "meta", 118: "meta"}

def _code(name: str) -> int:
    "The number of a key, from its name or its number. Raises ShellError."
    code = int(name) if name.isdigit() else CODES.get(name.removeprefix("KEYCODE_"), 0)
    if not code: raise ShellError(f"{REFUSED}: Unknown keycode: {name}")
    return code

def _key(phone: FakePhone, codes: list[int]) -> str:
    "Keys pressed together: a chord, or a character. Keys that our interface has no use for do nothing."
    held = [m for m in ("ctrl", "alt", "shift", "meta") if m in {HELD.get(c) for c in codes}]
    last = next((MEANS[c] for c in codes if c in MEANS), None)
    if last is None: return ""
    if len(last) == 1 and held in ([], ["shift"]): return phone.hands(Text(last.upper() if held else last))
    return phone.hands(KeyDown("+".join([*held, last])))

@_gesture
def _keyevent(phone, args):
    return "".join(_key(phone, [_code(name)]) for name in _wanted(args, 1, "keyevent"))

@_gesture
def _keycombination(phone, args):
    "All at once, since Android 12."
    if int(phone.props["ro.build.version.sdk"]) < 31: raise ShellError("Unknown command: keycombination")
    if args[:1] == ["-t"]: args = args[2:]
    if len(args) < 2: raise ShellError(f"{REFUSED}: keycombination requires at least 2 keycodes")
    return _key(phone, list(map(_code, args)))


# What it shows
#
# The screen as PNG, the tree of the view hierarchy, and what `dumpsys` tells drivers. Among the viewports are two that
# are not the screen, as on a phone that folds or has a projector.

@command
def _screencap(phone, args):
    "A PNG, opaque, with alpha."
    if "-p" not in args: raise ShellError("screencap: this fake has PNG only: screencap -p", 1)
    buffer, image = io.BytesIO(), Image.fromarray(phone.device.look().image)
    if phone.secret or not phone.awake: image = Image.new("RGB", image.size)
    if phone.upright_pictures: image = image.rotate(-90*phone.rotation, expand=True)
    image.convert("RGBA").save(buffer, "PNG", compress_level=1)
    files, png = [a for a in args if not a.startswith("-")], buffer.getvalue()
    if phone.fault("picture"): png = png[:40] + b"\0"*40 + png[80:]
    if not files: return png
    phone.files[files[0]] = png
    return ""

@command
def _uiautomator(phone, args):
    "The tree goes to a file. A screen that will not stand still gives status 0, as on a phone."
    if args[:1] != ["dump"]: raise ShellError(f"Unknown command: {' '.join(args)}", 1)
    files = [a for a in args[1:] if not a.startswith("-")] or ["/sdcard/window_dump.xml"]
    if phone.fault("dump"): return "ERROR: could not get idle state.\n"
    xml = to_xml(phone.device.read_elements(), phone.size, phone.package if phone.device.running else "")
    xml = xml.replace('rotation="0"', f'rotation="{phone.rotation}"', 1)
    output = f"UI hierchary dumped to: {files[0]}\n"
    if files[0] in ("/dev/tty", "/dev/stdout"): return xml + output
    phone.files[files[0]] = xml.encode()
    return output

def _viewport(phone: FakePhone) -> str:
    "The viewports of `dumpsys display`."
    def one(kind, active, id, rotation, size, panel):
        frame = f"Rect(0, 0 - {size[0]}, {size[1]})"
        return (f"DisplayViewport{{type={kind}, valid=true, isActive={active}, displayId={id}, uniqueId='local:{id}', "
                f"physicalPort=0, orientation={rotation}, logicalFrame={frame}, physicalFrame={frame}, "
                f"deviceWidth={panel[0]}, deviceHeight={panel[1]}}}")
    panel = phone.physical[::-1] if phone.rotation % 2 else phone.physical
    return "  mViewports=[" + ", ".join([one("EXTERNAL", "true", 2, 0, (640, 480), (640, 480)),
                                          one("INTERNAL", "false", 1, 2, (64, 64), (64, 64)),
                                          one("INTERNAL", "true", 0, phone.rotation, phone.size, panel)]) + "]\n"

def _activity(phone: FakePhone) -> str:
    "What is in front."
    if not phone.device.running: return ""
    return f"  topResumedActivity=ActivityRecord{{4f2a1c9 u0 {phone.package}/.Main t7}}\n"

def _window(phone: FakePhone) -> str:
    "The window with the focus, and whether the lock is before it."
    front = f"Window{{91c0d3e u0 {phone.package}/{phone.package}.Main}}" if phone.device.running else "null"
    return f"  mCurrentFocus={front}\n    KeyguardServiceDelegate\n      showing={str(phone.locked).lower()}\n"

def _power(phone: FakePhone) -> str:
    "Whether the screen is on."
    return f"  mWakefulness={'Awake' if phone.awake else 'Asleep'}\n"

DUMPS = dict(display=_viewport, activity=_activity, window=_window, power=_power,
             input=lambda phone: f"      SurfaceOrientation: {phone.rotation}\n")

@command
def _dumpsys(phone, args):
    what = _wanted(args, 1, "dumpsys")[0]
    if what not in DUMPS: raise ShellError(f"Can't find service: {what}", 1)
    return DUMPS[what](phone)

@command
def _wm(phone, args):
    "The panel's size and one that is set over it."
    what, *value = _wanted(args, 1, "wm")
    if what == "density": return "Physical density: 160\n"
    if what != "size": raise ShellError(f"Unknown command: {what}")
    if not value:
        sizes = "Physical size: {}x{}\n".format(*phone.physical)
        return sizes + "Override size: {}x{}\n".format(*phone.override)*(phone.override != phone.physical)
    _change(phone, override=phone.physical if value[0] == "reset" else tuple(map(int, value[0].split("x"))))
    return ""

def _change(phone: FakePhone, **new):
    "Another screen; an application that does not fit it stays as it was, as one that asks for portrait does."
    old = {k: getattr(phone, k) for k in new}
    vars(phone).update(new)
    try: phone._lay_out()
    except ValueError: vars(phone).update(old)

@command
def _settings(phone, args):
    "Turning the screen by `user_rotation` is up to the sensor while `accelerometer_rotation` is on."
    how, space, key, *value = _wanted(args, 4 if args[:1] == ["put"] else 3, "settings")
    values = phone.settings.get(space)
    if values is None or how not in ("get", "put"): raise ShellError(f"Invalid namespace or command: {how} {space}")
    if how == "get": return values.get(key, "null") + "\n"
    values[key] = value[0]
    system = phone.settings["system"]
    if space == "system" and system["accelerometer_rotation"] == "0" and int(system["user_rotation"]) != phone.rotation:
        _change(phone, rotation=int(system["user_rotation"]))
    return ""


# The log
#
# `logcat` prints what there is and ends, as with `-d`; it does not go on printing. Lines have the forms that drivers
# ask for, and can be had since a time or by tag.

PRIORITIES = "VDIWEFS"
FORMATS = dict(tag="{p}/{tag:<8}: {text}", brief="{p}/{tag:<8}( 4242): {text}", raw="{text}",
               time="{when} {p}/{tag:<8}( 4242): {text}", threadtime="{when}  4242  4242 {p} {tag:<8}: {text}")

@command
def _log(phone, args):
    "Write a line to the log."
    options = {"-p": "i", "-t": "log"}
    while args and args[0] in options: options[args[0]], args = args[1], args[2:]
    phone.log.append(LogLine(phone.ms, options["-p"].upper(), options["-t"], " ".join(args)))
    return ""

def _when(ms: int, epoch: bool) -> str:
    "A time as the log prints it."
    now = BOOTED + ms
    if epoch: return f"{now//1000:>14}.{now%1000:03d}"
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(now//1000)) + f".{now%1000:03d}"

def _since(lines: list[LogLine], begin: str) -> list[LogLine]:
    "The last `begin` lines, or those since the time `begin`, in seconds of the epoch."
    if begin.isdigit(): return lines[-int(begin):]
    try: return [line for line in lines if BOOTED + line.ms >= round(1000*float(begin))]
    except ValueError: raise ShellError(f'-T "{begin}" is no number of lines and no time', 1) from None

def _shown(line: LogLine, filters: dict[str, str]) -> bool:
    "Do the filters let it through?"
    least = filters.get(line.tag, filters.get("*", "V"))
    return least != "S" and PRIORITIES.index(line.priority) >= PRIORITIES.index(least)

@command
def _logcat(phone, args):
    args, shape, filters, epoch = list(args), "threadtime", {}, False
    lines = list(phone.log)[:-1] if phone.fault("log") else list(phone.log)
    while args:
        a = args.pop(0)
        if a in ("-c", "--clear"): return phone.log.clear() or ""
        if a == "-s": filters.setdefault("*", "S")
        elif a == "-b": args.pop(0)
        elif a in ("-T", "-t"): lines = _since(lines, args.pop(0))
        elif a == "-v": shape, epoch = _log_shape(args.pop(0), shape, epoch)
        elif not a.startswith("-"): filters.update([a.rpartition(":")[::2] if ":" in a else (a, "V")])
    say = FORMATS[shape].format
    return "--------- beginning of main\n" + "".join(
        say(p=line.priority, tag=line.tag, text=line.text, when=_when(line.ms, epoch)) + "\n"
        for line in lines if _shown(line, filters))

def _log_shape(name: str, shape: str, epoch: bool) -> tuple[str, bool]:
    "What `-v` asks for. Raises ShellError."
    if name == "epoch": return shape, True
    if name not in FORMATS: raise ShellError(f'Invalid parameter "{name}" to -v', 1)
    return name, epoch


# Applications
#
# One of them runs. Others can be installed, from a file that names them, and have nothing to start. The keyboard that
# types anything is an application too, and hears a broadcast once it is selected.

def fake_apk(
    package: str, # such as "app.oaml.notes"
) -> bytes:
    "The smallest file that `pm install` of a fake phone takes: a zip with a manifest in plain text."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z: z.writestr("AndroidManifest.xml", f'<manifest package="{package}"/>')
    return buffer.getvalue()

def _package_in(apk: bytes) -> str:
    "The name in a manifest. Raises ShellError."
    try: manifest = zipfile.ZipFile(io.BytesIO(apk)).read("AndroidManifest.xml").decode()
    except (zipfile.BadZipFile, KeyError): manifest = ""
    if m := re.search('package="([^"]+)"', manifest): return m[1]
    raise ShellError("Failure [INSTALL_PARSE_FAILED_NOT_APK: Failed to parse base.apk]", 1)

def _pm_list(phone, args):
    "Of an application, its name has to contain the last word."
    part = next((a for a in args[1:] if not a.startswith("-")), "")
    return "".join(f"package:{p}\n" for p in sorted(phone.packages) if part in p)

def _pm_path(phone, args):
    if args[0] not in phone.packages: raise ShellError("", 1)
    return f"package:/data/app/{args[0]}/base.apk\n"

def _pm_install(phone, args):
    path = args[-1]
    if path not in phone.files: raise ShellError(f"Error: Unable to open file: {path}", 1)
    phone.packages.add(_package_in(phone.files[path]))
    return "Success\n"

def _pm_uninstall(phone, args):
    if args[-1] not in phone.packages: raise ShellError("Failure [DELETE_FAILED_INTERNAL_ERROR]", 1)
    phone.packages.discard(args[-1])
    if args[-1] == phone.package: phone.device.manage(ForceStop(phone.package))
    return "Success\n"

def _pm_clear(phone, args):
    if args[-1] not in phone.packages: raise ShellError("Failed", 1)
    if args[-1] == phone.package: phone.device.manage(ClearCache(phone.package))
    return "Success\n"

def _pm_grant(phone, args):
    package = _wanted(args, 2, "grant")[0]
    if package not in phone.packages: raise ShellError(f"{REFUSED}: Unknown package: {package}")
    return ""

PM = dict(list=_pm_list, path=_pm_path, install=_pm_install, uninstall=_pm_uninstall, clear=_pm_clear, grant=_pm_grant)

@command
def _pm(phone, args):
    what, *rest = _wanted(args, 2, "pm")
    if what not in PM: raise ShellError(f"Unknown command: {what}")
    return PM[what](phone, rest)

def _option(args: list[str], name: str, default: str="") -> str:
    "The word after an option."
    return args[args.index(name)+1] if name in args[:-1] else default

def _am_start(phone, args):
    "An application's screen; `-S` stops it first."
    named = _option(args, "-n")
    if not named: raise ShellError("Error: Activity not started, unable to resolve Intent { }", 1)
    output = f"Starting: Intent {{ cmp={named} }}\n"
    package, _, name = named.partition("/")
    if package not in phone.packages or package != phone.package or name not in (".Main", f"{package}.Main"):
        raise ShellError(f"{output}Error type 3\nError: Activity class {{{named}}} does not exist.", 1)
    if "-S" in args: phone.device.manage(ForceStop(package))
    phone.device.manage(StartActivity(named))
    return output

def _am_stop(phone, args):
    "No complaint of an application that is not there."
    if args[-1:] == [phone.package]: phone.device.manage(ForceStop(phone.package))
    return ""

def _am_broadcast(phone, args):
    "The keyboard gets it, if it is selected."
    action, selected = _option(args, "-a"), phone.settings["secure"]["default_input_method"]
    if action == "ADB_INPUT_B64" and selected == KEYBOARD:
        try: phone.hands(Text(b64decode(_option(args, "msg")).decode()))
        except ValueError: pass  # the keyboard logs it and types nothing
    return f"Broadcasting: Intent {{ act={action} flg=0x400000 (has extras) }}\nBroadcast completed: result=0\n"

def _am_stack(phone, args):
    "The task in front, with the number that `am task lock` takes."
    if not phone.device.running: return ""
    p, bounds = phone.package, "bounds=[0,0][{},{}]".format(*phone.size)
    return (f"RootTask id=7 {bounds} displayId=0 userId=0\n  taskId=7: {p}/.Main {bounds} userId=0 visible=true "
            f"topActivity=ComponentInfo{{{p}/{p}.Main}}\n")

def _am_task(phone, args):
    if args != ["lock", "7"]: raise ShellError(f"{REFUSED}: no task {args[-1:]}")
    return ""

AM = {"start": _am_start, "force-stop": _am_stop, "broadcast": _am_broadcast, "stack": _am_stack, "task": _am_task}

@command
def _am(phone, args):
    what, *rest = _wanted(args, 1, "am")
    if what not in AM: raise ShellError(f"Unknown command: {what}")
    return AM[what](phone, rest)

@command
def _ime(phone, args):
    "Input methods: all of them with `list -a`, those enabled without; enabled before selected."
    what, secure = _wanted(args, 1, "ime")[0], phone.settings["secure"]
    enabled = secure["enabled_input_methods"].split(":")
    if phone.fault("ime" if what == "list" else "select"): raise ShellError("java.lang.SecurityException: Shell does not have permission to access input methods")
    if what == "list": return "".join(f"{k}\n" for k in (phone.keyboards if "-a" in args else enabled))
    id = _wanted(args, 2, what)[1]
    known, done = (phone.keyboards, "enabled") if what == "enable" else (enabled, "selected")
    if id not in known: raise ShellError(f"Unknown input method {id} cannot be {done} for user #0")
    if what == "enable": secure["enabled_input_methods"] = ":".join(dict.fromkeys((*enabled, id)))
    else: secure["default_input_method"] = id
    return f"Input method {id} {done} for user #0\n"

@command
def _svc(phone, args): return ""

@command
def _cmd(phone, args):
    "The same by the names of the services."
    name, *rest = _wanted(args, 1, "cmd")
    service = dict(package="pm", activity="am", input="input", input_method="ime").get(name)
    if not service: raise ShellError(f"cmd: Can't find service: {name}", 20)
    return COMMANDS[service](phone, rest)


# The wire
#
# adb's own protocol between its server and a phone: messages of six numbers and some bytes. The server opens a stream
# by the name of a service; each side writes to it and waits for an OKAY before it writes again.

NAMES = b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE"
CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (int.from_bytes(name, "little") for name in NAMES)
VERSION = 0x01000000   # of the protocol; the one with checksums
MOST = 1 << 20         # bytes of a message
BANNER = b"device::ro.product.name=oaml;ro.product.model=oaml;ro.product.device=oaml;features=shell_v2"

def pack_message(
    kind: int,      # CNXN, AUTH, OPEN, OKAY, CLSE or WRTE
    first: int,     # the sender's stream, or the version
    second: int,    # the receiver's stream, or the longest message
    data: bytes=b"", # what it carries
) -> bytes:
    "A message with its checksum."
    return struct.pack("<6I", kind, first, second, len(data), sum(data) & 0xffffffff, kind ^ 0xffffffff) + data

def _received(conn: socket.socket, n: int) -> bytes:
    "Exactly `n` bytes. Raises EOFError if the other side is gone."
    found = bytearray()
    while len(found) < n:
        part = conn.recv(n - len(found))
        if not part: raise EOFError
        found += part
    return bytes(found)

def read_message(
    conn: socket.socket, # of the other side
) -> tuple[int, int, int, bytes]: # kind, first, second, data
    "The next message. Raises EOFError at the end, ValueError if it is none."
    kind, first, second, n, total, magic = struct.unpack("<6I", _received(conn, 24))
    data = _received(conn, n) if n <= MOST else b""
    if magic == kind ^ 0xffffffff and n <= MOST and total == sum(data) & 0xffffffff: return kind, first, second, data
    raise ValueError("no message of adb")

def _shell_answer(phone: FakePhone, service: str) -> bytes|None:
    "All that a shell service says; None for another service."
    kind, _, line = service.partition(":")
    if kind.split(",")[0] not in ("shell", "exec"): return None
    if not line: line = "echo this phone has no shell to sit at, only commands"
    output, status = phone.run(line)
    if ",v2" not in kind: return b"".join(data for _, data in output)
    return b"".join(struct.pack("<BI", n, len(data)) + data for n, data in (*output, (3, bytes([status]))) if data)

FILE_MODE, FOLDER_MODE, FOLDERS = 0o100644, 0o040755, ("/data/local/tmp", "/sdcard")

class FileService:
    "The service `sync:`: what it takes, and what it says."
    def __init__(self,
        phone: FakePhone, # whose files
    ):
        self.phone, self.unread, self.writing, self.done = phone, bytearray(), ("", bytearray()), False

    def take(self,
        data: bytes, # from the other side, in pieces of any size
    ) -> bytes:      # the answer, if a request is complete
        "Do what is asked."
        self.unread += data
        output = b""
        while len(self.unread) >= 8:
            name, n = self.unread[:4].decode("latin1"), int.from_bytes(self.unread[4:8], "little")
            size = 0 if name == "DONE" else n
            if len(self.unread) < 8 + size: break
            body = bytes(self.unread[8:8+size])
            del self.unread[:8+size]
            output += self._do(name, body)
        return output

    def _do(self, name: str, body: bytes) -> bytes:
        "One request."
        files = self.phone.files
        if name == "DATA": self.writing[1].extend(body)
        elif name == "SEND": self.writing = body.decode().rpartition(",")[0], bytearray()
        elif name == "DONE":
            files[self.writing[0]] = bytes(self.writing[1])
            return b"OKAY" + bytes(4)
        elif name == "STAT": return b"STAT" + struct.pack("<3I", *self._stat(body.decode()))
        elif name == "RECV": return _sent(files.get(body.decode()))
        elif name == "LIST": return b"DONE" + bytes(16)
        elif name == "QUIT": self.done = True
        return b""

    def _stat(self, path: str) -> tuple[int, int, int]:
        "Mode, length and time; zeros for what is not there."
        if path in self.phone.files: return FILE_MODE, len(self.phone.files[path]), BOOTED//1000
        return (FOLDER_MODE, 0, BOOTED//1000) if path.rstrip("/") in FOLDERS else (0, 0, 0)

def _sent(file: bytes|None) -> bytes:
    "A file in pieces, as `adb pull` gets it."
    if file is None: return b"FAIL" + struct.pack("<I", len(NO_FILE)) + NO_FILE
    pieces = (file[i:i+PIECE_BYTES] for i in range(0, len(file), PIECE_BYTES))
    return b"".join(b"DATA" + struct.pack("<I", len(p)) + p for p in pieces) + b"DONE" + bytes(4)

NO_FILE, PIECE_BYTES = b"No such file or directory", 1 << 16

TOKEN_ASKED, SIGNED = 1, 2  # kinds of AUTH

@dataclass
class Stream:
    "A service that is open."
    theirs: int                    # the other side's number
    unsent: bytes=b""              # still to be written
    files: FileService|None=None   # of `sync:`, which stays open
    waiting: bool=False            # for the OKAY of the last piece

class Cable:
    "One connection of an adb server to a phone."
    def __init__(self,
        conn: socket.socket, # of the server
        phone: FakePhone,    # at this end
    ):
        self.conn, self.phone, self.streams, self.next, self.most = conn, phone, {}, 1, 4096
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self):
        "Answer until one side is gone."
        with self.conn:
            try:
                while True: self.answer(*read_message(self.conn))
            except (EOFError, OSError, ValueError): pass  # unplugged, by either side

    def send(self,
        kind: int,       # of the message
        first: int,      # its first number
        second: int,     # its second number
        data: bytes=b"", # what it carries
    ):
        "Write a message."
        self.conn.sendall(pack_message(kind, first, second, data))

    def answer(self,
        kind: int,   # of the message
        first: int,  # its first number
        second: int, # its second number
        data: bytes, # what it carried
    ):
        "The answer to a message."
        if kind in (CNXN, AUTH) and not self.phone.trusts: return self._ask(kind, first)
        if kind == CNXN:
            self.most = min(second, MOST)
            self.send(CNXN, VERSION, MOST, BANNER)
        elif kind == OPEN: self._open(first, data.rstrip(b"\0").decode())
        elif second not in self.streams: return
        elif kind == CLSE: del self.streams[second]
        else: self._go_on(kind, second, data)

    def _ask(self, kind: int, what: int):
        "A phone that does not know this computer asks for a signature, finds it wrong, and then waits for its owner."
        if kind == CNXN or what == SIGNED: self.send(AUTH, TOKEN_ASKED, 0, bytes(20))

    def _open(self, theirs: int, service: str):
        "A service, or a refusal."
        output = b"" if service == "sync:" else _shell_answer(self.phone, service)
        if output is None: return self.send(CLSE, 0, theirs)
        mine, self.next = self.next, self.next + 1
        self.streams[mine] = Stream(theirs, output, FileService(self.phone) if service == "sync:" else None)
        self.send(OKAY, mine, theirs)
        self._say(mine)

    def _go_on(self, kind: int, mine: int, data: bytes):
        "More for a stream, or leave to say the next piece."
        stream = self.streams[mine]
        if kind == OKAY: stream.waiting = False
        if kind == WRTE:
            self.send(OKAY, mine, stream.theirs)
            if stream.files: stream.unsent += stream.files.take(data)
        self._say(mine)

    def _say(self, mine: int):
        "The next piece of a stream; its end, if there is none and none can come."
        stream = self.streams[mine]
        if stream.waiting: return
        if stream.unsent:
            piece, stream.unsent, stream.waiting = stream.unsent[:self.most], stream.unsent[self.most:], True
            self.send(WRTE, mine, stream.theirs, piece)
        elif not stream.files or stream.files.done:
            del self.streams[mine]
            self.send(CLSE, mine, stream.theirs)

class Plug:
    "Where adb finds a phone: a port of this machine, served by threads until it is pulled."
    def __init__(self,
        phone: FakePhone, # to serve
        port: int=0,      # of this machine; 0: any that is free
    ):
        self.phone, self.conns = phone, []
        self.listener = socket.create_server(("127.0.0.1", port))
        self.serial = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        "Serve whoever comes."
        while True:
            try: conn, _ = self.listener.accept()
            except OSError: return  # pulled
            self.conns.append(conn)
            threading.Thread(target=Cable(conn, self.phone).serve, daemon=True).start()

    def pull(self):
        "The phone is gone, in the middle of whatever it does."
        for s in (self.listener, *self.conns):
            try: s.shutdown(socket.SHUT_RDWR)
            except OSError: pass  # closed already
            s.close()


# The real adb
#
# Last, the other end: an adb server of its own on a free port, which looks for no other phone and leaves no trace in
# the user's folder, and connects to the plug. Both are gone when the block ends, and when Python does.

UP_S = 10 # seconds that a server may take to come up
ALONE = dict(ADB_LOCAL_TRANSPORT_MAX_PORT="5553", ADB_MDNS="0", ADB_LIBUSB="0")  # no emulators, no network, no libusb

class AdbServer:
    "An adb server of its own, on a free port."
    def __init__(self,
        adb: str|None=None, # path of the program; None: the one that adbutils finds
    ):
        self.adb, self.home = find_adb(adb), tempfile.TemporaryDirectory()
        with socket.create_server(("127.0.0.1", 0)) as free: self.port = free.getsockname()[1]
        env = os.environ | ALONE | dict(HOME=self.home.name, TMPDIR=self.home.name)
        self.process = subprocess.Popen([self.adb, "-P", str(self.port), "nodaemon", "server"], env=env,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self.stop)
        self._wait()

    def _wait(self):
        "Until it listens. Raises DeviceError."
        end = time.monotonic() + UP_S
        while time.monotonic() < end and self.process.poll() is None:
            try: return socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError: time.sleep(.01)
        self.stop()
        raise DeviceError(f"{self.adb}: the server does not come up on port {self.port}")

    def run(self,
        *words: str, # after "adb -P <port>"
    ) -> str:        # its output
        "Run the real adb against this server. Raises DeviceError if it fails."
        return run_adb([self.adb, "-P", str(self.port), *words])

    def stop(self):
        "End it."
        atexit.unregister(self.stop)
        if self.process.poll() is None: self.process.kill()
        self.process.wait()
        self.home.cleanup()

@contextmanager
def fake_phone(
    app: App|str="login", # an application or its name
    **options,            # of `FakePhone`
) -> Iterator[FakePhone]: # connected: `AndroidDevice(**phone.attached)`
    "A fake phone at the real adb: `attached` says where, `plug` and `server` are its two ends. Raises DeviceError."
    phone, server = FakePhone(app, **options), AdbServer()
    phone.plug, phone.server = Plug(phone), server
    try:
        answer = server.run("connect", phone.plug.serial)
        if not answer.startswith("connected"): raise DeviceError(f"adb connect: {answer}")
        phone.attached = dict(serial=phone.plug.serial, adb=server.adb, port=server.port)
        yield phone
    finally:
        phone.plug.pull()
        server.stop()
