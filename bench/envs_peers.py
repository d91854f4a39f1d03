"""Steps a second of MiniWoB++'s own Selenium environment and of BrowserGym, each run by an interpreter that has it.

    python bench/envs_peers.py selenium                       # needs miniwob, chromium and chromedriver
    /path/to/venv/bin/python bench/envs_peers.py browsergym --html .../site-packages/miniwob/html

The second wants browsergym-miniwob==0.14.3 and the pages out of a miniwob wheel. A step is a click on a corner of the
task's area, where nothing is, with what the environment observes after it. Prints a line of JSON for each way."""
import argparse
import functools
import http.server
import json
import os
import shutil
import threading
import time

TASKS = "click-test-2", "enter-text"
CORNER = 2, 205  # pixels of the 160 x 210 area


def timed(env, action, steps, resets=3):
    "Seconds of a reset and of a step, after one reset for warming up."
    env.reset(seed=0)
    start = time.perf_counter()
    for k in range(resets): env.reset(seed=k)
    middle = time.perf_counter()
    for _ in range(steps): env.step(action)
    return (middle - start)/resets, (time.perf_counter() - middle)/steps


def selenium(task, steps):
    "miniwob's own environment."
    os.environ["MINIWOB_CHROME_BINARY"] = shutil.which("chromium") or shutil.which("google-chrome")
    os.environ["MINIWOB_CHROMEDRIVER"] = shutil.which("chromedriver")
    import gymnasium as gym
    import miniwob
    from miniwob.action import ActionTypes
    gym.register_envs(miniwob)
    env = gym.make(f"miniwob/{task}-v1")
    try: return {"selenium": timed(env, env.unwrapped.create_action(ActionTypes.CLICK_COORDS, coords=CORNER), steps)}
    finally: env.close()


def served(folder):
    "The address of a server of `folder`, in this process."
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def browsergym(task, steps, html):
    "BrowserGym as it comes, and with its half second after an action and its slow motion off."
    import playwright.sync_api as api
    launch = api.BrowserType.launch
    api.BrowserType.launch = lambda self, **kw: launch(self, **{  # its own Chromium cannot be had everywhere
        **kw, "executable_path": shutil.which("chromium"), "args": [*(kw.get("args") or []), "--no-sandbox"]})
    os.environ["MINIWOB_URL"] = served(html) + "/miniwob/"
    import browsergym.miniwob  # noqa: F401, it registers its tasks
    import gymnasium as gym
    def one(name, **options):
        env = gym.make(f"browsergym/miniwob.{task}", headless=True, **options)
        try: return {name: timed(env, f"mouse_click({CORNER[0]}, {CORNER[1]})", steps)}
        finally: env.close()
    return one("browsergym") | one("browsergym, sleeps off", slow_mo=0, pre_observation_delay=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("selenium", "browsergym"))
    parser.add_argument("--html", help="folder with MiniWoB++'s pages, for browsergym")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    for task in TASKS:
        seconds = selenium(task, args.steps) if args.peer == "selenium" else browsergym(task, args.steps, args.html)
        for name, (reset, step) in seconds.items():
            print(json.dumps(dict(peer=name, task=task, reset_ms=round(1000*reset, 1), step_ms=round(1000*step, 1),
                                  steps_per_s=round(1/step, 1))), flush=True)


if __name__ == "__main__": main()
