"The HTML renderer in a real Chromium: every application looks and acts there as it does in Pillow."
import pytest

from oaml.apps.catalog import APPS
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.html_page import HtmlDevice, check_renderers
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as c: yield c


@pytest.mark.parametrize("wrapper", ["", "@phone", "@perturbed"])
@pytest.mark.parametrize("app", APPS)
def test_both_renderers_agree(app, wrapper, chromium):
    "bench/worlds.py compares 20 seeds of each."
    assert check_renderers(app + wrapper, chromium, range(1 if wrapper else 2)) > 0


@pytest.mark.parametrize("markup", ["<script>window.hurt = 1</script>", '"><img src=x onerror="window.hurt = 1">',
                                    "' onfocus='window.hurt = 1", "&lt;b&gt; </main>"])
def test_typed_markup_stays_text(markup, chromium):
    device = HtmlDevice("login", chromium=chromium)
    device.reset(0)
    def ask(js): return device._html.page.evaluate(js)
    before = ask("document.querySelectorAll('*').length")
    x0, y0, x1, y1 = next(e for e in device.read_elements() if e.id == "username").box
    device.perform(Action("click", x=(x0+x1)/2, y=(y0+y1)/2))
    device.perform(Action("type", text=markup))
    assert next(e for e in device.read_elements() if e.id == "username").value == markup
    assert ask("window.hurt") is None
    assert ask("document.querySelectorAll('*').length") == before + 1  # the caret
    device.close()


def test_a_replay_has_the_same_bytes(chromium):
    def play(device): return [device.reset(5).screen_hash()] + [device.perform(a).screen_hash() for a in acts]
    acts = [Action("click", x=.5, y=.4), Action("type", text="a b"), Action("key_press", key="Tab"), Action("wait")]
    one = HtmlDevice("mail", chromium=chromium)
    first = play(one)
    assert play(one) == first
    with Chromium() as other: assert play(HtmlDevice("mail", chromium=other)) == first
    one.close()
