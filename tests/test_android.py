"The Android driver through the real adb, against the fake phone: whole episodes, any text, and what goes wrong."
import asyncio
import socket
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from shlex import quote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oaml.apps.app import ANY_TYPES, random_action
from oaml.apps.catalog import APPS
from oaml.apps.phone import PHONE_SIZE
from oaml.devices import android
from oaml.devices.app_device import AppDevice
from oaml.devices.device import DeviceError, Rotate, ShellCommand, StartActivity, StartRandomActivity
from oaml.devices.hierarchy import as_android, from_xml, missing_lxml
from oaml.devices.oracle import acceptable_targets
from oaml.schemas.sessions import MAX_TYPED, Action, text_problem
from oaml.ui.events import PRESS_MS, SETTLE_MS, PointerDown, PointerMove, PointerUp, Tick

from fake_android import AdbServer, FakePhone, Plug, fake_apk, fake_phone, parse_line, unquote

pytestmark = pytest.mark.skipif(bool(android.missing_adb()), reason=str(android.missing_adb()))
CLICK = Action("click", x=.5, y=.5)


def stroke(line):
    "The events of `input swipe`."
    x, y, x2, y2 = map(float, line.split()[2:6])
    begin, half = [PointerMove(x, y), PointerDown(x, y)], Tick(PRESS_MS)
    return [*begin, half, PointerMove(x2, y2), half, PointerUp(x2, y2)]


def by_finger(twin, action):
    "Do on an `AppDevice` what a finger can do of an action."
    settle = [Tick(SETTLE_MS)]
    if action.type in ("right_click", "move", "answer"): return twin.feed(settle)
    if action.type != "scroll": return twin.perform(action)
    lines = android.scroll_commands(action.x*twin.size[0], action.y*twin.size[1], action.dx*twin.size[0],
                                    action.dy*twin.size[1], twin.size)
    return twin.feed([e for line in lines for e in stroke(line)] + settle)


def app_lines(frame):
    "What the application heard, without what the driver itself says."
    return [line for line in frame.log if not line[1:].startswith("/oaml: ")]


def acts(twin, rng, careless):
    "What the oracle does, as long as a finger can, then a careless hand."
    for _ in range(twin.app.step_budget):
        action = acceptable_targets(twin)[0].action
        if action.type in ("done", "answer", "right_click", "move"): break
        yield action
    for _ in range(careless): yield random_action(rng, twin.last_elements, ANY_TYPES)


def lockstep(name, seeds, careless=6):
    "An episode on a phone and in this process, screen by screen; gives the number of actions."
    twin, done = AppDevice(name), 0
    with fake_phone(name) as phone:
        device = android.AndroidDevice(**phone.attached)
        for seed in seeds:
            mine, theirs = device.reset(seed), twin.reset(seed)
            for action in acts(twin, Random(f"android:{name}:{seed}"), careless):
                where = f"{name}, seed {seed}, after {action}"
                assert np.array_equal(mine.image, theirs.image), where
                assert (mine.clock, mine.size, mine.orientation) == (theirs.clock, theirs.size, 0), where
                assert app_lines(mine) == list(theirs.log), where
                if not missing_lxml(): assert device.read_elements() == as_android(twin.last_elements, twin.size), where
                mine, theirs = device.perform(action), by_finger(twin, action)
                done += 1
            assert np.array_equal(mine.image, theirs.image), f"{name}, seed {seed}, at the end"
    return done


@pytest.mark.parametrize("app", APPS)
def test_phone_and_process_show_the_same(app):
    assert lockstep(f"{app}@phone", range(2)) > 10


def test_equal_seeds_give_equal_bytes():
    def play():
        with fake_phone("login@phone") as phone:
            device = android.AndroidDevice(**phone.attached)
            frames = [device.reset(5)] + [device.perform(random_action(Random(i), (), ANY_TYPES)) for i in range(8)]
            return [(f.image.tobytes(), f.clock, f.log) for f in frames]
    assert play() == play()


TYPABLE = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(
    lambda t: unicodedata.normalize("NFC", t)).filter(lambda t: not text_problem(t))


@settings(max_examples=150, deadline=None)
@given(st.one_of(TYPABLE, st.text("%s \"'\\$&|;`<>()*?#~!{}[]-a1\u00e9", min_size=1, max_size=12)))
def test_any_text_arrives(text):
    phone, received = FakePhone(), []
    phone.run(f"ime enable {android.KEYBOARD}; ime set {android.KEYBOARD}")
    phone.hands = lambda event: received.append(event.text) or ""
    assert phone.run(" && ".join(android.type_commands(text)))[1] == 0
    assert "".join(received) == text


def test_any_text_arrives_through_adb():
    texts = ["it's 100%s \"sure\" & $HOME;`x`\\n", "Zo\u00eb \u738b\u5c0f\u660e \U0001f642", "\u0645\u0631\u062d"]
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        for text in texts:
            device.reset(3)
            box = next(e.box for e in phone.device.last_elements if e.id == "username")
            device.perform(Action("click", x=(box[0]+box[2])/2, y=(box[1]+box[3])/2))
            device.perform(Action("type", text=text))
            assert next(e.value for e in phone.device.last_elements if e.id == "username") == text


def test_the_old_keyboard_comes_back():
    with fake_phone("login") as phone:
        before = phone.settings["secure"]["default_input_method"]
        device = android.AndroidDevice(**phone.attached)
        device.reset(0), device.reset(1)
        assert phone.settings["secure"]["default_input_method"] == android.KEYBOARD
        device.close()
        assert phone.settings["secure"]["default_input_method"] == before


def selected(phone): return phone.settings["secure"]["default_input_method"]


def test_the_old_keyboard_comes_back_after_an_error():
    with fake_phone("login") as phone:
        before, device = selected(phone), android.AndroidDevice(**phone.attached)
        phone.faults["picture"] = 1
        with pytest.raises(DeviceError, match="no picture that can be read"): device.reset(0)
        assert selected(phone) == before
        device.reset(0)
        again = android.AndroidDevice(**phone.attached)  # the first was killed, so to speak, with its keyboard selected
        again.reset(0), again.close()
        assert selected(phone) == before


def test_a_phone_without_a_keyboard_for_all_letters_goes_on():
    for options, faults in (dict(keyboard=False), {}), ({}, dict(select=10)):
        with fake_phone("login", **options) as phone:
            device = android.AndroidDevice(**phone.attached)
            phone.faults.update(faults)
            first = device.reset(3)
            box = next(e.box for e in phone.device.last_elements if e.id == "username")
            device.perform(Action("click", x=(box[0]+box[2])/2, y=(box[1]+box[3])/2))
            before, frame = device.look(), device.perform(Action("type", text="caf\u00e9"))
            assert np.array_equal(frame.image, before.image) and any("'caf\u00e9' is not on a keyboard and was not typed" in line for line in frame.log)
            assert bool(faults) == any("ADBKeyboard is not selected" in line for line in first.log)
            device.perform(Action("type", text="cafe"))
            assert next(e.value for e in phone.device.last_elements if e.id == "username") == "cafe"


def test_a_phone_that_does_not_list_its_keyboards():
    with fake_phone("login") as phone:
        phone.faults["ime"] = 1
        device = android.AndroidDevice(**phone.attached)
        assert device.keyboards == [] and device.perform(CLICK).size == device.size
        device.reset(0)
        assert device.keyboards


def test_a_damaged_picture_is_an_error_with_words():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        phone.faults["picture"] = 1
        with pytest.raises(DeviceError, match="screencap gave no picture that can be read"): device.look()
        assert device.look().size == device.size


@pytest.mark.parametrize("turns", [1, 3])
def test_a_picture_of_the_panel_is_turned_and_not_squashed(turns):
    with fake_phone("browser", size=(512, 384)) as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        device.manage(Rotate(turns))
        right = device.look()
        phone.upright_pictures = True
        turned = device.look()
        assert right.orientation == turns and np.array_equal(turned.image, right.image)


def test_a_screen_that_nobody_can_use_is_said_to_be():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        assert device.reset(0).log == ()
        phone.locked = True
        assert device.reset(0).log == ("W/oaml: the phone is locked: unlock it, or switch its lock off",)
        phone.locked, phone.awake = False, False
        log = device.reset(0).log
        assert "the screen is off (Asleep)" in log[0] and "the picture is all black" in log[1]
        phone.awake, phone.secret = True, True
        assert "FLAG_SECURE" in device.reset(0).log[0] and "FLAG_SECURE" in device.look().log[-1]


@pytest.mark.skipif(bool(missing_lxml()), reason=str(missing_lxml()))
@pytest.mark.parametrize("written, read", [("&#55357;&#56832;", "\U0001f600"), ("a&#11;b", "a.b"), ("a\x0bb", "a.b"), ("\ud83d\ude00", "\U0001f600"),
                                           ("&#55357;", "."), ("&#x1F600;&amp;", "\U0001f600&"), ("\ud83d", "\ufffd")])
def test_what_phones_write_in_xml(written, read):
    xml = f'<?xml version="1.0"?><hierarchy rotation="0"><node text="{written}" class="android.widget.Button" clickable="true" enabled="true" bounds="[0,0][9,9]" /></hierarchy>'
    (element,) = from_xml(xml, (10, 10))
    assert element.name == read


PHONE_WORDS = ("input tap swipe text keyevent motionevent DOWN 5 -1 x ; && || ' \" > 2>&1 wm size am start -n -S pm "
               "install logcat -d -T -v -t settings put system user_rotation 1 ime set cmd screencap -p cat rm -f "
               "getprop dumpsys uiautomator dump").split()


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PHONE_WORDS), max_size=10).map(" ".join)))
def test_the_fake_survives_any_line(line):
    output, status = FakePhone().run(line)
    assert isinstance(status, int) and all(fd in (1, 2) for fd, _ in output)


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_quoted_words_are_read_back(text):
    (command,) = parse_line(f"echo {quote(text)}")
    assert [unquote(w, 0) for w in command.words] == ["echo", text]


def test_the_log_loses_nothing_and_repeats_nothing():
    "Lines come while frames are taken: every one is in exactly one frame, in order."
    with fake_phone("login") as phone:
        device, stop = android.AndroidDevice(**phone.attached), threading.Event()
        device.reset(0)
        def chatter():
            for i in range(400):
                phone.run(f"log -t chat line {i}")
                if stop.is_set(): return
        talk = threading.Thread(target=chatter)
        talk.start()
        found = []
        try:
            while talk.is_alive(): found += device.look().log
        finally: stop.set()
        talk.join()
        found += device.look().log
    assert [line for line in found if "chat" in line] == [f"I/chat: line {i}" for i in range(400)]


def test_filters_keep_the_rest_of_the_log_away():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached, logs=("chat:W", "*:S"))
        device.reset(0)
        phone.run("log -t chat low; log -p e -t chat high; log -t noise x")
        assert device.look().log == ("E/chat: high",)


def test_a_phone_that_is_pulled_out_and_comes_back():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        before = device.reset(2)
        device.perform(CLICK)
        phone.plug.pull()
        with pytest.raises(DeviceError, match=": gone: "): device.perform(CLICK)
        with pytest.raises(DeviceError, match=phone.plug.serial): device.reset(2)
        phone.plug = Plug(phone, int(phone.plug.serial.split(":")[1]))
        phone.server.run("disconnect", phone.plug.serial)
        phone.server.run("connect", phone.plug.serial)
        assert device.reset(2).screen_hash() == before.screen_hash()


def test_a_phone_that_goes_in_the_middle_of_an_answer():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        whole = phone.run
        def half(line):
            output, status = whole(line)
            return output[:len(output)//2], status
        phone.run = half
        with pytest.raises(DeviceError, match="lost in the middle of a command"): device.look()


def test_a_phone_that_does_not_answer():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached, timeout=.4)
        with phone.lock, pytest.raises(DeviceError, match="no answer within 0.4 s"): device.look()


def listens(port):
    "Is there somebody on a port of this machine?"
    with socket.socket() as s: return s.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_that_is_ended_is_not_started_on_another_port():
    usual = listens(5037)
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        phone.server.stop()
        with pytest.raises(DeviceError, match="no adb server at 127.0.0.1"): device.perform(CLICK)
    assert (listens(phone.server.port), listens(5037)) == (False, usual)


def test_which_phone():
    with fake_phone("login") as phone:
        where = dict(adb=phone.server.adb, port=phone.server.port)
        second = Plug(FakePhone("mail"))
        phone.server.run("connect", second.serial)
        with pytest.raises(DeviceError, match="2 phones: choose one"): android.AndroidDevice(**where)
        assert android.AndroidDevice(second.serial, **where).activity() == "app.oaml.mail/.Main"
        with pytest.raises(DeviceError, match="nobody: no such phone"): android.AndroidDevice("nobody", **where)
        second.pull()


def test_no_phone_and_one_that_does_not_trust_us():
    server, phone = AdbServer(), FakePhone()
    phone.trusts, plug, where = False, Plug(phone), dict(adb=server.adb, port=server.port)
    try:
        with pytest.raises(DeviceError, match="no phone and no emulator"): android.AndroidDevice(**where)
        assert "failed to authenticate" in server.run("connect", plug.serial)
        with pytest.raises(DeviceError, match="does not trust this computer"): android.AndroidDevice(**where)
    finally: plug.pull(), server.stop()


def test_no_adb():
    with pytest.raises(DeviceError, match="/no/such/adb is no program here"): android.AndroidDevice(adb="/no/such/adb")


def test_no_process_stays():
    with pytest.raises(RuntimeError), fake_phone("login") as phone: raise RuntimeError
    assert phone.server.process.poll() is not None and not Path(phone.server.home.name).exists()
    assert not listens(phone.server.port) and not listens(int(phone.plug.serial.split(":")[1]))


def test_garbage_on_the_cable_hurts_nobody():
    with fake_phone("login") as phone:
        host, port = phone.plug.serial.split(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n" + bytes(60), bytes(24), b"\xff"*200):
            with socket.create_connection((host, int(port)), 2) as conn:
                conn.sendall(junk)
                try: assert conn.recv(1) == b""
                except ConnectionResetError: pass  # the same, said harder
        assert android.AndroidDevice(**phone.attached).reset(0).size == PHONE_SIZE


def test_threads_and_asyncio():
    with fake_phone("login") as phone, fake_phone("login") as other:
        one, two = (android.AndroidDevice(**p.attached) for p in (phone, other))
        with ThreadPoolExecutor(4) as pool:
            def play(d): return [d.reset(4).screen_hash()] + [d.perform(CLICK).screen_hash() for _ in range(5)]
            a, b = pool.map(play, (one, two))
            assert a == b
            assert len({f.size for f in pool.map(lambda _: one.perform(CLICK), range(20))}) == 1
        async def there(): return one.reset(4).screen_hash(), (await asyncio.to_thread(one.reset, 4)).screen_hash()
        assert asyncio.run(there()) == (a[0], a[0])


def test_an_application_that_does_not_fit_stays_upright():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        fit = phone.device.app.view
        def only_upright(state):
            if phone.size[0] > phone.size[1]: raise ValueError("too small")
            return fit(state)
        phone.device.app.view = only_upright
        with pytest.raises(DeviceError, match="keeps the screen turned by 0, not 1"): device.manage(Rotate(1))
        assert device.look().size == PHONE_SIZE


def test_a_phone_that_turns_slowly_is_waited_for():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        run, asked = phone.run, []
        def slow(line):
            asked.append("dumpsys display" in line)
            if sum(asked) < 3: line = line.replace("user_rotation", "user_rotation_to_be")
            elif asked.count(True) == 3: run("settings put system user_rotation 1")
            return run(line)
        phone.run = slow
        assert device.manage(Rotate(1)) == "" and device.size == PHONE_SIZE[::-1] and sum(asked) == 3


OWNED = "setprop debug.oaml.owned 1"


@pytest.mark.parametrize("words", [f"; {OWNED}", f"$({OWNED})", f"`{OWNED}`", f"\n{OWNED}\n", f"& {OWNED}"])
def test_an_argument_is_no_command(words):
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        device.manage(StartActivity(f"{phone.package}/.Main", ("--es", "m", words)))
        assert device.shell("getprop debug.oaml.owned").strip() == ""


def test_a_random_activity_is_waited_for_as_long_as_its_task_says():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        start = StartRandomActivity((f"{phone.package}/.Main",), timeout_sec=.3)
        with phone.lock, pytest.raises(DeviceError, match="no answer within 0.3 s"): device.manage(start)
        assert device.timeout == 60 and "Starting" in device.manage(start)


def test_a_command_that_is_too_long():
    with fake_phone("login") as phone:
        device = android.AndroidDevice(**phone.attached)
        device.reset(0)
        with pytest.raises(DeviceError, match="longer than 32000 bytes"): device.manage(ShellCommand(("echo", "a"*40_000)))
        assert device.perform(Action("type", text="b"*MAX_TYPED)).log == ()  # the longest text is a command that fits


def test_adbutils_own_ways(tmp_path):
    "Another client of the same phone, written by others."
    import adbutils
    with fake_phone("login") as phone:
        d = adbutils.AdbClient(port=phone.server.port).device(phone.plug.serial)
        assert tuple(d.window_size()) == PHONE_SIZE and d.screenshot().size == PHONE_SIZE
        current = d.app_current()
        assert (current.package, current.activity) == (phone.package, f"{phone.package}.Main")
        assert set(d.list_packages()) == phone.packages
        assert [d.shell2(c, v2=v).returncode for c in ("true", "ecko") for v in (False, True)] == [0, 0, 127, 127]
        d.sync.push(b"bytes\x00\r\n", "/sdcard/f")
        assert d.sync.read_bytes("/sdcard/f") == b"bytes\x00\r\n" and d.sync.stat("/sdcard/f").size == 8
        (tmp_path/"n.apk").write_bytes(fake_apk("app.oaml.notes"))
        d.install(tmp_path/"n.apk", nolaunch=True, silent=True)
        assert "app.oaml.notes" in phone.packages
        d.app_stop(phone.package)
        assert not phone.device.running
