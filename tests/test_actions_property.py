"""Long checks of the action DSL: what is written is read back, and any text at all gives an Action.

The notebook 00g_schemas.actions explains the rules; here they meet thousands of invented actions and answers.
"""
import random
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oaml.schemas.actions import (DSL_TYPES, DSL_VERSION, format_action, parse_action, parse_response, round_action,
                                  split_thought)
from oaml.schemas.sessions import (ACTION_FIELDS, DEVICE_BUTTONS, KEYS, MODIFIERS, Action, SchemaError, from_json,
                                   key_problem, text_problem, to_json)

fractions = st.floats(0, 1)
shifts = st.floats(-1, 1)
nfc = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(
    lambda s: unicodedata.normalize("NFC", s)) | st.text("\"'\\ (),=nt“”‘’CLICKDONEaé", min_size=1)
chars = st.characters(categories=["Ll", "Nd", "Po", "Sm"]).filter(lambda c: c == c.lower())
chords = st.builds(lambda mods, last: "+".join([m for m in MODIFIERS if m in mods] + [last]),
                   st.sets(st.sampled_from(MODIFIERS), min_size=1), st.sampled_from(KEYS) | chars)
values = dict(x=fractions, y=fractions, x2=fractions, y2=fractions, dx=shifts, dy=shifts, text=nfc,
              key=st.sampled_from(KEYS + DEVICE_BUTTONS) | chords)

def actions_of(types):
    "Valid actions of `types`, every field drawn from its whole range."
    return st.sampled_from(types).flatmap(
        lambda t: st.builds(Action, st.just(t), **{k: values[k] for k in ACTION_FIELDS[t]}))

actions = actions_of(DSL_TYPES[2])
prose = st.text(st.characters(exclude_characters="()\"'“”‘’\\"), max_size=40).filter(
    lambda s: "action" not in s.lower() and split_thought(s) == (None, s))


@settings(max_examples=500, deadline=None)
@given(actions, st.integers(1, 6))
def test_round_trip(action, precision):
    text = format_action(action, precision)
    assert parse_action(text) == round_action(action, precision)
    assert format_action(parse_action(text), precision) == text
    assert "\n" not in text


@settings(max_examples=500, deadline=None)
@given(actions, st.integers(1, 6))
def test_rounding_stays_within_half_a_step(action, precision):
    rounded = round_action(action, precision)
    assert round_action(rounded, precision) == rounded
    for k in ACTION_FIELDS[action.type]:
        old, new = getattr(action, k), getattr(rounded, k)
        if isinstance(old, float): assert abs(old - new) <= .5 * 10 ** -precision + 1e-12
        else: assert old == new


@settings(max_examples=300, deadline=None)
@given(actions_of(DSL_TYPES[1]))
def test_version_1_says_what_both_versions_have(action):
    text = format_action(action, version=1)
    assert parse_action(text, version=1) == parse_action(text, version=2) == round_action(action)


@settings(max_examples=300, deadline=None)
@given(actions_of([t for t in DSL_TYPES[2] if t not in DSL_TYPES[1]]))
def test_version_1_refuses_the_rest(action):
    with pytest.raises(ValueError): format_action(action, version=1)
    assert parse_action(format_action(action), version=1).type == "failed"


@settings(max_examples=500, deadline=None)
@given(actions, prose, prose)
def test_words_around_do_not_matter(action, before, after):
    text = f"{before}\n{format_action(action, 6)} {after}"
    assert parse_action(text) == round_action(action, 6)


@settings(max_examples=500, deadline=None)
@given(actions, actions, nfc)
def test_the_last_action_line_wins(action, other, thought):
    assume(split_thought(thought) == (None, thought))
    text = f"Thought: {thought}\nAction: {format_action(other, 6)}\nAction: {format_action(action, 6)}"
    assert parse_action(text) == round_action(action, 6)


@settings(max_examples=500, deadline=None)
@given(actions, actions)
def test_two_different_actions_are_none(one, two):
    parsed = parse_action(f"{format_action(one, 6)} {format_action(two, 6)}")
    one, two = round_action(one, 6), round_action(two, 6)
    assert parsed == one if one == two else parsed.type == "failed"


@settings(max_examples=500, deadline=None)
@given(actions)
def test_an_action_inside_a_quoted_text_is_text(action):
    inner = format_action(action)
    outer = Action("type", text=inner)
    assert parse_action(format_action(outer)) == outer
    assert parse_action("The label says “" + inner.replace("”", "") + "”").type == "failed"


MARKS = ["<think>", "</think>", "[THINK]", "[/think]", "◁think▷", "◁/think▷", "<seed:think>", "</Reasoning>", "<|channel|>analysis<|message|>",
         "<|channel|>final<|message|>", "<|end|>", "<|channel>thought", "<channel|>", "<|begin_of_thought|>"]

@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(MARKS) | st.text("\"'\\ (){}[]=,:ab", max_size=4), min_size=1).map("".join).filter(bool), st.sampled_from(["type", "answer"]))
def test_marks_of_thought_in_a_text_are_text(text, kind):
    assert parse_action(format_action(Action(kind, text=text))) == Action(kind, text=text)

@settings(max_examples=500, deadline=None)
@given(actions, actions, prose, st.sampled_from([("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("", "</thinking>"), ("<|channel|>analysis", "<|channel|>final"),
                                                 ("<think>a<think>b</think>", "</think>")]))
def test_no_action_out_of_a_thought(thought, action, words, marks):
    inside = f"{words} Action: {format_action(thought, 6)} {words}"
    assume(split_thought(format_action(thought, 6))[0] is None)
    assert parse_action(f"{marks[0]}{inside}{marks[1]}\n{format_action(action, 6)}") == round_action(action, 6)
    if marks[0]: assert parse_action(f"{marks[0]}{inside}").type == "failed"

@settings(max_examples=500, deadline=None)
@given(st.text(st.characters()), st.sampled_from(list(DSL_TYPES)))
def test_any_text_gives_an_action(text, version):
    check(text, version)


@settings(max_examples=500, deadline=None)
@given(actions)
def test_json_keeps_every_bit(action):
    assert from_json(Action, to_json(action)) == action


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=12) | st.text("ctrlshiftalt+aA HOMEnter", max_size=12))
def test_a_key_or_a_text_is_right_exactly_if_its_problem_is_none(text):
    for kind, field, problem in (("key_press", "key", key_problem), ("type", "text", lambda text: text_problem(text, "\n\t"))):
        try: assert getattr(Action(kind, **{field: text}), field) == text and problem(text) is None
        except SchemaError: assert any("\ud800" <= c <= "\udfff" for c in text) or problem(text)


def check(text, version=DSL_VERSION):
    "Any text is read without an exception, into an action that can be stored."
    action, thought = parse_response(text, version)
    assert isinstance(action, Action)
    assert action.type in (*DSL_TYPES[version], "failed")
    if action.type == "failed":
        assert action.raw["reason"] and thought is None
        assert action.raw["text"] == text.encode("utf-8", "backslashreplace").decode()
    else: assert action.raw is None
    return action


PIECES = [
    "CLICK", "click", "TYPE", "DONE()", "WAIT()", "KEY", "SCROLL", "DRAG", "ANSWER", "(", ")", "((", "))", "{", "`",
    "x=", "y=", "dx=", "text=", "key=", "0.5", "475", "-1", "1e999", ".", "nan", ",", " ", "\n", "\t", '"', "'", "\\",
    '\\"', "“", "”", "‘", "’", "Action:", "Thought:", "\nAction: ", "**", "\ud800", "\udc00", "\0", "\u2028", "é",
    "e\u0301", "😀", "ſ", "\u212a", "x = 0.1 , y=0.2)", "CLICK(x=0.1, y=0.2)", 'TYPE(text="a")']

def valid(rng):
    "A valid line of DSL, quickly."
    x, y, s, t = (f"{rng.random():.{rng.randint(1, 6)}f}" for _ in range(4))
    return rng.choice([f"CLICK(x={x}, y={y})", f"DRAG(x={x}, y={y}, x2={s}, y2={t})",
                       f"SCROLL(x={x}, y={y}, dx={s}, dy=-{t})",
                       'TYPE(text="it\'s \\"é\\" \\\\")', 'KEY(key="ctrl+shift+t")', 'ANSWER(text="a\\nb")', "WAIT()",
                       f"Thought: now\nAction: LONG_PRESS(x={x}, y={y})"])

def mutated(rng):
    "A valid line with a few pieces cut, doubled, swapped or put in."
    text = valid(rng)
    for _ in range(rng.randint(1, 4)):
        i, j = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        text = rng.choice([text[:i] + text[j:], text[:j] + text[i:], text[:i] + rng.choice(PIECES) + text[i:],
                           text[:i] + text[i:j][::-1] + text[j:], text + rng.choice(" \n;") + valid(rng),
                           text.swapcase()])
    return text

def character(rng):
    "An ASCII character, or any at all."
    return chr(rng.choice((rng.randrange(128), rng.randrange(0x110000))))

def answer(rng, kind):
    "Pieces in any order, any characters, a valid line among repeated pieces, or a damaged line."
    if kind == 0: return "".join(rng.choices(PIECES, k=rng.randint(0, 12)))
    if kind == 1: return "".join(character(rng) for _ in range(rng.randint(0, 20)))
    if kind == 2: return rng.choice(PIECES) * rng.randint(1, 30) + valid(rng) + rng.choice(PIECES) * rng.randint(0, 30)
    return mutated(rng)

def test_a_hundred_thousand_answers():
    rng = random.Random(0)
    read = sum(check(answer(rng, i % 4), 1 + i // 4 % 2).type != "failed" for i in range(100_000))
    assert read > 5_000, "the answers are too wild to test reading as well as refusing"


# A parser that reads any of these twice from each place never finishes; one pass takes about a second.
@pytest.mark.parametrize("piece", [
    "(", ")", '"', "'", "\\", '\\"', "\\'", " 'x", ' "x', "“", "a", "a ", " ", "\n", "\n ", "0", "=", ",", "CLICK",
    "CLICK(", "CLICK (", "CLICK(x", "CLICK(x=", "CLICK(x=0.1,", "TYPE(text=", 'TYPE(text="', "TYPE(text='\\", "x=1,",
    "TAP(x=1)", "DONE()", "DONE(", "click (the) ", "Action:", "\nAction:", "\nThought: ", "* ", "\n> *", "\0", "\ud800", "e\u0301",
    "don't ", "'a' ", '5" ', "<think>", "</think>", "<think></think>", '{"a":"</think>",', '{"a":{', "{x:[],", "f(1,", "<|channel|>a", "\nActions:\n"])
def test_a_million_characters(piece):
    bomb = piece * (1_000_000 // len(piece))
    check(bomb)
    check("TYPE(text=\"" + bomb)
    check("CLICK(" + bomb[:200_000] + ") " + bomb[:200_000] + "\nAction: DONE()")
