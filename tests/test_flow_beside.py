"The arithmetic of bench/flow_beside.py: what counts as done, and its table."
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]/"bench"))
import flow_beside

BEFORE = dict(auth_group={})


def device(after, faults, halt=""):
    "As much of a device as its judge asks."
    return SimpleNamespace(before=BEFORE, app=SimpleNamespace(state=lambda: after), faults=lambda: faults, scene=SimpleNamespace(way="", halt=halt))


def test_the_database_judges_and_not_what_is_said():
    changed = dict(auth_group={"1": dict(name="Cage team")})
    for said, after, faults, halt, result, wrote in (
            ("done", changed, [], "", "done", False), ("done", BEFORE, ["not done: a group"], "", "false", False), ("done", changed, ["not asked for: a group"], "", "false", True),
            ("halted", BEFORE, ["not done: a group"], "", "halted", False), ("halted", changed, ["not asked for: a group"], "refused", "halted", True),
            ("done", BEFORE, [], "missing", "false", False), ("budget", changed, [], "", "budget", True)):
        row = flow_beside.judge(device(after, faults, halt), said)
        assert (row["result"], row["wrote"]) == (result, wrote), (said, halt)


def test_a_typed_text_is_told_by_the_names_of_its_values():
    values = dict(first="Ann", last="Annan", email="ann@x.example")
    assert flow_beside.shape_of("Ann Annan", values) == "{first} {last}"
    assert flow_beside.shape_of("orchid", values) == "orchid"


def test_the_table_counts_each_condition_and_all():
    def row(agent, condition, result, seconds): return dict(agent=agent, condition=condition, result=result, wrote=result == "halted", seconds=seconds, calls=0)
    rows = [row("replay", "same", "done", 2.), row("replay", "same", "halted", 4.), row("replay", "halt", "false", 9.), row(flow_beside.FLOW, "same", "budget", 1.)]
    lines = flow_beside.table(rows).splitlines()[2:]
    assert lines == ["| openadapt-flow | same | 1 | 0 | 0 | 0 | 1 | 0 | 1.0 | 0 |", "| openadapt-flow | all | 1 | 0 | 0 | 0 | 1 | 0 | 1.0 | 0 |",
                     "| replay | same | 2 | 1 | 1 | 0 | 0 | 1 | 3.0 | 0 |", "| replay | halt | 1 | 0 | 0 | 1 | 0 | 0 | 9.0 | 0 |", "| replay | all | 3 | 1 | 1 | 1 | 0 | 1 | 4.0 | 0 |"]
