"Event sources and trees under random tasks and random logs: what a notebook's examples cannot cover."
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oaml.devices.device import Frame
from oaml.tasks.signals import Signals, SignalSource, text_match
from oaml.tasks.definition import EventNode, EventSlots, EventSource, LogEvent, Task

NOTHING = np.zeros((0, 0, 3), np.uint8)
WORDS = "ab", "ac", "bc", "cc"  # messages; source k waits for the letter k
REPEAT = st.sampled_from(["NONE", "LAST", "UNLIMITED"])
LOGS = st.lists(st.lists(st.sampled_from(WORDS), max_size=3), min_size=1, max_size=12)
SOURCES = st.lists(REPEAT, min_size=3, max_size=3).map(lambda how: tuple(
    EventSource(LogEvent(pattern=f".*{letter}.*"), k, r) for k, (letter, r) in enumerate(zip("abc", how), 1)))


@st.composite
def trees(draw):
    "Up to six nodes with ids from 11 on, each over sources and earlier nodes."
    out = []
    for i in range(draw(st.integers(1, 6))):
        known = [1, 2, 3] + [n.id for n in out]
        some = st.lists(st.sampled_from(known), max_size=3, unique=True)
        kind = draw(st.sampled_from(["SINGLE", "AND", "OR"]))
        events = draw(st.lists(st.sampled_from(known), min_size=1, max_size=1 if kind == "SINGLE" else 3))
        until = draw(st.one_of(st.just(()), st.just((-1,)), some.map(tuple)))
        needs = tuple(draw(some))
        out.append(EventNode(kind, 11 + i, tuple(events), needs, repeatability=draw(REPEAT), cache_until=until))
    return out


def make(sources, nodes):
    return Task("t", event_sources=tuple(sources), event_slots=EventSlots(
        null_listener=EventNode("OR", events=tuple(nodes))))


def run(signals, log):
    return [signals.observe(Frame(NOTHING, log=tuple(f"I/t: {line}" for line in lines)), None) for lines in log]


def expected(sources, nodes, log):
    "What fires and what is set at each step, by the definitions, asked for on demand."
    nodes = {n.id: n for n in nodes}
    paid, before = {s.id: set() for s in sources}, {s.id: None for s in sources}
    ready, cached, ever, out = [], set(), set(), []
    for lines in log:
        on, fired, was_ready = {}, set(), ready[-1] if ready else set()
        ready.append(set())
        for s in sources:
            for line in lines:
                again = {"NONE": line in paid[s.id], "LAST": line == before[s.id], "UNLIMITED": False}[s.repeatability]
                before[s.id] = line
                if "abc"[s.id-1] in line and not again: paid[s.id].add(line), fired.add(s.id), ever.add(s.id)
            on[s.id] = s.id in fired

        def is_on(i):
            if i not in on: on[i] = decide(nodes[i])
            return on[i]
        def decide(n):
            there = (all if n.type == "AND" else any)([is_on(e) for e in n.events])
            met = all([is_on(p) or p in ever for p in n.prerequisite])
            if n.id in cached:
                ready[-1].add(n.id)
                if there and met: ever.add(n.id)
                return True
            if not (there and met): return False
            may = {"UNLIMITED": True, "LAST": n.id not in was_ready, "NONE": n.id not in ever}[n.repeatability]
            ready[-1].add(n.id), ever.add(n.id)
            if may: fired.add(n.id)
            return may
        for i in nodes: is_on(i)
        cached = {i for i, n in nodes.items() if on[i] and n.cache_until
                  and not (-1 not in n.cache_until and all(on[j] for j in n.cache_until))}
        out.append((tuple(sorted(fired)), {i for i in on if on[i]}))
    return out


@settings(max_examples=200, deadline=None)
@given(SOURCES, trees(), LOGS)
def test_definitions(sources, nodes, log):
    steps = run(Signals(make(sources, nodes)), log)
    assert [(f.fired, set(f.values)) for f in steps] == expected(sources, nodes, log)


@settings(max_examples=100, deadline=None)
@given(SOURCES, trees(), LOGS, st.randoms(use_true_random=False))
def test_order_of_definition_does_not_matter(sources, nodes, log, rng):
    mixed = rng.sample(sources, 3), rng.sample(nodes, len(nodes))
    one, other = run(Signals(make(sources, nodes)), log), run(Signals(make(*mixed)), log)
    assert [(f.fired, f.values) for f in one] == [(f.fired, f.values) for f in other]


@settings(max_examples=100, deadline=None)
@given(SOURCES, trees(), LOGS, LOGS)
def test_reset_begins_anew(sources, nodes, first, log):
    task = make(sources, nodes)
    used = Signals(task)
    run(used, first)
    used.reset()
    assert run(used, log) == run(Signals(task), log)


@settings(max_examples=100, deadline=None)
@given(SOURCES, trees(), LOGS)
def test_no_more_than_repeatability_allows(sources, nodes, log):
    results = run(Signals(make(sources, nodes)), log)
    steps = {e.id: [k for k, f in enumerate(results) if e.id in f.fired] for e in (*sources, *nodes)}
    for s in sources:
        times = sum(len(f.values.get(s.id, ())) for f in results)
        matching = [line for lines in log for line in lines if "abc"[s.id-1] in line]
        assert times <= (len(set(matching)) if s.repeatability == "NONE" else len(matching))
        assert s.repeatability != "UNLIMITED" or times == len(matching)
    for n in nodes:
        assert n.repeatability != "NONE" or len(steps[n.id]) <= 1
        assert n.repeatability != "LAST" or all(b - a > 1 for a, b in zip(steps[n.id], steps[n.id][1:]))
        for p in n.prerequisite: assert not steps[n.id] or steps[p] and steps[p][0] <= steps[n.id][0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=10))
def test_score_pays_its_changes_and_rewards_add_up(steps):
    number = EventNode("OR", events=(1,), transformation=("y = int(x[0])",))
    source = EventSource(LogEvent(pattern="^n (.*)"), 1, "UNLIMITED")
    def paid(slot):
        signals = Signals(Task("t", event_sources=(source,), event_slots=EventSlots(**{slot: number})))
        return sum(f.reward for f in run(signals, [[f"n {n}" for n in step] for step in steps]))
    every = [n for step in steps for n in step]
    assert paid("reward_listener") == sum(every)
    assert paid("score_listener") == (every[-1] if every else 0)


@settings(max_examples=300, deadline=None)
@given(REPEAT, st.lists(st.lists(st.sampled_from(["a", "b", "no"]), max_size=3), max_size=8))
def test_repeatability_of_a_source_is_mobile_envs(repeatability, looks):
    "Inputs one after the other: NONE fires once for each, LAST not for what came just before, whether that fired or not."
    source, paid, last = SignalSource(text_match("^[ab]$"), repeatability), [], None
    for look in looks:
        expected = 0
        for text in look:
            if repeatability == "NONE" and text in paid or repeatability == "LAST" and text == last: continue
            last = text
            if text != "no": paid.append(text); expected += 1
        source.hear(look)
        assert (len(source.values), source.on) == (expected, expected > 0)


def test_last_goes_on_over_a_look_that_shows_nothing():
    source, fired = SignalSource(text_match("^a$"), "LAST"), []
    for look in (["a"], [], ["a"], ["b"], ["a"]): source.hear(look), fired.append(len(source.values))
    assert fired == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", "", "["*9999, "1"*5000, '{"a": }'])
def test_a_malformed_json_extra_costs_a_warning_and_no_episode(text):
    slots = EventSlots(json_extra_listener=EventNode(events=(1,), transformation=("y = x[0]",)))
    source = EventSource(LogEvent(pattern="^extra: (.*)$"), 1, "UNLIMITED")
    signals = Signals(Task("t", event_sources=(source,), event_slots=slots))
    with pytest.warns(UserWarning, match="event_slots.json_extra_listener: .* it tells nothing"):
        assert run(signals, [[f"extra: {text}"]])[0].extras == {}
    assert run(signals, [['extra: {"a": 1}']])[0].extras == {"a": [1]}


def test_missing_rapidfuzz_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ImportError, match=r'event_sources\[4\]: .*pip install "oaml\[mobile\]"'):
        text_match("x", "FUZZ", 50, where="event_sources[4]")
