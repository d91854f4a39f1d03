"The toolkit where no application of ours has been: long words, long lists, quick presses."
import pytest

from oaml.ui.events import DOUBLE_MS, LONG_MS, Answer, KeyDown, PointerDown, PointerMove, PointerUp, Tick, dispatch
from oaml.ui.layout import find, layout
from oaml.ui.render import render
from oaml.ui.themes import theme_for
from oaml.ui.widgets import UiState, button, combobox, field, form, textbox, window

SIZE = (320, 256)
LONG = "A fairly long label for this one box"


@pytest.mark.parametrize("seed", range(12))
def test_a_long_label_leaves_room_for_its_box(seed):
    "In a form as wide as it needs, and in a window, where the label is cut."
    theme = theme_for(seed)
    for root in (form(field(textbox("a", LONG))), window("Notes", field(textbox("a", LONG)))):
        placed = layout(root, theme, SIZE)
        box = find(placed, "a").box
        assert box[2] - box[0] >= 30
        render(placed, UiState(), theme)


def test_a_list_that_is_higher_than_the_screen_is_refused():
    with pytest.raises(ValueError, match="its list of 30 does not fit"):
        layout(form(field(combobox("c", "C", "0", tuple(map(str, range(30)))))), theme_for(0), (256, 192))


def presses(*events):
    "How the presses of a button counted."
    theme = theme_for(0)
    placed = layout(form(button("b", "Go")), theme, SIZE)
    x0, y0, x1, y1 = find(placed, "b").box
    x, y = (x0 + x1)/2, (y0 + y1)/2
    ui, how = UiState(), []
    for event in (PointerMove(x, y), *events):
        if event in (PointerDown, PointerUp): event = event(x, y)
        ui, messages = dispatch(ui, placed, event, theme)
        how += [m.how for m in messages if hasattr(m, "how")]
    return how


def test_only_a_click_begins_a_double_click():
    press = PointerDown, Tick(60), PointerUp
    assert presses(*press, Tick(100), *press) == ["click", "double"]
    assert presses(*press, Tick(DOUBLE_MS + 1), *press) == ["click", "click"]
    assert presses(PointerDown, Tick(LONG_MS), PointerUp, Tick(100), *press) == ["long", "click"]
    assert presses(PointerDown, PointerUp, Tick(DOUBLE_MS + 1), KeyDown("Enter"), Tick(60), KeyDown("Enter")) == ["click", "click", "click"]


def test_an_answer_of_several_lines_is_shown_whole():
    theme = theme_for(0)
    ui, _ = dispatch(UiState(), layout(form(button("b", "Go")), theme, SIZE), Answer("yes\nno"), theme)
    assert "Answer: yes no" in [p.widget.name for p in layout(form(button("b", "Go")), theme, SIZE, ui).walk()]
