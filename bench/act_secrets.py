"""Episodes with secrets given to `oaml act`: is a secret's text found in any file, picture's text, line that was said, or prompt?

    python bench/act_secrets.py [EPISODES]     (200)

Devices: an application in process, the same in a browser, a page that shows what is typed wherever a page can (its text, title, address, console, a
dialog, an error). Agents: the replay, a typist who types and retypes the secret into every field, open ones too, a hosted model over a mock transport
that is told to. Goals that are reached, wrong passwords, halts. A picture is searched in its text chunks; where an open field showed the secret, its
pixels have to be one grey.
"""
import base64
import json
import os
import sys
import tempfile
from html import escape
from pathlib import Path
from random import Random
from urllib.parse import quote, quote_plus

import numpy as np
from PIL import Image

from oaml.ingest.episodes import save_episodes
from oaml.devices.connection import missing_browser
from oaml.devices.device import recorded_elements
from oaml.schemas.sessions import Action
from oaml.scripts.act import OneDevice, PersonsDevice, plan_act, play_once

LETTERS = "abcdefghijkmnopqrstuvwxyzABCDEFGHIJKLMNPQRSTUVWXYZ23456789"
SIGNS = "&%+/$#!?=_-"
PAGE = """<!doctype html><title>Sign in</title><style>body { font: 16px sans-serif; margin: 16px } label, button, p { display: block; margin: 6px 0 }</style><h1>Sign in</h1>
<label>User name <input id=u></label><label>Password <input id=p type=password></label><button id=b>Log in</button><p id=said></p><script>
const $ = id => document.getElementById(id)
$('b').onclick = () => {
  const t = $('u').value, p = $('p').value
  $('said').textContent = `Wrong: ${t} ${p.toUpperCase()}`
  document.title = p
  location.hash = encodeURIComponent(p)
  console.log('typed ' + p)
  alert(p)
  throw new Error(p)
}</script>"""
DEMO = """demonstration: 1
goal: Log in as {user} with {password}.
values: {user: ada, password: xyzzy}
title: Sign in
steps:
- {do: enter, what: {role: textbox, name: User name}, value: '{user}', source: goal, title: Sign in}
- {do: enter, what: {role: textbox, name: Password}, value: '{password}', source: goal, title: Sign in}
- {do: press, what: {role: button, name: Log in}, title: Sign in, changes: ['+ text Welcome, {user}']}
"""


class Typist:
    "Types the secret into every field twice, and presses a button."
    name = "typist"
    def attach(self, episode, device): self.device, self.todo = device, None
    def act(self, views):
        if not views[0].history: self.todo = self.course()
        return [next(self.todo, Action("done"))]
    def course(self):
        for k in range(2):
            for n in range(sum(e.role == "textbox" for e in self.device.read_elements())):
                fields = [e for e in self.device.read_elements() if e.role == "textbox"]
                if n >= len(fields): break
                yield Action("click", x=sum(fields[n].box[::2])/2, y=sum(fields[n].box[1::2])/2)
                if k: yield Action("key_press", key="ctrl+a")
                yield Action("type", text="{password}")
        e = next((e for e in self.device.read_elements() if e.role == "button" and "og" in e.name), None)
        if e: yield Action("click", x=sum(e.box[::2])/2, y=sum(e.box[1::2])/2)
        yield Action("wait")


def hosted(asked):
    "A hosted model that does what the typist does at one place, over a mock transport; what it was asked is kept."
    import httpx2
    from oaml.evals.hosted import load_hosted
    def answer(request):
        asked.append(request.content.decode())
        text = ["CLICK(x=0.5, y=0.4)", 'TYPE(text="{password}")', "WAIT()", "DONE()"][(len(asked) - 1) % 4]
        reply = dict(id="c", object="chat.completion", created=0, model="stand-in", choices=[dict(index=0, finish_reason="stop", message=dict(role="assistant", content=f"Action: {text}"))],
                     usage=dict(prompt_tokens=1, completion_tokens=1, total_tokens=2))
        return httpx2.Response(200, content=json.dumps(reply), headers={"content-type": "application/json"})
    return load_hosted("openai:stand-in", api_key="not-a-key", transport=httpx2.MockTransport(answer), concurrency=1)


def forms(secret):
    "How a file could have it."
    return {secret, secret.upper(), quote(secret, safe=""), quote_plus(secret), escape(secret), json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()}


def found_in(folder, secret, words):
    "Where the secret stands."
    found = [f"said: {w}" for w in words if any(f.casefold() in w.casefold() for f in forms(secret))]
    for file in (p for p in Path(folder).rglob("*") if p.is_file()):
        data = file.read_bytes().lower()
        if any(f.lower().encode() in data for f in forms(secret)): found.append(str(file))
        if file.suffix == ".png" and any(f in str(Image.open(file).info) for f in forms(secret)): found.append(f"{file}, its text")
    return found


def shown_in_pixels(episode):
    "Places of a secret, by its name in the tree, that are not grey all over."
    return [(step.observation.image_path, e.name) for step in episode.steps for e in recorded_elements(step.observation) if e.role == "textbox" and e.value.startswith("{password}")
            if len(np.unique(_cut(step.observation, e).reshape(-1, 3), axis=0)) > 1]


def _cut(observation, e):
    image = np.asarray(Image.open(observation.image_path).convert("RGB"))
    h, w = image.shape[:2]
    x0, y0, x1, y1 = e.box
    return image[int(y0*h):int(np.ceil(y1*h)), int(x0*w):int(np.ceil(x1*w))]


def run(n, folder):
    "Play `n` episodes; problems, and how many ended in which way."
    folder, rng, problems, ends, devices = Path(folder), Random(0), [], {}, {}
    (folder/"page.html").write_text(PAGE)
    (folder/"demo.yaml").write_text(DEMO)
    specs = ["app:login", "app:login"] if missing_browser() else ["app:login", f"page:{(folder/'page.html').as_uri()}", "html:login", "app:login"]
    try:
        for k in range(n):
            secret = "".join(rng.choices(LETTERS, k=rng.randint(5, 9))) + rng.choice(SIGNS) + "".join(rng.choices(LETTERS, k=2))
            os.environ["OAML_BENCH_SECRET"], asked, words, out = secret, [], [], folder/"runs"/str(k)
            spec, who = specs[k % len(specs)], k//len(specs) % 3
            plan = plan_act(spec, like=[str(folder/"demo.yaml")], secrets=dict(password="OAML_BENCH_SECRET"), max_steps=12)
            agent = [plan.make_agent, Typist, lambda: hosted(asked)][who]()
            device = devices[spec] if spec in devices else devices.setdefault(spec, plan.open())
            persons = PersonsDevice(device, plan.goal_of("Log in as ada with {password}.", {}), 14, dict(plan.secrets), spec)
            result = play_once(agent, OneDevice(persons, say=words.append), k, out/"screens")
            save_episodes([result.episode], out/"results.episodes.jsonl")
            problems += found_in(out, secret, [*words, result.words, *asked]) + shown_in_pixels(result.episode)
            assert any(a.text == "{password}" for a in result.episode.actions) or result.episode.ended == "halted", result.words
            ends[result.episode.ended] = ends.get(result.episode.ended, 0) + 1
    finally:
        for device in devices.values(): device.close()
    return problems, ends


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder: problems, ends = run(int(sys.argv[1]) if len(sys.argv) > 1 else 200, folder)
    print(f"{sum(ends.values())} episodes {ends}: {len(problems)} places show a secret", *problems[:20], sep="\n")
    sys.exit(bool(problems))
