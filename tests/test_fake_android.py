"The fake phone by itself: its shell, input, screen, log and packages, the cable's protocol, and the real adb at the other end."
import io
import socket
import tempfile

import pytest
from PIL import Image

from oaml.devices.android import KEYBOARD, missing_adb
from oaml.devices.device import DeviceError

from fake_android import (CNXN, MOST, OKAY, OPEN, VERSION, WRTE, Command, FakePhone, FileService, Plug, ShellError,
                          _shell_answer, fake_apk, fake_phone, pack_message, parse_line, read_message, unquote)

needs_adb = pytest.mark.skipif(bool(missing_adb()), reason=str(missing_adb()))


class Shell(FakePhone):
    "A fake phone with a shell's answers as text, on the login application's screen of seed 7."
    def __init__(self):
        super().__init__()
        self.reset(7)

    def sh(self, line):
        "What a line prints, output and errors together, and its status."
        output, status = self.run(line)
        return b"".join(data for _, data in output).decode(), status

    def middle(self, **wanted):
        "The middle of an element, as `input tap` takes it."
        e = next(e for e in self.device.last_elements if all(getattr(e, k) == v for k, v in wanted.items()))
        return " ".join(f"{(a+b)/2*s:g}" for a, b, s in zip(e.box[:2], e.box[2:], self.size))

    def shot(self):
        "The screen as adb would get it."
        return Image.open(io.BytesIO(self.run("screencap -p")[0][0][1])).convert("RGB")


@pytest.fixture
def phone(): return Shell()


def test_words_of_a_line():
    line = """input text it\\'s; log -t a "b c" 'd $?' $? && cat x 2>/dev/null"""
    assert [[unquote(w, 1) for w in c.words] for c in parse_line(line)] == [
        ["input", "text", "it's"], ["log", "-t", "a", "b c", "d $?", "1"], ["cat", "x"]]
    assert parse_line("true  # a remark; rm x") == [Command(";", ("true",))]
    assert parse_line("a >> b 2>&1")[0].to == (("1", ">>", "b"), ("2", ">", "&1"))


@pytest.mark.parametrize("line, error", [("input text it's", "no closing quote for '"), ("echo a | grep a", "unexpected '[|]'"),
                                         ("input text (a)", "unexpected '[(]'")])
def test_what_the_shell_does_not_know_is_an_error(line, error):
    with pytest.raises(ShellError, match=error): parse_line(line)


def test_simple_commands(phone):
    assert phone.sh("echo 'one  two'; sleep 0.5; cat /proc/uptime; date +%s.%N") == (
        "one  two\n0.50 0.50\n1700000000.500000000\n", 0)
    assert phone.sh("ecko") == ("/system/bin/sh: ecko: inaccessible or not found\n", 127)
    assert phone.sh("cat x || echo $?; true && echo $?") == ("cat: x: No such file or directory\n1\n0\n", 0)
    assert phone.sh("echo a > f; echo b >> f; cat f; rm f; cat f 2>/dev/null") == ("a\nb\n", 1)
    assert phone.sh("cat nothing 2>&1 >/dev/null") == ("cat: nothing: No such file or directory\n", 1)


def test_what_cannot_be_laid_out_is_refused(phone):
    assert phone.sh("setprop debug.oaml.seed 3000000")[1] == 1
    with pytest.raises(ValueError, match="190x320 is not a multiple of 32"): FakePhone(size=(190, 320))


def test_taps_and_typing_reach_the_application(phone):
    box, login = phone.middle(id="username"), phone.middle(role="button")
    assert phone.sh(f"input tap {box}; input text Ada%sLovelace; input tap {login}") == ("", 0)
    lines = [line.text for line in phone.log]
    assert "Changed(id='username', text='Ada Lovelace')" in lines and any(line.startswith("Pressed(") for line in lines)


def test_typing_ends_at_a_space_and_knows_no_more_than_a_keyboard(phone):
    phone.sh(f"input tap {phone.middle(id='username')}; input text one two")
    printed, status = phone.sh("input text Zo\u00eb")
    assert "NullPointerException" in printed and status == 255
    assert phone.log[-1].text == "Changed(id='username', text='one')"


def test_a_finger_beside_the_screen_touches_nothing(phone):
    before, lines = phone.device.last_elements, len(phone.log)
    for gesture in ("tap 300 20", "motionevent DOWN 9 -1", "motionevent MOVE 9 9", "motionevent UP 9 9", "swipe -5 9 9 9 0"):
        assert phone.sh(f"input {gesture}") == ("", 0)
    assert phone.device.last_elements == before and len(phone.log) == lines
    assert [phone.sh(f"input {gesture}")[1] for gesture in ("tap 20", "tap a b", "pinch", "swipe 1 2 3")] == [255]*4


def test_keys_have_androids_names_and_numbers(phone):
    phone.sh(f"input tap {phone.middle(id='username')}; input text one")
    phone.sh("input keycombination KEYCODE_CTRL_LEFT KEYCODE_A; input keyevent KEYCODE_DEL; input keyevent 29 KEYCODE_B")
    assert phone.log[-1].text == "Changed(id='username', text='ab')"
    printed, _ = phone.sh("input keycombination SHIFT_LEFT C; input keyevent KEYCODE_FOO")
    assert "Unknown keycode: KEYCODE_FOO" in printed and phone.log[-1].text == "Changed(id='username', text='abC')"


def test_the_screen_turns_and_changes_its_size(phone):
    printed, _ = phone.sh("settings put system user_rotation 1; wm size; dumpsys display; dumpsys activity; uiautomator dump")
    assert "orientation=1" in printed and f"{phone.package}/.Main" in printed
    assert 'rotation="1"' in phone.sh("cat /sdcard/window_dump.xml")[0] and phone.shot().size == (320, 192)
    phone.sh("settings put system accelerometer_rotation 1; settings put system user_rotation 0")
    assert phone.shot().size == (320, 192)  # the sensor's business
    phone.sh("settings put system accelerometer_rotation 0")
    assert phone.shot().size == (192, 320)
    phone.sh("wm size 224x352")
    assert phone.shot().size == (224, 352) and phone.sh("wm size")[0].split()[-1] == "224x352"
    assert phone.sh("wm size reset; wm size")[0] == "Physical size: 192x320\n"


def test_a_screen_that_does_not_stand_still(phone):
    phone.faults["dump"] = 1
    first, second = (phone.sh("uiautomator dump /dev/tty")[0] for _ in range(2))
    assert first == "ERROR: could not get idle state.\n" and second.startswith("<?xml")
    assert phone.sh("settings get secure nothing") == ("null\n", 0)


def test_the_log(phone):
    phone.sh("sleep 1.25; log -p w -t oaml here")
    printed = phone.sh("logcat -d -v time -v epoch oaml:W *:S")[0].splitlines()
    assert printed[1].split() == ["1700000001.250", "W/oaml", "(", "4242):", "here"] and len(printed) == 2
    since = float(phone.sh("date +%s.%N")[0])
    assert phone.sh(f"log new; logcat -d -v tag -T {since}")[0].splitlines()[1:] == ["W/oaml    : here", "I/log     : new"]
    assert phone.sh("logcat -c; logcat -d")[0] == "--------- beginning of main\n"


def test_packages(phone):
    phone.files["/data/local/tmp/n.apk"], phone.files["/x"] = fake_apk("app.oaml.notes"), b"any bytes"
    does = "install -r /data/local/tmp/n.apk", "path app.oaml.notes", "install /x", "uninstall app.oaml.notes", \
        "uninstall app.oaml.notes", "clear a.b"
    printed = [phone.sh(f"pm {do}") for do in does]
    assert [status for _, status in printed] == [0, 0, 1, 0, 1, 1] and "NOT_APK" in printed[2][0]
    assert phone.sh("pm list packages oaml") == (f"package:{phone.package}\n", 0)


def test_the_keyboard_hears_a_broadcast_once_it_is_selected(phone):
    phone.sh(f"input tap {phone.middle(id='username')}")
    typed, lines = "am broadcast -a ADB_INPUT_B64 --es msg w6nDoCDigJM=", len(phone.log)
    assert phone.sh(typed)[1] == 0 and len(phone.log) == lines
    phone.sh(f"ime enable {KEYBOARD}; ime set {KEYBOARD}; {typed}")
    assert phone.log[-1].text == "Changed(id='username', text='\u00e9\u00e0 \u2013')"
    assert phone.sh("ime set a/.B")[1] == 255


def test_the_application_is_stopped_and_started(phone):
    main = f"{phone.package}/.Main"
    assert phone.sh(f"am force-stop {phone.package}; dumpsys activity; am stack list") == ("", 0)
    assert (phone.sh(f"am start -W -S -n {main}")[1], phone.sh("dumpsys activity")[0].split()[2]) == (0, main)
    ran = "am task lock 7", "am task lock 8", "cmd package path android", "svc power stayon true", "am start -n a.b/.C"
    assert [phone.sh(line)[1] for line in ran] == [0, 255, 0, 0, 1]
    assert phone.sh("cmd nothing") == ("cmd: Can't find service: nothing\n", 20)


def test_messages_of_the_cable():
    assert pack_message(OPEN, 1, 0, b"shell:ls\0")[:4] == b"OPEN"
    near, far = socket.socketpair()
    near.sendall(pack_message(WRTE, 1, 2, b"hello") + b"x"*24), near.close()
    assert read_message(far) == (WRTE, 1, 2, b"hello")
    with pytest.raises(ValueError, match="no message of adb"): read_message(far)
    with pytest.raises(EOFError): read_message(far)
    far.close()


def test_services_of_the_cable(phone):
    assert _shell_answer(phone, "exec:echo a; ecko") == b"a\n/system/bin/sh: ecko: inaccessible or not found\n"
    packets = _shell_answer(phone, "shell,v2,raw:echo a; rm b")
    assert packets == b"\1\2\0\0\0a\n" b"\2\x21\0\0\0rm: b: No such file or directory\n" b"\3\1\0\0\0\1"
    files, asked = FileService(phone), b"SEND\7\0\0\0/a,0644DATA\3\0\0\0oneDONE\0\0\0\0RECV\2\0\0\0/aSTAT\2\0\0\0/b"
    answer = b"".join(files.take(asked[i:i+5]) for i in range(0, len(asked), 5))
    assert answer == b"OKAY\0\0\0\0DATA\3\0\0\0oneDONE\0\0\0\0STAT" + bytes(12)


def test_the_cable_without_adb(phone):
    plug = Plug(phone)
    with socket.create_connection(plug.serial.split(":")) as conn:
        conn.sendall(pack_message(CNXN, VERSION, MOST, b"host::") + pack_message(OPEN, 5, 0, b"exec:echo hello\0"))
        answers = [read_message(conn) for _ in range(3)]
        conn.sendall(pack_message(OKAY, 5, 1) + pack_message(OPEN, 6, 0, b"tcp:80\0"))
        answers += [read_message(conn) for _ in range(2)]
    plug.pull()
    assert [kind.to_bytes(4, "little") for kind, *_ in answers] == [b"CNXN", b"OKAY", b"WRTE", b"CLSE", b"CLSE"]
    assert answers[2][-1] == b"hello\n"


@needs_adb
def test_the_real_adb_finds_it_and_takes_its_picture():
    with fake_phone("login", family="rosewood") as phone:
        adb, file = phone.server.run, f"{phone.server.home.name}/s.png"
        assert f"{phone.plug.serial} " in adb("devices", "-l")
        assert adb("shell", "wm size; getprop ro.product.model").split() == ["Physical", "size:", "192x320", "oaml"]
        adb("shell", "screencap -p /sdcard/s.png"), adb("pull", "/sdcard/s.png", file)
        assert Image.open(file).size == (192, 320)


@needs_adb
def test_the_real_adb_pushes_pulls_and_installs():
    with tempfile.TemporaryDirectory() as d, fake_phone("login") as phone:
        adb, apk = phone.server.run, f"{d}/notes.apk"
        with open(apk, "wb") as f: f.write(bytes(300_000) + fake_apk("app.oaml.notes"))
        with pytest.raises(DeviceError, match="ecko: inaccessible or not found"): adb("shell", "ecko")
        adb("push", apk, "/sdcard/n.apk"), adb("pull", "/sdcard/n.apk", f"{d}/back.apk")
        with open(f"{d}/back.apk", "rb") as f: assert f.read() == phone.files["/sdcard/n.apk"]
        assert "Success" in adb("install", apk) and "app.oaml.notes" in phone.packages
        adb("uninstall", "app.oaml.notes")
        assert "app.oaml.notes" not in phone.packages
        phone.plug.pull()
        with pytest.raises(DeviceError): adb("-s", phone.plug.serial, "shell", "true")
    assert phone.server.process.poll() is not None
