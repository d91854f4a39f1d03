"""Long checks of task files and of what they may compute.

The notebooks 05a_tasks.expressions and 05b_tasks.definition explain both; here they meet thousands of invented ones: what is
written is read back, whatever is broken is refused with a TaskError, and no transformation runs long or touches the
interpreter.
"""
import ast
import dataclasses
import json
import random
import re
import sys
import time
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oaml.devices import device
from oaml.devices.device import Frame
from oaml.tasks.expressions import EvaluationError, ExpressionError, TaskPattern, compile_transformation
from oaml.devices.hierarchy import check_selector, missing_lxml, plain_css
from oaml.tasks.signals import Signals
from oaml.tasks.definition import (CALL_TYPES, EXTRA_DTYPES, EVENT_KINDS, EVENT_SLOTS, LIKENESS_RANGES, AppScreen, ArraySpec, CheckInstall, EventNode,
                             EventSlots, EventSource, IconClassEvent, IconMatchEvent, LogEvent, Property, Rect,
                             ResponseEvent, SetupStep, SuccessCondition, Task, TaskError, TextEvent,
                             ViewHierarchyEvent, WaitForAppScreen, WaitForMessage, load_task, load_tasks,
                             missing_protobuf, nodes, parse_task, to_textproto)

needs_protobuf = pytest.mark.skipif(bool(missing_protobuf()), reason="protobuf is missing")


def thorough(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


# ---- transformations: allowed ones give what Python gives

ATOMS = ["x", "x[0]", "x[-1]", "x[1:]", "x['a']", "len(x)", "'a'", "'a b'", "2", "0.5", "[]", "None", "True", "'1,2'", "v"]
SHAPES = """({} + {})|({} - {})|({} * {})|({} / {})|({} // {})|({} % {})|({} ** {})|(-{})|({} < {})|({} == {})
({} != {} <= {})|({} and {})|({} or {})|({} in {})|({} is None)|(not {})|({} if {} else {})|[{}, {}]|({}, {})
{{'k': {}, 'l': {}}}|{}[{}]|{}[{}:{}]|[v for v in {} if {}]|list(map(str, {}))|({}).strip()|({}).split(',')
({}).replace('a', {})|({}).get('a', {})|({}).startswith({})|','.join({})|int({})|float({})|str({})|bool({})|list({})
tuple({})|dict({})|len({})|min({})|max({}, {})|sum({})|abs({})|round({}, 1)|sorted({})|any({})|all({})|json.loads({})
ast.literal_eval({})""".replace("\n", "|").split("|")
VALUES = [0, 3, -7, 2.5, "", "a", "1,2.5", "[1, 2]", '{"a": 3}', None, True, ("clicks", "[3]"), ["a", 1], [[1, 2], [3]],
          {"a": 1}, (), []]
BUILT_IN = {f.__name__: f for f in (int, float, str, bool, list, tuple, dict, len, min, max, sum, abs, round, sorted, any,
                                    all, map)}
LIMITS = re.compile(r"2\*\*63|200,000|complex is no plain|bytes is no plain|set has no order|belongs to|formats no text|"
                    "no literal|takes a str")  # where ours stops and Python goes on


def expression(rng, depth):
    "A random expression of allowed parts."
    if not depth or rng.random() < .2: return rng.choice(ATOMS)
    shape = rng.choice(SHAPES)
    return shape.format(*(expression(rng, depth - 1) for _ in range(shape.count("{}"))))


def by_python(text, x):
    "What Python itself gives, or its exception."
    with warnings.catch_warnings(action="ignore"):
        try: return eval(text, {"__builtins__": BUILT_IN, "json": json, "ast": ast, "x": x, "v": 1})
        except Exception as e: return e


@pytest.mark.parametrize("first", range(0, 4000, 1000))
def test_allowed_expressions_mean_what_they_mean_in_python(first):
    given = 0
    for seed in range(first, first + 1000):
        rng = random.Random(seed)
        text, x = expression(rng, 3), rng.choice(VALUES)
        expected = by_python(text, x)
        try: made = compile_transformation(["v = 1", f"y = {text}"])(x)
        except EvaluationError as e:
            assert isinstance(expected, Exception) or LIMITS.search(str(e)), (text, x, expected, e)
            continue
        given += 1
        assert repr(made) == repr(expected), (text, x)
    assert given > 200


# ---- anything else is refused, or stops soon, and nothing happens

PIECES = """x y = ( ) [ ] { } , : . + - * ** % << | ' " \\ ; 0 9999999999 1e999 1j lambda if else import os ast json
__class__ __import__ eval exec open literal_eval loads map str int list sum round f' {x!r:9} strip() replace join and not is None
:= await yield async @ ~ ... é print getattr type 'a'* [x]* return""".split() + [
    " ", "\n", "\0", "for v in x", "del x", "while 1:", "class A:", "def f():", "global y"]
values = st.sampled_from([None, "ab", ("a", "b"), [1, 2], {"a": 1}])
touched, watching = [], False
sys.addaudithook(lambda event, args: touched.append((event, *args[:1])) if watching else None)


def watch(act):
    "Audit events while `act` runs, but for those of Python's parser (it looks for the file \"\"), and its seconds."
    global watching
    touched.clear()
    begin, watching = time.perf_counter(), True
    try: act()
    except (ExpressionError, EvaluationError): pass
    finally: watching = False
    return [t for t in touched if t[0] != "compile" and t != ("open", "")], time.perf_counter() - begin


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@thorough(1000)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=30), values, st.booleans())
def test_any_text_is_refused_or_ends(text, x, assign):
    events, seconds = watch(lambda: compile_transformation(["y = " + text if assign else text])(x))
    assert not events and seconds < 2


LONG = [
    "y = " + "-"*9000 + "1", "y = " + "("*4000, "y = " + "not "*2000 + "x", "y = " + "x[0]"*2000, "y = " + "1+"*3000 + "1",
    "y = " + "[x, "*900 + "]"*900, "y = x" + ".strip()"*900, "y = 9**9**9**9", "y = 2**63*2**63", "y = [x]*2**40",
    "y = 'a'*2**40*2**40", "y = [x, x]\n" + "y = [y, y]\n"*200, "y = [x, x]\n" + "y = [y, y]\n"*14 + "y = str(y)",
    "y = x\n" + "y = y + y\n"*60, "y = 'ab'\n" + "y = y.replace('a', y)\n"*60, "y = 'ab'\n" + "y = y.join([y, y])\n"*60,
    "y = {1: x}\n" + "y = {1: y, 2: y}\n"*60, "a = [0]*9000\ny = [[[1 for v in a] for v in a] for v in a]",
    "a = [0]*9000\ny = [sorted(a) for v in a]", "a = [0]*40000\ny = [a == a for v in a]",
    "a = 'a'*40000\ny = [a in a for v in a]", "y = round(7, -2**62)", "y = round(1, 2**62)", "y = json.loads('['*9000)",
    "y = json.loads('1'*4000)", "y = ast.literal_eval('('*9000)", "y = ast.literal_eval('1+'*4000 + '1')",
    "y = int('9'*4200)", "y = float('9'*90000)", "y = '%0999999999d' % 1", "y = '{:>999999999}'.format(1)",
    "y = f'{x:{x}}'", "y = (x,)\n" + "y = (y, y)\n"*16 + "y = {y: 1}", "y = list(map(list, [[0]*9000]*9000))",
    "y = x[::0]", "y = x[2**62:2**63]"]


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_no_transformation_runs_long(text):
    events, seconds = watch(lambda: compile_transformation([text])("ab"*500))
    assert not events and seconds < 2


@pytest.mark.parametrize("x", [object(), [object()], {1, 2}, 2**70, 2j, b"a", open, type, {"a": [len]}, range(3),
                               "a"*10**6], ids=lambda x: type(x).__name__)
def test_values_that_are_not_plain(x):
    with pytest.raises(EvaluationError): compile_transformation(["y = [x]"])(x)


def test_messages_do_not_fail_on_strange_values():
    class Hostile:
        def __repr__(self): raise RuntimeError
    circle = []
    circle.append(circle)
    for x in (Hostile(), circle, 10**5000, [10**5000]):
        with pytest.raises(EvaluationError): compile_transformation(["y = x[0]"])(x)


# ---- patterns: Python's meaning, in bounded time

PATTERN_ATOMS = r"a|b|1| |é|.|\w|\d|\s|\b|^|$|[ab]|[^a]|[\w1]|\.|\Z|\A|{|}|{,2}|\x61|[[:a]|]".split("|")
PATTERN_SHAPES = r"({})~(?:{})~(?P<n>{})~{}|{}~{}{}~{}{}~{}*~{}+?~{}?~{}{{2}}~{}{{,2}}~(?={})~(?i:{})~(?-i:{})~({})\1~(?<!a){}~(?>{})".split("~")


def random_pattern(rng, depth):
    "A pattern of allowed parts."
    if not depth or rng.random() < .2: return rng.choice(PATTERN_ATOMS)
    shape = rng.choice(PATTERN_SHAPES)
    return shape.format(*(random_pattern(rng, depth - 1) for _ in range(shape.count("{}"))))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_patterns_mean_what_they_mean_in_python():
    linear = limited = 0
    for seed in range(6000):
        rng = random.Random(seed)
        pattern = random_pattern(rng, 4)
        try: python = re.compile(pattern, re.MULTILINE).search
        except re.error:
            with pytest.raises(ExpressionError): TaskPattern(pattern)
            continue
        ours = TaskPattern(pattern)
        linear, limited = linear + bool(ours._linear), limited + (not ours._linear)
        for _ in range(4):
            text = "".join(rng.choices("ab1 _\né{}:", k=rng.randrange(9)))
            expected, found = python(text), ours(text)
            assert (found is None) == (expected is None), (pattern, text)
            if ")*" not in pattern: assert found == (expected and expected.groups()), (pattern, text)  # else an empty round may count
    assert limited > 500 and (linear > 500 or not ours._linear)


EVIL = [r"(a+)+$", r"(a|a)*$", r"(\w+\s?)*$", r"(.*)*x$", r"(?=(a+)+$)b", r"(a+)+\1$", r"(?>(a|aa)+)$", r"^(\w|é)+\d\Z"]


@pytest.mark.parametrize("pattern", EVIL)
@pytest.mark.parametrize("text", ["a"*40 + "!", "é" + "a"*5000 + "!"], ids=["ascii", "beyond"])
def test_no_search_runs_long(pattern, text):
    search, begin = TaskPattern(pattern, "event_sources[3]"), time.process_time()
    try: search(text)
    except EvaluationError as e: assert "event_sources[3]: " in str(e) and "takes more than 1 s" in str(e)
    assert time.process_time() - begin < 60


@pytest.mark.parametrize("pattern", ["(?=((a{9999}){9999}){9999})", "(?=(a{1000}){1000})", "(" * 3000, "a"*10_001, "(?:"*3000 + ")"*3000])
def test_patterns_that_are_too_large(pattern):
    with pytest.raises(ExpressionError): TaskPattern(pattern)
    with pytest.raises(TaskError, match="is no pattern"):
        Task("t", event_sources=(EventSource(LogEvent(pattern=pattern), 1),))


def test_without_re2_a_pattern_is_searched_all_the_same(monkeypatch):
    monkeypatch.setattr("oaml.tasks.expressions.re2", None)
    assert TaskPattern(r"^as (\w+)")("so\nas Ann") == ("Ann",) and TaskPattern("(a+)+$")._linear is None


@pytest.mark.skipif(bool(missing_lxml()), reason="lxml is missing")
@pytest.mark.parametrize("selector", ["["*200_000, "['"*100_000, '"' + r'\"'*100_000, '#"' + r'\"'*100_000, "[a='"*50_000])
def test_selectors_are_read_in_linear_time(selector):
    begin = time.process_time()
    plain_css(selector)
    assert time.process_time() - begin < 30
    assert check_selector(selector[:9000])


# ---- a task of many parts

MANY = tuple(EventSource(LogEvent(pattern=f"^a{i}$"), i) for i in range(1, 20_001))
PAYS = dict(type="OR", transformation=("y = 1",))


def test_twenty_thousand_event_sources():
    slots = EventSlots(reward_listener=EventNode(events=tuple(range(1, 20_001)), **PAYS))
    signals = Signals(Task("many", event_sources=MANY, event_slots=slots))
    assert signals.observe(Frame(None, log=("I/t: a777",)), None).fired == (777,)


def test_twenty_thousand_mistakes_are_told_in_little_space():
    wrong = EventSlots(reward_listener=EventNode(events=tuple(range(30_001, 50_001)), **PAYS))
    with pytest.raises(TaskError) as raised: Task("many", event_sources=MANY, event_slots=wrong)
    assert len(raised.value.problems) == 20_000 and len(str(raised.value)) < 20_000*300
    assert "19, 20 and 19980 more" in raised.value.problems[0]
    twice = tuple(ArraySpec(f"e{i % 20_000}", (1,), "INT32") for i in range(20_001))
    with pytest.raises(TaskError, match=r"extras_spec\[20000\].name: 'e0' is already the name of extras_spec\[0\]"):
        Task("many", extras_spec=twice)


# ---- tasks: written and read back

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
some = words.filter(bool)
patterns = st.sampled_from([r"\bHow to\b", r"^extra: (?P<name>[^ ]*)[ ]?(?P<extra>.*)$", "a|b", "(?i)wikiHow：万事指南",
                            "'\"\\\\"]) | some.map(re.escape)
seconds = st.floats(0, 1e6)
activities = st.sampled_from(["app.oaml.login/.Main", "com.wikihow.wikihowapp/com.wikihow.wikihowapp.MainTabActivity"])
screens = st.builds(AppScreen, activities, st.lists(patterns, max_size=2).map(tuple))
lists = st.lists(some, min_size=1, max_size=3).map(tuple)
counts = st.integers(0, 2**31 - 1)
flags = st.booleans()

CALL_FIELDS = {"path": some, "package_name": some, "full_activity": activities, "full_service": activities,
               "extra_args": lists, "flag": words, "data_uri": some, "action": words, "timeout_sec": seconds,
               "activity_list": st.lists(activities, min_size=1).map(tuple), "permissions": lists, "x": counts, "y": counts,
               "button": st.sampled_from(["HOME", "BACK"]), "orientation": st.integers(0, 3), "command": lists}
calls = st.one_of(*(st.builds(c, **{f.name: CALL_FIELDS[f.name] for f in dataclasses.fields(c)})
                    for c in CALL_TYPES.values()))
conditions = st.one_of(
    st.builds(SuccessCondition, counts, wait_for_app_screen=st.builds(WaitForAppScreen, screens, seconds)),
    st.builds(SuccessCondition, counts, check_install=st.builds(CheckInstall, some, seconds)),
    st.builds(SuccessCondition, counts, wait_for_message=st.builds(WaitForMessage, patterns, seconds)))
steps = st.lists(st.one_of(
    st.builds(SetupStep, adb_call=calls, success_condition=st.none() | conditions),
    st.builds(SetupStep, sleep=seconds, success_condition=st.none() | conditions),
    st.builds(SetupStep, success_condition=conditions)), max_size=3).map(tuple)

spans = st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda s: s[0] != s[1]).map(sorted)
rects = st.tuples(spans, spans).map(lambda s: Rect(s[0][0], s[1][0], s[0][1], s[1][1]))
modes = st.sampled_from(list(LIKENESS_RANGES)).flatmap(
    lambda m: st.fixed_dictionaries({"mode": st.just(m), "threshold": st.floats(*LIKENESS_RANGES[m])}))
signs = st.sampled_from(["EQ", "LE", "LT", "GE", "GT", "NE"])
properties = st.one_of(st.builds(Property, some, pattern=patterns),
                       st.builds(Property, some, signs, integer=st.integers(-2**31, 2**31 - 1)),
                       st.builds(Property, some, signs, floating=st.floats(-1e9, 1e9)))
selectors = st.just(('#$"search_plate">#$"search_src_text"', '."android.view.View" .$"TextView"'))
events = st.one_of(
    st.builds(TextEvent, patterns, rects, detect=flags),
    st.builds(lambda how, **k: TextEvent(**k, **how), how=modes, expect=some, rect=rects, detect=flags),
    st.builds(IconClassEvent, some, rects, flags), st.builds(IconMatchEvent, some, rects, flags),
    st.builds(ViewHierarchyEvent, selectors, st.lists(properties, max_size=2).map(tuple)),
    st.builds(LogEvent, st.just(("jd:D", "AndroidRLTask")), patterns), st.builds(ResponseEvent, patterns),
    st.builds(lambda how, pattern: ResponseEvent(pattern, **how), how=modes, pattern=some))
transformations = st.sampled_from([(), ("y = x",), ("import ast", "y = {x[0]: ast.literal_eval(x[1])}"),
                                   ("y = ['\"é\\'\"']",)])


@st.composite
def trees(draw, known, ids, depth=0):
    "A node that refers to `known` numbers; its own, if it has one, is taken from `ids` and joins them."
    def some_of(items, most): return tuple(draw(st.lists(items, max_size=most))) if known else ()
    kind = draw(st.sampled_from(["SINGLE", "AND", "OR"]))
    leaf = st.sampled_from(sorted(known)) if known else st.nothing()
    inside = some_of(leaf if depth > 2 else leaf | trees(known, ids, depth + 1), 1 if kind == "SINGLE" else 3)
    until = draw(st.sampled_from([(), (-1,), (0,)])) or some_of(leaf, 2)
    node = EventNode(kind, next(ids) if draw(flags) else 0, inside, some_of(leaf, 2), draw(transformations),
                     draw(st.sampled_from(["UNLIMITED", "LAST", "NONE"])), until)
    if node.id: known.add(node.id)
    return node


@st.composite
def tasks(draw):
    "Any task."
    found = draw(st.lists(events, max_size=4))
    sources = tuple(EventSource(e, i + 1, draw(st.sampled_from(["NONE", "LAST", "UNLIMITED"])))
                    for i, e in enumerate(found))
    known, ids = {s.id for s in sources}, iter(range(100, 10_000))
    slots = {s: draw(trees(known, ids)) for s in draw(st.lists(st.sampled_from(EVENT_SLOTS), unique=True))}
    shapes = st.lists(counts, max_size=3).map(tuple)
    specs = draw(st.lists(st.builds(ArraySpec, some, shapes, st.sampled_from(list(EXTRA_DTYPES))), max_size=2,
                          unique_by=lambda s: s.name))
    return Task(draw(some), draw(words), draw(words), draw(steps), draw(steps), draw(st.none() | screens), draw(seconds),
                draw(counts), sources, EventSlots(**slots), tuple(specs), draw(lists), draw(lists))


@needs_protobuf
@thorough(150)
@given(tasks())
def test_round_trip(task):
    text = to_textproto(task)
    again = parse_task(text)
    assert again == task and to_textproto(again) == text
    assert task._repr_html_() and repr(task)


def example_call(kind):
    "A call of a class, every field filled."
    example = {str: "a/b", int: 1, float: 1.5}
    return kind(**{f.name: "HOME" if f.name == "button" else example.get(f.type, ("a/b",))
                   for f in dataclasses.fields(kind)})


def everything():
    "A task with every kind of call and event."
    rect, tests = Rect(.1, .2, .3, .4), (Property("text", pattern="a"), Property("left", "GE", integer=3))
    made = {TextEvent: lambda d: TextEvent("a", rect, "FUZZ", 80., d), LogEvent: lambda d: LogEvent(("login:I",), "(a)"),
            IconClassEvent: lambda d: IconClassEvent("cart", rect, d),
            IconMatchEvent: lambda d: IconMatchEvent("cart.png", rect, d),
            ViewHierarchyEvent: lambda d: ViewHierarchyEvent(('#"a"',), tests),
            ResponseEvent: lambda d: ResponseEvent("yes", "DIFFLIB", .8)}
    sources = tuple(EventSource(made[c](d), i + 1) for i, (c, d) in enumerate(EVENT_KINDS.values()))
    tree = EventNode("OR", 20, (1, EventNode("AND", 21, (2, 3), (4,), ("y = 1",), "NONE", (5,))), cache_until=(-1,))
    return Task("all", "All", setup_steps=(*(SetupStep(example_call(c)) for c in CALL_TYPES.values()), SetupStep(sleep=1.)),
                max_duration_sec=9., max_num_steps=5, event_sources=sources,
                event_slots=EventSlots(tree, *(EventNode(events=(20,)) for _ in EVENT_SLOTS[1:])),
                extras_spec=(ArraySpec("grid", (4, 4), "INT32"),), command=("Do.",), vocabulary=("a", "b"))


ALL = everything()
TEXT = "" if missing_protobuf() else to_textproto(ALL)


@needs_protobuf
def test_everything_can_be_written():
    assert parse_task(TEXT) == ALL
    assert {s.kind for s in ALL.event_sources} == set(EVENT_KINDS)


# ---- what is broken is refused with a TaskError, and with nothing else

junk = st.sampled_from(["{", "}", "[", "]", ",", ":", '"', "'", "id", "id: 0", "1e999", "nan", "-1", "\\", '"\\xff"', "\0",
                        "é", "/*", "<", ">", "events { }", "events { event { } }", "type: 7", "[a.b/c]: 1",
                        "prerequisite: 99", "#", "\ud800"]) | st.text(max_size=3)


@needs_protobuf
@thorough(250)
@given(st.data())
def test_broken_texts(data):
    text = TEXT
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(text)))
        text = text[:i] + data.draw(junk) + text[i + data.draw(st.integers(0, 40)):]
    try: assert isinstance(parse_task(text, "broken.textproto"), Task)
    except TaskError as e: assert e.problems and str(e).startswith("broken.textproto: ")


keys = st.sampled_from(["id", "command", "setup_steps", "adb_call", "rotate", "event_sources", "text_detect", "rect",
                        "event_slots", "reward_listener", "events", "event", "sleep", "maxNumSteps"])
plain_forms = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
                           lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=4), max_leaves=12)


@needs_protobuf
@thorough(200)
@given(plain_forms)
def test_broken_json(plain):
    try: assert isinstance(parse_task(json.dumps(plain), form="json"), Task)
    except TaskError: pass


WRONG = [None, True, 3, -3, 2**40, 1.5, float("nan"), "", "a", "\ud800", b"a", (), ("a",), (1,), [], {}, Rect, Rect(),
         AppScreen(), EventNode(), (EventNode(),), device.ForceStop, EventSource(), object()]


def with_something_wrong(data, record):
    "The record with something else in the place of one of its fields, or of a field of a record inside it."
    names = [f.name for f in dataclasses.fields(record) if f.name != "folder"]
    if not names: return record
    name = data.draw(st.sampled_from(names))
    value, deeper = getattr(record, name), data.draw(flags)
    if deeper and dataclasses.is_dataclass(value): new = with_something_wrong(data, value)
    elif deeper and isinstance(value, tuple) and value and dataclasses.is_dataclass(value[-1]):
        new = (*value[:-1], with_something_wrong(data, value[-1]))
    else: new = data.draw(st.sampled_from(WRONG))
    return dataclasses.replace(record, **{name: new})


@thorough(200)
@given(st.data())
def test_wrong_values_in_python(data):
    try: assert isinstance(with_something_wrong(data, ALL), Task)
    except TaskError as e: assert e.problems


@pytest.mark.parametrize("depth", [30, 60, 400, 3000])
def test_deep_trees(depth):
    tree = EventNode()
    for _ in range(depth): tree = EventNode(events=(tree,))
    def make(): return Task("deep", event_slots=EventSlots(tree))
    if depth == 30: assert make()._repr_html_()
    else: pytest.raises(TaskError, make).match("nodes inside one another|nested too deeply")


@needs_protobuf
@pytest.mark.parametrize("depth", [60, 400, 20_000])
@pytest.mark.parametrize("form", ["text", "json"])
def test_deep_files(depth, form):
    if form == "text": text = 'id: "a" event_slots { null_listener {' + "events { event {"*depth + "} }"*depth + "} }"
    else: text = '{"event_slots": {"null_listener": {' + '"events": [{"event": {'*depth + "}}]"*depth + "}}}"
    with pytest.raises(TaskError, match="inside one another|nested too deeply|recursion depth"):
        parse_task(text, form=form)


# ---- what published files contain

PUBLISHED = r"""
# proto-file: android_env/proto/task.proto
id: "search_" "180-article" name: 'Search' description: "One.\nTwo."
setup_steps: [
  { adb_call: { install_apk: { filesystem: { path: "../wikiHow：万事指南.apk" } } }
    success_condition: { check_install: { package_name: "com.wikihow" timeout_sec: 10.0 } } },
  { sleep: { time_sec: 3.0 } },
  { adb_call: { rotate: { } } }, { adb_call: { rotate: { orientation: LANDSCAPE_90 } } }
]
reset_steps: { success_condition: { num_retries: 10
    wait_for_app_screen: { app_screen: { activity: 'com.wikihow/com.wikihow.Main' view_hierarchy_path: [
    ] } timeout_sec: 10.0 } }
  adb_call: { start_activity: { full_activity: "com.wikihow/com.wikihow.Main" extra_args: ["--ez", '"TASK"', '"{}"'] } } }
max_num_steps: 500
event_sources: { text_recognize: {
    expect: "\\b(180|scooter)\\b *\$" rect: { x0: 0.2439, y0: 0.0354, x1: 0.9085, y1: 0.1171 } } id: 1 }
event_sources: { view_hierarchy_event: { properties: { property_name: "clickable" pattern: "true" }
    selector: "#$\"search_plate\">#$\"search_src_text\"" } id: 2 repeatability: LAST }
event_sources: { log_event: { filters: "jd:D" pattern: "\\bmUrl is: https://www\\.wikihow\\.com/.*(180|scooter)" }
    id: 3 repeatability: UNLIMITED }
event_slots: {
  score_listener: { type: OR events: { event: { } } events: { event: { } } }
  reward_listener: { type: OR events: { event: { type: OR id: 4 events: { id: 1 } events: { id: 2 } events: { id: 3 }
      transformation: "y = 1" repeatability: NONE } } }
  episode_end_listener: { events: { id: 4 } transformation: "y = True" }
  extra_listener: { events: { id: 3 } transformation: [ "import ast", "y = {x[0]: ast.literal_eval(x[1])}" ] }
  instruction_listener: { events: { id: 4 } transformation: "y = [\'Access the article \"How to 180\"\']" }
}
extras_spec: [ { name: "grid" shape: [4, 4], dtype: INT32}, { name: "direction" shape: [1], dtype: INT32 } ]
command: "Search."
vocabulary: ["how to", "180"]
"""


@needs_protobuf
def test_constructs_of_published_files():
    task = parse_task(PUBLISHED)
    assert (task.id, task.description, task.vocabulary) == ("search_180-article", "One.\nTwo.", ("how to", "180"))
    assert [s.adb_call for s in task.setup_steps] == [device.InstallApk("../wikiHow：万事指南.apk"), None, device.Rotate(0),
                                                      device.Rotate(1)]
    assert task.setup_steps[1].sleep == 3 and task.reset_steps[0].success_condition.num_retries == 10
    assert task.reset_steps[0].adb_call.extra_args == ("--ez", '"TASK"', '"{}"')
    assert task.event_sources[0] == EventSource(TextEvent(r"\b(180|scooter)\b *\$", Rect(.2439, .0354, .9085, .1171)), 1)
    assert [s.repeatability for s in task.event_sources] == ["NONE", "LAST", "UNLIMITED"]
    assert task.event_slots.score_listener == EventNode("OR", events=(EventNode(), EventNode()))
    rewards = EventSlots(reward_listener=task.event_slots.reward_listener)
    assert [n.repeatability for _, n in nodes(rewards)] == ["UNLIMITED", "NONE"]
    instruct = compile_transformation(task.event_slots.instruction_listener.transformation)
    assert instruct(()) == ['Access the article "How to 180"']
    assert task.extras_spec[0].shape == (4, 4) and parse_task(to_textproto(task)) == task


@needs_protobuf
@pytest.mark.parametrize("before, after, message", [
    ("id: 4 events", "id: 3 events", "reward_listener.events[0].event.id: 3 is already the id of event_sources[2]"),
    ("} }, { adb_call: { rotate: { or", "} } }, { adb_call: { rotate: { or", "line 8, column 33"),
    ("max_num_steps", "max_episode_steps", "max_episode_steps is an older field; write max_num_steps"),
    ("selector:", "view_hierarchy_path:", "view_hierarchy_path is an older field; write selector"),
    ("adb_call: { rotate: { } }", "adb_call: { }", "setup_steps[2].adb_call: {} is not"),
    ("x1: 0.9085", "x1: 0.2", "event_sources[0].text_recognize.rect: is empty"),
    ("id: 2 repeat", "repeat", "event_sources[1].id: 0 is no number of an event"),
    ("LANDSCAPE_90", "SIDEWAYS", "has no value named SIDEWAYS"),
    ("time_sec: 3.0", "time_sec: -3", "setup_steps[1].sleep.time_sec: -3.0 is negative"),
    ("max_num_steps: 500", "max_num_steps: 5000000000", "line 14, column 16"),
    ("events: { event: { } } events", "events: { } events", "score_listener.events[0]: has neither the id"),
    ("num_retries: 10\n", "num_retries: 10 check_install: {package_name: 'a'}\n", "specified along with field"),
    ("y = True", "x[0]", "write y = ..."), ("y = True", "y = __import__('os')", "episode_end_listener.transformation[0]"),
    (r"(180|scooter)\\b", r"(180|scooter\\b", "is no pattern"), (r"#$\"search_plate", r"> >\"search_plate", "selector")])
def test_slips_in_published_files(before, after, message):
    assert before in PUBLISHED
    with pytest.raises(TaskError) as raised: parse_task(PUBLISHED.replace(before, after, 1), "a.textproto")
    assert str(raised.value).startswith("a.textproto: ") and message in str(raised.value)


@needs_protobuf
def test_files(tmp_path):
    (tmp_path/"b.textproto").write_text("\ufeff" + PUBLISHED.replace("\n", "\r\n"), encoding="utf-8")
    (tmp_path/"a.json").write_text('{"id": "a", "eventSlots": {"rewardListener": {}}}', encoding="utf-8")
    (tmp_path/"notes.txt").write_text("no task")
    assert [t.id for t in load_tasks(tmp_path)] == ["a", "search_180-article"]
    assert load_task(tmp_path/"b.textproto").folder == tmp_path
    with pytest.raises(FileNotFoundError): load_task(tmp_path/"c.textproto")
    (tmp_path/"c.textproto").write_text("id: 3")
    with pytest.raises(TaskError, match=r"c\.textproto: line 1, column 5"): load_tasks(tmp_path)
    with pytest.raises(TaskError, match="no tasks"): load_tasks([])
