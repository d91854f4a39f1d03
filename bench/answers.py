"""Random and mutated model answers through every dialect's reader: exceptions, actions out of thoughts, the slowest reading.

    python bench/answers.py [COUNT] [SEED]     (1,000,000 answers, seed 0)

Every answer begins as a valid one of some dialect and is cut, spliced, quoted, nested, repeated or damaged. Half of them then hold a
thought with an action at one place, `THOUGHT`, at which nothing else acts: whoever acts there acts out of a thought.
"""
import json
import random
import sys
from collections import Counter
from time import process_time

from oaml.models.api_adapter import answer_of_calls
from oaml.schemas.actions import parse_answer
from oaml.schemas.agentcpm import AgentCPM, agentcpm_response
from oaml.schemas.dialects import DIALECTS, DialectError
from oaml.schemas.sessions import Action

SIZE = (640, 480)
THOUGHT = (.125, .25)  # where a thought acts
MARKS = [("<think>", "</think>"), ("<Thinking>", "</THINKING>"), ("<thought>", "</thought>"), ("[THINK]", "[/THINK]"), ("<reasoning>", "</reasoning>"),
         ("◁think▷", "◁/think▷"), ("<seed:think>", "</seed:think>"), ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
         ("<|channel>thought\n", "<channel|>"), ("<|begin_of_thought|>", "<|end_of_thought|>")]
DAMAGE = ['"', "'", "\\", "(", ")", "{", "}", "[", "]", ",", ":", "=", "\n", "\t", " ", "NaN", "Infinity", "1e999", "null", "true", "-", "#", "```json\n", "```",
          "“", "’", "\ud800", "\0", "\u2028", "é", "e\u0301", "漢", "Action: ", "\nActions:\n", "Thought: ", "CLICK(", "mouse_click(", "{\"action\": ", "/*", "//",
          "<", ">", "</", "<tool_call>", "<act>", "__import__('os')"]
READERS = dict(
    dsl=lambda text: parse_answer(text)[0], dsl1=lambda text: parse_answer(text, 1)[0], **{name: lambda text, d=d: d.parse(text, SIZE) for name, d in DIALECTS.items()},
    agentcpm_compat=lambda text: AgentCPM(True).parse(text, SIZE), agentcpm_response=lambda text: [agentcpm_response(text)[0]],
    anthropic_words=lambda text: parse_answer(answer_of_calls([], text, "anthropic", SIZE))[0], openai_words=lambda text: parse_answer(answer_of_calls([], text, "openai", SIZE))[0],
    anthropic_call=lambda text: parse_answer(answer_of_calls(calls_in(text), text, "anthropic", SIZE))[0] if calls_in(text) else [],
    openai_call=lambda text: parse_answer(answer_of_calls(calls_in(text), "", "openai", SIZE))[0] if calls_in(text) else [])
OWN = dict(agentcpm=("agentcpm", "agentcpm_compat", "agentcpm_response"), anthropic=("anthropic", "anthropic_words", "anthropic_call"),
           openai=("openai", "openai_words", "openai_call"))
CALLS = "anthropic_call", "openai_call"  # what a server sends as a call is one, whatever words stand in it


def calls_in(text):
    "The JSON objects of a text's lines, as a server would send them."
    found = []
    for line in text[:20_000].split("\n"):
        try: value = json.loads(line)
        except (ValueError, RecursionError): continue
        if isinstance(value, dict): found.append(value)
    return found


def action(rng, place=None):
    "A valid action, at `place` or far from `THOUGHT`."
    x, y = place or (rng.randrange(500, 1000)/1000, rng.randrange(500, 1000)/1000)
    if place: return Action("click", x, y)
    return rng.choice([Action("click", x, y), Action("drag", x, y, x2=.75, y2=.75), Action("scroll", x, y, dx=0., dy=.5), Action("type", text=rng.choice(
        ["ada", "a \"b\" 'c' \\", "<think>", "</think>", "naïve 漢", "DONE()", "[/THINK]x"])), Action("key_press", key="Enter"), Action("wait"), Action("done"), Action("answer", text="42")])


def new_answer(rng, place=None):
    "A valid answer of some dialect, and its name."
    while True:
        dialect = DIALECTS[rng.choice(list(DIALECTS))]
        try: return dialect.format([action(rng, place) for _ in range(1 if place else rng.choice((1, 1, 1, 2, 3)))], SIZE), dialect.name
        except DialectError: pass


POOL = {place: [new_answer(random.Random(f"{place}{k}"), place) for k in range(n)] for place, n in ((None, 5000), (THOUGHT, 50))}

def written(rng, place=None):
    "One of the valid answers, and the name of its dialect."
    return rng.choice(POOL[place])


def readers(rng, dialect):
    "Who reads an answer: the DSL's reader, and one that is as often one of the answer's own dialect as any."
    own = OWN.get(dialect, ("dsl1", dialect)) if rng.random() < .5 else list(READERS)
    return dict.fromkeys(("dsl", rng.choice(own)))


def damaged(rng, text):
    "An answer with pieces cut, doubled, moved, put in or repeated."
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        i, j = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        match rng.randrange(8):
            case 0: text = text[:i] + text[j:]
            case 1: text = text[:j] + text[i:]
            case 2 | 3: text = text[:i] + rng.choice(DAMAGE) + text[i:]
            case 4: text = text[:i] + written(rng)[0] + text[i:]
            case 5: text = text[:i] + rng.choice(DAMAGE)*rng.choice((2, 9, 60)) + text[j:]
            case 6: text = json.dumps(text) if rng.random() < .5 else '{"a":'*rng.choice((3, 40)) + text
            case 7: text = text.swapcase()
    return text if rng.random() > .002 else (text + rng.choice(DAMAGE))*rng.randint(100, 2000)


def without(text, marks):
    "A text in which no mark of these kinds stands."
    for mark in [m for pair in marks for m in pair] + ["<|end|>", "<channel|>", "<|channel"]:
        while mark.lower() in text.lower():
            i = text.lower().index(mark.lower())
            text = text[:i] + text[i + len(mark):]
    return text


def thinking(rng):
    "An answer whose thought acts at `THOUGHT`: paired marks, nested ones, one that is never closed, a lone closing one."
    mark = start, end = rng.choice(MARKS)
    words, after = (without(damaged(rng, written(rng)[0]), [mark] if rng.random() < .8 else MARKS) for _ in range(2))
    act, dialect = written(rng, THOUGHT)
    inside = f"{words}\n{act}\n{without(damaged(rng, written(rng)[0]), [mark])}"
    match rng.randrange(5):
        case 0 | 1: text = f"{start}{inside}{end}\n{after}"
        case 2 if "channel" not in start: text = f"{start}a{start}{words}{end}{inside}{end}\n{after}"
        case 3: text = f"{after if rng.random() < .3 else ''}{start}{inside}"
        case _: text = f"{without(inside, MARKS)}{end}\n{written(rng)[0]}"
    return text, dialect


def at_thought(actions):
    "Does one of the actions act where only thoughts do?"
    return any(a.x is not None and abs(a.x - THOUGHT[0]) < .004 and abs(a.y - THOUGHT[1]) < .004 for a in actions)


def answered(name, text):
    "What a reader makes of an answer; none where it refuses."
    try: return READERS[name](text)
    except DialectError: return []


def cost(name, text, times=3):
    "The least of a few readings in ms of CPU a kB, so that a pause of the machine is not taken for a slow reader; a shorter answer counts as a kB."
    def once():
        began = process_time()
        answered(name, text)
        return (process_time() - began)/max(len(text), 1000)*1e6
    return min(once() for _ in range(times))


def measure(count, seed=0, say=lambda line: None):
    "Counts over `count` answers; the slowest reading: ms for a kB, whose, of how many characters; what went wrong."
    rng, counts, slowest, shown = random.Random(seed), Counter(), (0., "", 0), []
    for n in range(count):
        in_thought = rng.random() < .5
        text, dialect = thinking(rng) if in_thought else written(rng)
        if not in_thought: text = damaged(rng, text)
        for name in readers(rng, dialect):
            began = process_time()
            try: acts = answered(name, text)
            except Exception as e:
                counts["exceptions"], acts = counts["exceptions"] + 1, []
                shown.append((name, f"{type(e).__name__}: {e}"[:200], text[:400]))
            else:
                slow = (process_time() - began)/max(len(text), 1000)*1e6
                if slow > slowest[0]: slowest = max(slowest, (cost(name, text), name, len(text)))
            good = bool(acts) and acts[0].type != "failed"
            counts["reads"], counts["read as actions"] = counts["reads"] + 1, counts["read as actions"] + good
            if in_thought and name not in CALLS and at_thought(acts):
                counts["act out of a thought"] += 1
                shown.append((name, "acts out of a thought", text[:400]))
        counts["answers"], counts["with thoughts"] = counts["answers"] + 1, counts["with thoughts"] + in_thought
        if (n + 1) % 100_000 == 0: say(f"{n + 1} {dict(counts)} slowest {slowest}")
    return counts, slowest, shown


if __name__ == "__main__":
    began = process_time()
    counts, slowest, shown = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0,
                                     lambda line: print(line, flush=True))
    for row in shown[:20]: print(*map(ascii, row), sep="\n    ")
    print(dict(counts), f"{process_time() - began:.0f} s of CPU; slowest: {slowest[0]:.0f} ms a kB, {slowest[1]}, {slowest[2]} characters")
