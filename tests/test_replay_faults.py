"What goes wrong while a replay acts: it goes on or halts with a sentence, and does nothing twice."
from dataclasses import replace

import pytest

from oaml.datasets.demonstrations import in_words
from oaml.runtime.replay import Replay
from oaml.schemas.sessions import Action
from oaml.ui.layout import Element


def element(role, name, y, value="", x=.4): return Element(role, name, (x, y, x + .2, y + .05), value=value)


class Form:
    "A form with one field; what happens to a press is told by `faults`."
    def __init__(self, *faults): self.faults, self.value, self.saved, self.asks, self.slow, self.presses, self.at = set(faults), "", [], False, 0, [], .5

    @property
    def elements(self):
        if self.asks: return (element("heading", "Take our tour?", .1), element("button", "Not now" if "dialog" in self.faults else "Begin", .3))
        shown = [element("heading", "Names", .05), element("textbox", "Name", .2, self.value), element("button", "Save", self.at)]
        if self.slow: shown.append(element("progressbar", "Loading", .7))
        elif self.saved: shown.append(element("status", f"Saved {self.saved[-1]}", .8))
        return tuple(shown)

    def perform(self, action):
        if action.type == "wait" and self.slow: self.slow -= 1
        if action.type == "type": self.value = action.text
        if action.type == "type" and self.faults & {"dialog", "strange dialog"}: self.asks = True
        if action.type != "click": return
        e = next((e for e in self.elements if e.box[0] <= action.x < e.box[2] and e.box[1] <= action.y < e.box[3]), None)
        if e is not None and e.name == "Save" and "moves" in self.faults and self.at == .5: self.at = .6  # it is gone before the press comes
        elif e is not None and e.role == "button": self._press(e.name)

    def _press(self, name):
        self.presses.append(name)
        if name == "Not now": self.asks, self.faults = False, self.faults - {"dialog"}
        if name == "Save" and "refused" not in self.faults:
            self.saved.append(self.value)
            self.slow = 2*("slow" in self.faults)


def follow(form, replay, most=40):
    "Play until the end; the last action."
    for _ in range(most):
        action = replay.next(form.elements)
        if action.type in ("done", "failed"): return action
        form.perform(action)


@pytest.fixture
def shown():
    "Somebody enters a name and saves."
    form, steps = Form(), []
    for action in (Action("click", x=.5, y=.22), Action("type", text="Ada"), Action("click", x=.5, y=.52)):
        before = form.elements
        form.perform(action)
        steps.append((action, before, form.elements))
    return in_words("Save the name 'Ada'.", steps)


@pytest.mark.parametrize("fault", ["", "slow", "moves", "dialog"])
def test_it_goes_on_and_saves_once(shown, fault):
    form = Form(*filter(None, [fault]))
    assert follow(form, Replay(shown, "Save the name 'Grace'.")).type == "done"
    assert form.saved == ["Grace"] and form.presses.count("Save") == 1


def test_a_dialog_that_does_not_say_how_it_goes_away_is_not_pressed(shown):
    form = Form("strange dialog")
    last = follow(form, Replay(shown, "Save the name 'Grace'."))
    assert last.type == "failed" and "Take our tour?" in last.raw["reason"] and not form.presses


def test_a_press_without_effect_halts_and_is_not_done_again(shown):
    form = Form("refused")
    last = follow(form, Replay(shown, "Save the name 'Grace'."))
    assert last.type == "failed" and "nothing changed" in last.raw["reason"] and form.presses == ["Save"]


@pytest.mark.parametrize("goal", ["Save the name.", "Save it."])
def test_a_goal_without_the_value_halts_before_anything_is_typed(shown, goal):
    form = Form()
    last = follow(form, Replay(shown, goal))
    assert last.type == "failed" and last.raw["halted"] and not form.value and not form.presses


def test_a_demonstration_of_another_application_touches_nothing(shown):
    form = Form()
    elsewhere = replace(shown, steps=tuple(replace(s, what=replace(s.what, name="Subject" if s.do == "enter" else "Send")) for s in shown.steps))
    last = follow(form, Replay(elsewhere, "Save the name 'Grace'."))
    assert last.type == "failed" and "'Subject'" in last.raw["reason"] and not form.value and not form.presses
