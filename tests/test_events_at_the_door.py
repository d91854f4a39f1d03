"Events without a meaning are refused by name at every device, here and over the network, and the episode goes on."
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from oaml.devices.app_device import AppDevice
from oaml.devices.chromium import PageDevice
from oaml.devices.connection import Chromium, missing_browser
from oaml.devices.html_page import HtmlDevice
from oaml.schemas.actions import parse_action
from oaml.schemas.sessions import Action
from oaml.ui.events import Answer, KeyDown, PointerDown, PointerMove, PointerUp, Text, Tick, Wheel

NAN = float("nan")
WRONG = {"PointerDown.button": dict(type="PointerDown", x=1, y=1, button="middle"), "PointerUp.button": dict(type="PointerUp", x=1, y=1, button=""),
         "PointerDown.x": dict(type="PointerDown", x=1e300, y=1), "PointerMove.y": dict(type="PointerMove", x=1, y=-1e9), "Wheel.dy": dict(type="Wheel", x=1, y=1, dx=0, dy=1e20),
         "Tick.ms": dict(type="Tick", ms=-5), "Tick.ms ": dict(type="Tick", ms=10**12), "KeyDown.key": dict(type="KeyDown", key="Enter\n"),
         "KeyDown.key ": dict(type="KeyDown", key="Entr"), "KeyDown.key  ": dict(type="KeyDown", key="hyper+a"), "Text.text": dict(type="Text", text="a\nb"),
         "Text.text ": dict(type="Text", text="\x1b[2J"), "Text.text  ": dict(type="Text", text="x"*100_000), "Answer.text": dict(type="Answer", text="a\0")}
CLASSES = {c.__name__: c for c in (Answer, KeyDown, PointerDown, PointerMove, PointerUp, Text, Tick, Wheel)}


def made(fields): return CLASSES[fields["type"]](**{k: v for k, v in fields.items() if k != "type"})


@pytest.mark.parametrize("where", WRONG)
def test_refused_where_it_is_made(where):
    with pytest.raises(ValueError, match=where.strip().replace(".", r"\.")): made(WRONG[where])


@pytest.mark.parametrize("wrong", [lambda: Tick(NAN), lambda: Tick(1.5), lambda: PointerDown(NAN, 1), lambda: PointerDown("1", 1), lambda: KeyDown(None), lambda: Text(None)])
def test_refused_for_its_type(wrong):
    with pytest.raises(ValueError): wrong()


def test_refused_over_the_network_and_the_episode_goes_on():
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("starlette")
    from oaml.devices.remote import RemoteDevice
    from oaml.devices.serve import serve_device
    with serve_device("app:login") as served, RemoteDevice(served.url) as remote, httpx.Client(trust_env=False) as http:
        clock, number = remote.reset(0).clock, remote._number
        for where, fields in WRONG.items():
            number += 1
            answer = http.post(f"{served.url}/feed", json=dict(events=[dict(type="Tick", ms=1), fields]),
                               headers={"X-Oaml-Session": remote._session, "X-Oaml-Number": str(number)})
            assert answer.status_code == 422 and where.strip() in answer.json()["error"], answer.text
        remote._number = number
        assert remote.feed([Tick(7)]).clock == clock + 7  # nothing of all that was done
        with pytest.raises(ValueError, match="100000 characters"): remote.perform(Action("type", text="x"*100_000))


def test_a_model_that_writes_without_end():
    failed = parse_action(f'TYPE(text="{"x"*100_000}")')
    assert failed.type == "failed" and "100000 characters, and 5000 at most" in failed.raw["reason"]


@pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "")
@pytest.mark.parametrize("kind", ["app", "html", "page"])
def test_one_device_in_threads(kind):
    "Each call of each thread is whole: no press of one between another's, no picture of another's episode."
    page = "<script>document.write('<h1>' + Math.random().toFixed(9) + '</h1>')</script>"
    with Chromium() as chromium:
        make = dict(app=lambda: AppDevice("login"), html=lambda: HtmlDevice("login", chromium=chromium), page=lambda: PageDevice(html=page, chromium=chromium))[kind]
        with closing(make()) as device, ThreadPoolExecutor(4) as pool:
            right = [device.reset(seed).screen_hash() for seed in range(4)]
            assert [f.screen_hash() for f in pool.map(device.reset, [0, 1, 2, 3]*3)] == right*3
            frames = list(pool.map(device.perform, [Action("click", x=.5, y=.5)]*8))
            assert len({f.clock for f in frames}) == 8
