"Hostile input of every kind ends as a ValueError that names its place, and nobody reads what is foreign beside the door."
import ast
import os
import random
from pathlib import Path

import pytest

from oaml.schemas.actions import parse_action
from oaml.schemas.dialects import DIALECTS
from oaml.schemas.door import (composed_text, decode_text, load_json, read_json, read_json_lines, read_secret_file, read_text_file,
                               read_xml, read_yaml)
from oaml.schemas.packages import is_installed
from oaml.schemas.pictures import open_picture
from oaml.schemas.sessions import Action

OAML = Path(__file__).parents[1]/"oaml"

# Who may call a parser without the door, and why.
BESIDE_THE_DOOR = {
    "schemas/door.py": "the door",
    "schemas/pictures.py": "the door for pictures",
    "scripts/report.py": "a picture that it has just drawn itself",
    "devices/tab.py": "the screenshot of our own Chromium, whose pixels are what is measured",
    "devices/connection.py": "messages of our own Chromium, thousands a second; pages cannot write them, only texts in them",
    "devices/daemon.py": "the order and answer of a process that it has started itself, over a pipe",
    "devices/wire.py": "what `wire_json` has just written",
    "devices/remote.py": "the body that it is about to send",
    "service/task.py": "orders and answers of a process that it has started itself, over a pipe",
    "service/state.py": "rows that the controller wrote into its own store",
    "prompt2policy/jail.py": "the trusted side's own arrays, and the order to a jail",
    "tasks/expressions.py": "the function that a task's expression calls json.loads, under the expression's own limits",
    "viz/training_view.py": "a copy of its own values",
    "prompt2policy/handover.py": "bounds that it has just written itself",
    "evals/suites.py": "a copy of its own values",
    "ingest/store.py": "a copy of its own values",
    "training/trainer.py": "a copy of its own values",
    "runtime/rollouts.py": "groups that workers packed, behind `unpack_groups`, which checks them; and copies of its own values",
    "nano/model.py": "the config that transformers has just written",
    "nano/tokenizer.py": "transformers' own files",
    "evals/closed_loop.py": "episodes that it saved itself; they move into the one record",
    "evals/hosted.py": "answers that it saved itself; they move into the one record",
    "training/config.py": "`yaml.dump`, which writes",
}
READERS = {("json", "loads"), ("json", "load"), ("yaml", "load"), ("yaml", "safe_load"), ("yaml", "compose"), ("Image", "open"),
           ("etree", "fromstring"), ("ET", "fromstring"), ("ElementTree", "fromstring"), ("etree", "parse"), ("pickle", "loads"),
           ("pickle", "load"), ("tomllib", "loads")}


def readers(text):
    "Where a program calls a parser, or hands one on: [(line, such as json.loads)]."
    return [(n.lineno, f"{n.value.id}.{n.attr}") for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and (n.value.id, n.attr) in READERS]


def test_nobody_reads_beside_the_door():
    found = {path.relative_to(OAML).as_posix(): readers(path.read_text(encoding="utf-8")) for path in OAML.rglob("*.py")}
    stray = [f"oaml/{name}:{line}: {what}; use oaml.schemas.door, or say in BESIDE_THE_DOOR why not"
             for name, calls in found.items() for line, what in calls if name not in BESIDE_THE_DOOR]
    assert not stray, "\n".join(stray)


@pytest.mark.parametrize("line, what", [("json.loads(x)", "json.loads"), ("f(key=json.loads)", "json.loads"), ("yaml.load(x, L)", "yaml.load"),
                                        ("Image.open(x)", "Image.open"), ("etree.fromstring(x)", "etree.fromstring")])
def test_a_planted_reader_is_caught(line, what):
    assert readers(f"def f(x):\n    return {line}") == [(2, what)]


JSON = {
    b'{"a":\n 1,}': "a.json, line 2, column 4: is not JSON",
    b'{"a": 1,\n "a": 2}': "a.json, line 2, column 2: the key 'a' is there twice",
    b'{"a": {"b": 1, "c": [{"d": 1, "d": 2}]}}': "a.json, line 1, column 31: the key 'd' is there twice",
    b"[NaN]": "NaN is no number", b"[-Infinity]": "-Infinity is no number", b"[1e999]": "'1e999' is no number", b"[-1e999]": "is no number",
    b"9"*5_000: "a.json: is not JSON",
    b"["*100_000: "nested too deep", b'{"a":'*100_000: "nested too deep", b"["*300 + b"]"*300: "nested too deep",
    b"": "is not JSON", b"\xff\xfe[\0]\0": "is UTF-16; save it as UTF-8", b"[\n\xe9]": "a.json, line 2: byte 2 is not UTF-8", b'"\x00"': "is not JSON",
    b"[1][2]": "is not JSON", b"'a'": "is not JSON", b"// a\n[]": "is not JSON", b'{"a": "' + b"x"*2**20 + b'", "a": 1}': "a.json: the key 'a' is there twice", b"[]": "holds a list, not an object", b"null": "holds null, not",
}


@pytest.mark.parametrize("text", JSON, ids=lambda t: t[:20].decode("latin-1"))
def test_json(text, tmp_path):
    with pytest.raises(ValueError) as e: read_json(text, "a.json", dict)
    assert JSON[text] in str(e.value) and str(e.value).startswith("a.json"), e.value
    assert len(str(e.value)) < 300
    (tmp_path/"a.json").write_bytes(text)
    with pytest.raises(ValueError, match="a.json"): load_json(tmp_path/"a.json", dict)
    with pytest.raises(ValueError, match="rows.jsonl"): read_json_lines(b'{"a": 1}\n' + text + b"\n[]", "rows.jsonl")


def test_json_that_is_right():
    assert read_json(b'\xef\xbb\xbf{"a": [1e-3, 1E300, "\\ud83d\\ude00", "\\\\ud800", 12345678901234567890]}') == {
        "a": [1e-3, 1e300, "\U0001f600", "\\ud800", 12345678901234567890]}
    assert read_json("["*150 + "]"*150) and read_json(r'"\ud83d"') == "\ud83d"  # half of an emoji is for the records to refuse
    for seed in range(200):  # whatever is cut or changed: a value, or a ValueError
        rng, text = random.Random(seed), bytearray(b'{"a": [1.5, "\\u00e9\\ud83d\\ude00", {"b": null, "c": [true, -2e-3]}]}')
        for _ in range(rng.randint(1, 4)): text[rng.randrange(len(text))] = rng.randrange(256)
        try: read_json(bytes(text), "x")
        except ValueError as e: assert str(e).startswith("x")


BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}']*10)}]\n" for n in range(1, 12))
YAML = {
    "a: [1": "x.yaml, line 1, column 6: is not YAML", "a: 1\nb:\n  c: 1\n  c: 2": "x.yaml, line 4, column 3: the key 'c' is there twice",
    "a: {1: x}": "the key '1' is no text", "true: 1": "the key 'true' is no text", "? [a]\n: 1": "is no text", "? {a: 1}\n: 1": "is no text",
    "a: &a [*a]": "holds itself", "a: &a {b: *a}": "holds itself", BOMB: "with its aliases", "a: &a {b: 1}\n" + "c: &c {<<: [" + "*a, "*60_000 + "*a]}": "with its aliases",
    "["*5_000: "nested too deep", "[ "*300 + " ]"*300: "nested too deep", "- "*2_000 + "1": "nested too deep",
    "!!python/object/apply:os.system [ls]": "is not YAML", "!!python/name:os.system": "is not YAML", "!thing x": "is not YAML",
    "!!int many": "a tag that does not fit", "!!timestamp 2024-13-45": "a tag that does not fit", "!!bool maybe": "a tag that does not fit",
    "!!float many": "a tag that does not fit", "!!map [1]": "does not fit", "a: *b": "is not YAML", "a\0": "is not for YAML; remove it", "\ta: 1": "is not YAML",
    "a: 1\n---\nb: 2": "is not YAML", "x"*(2**20 + 1): "are read at most",
}


@pytest.mark.parametrize("text", YAML, ids=lambda t: t[:20])
@pytest.mark.parametrize("placed", [False, True])
def test_yaml(text, placed):
    with pytest.raises(ValueError) as e: read_yaml(text, "x.yaml", placed)
    assert YAML[text] in str(e.value) and str(e.value).startswith("x.yaml"), e.value


@pytest.mark.parametrize("text", ["token: *s3cret", "token: !s3cret x", "token: [s3cret", "token: &s3cret\n &s3cret a", "token: 's3cret\\x' b", "token: !!int s3cret"])
def test_yaml_with_a_secret_shows_none(text):
    with pytest.raises(ValueError) as e: read_yaml(text, "x.yaml", secret=True)
    assert "s3cret" not in str(e.value) and str(e.value).startswith("x.yaml")


XML = {"<a>\n<b></a>": "dump, line 2, column 8: is not XML", "": "is not XML", "<a>"*300: "is not XML", "<a>&b;</a>": "is not XML", "<a>\0</a>": "",
       '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>': "document type", '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd"><a/>': "document type",
       "<a>\ud83d</a>": "half of a surrogate pair", "<a b='" + "x"*20_000_000 + "'/>": "is not XML"}


@pytest.mark.skipif(not is_installed("lxml"), reason="lxml is not installed")
@pytest.mark.parametrize("text", XML, ids=lambda t: ascii(t[:20]))
def test_xml(text):
    with pytest.raises(ValueError) as e: read_xml(text, "dump")
    assert XML[text] in str(e.value) and len(str(e.value)) < 300


@pytest.mark.parametrize("data, words", [(b"a\nb\xe9", "line 2: byte 3 is not UTF-8"), ("é".encode("utf-16"), "is UTF-16"), ("é".encode("utf-32"), "is UTF-32"),
                                         (b"\xed\xa0\x80", "byte 0 is not UTF-8")])
def test_text(data, words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path/"a.txt").write_bytes(data)
    for read in (lambda: decode_text(data, "a.txt"), lambda: read_text_file("~/a.txt"), lambda: read_secret_file("~/a.txt", "token_file")):
        with pytest.raises(ValueError, match=words) as e: read()
        assert "a.txt" in str(e.value)


@pytest.mark.skipif(os.name == "nt", reason="there is no /dev/zero")
def test_a_file_without_end():
    with pytest.raises(ValueError, match="/dev/zero: has more than 1,000 bytes"): read_text_file("/dev/zero", 1000)
    with pytest.raises(ValueError, match="token_file: /dev/zero: has more than"): read_secret_file("/dev/zero", "token_file")


@pytest.mark.parametrize("data", [b"", b"junk", b"\x89PNG\r\n\x1a\n" + b"\0"*40, b"\xff\xd8\xff\xe0", b"GIF89a\xff\xff\xff\xff"])
def test_pictures(data):
    with pytest.raises(ValueError, match="^shot: cannot be read as an image"): open_picture(data, "shot")


# Texts in another form than the record's, as a model or a Mac writes them.
DECOMPOSED, COMPOSED = "cafe\u0301 \u0958", "caf\u00e9 \u0915\u093c"


@pytest.mark.parametrize("dialect, text", [
    ("oaml", f'TYPE(text="{DECOMPOSED}")'), ("browsergym", f'keyboard_type("{DECOMPOSED}")'), ("browsergym", f'keyboard_insert_text("{DECOMPOSED}")'),
    ("agentcpm", '{"TYPE": "%s"}' % DECOMPOSED), ("anthropic", '{"action": "type", "text": "%s"}' % DECOMPOSED), ("openai", '{"type": "type", "text": "%s"}' % DECOMPOSED)])
def test_typed_texts_are_composed(dialect, text):
    import oaml.schemas.agentcpm  # noqa: F401  (its dialect is registered by importing it)
    assert [a.text for a in DIALECTS[dialect].parse(text, (100, 100))] == [COMPOSED]


def test_line_ends_of_other_systems():
    assert composed_text("a\r\nb\rc") == "a\nb\nc"
    assert parse_action('ANSWER(text="a\r\nb")').type == "failed"  # a quote is never closed on its line
    assert DIALECTS["browsergym"].parse(r'send_msg_to_user("a\r\nb")', (9, 9))[0].text == "a\nb"
    assert DIALECTS["browsergym"].parse(r'keyboard_type("a\r\nb")', (9, 9)) == [Action("type", text="a\nb")]
