"""Steps a second on Chromium's pages: python bench/envs_chromium.py [seconds for each row].

A step is an action by real input and a screenshot; with `tree` also what the page says is on it. One application and
one list of actions for all rows; the actions are those of a careless hand, so most of them change the screen.
bench/envs.py imports `rows`."""
import os
import sys
import time
from random import Random

from oaml.apps.app import ANY_TYPES, random_action
from oaml.devices.app_device import AppDevice
from oaml.devices.chromium import PageDevice, PagePool
from oaml.devices.connection import Chromium
from oaml.devices.html_page import HtmlDevice
from oaml.schemas.sessions import Action

APP, SEED, ACTIONS = "mail", 0, 60
COUNTER = "<!doctype html><body>" + "".join(f"<button onclick='this.textContent = ++n'>{k}</button>" for k in range(40)) + "<script>n = 0</script>"
CLICK = Action("click", x=.1, y=.06)


def acts():
    "The actions, as a careless hand chooses them from what it sees."
    device, rng, found = AppDevice(APP), Random(SEED), []
    device.reset(SEED)
    while len(found) < ACTIONS:
        found.append(random_action(rng, device.last_elements, ANY_TYPES))
        device.perform(found[-1], draw=False)
    return found


def rate(perform, reset, actions, seconds):
    "Calls of `perform` a second, the resets between rounds of `actions` left out."
    spent, done = 0., 0
    reset()
    for a in actions[:10]: perform(a)  # Chromium learns
    while spent < seconds:
        reset()
        begin = time.perf_counter()
        for a in actions: perform(a)
        spent += time.perf_counter() - begin
        done += len(actions)
    return done/spent


def in_process(seconds, draw=True):
    "The same application in this process, for comparison."
    device = AppDevice(APP)
    return rate(lambda a: device.perform(a, draw), lambda: device.reset(SEED), acts(), seconds)


def one_page(seconds, tree=False):
    "The application as HTML on one page."
    with Chromium() as chromium:
        device = HtmlDevice(APP, tree=tree, chromium=chromium)
        return rate(device.perform, lambda: device.reset(SEED), acts(), seconds)


def pages(seconds, n, tree=False, browsers=1):
    "The same on `n` pages that act at once: steps of all of them."
    with PagePool(n, lambda c: HtmlDevice(APP, tree=tree, chromium=c), browsers) as pool:
        return n*rate(lambda a: pool.perform([a]*n), lambda: pool.reset([SEED]*n), acts(), seconds)


def any_page(seconds, tree=False):
    "A click on a page of buttons with its own clock: `PageDevice`."
    with Chromium() as chromium:
        device = PageDevice(html=COUNTER, tree=tree, chromium=chromium)
        return rate(device.perform, lambda: device.reset(SEED), [CLICK]*ACTIONS, seconds)


def screenshots(seconds):
    "Nothing but pictures of a page that does not change."
    with Chromium() as chromium:
        device = PageDevice(html=COUNTER, chromium=chromium)
        return rate(lambda a: device.page.screenshot(), lambda: device.reset(SEED), [CLICK]*ACTIONS, seconds)


def rows(seconds=3.):
    "Dicts with what, pages, tree and steps_per_second; `load` is the machine's when the row began."
    todo = [("in process, not drawn", 0, False, lambda: in_process(seconds, False)), ("in process", 0, False, lambda: in_process(seconds)),
            ("screenshots alone", 1, False, lambda: screenshots(seconds)), ("any page", 1, False, lambda: any_page(seconds)),
            ("any page", 1, True, lambda: any_page(seconds, True)), (f"{APP} on a page", 1, False, lambda: one_page(seconds)),
            (f"{APP} on a page", 1, True, lambda: one_page(seconds, True))]
    todo += [(f"{APP} on a pool", n, tree, lambda n=n, t=tree: pages(seconds, n, t)) for tree in (False, True) for n in (2, 4)]
    todo += [(f"{APP} on a pool, 2 browsers", 4, False, lambda: pages(seconds, 4, browsers=2))]
    return [dict(what=what, pages=n, tree=tree, load=round(os.getloadavg()[0], 1), steps_per_second=round(do())) for what, n, tree, do in todo]


if __name__ == "__main__":
    for row in rows(*map(float, sys.argv[1:2])): print(row, flush=True)
