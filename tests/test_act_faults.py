"What goes wrong while `oaml act` is at it: each fault ends in a sentence or is gone round, and nothing is sent twice."
import os
import signal

import pytest

from oaml.devices.connection import missing_browser

if why := missing_browser(): pytest.skip(why, allow_module_level=True)

from orders import DEMO, open_shop
from oaml.ingest.episodes import load_episodes
from oaml.schemas.sessions import SchemaError
from oaml.scripts.act import CODES, OneDevice, PersonsDevice, act, plan_act, play_once

GOAL = "Order 5 of tea for Bob."
ONCE = [dict(name="Bob", amount="5")]


@pytest.fixture(scope="module")
def shop():
    with open_shop() as shop: yield shop


@pytest.fixture
def order(shop, tmp_path):
    "Order in the shop as it was shown, with a script in its page: exit status, last line, what was ordered."
    (tmp_path/"demo.yaml").write_text(DEMO)
    def order(script="", goal=GOAL, demo=DEMO, **options):
        (tmp_path/"demo.yaml").write_text(demo)
        shop.script, shop.orders[:] = script and f"<script>{script}</script>", []
        result = act(f"page:{shop.url}", goal, like=[str(tmp_path/"demo.yaml")], out=tmp_path/"out", say=lambda line: None, **options)
        assert load_episodes(tmp_path/"out"/"results.episodes.jsonl")[0].summary == result.words
        return result.code, result.words, list(shop.orders)
    return order


def test_the_browser_dies_and_what_was_done_is_kept(shop, tmp_path):
    (tmp_path/"demo.yaml").write_text(DEMO)
    shop.script, shop.orders[:] = "", []
    plan = plan_act(f"page:{shop.url}", like=[str(tmp_path/"demo.yaml")])
    device = plan.open()
    def say(line):
        if line.startswith(" 3."): os.killpg(device.chromium._process.pid, signal.SIGKILL)
    try: result = play_once(plan.make_agent(), OneDevice(PersonsDevice(device, GOAL, spec=plan.device), say=say), screens=tmp_path/"screens")
    finally: device.close()
    assert result.code == CODES["lost"] and result.episode.ended == "lost" and [a.type for a in result.episode.actions] == ["click", "type", "click"]
    assert result.words.startswith("broken off after 3 steps: Chromium is gone") and result.words.endswith("is not known: press the field 'Amount'") and not shop.orders


def test_a_page_that_hangs_is_given_up(order):
    code, words, ordered = order("$('amount').oninput = () => { while (true); }", deadline=1.5)
    assert code == CODES["lost"] and "did not answer" in words and words.endswith("is not known: type '5'") and not ordered


@pytest.mark.parametrize("seconds, code", [(3, "unchecked"), (30, "halted")])
def test_the_network_stalls(shop, order, seconds, code):
    shop.stall = seconds
    try: got, words, ordered = order()
    finally: shop.stall = 0.
    assert got == CODES[code] and ordered == ONCE
    if code == "halted": assert words.endswith("press the button 'Order' was done, and nothing changed")


def test_a_page_that_offers_to_try_again_is_not_sent_the_order_twice(order):
    code, words, ordered = order("""$('order').onclick = async () => {
        order()
        document.body.insertAdjacentHTML('beforeend', '<p role=alert>No answer in time.</p><button onclick="order()">Try again</button>') }""")
    assert code == CODES["halted"] and words.endswith("step 3: the screen says 'No answer in time.'") and ordered == ONCE


DIALOG = """$('amount').onfocus = () => {
    document.body.insertAdjacentHTML('beforeend', '<div role=dialog id=d style="position:fixed;inset:0;background:#fff"><h2>News</h2><button onclick="d.remove()">%s</button></div>')
    $('amount').onfocus = null }"""


def test_a_dialog_in_mid_step_is_declined_or_named(order):
    assert order(DIALOG % "Not now")[::2] == (CODES["unchecked"], ONCE)
    code, words, ordered = order(DIALOG % "Subscribe")
    assert code == CODES["halted"] and "on 'News' there are these buttons: 'Subscribe'" in words and not ordered


def test_a_question_of_the_browser_is_said(order):
    code, words, ordered = order("$('order').onclick = () => { if (confirm('Really?')) order() }")
    assert code == CODES["halted"] and words.endswith("the device had said: dialog: confirm dismissed: Really?") and not ordered


def test_an_element_that_moves_is_followed_and_no_other_is_pressed(order):
    wrong = """fetch('/order', {method: 'POST', body: JSON.stringify({name: 'WRONG', amount: '0'})})"""
    assert order(f"""$('order').onmouseenter = () => {{
        $('order').insertAdjacentHTML('beforebegin', `<button onclick="{wrong}">Delete</button>`)
        $('order').onmouseenter = null }}""")[::2] == (CODES["unchecked"], ONCE)


def test_an_element_that_does_not_stand_still_is_not_pressed(order):
    code, words, ordered = order("""document.head.insertAdjacentHTML('beforeend',
        '<style>#order { position: absolute; left: 20px; animation: m .4s linear infinite alternate } @keyframes m { from { top: 180px } to { top: 800px } }</style>')""", size=(600, 900))
    assert code == CODES["halted"] and words.endswith("the button 'Order' does not stand still; it was not pressed") and not ordered


def test_an_element_that_goes_while_it_is_pressed(order):
    code, words, ordered = order("$('order').onmousedown = () => { $('order').style.marginTop = '200px' }")
    assert code == CODES["halted"] and "'Order' was done, and " in words and not ordered


def test_a_goal_that_lacks_a_value(order):
    code, words, ordered = order(goal="Order tea for Bob.")
    assert code == CODES["halted"] and words.endswith("step 2: the goal gives nothing for {amount} (in the demonstration: '3'), for the textbox 'Amount'; add --set amount=...") and not ordered


def test_a_demonstration_of_another_application(order):
    code, words, ordered = order(demo=DEMO.replace("name: Amount", "name: Hat size"))
    assert code == CODES["halted"] and "looked for the textbox 'Hat size' to enter, and found nothing; on 'Orders' there are these" in words and not ordered


def test_a_damaged_demonstration_is_refused_before_anything_is_opened(order, shop):
    for demo, words in ((DEMO.replace("do: press", "do: prss"), "steps[2].do"), (DEMO[:-5], "line"), (DEMO.replace("{name}'", "{nme}'"), "{nme} has no value"), ("- 1\n", "is no demonstration")):
        with pytest.raises((SchemaError, ValueError), match="demo.yaml") as e: order(demo=demo)
        assert words in str(e.value)
