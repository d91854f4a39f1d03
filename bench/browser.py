"""Playwright beside the pipes of `devices.connection`: the same pages, acts and pictures through both, in turns, in one process.

    pip install playwright
    python bench/browser.py          # a Markdown table; nothing is written

Both speak the DevTools protocol to the same Chromium with the same flags. With Playwright, its driver (a Node process) holds
the browser's pipe, a thread of ours runs its event loop, and a page's calls go through one CDP session."""
import asyncio, os, threading, time
from statistics import median
from unittest.mock import patch as patched

from oaml.devices.connection import CHROMIUM_FEATURES_OFF, CHROMIUM_FLAGS, Chromium, find_chromium
from oaml.devices.html_page import HtmlDevice
from oaml.devices.oracle import acceptable_targets
from oaml.devices.page import Page
from oaml.devices.tab import TAB_EVENTS
from oaml.miniwob.device import MiniwobDevice
from oaml.schemas.sessions import Action

TURNS, STEPS = 6, 60


class PlaywrightChromium(Chromium):
    "A browser that Playwright started; calls go to its event loop's thread."
    def restart(self):
        self._listeners, self.loop = {}, asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self._wire = type("Alive", (), dict(dead="", drop=lambda *a: None))()
        self.run(self._launch())

    def run(self, doing): return asyncio.run_coroutine_threadsafe(doing, self.loop).result(60)

    async def _launch(self):
        from playwright.async_api import async_playwright
        self.playwright = await async_playwright().start()
        flags = [*CHROMIUM_FLAGS, f"--disable-features={','.join(CHROMIUM_FEATURES_OFF)}"] + ["--no-sandbox"]*(os.geteuid() == 0)  # and none of Playwright's own
        self.browser = await self.playwright.chromium.launch(executable_path=find_chromium(), args=flags, ignore_default_args=True,
                                                             env=os.environ | dict(TZ="UTC"))
        self.root = await self.browser.new_browser_cdp_session()

    def post(self, method, session="", **params):
        return asyncio.run_coroutine_threadsafe((session or self.root).send(method, params), self.loop)

    def close(self):
        if not self._wire: return
        async def end():
            await self.browser.close()
            await self.playwright.stop()
        self.run(end())
        self._wire = None


class PlaywrightPage(Page):
    "A page of Playwright's, reused for all episodes, over one CDP session."
    def _open(self):
        async def opened():
            self._context = await self.chromium.browser.new_context()
            page = await self._context.new_page()
            session = await self._context.new_cdp_session(page)
            for event in TAB_EVENTS: session.on(event, lambda params, event=event: self._on_event(event, params))
            return session
        self.session = self.chromium.run(opened())
        self._target = self.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        for domain in ("Page", "Runtime", "Inspector", "Network", "DOM", "Overlay"): self.post(f"{domain}.enable")
        self.post("Emulation.setFocusEmulationEnabled", enabled=True)
        self.post("Input.setInterceptDrags", enabled=True)

    def close(self):
        if not self._why_dead: self.chromium.run(self._context.close())
        self._why_dead = "this page is closed"


def miniwob(chromium):
    "Steps of MiniWoB++: a click and its picture."
    device = MiniwobDevice("click-button", chromium=chromium)
    device.reset(0)
    return device, lambda k: device.perform(Action("click", x=.95, y=.1)), lambda k: device.reset(k)


def application(chromium):
    "Steps of an application in HTML: a click, typing, and their pictures."
    device = HtmlDevice("login", chromium=chromium)
    device.reset(0)
    def step(k):
        action = acceptable_targets(device)[0].action
        if action.type == "done": device.reset(k)
        else: device.perform(action)
    return device, step, lambda k: device.reset(k)


def rate(do):
    "Calls a second."
    begin = time.perf_counter()
    for k in range(STEPS): do(k)
    return STEPS/(time.perf_counter() - begin)


def main():
    begin = time.perf_counter(); ours = Chromium(); start = [time.perf_counter() - begin]
    begin = time.perf_counter(); theirs = PlaywrightChromium(); start.append(time.perf_counter() - begin)
    print("| what | pipes | Playwright | ratio |\n|:--|--:|--:|--:|")
    print(f"| start, s | {start[0]:.2f} | {start[1]:.2f} | {start[0]/start[1]:.2f} |")
    for make in (miniwob, application):
        mine = make(ours)
        with patched("oaml.devices.chromium.Page", PlaywrightPage), patched("oaml.devices.html_page.Page", PlaywrightPage):
            other = make(theirs)
        for what, at in (("steps/s", 1), ("resets/s", 2)):
            pairs = [(rate(mine[at]), rate(other[at])) for _ in range(TURNS)]
            a, b = (median(r) for r in zip(*pairs))
            print(f"| {make.__name__}, {what} | {a:.0f} | {b:.0f} | {median(y/x for x, y in pairs):.2f} |", flush=True)
        mine[0].close(), other[0].close()
    ours.close(), theirs.close()


if __name__ == "__main__": main()
