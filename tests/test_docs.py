"""The site, built from all notebooks and walked in a real Chromium: links, anchors, pictures, errors, search, keys and contrast.

With `OAML_DOCS_ALL=1` axe-core looks at every page (some ten minutes); without, at a few that differ most."""
import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from oaml.devices.connection import find_chromium

ROOT = Path(__file__).parents[1]
pytest.importorskip("smalldocs", reason="needs smalldocs, of the extra `docs`")
html = pytest.importorskip("lxml.html", reason="needs lxml, of the extra `mobile`")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `dev`")
spec = importlib.util.spec_from_file_location("docs", ROOT/".ci/docs.py")
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)

LOOKED_AT = "index viz.screens devices.serve tasks.signals howto.add_an_app".split()
MODES = {"light": dict(color_scheme="light"), "dark": dict(color_scheme="dark"),
         "narrow": dict(color_scheme="light", viewport=dict(width=320, height=640))}
TABS, FRAMES = 2, 8  # of the crawl: so many tabs at once, so many pages in each
OPEN_ALL = """names => { document.body.replaceChildren(); window.allLoaded = Promise.all(names.map(name => new Promise(done => {
  const frame = document.createElement('iframe'); frame.style.display = 'none'; frame.onload = done; frame.src = name; document.body.append(frame); }))); }"""
ALL_LOADED = "window.allLoaded.then(() => true)"
PICTURES = """() => [location.href.split('/').pop(),
  document.querySelectorAll('img:not([alt]), img[alt=""], svg:not([role=img]):not([aria-hidden]), iframe:not([title])').length,
  [...document.images].filter(i => i.loading !== 'lazy' && i.complete && !i.naturalWidth).length]"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    "The folder with the whole site, built once for all workers."
    from filelock import FileLock
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with FileLock(base/"site.lock"):
        if not (base/"site/built").exists():
            built, changed = docs.build(ROOT, base/"work", base/"site")
            assert not built.broken and len(changed) == len(built.pages)
            (base/"site/built").touch()
    return base/"site"


@pytest.fixture(scope="module")
def browser():
    "A Chromium without a network: no name but this machine's can be resolved."
    if not find_chromium(): pytest.skip("needs a Chromium on PATH")
    with sync_api.sync_playwright() as p:
        arguments = ["--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else [])]
        chromium = p.chromium.launch(executable_path=find_chromium(), args=arguments)
        yield chromium
        chromium.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


@pytest.fixture(scope="session")
def here_served():
    "A function that serves a folder over HTTP, as long as there are tests; it returns the address."
    servers = []
    def serve(folder):
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"
    yield serve
    for server in servers: server.shutdown()


@pytest.fixture(scope="session")
def served(site, here_served):
    "The site's address over HTTP."
    return here_served(site)


def links_and_anchors(path):
    "The ids of a page and what its links lead to, from its HTML."
    page = html.fromstring(path.read_bytes())
    return page.xpath("//@id"), page.xpath("//a/@href | //area/@href")


def broken_links(folder, names):
    "Links of the pages `names` to pages and anchors that are not there, and ids that occur twice, as lines."
    pages, faults = {name: links_and_anchors(folder/name) for name in names}, []
    for name, (ids, links) in pages.items():
        faults += [f"{name}: the id {i} occurs twice" for i, n in Counter(ids).items() if n > 1]
        for link in filter(None, set(links)):
            if re.match(r"[a-z]+:", link): continue
            target, anchor = urldefrag(link)
            target = unquote(target).removeprefix("./") or name
            if target in (".", "./"): target = "index.html"
            if target not in pages: faults.append(f"{name}: no page {link}")
            elif anchor and unquote(anchor) not in pages[target][0]: faults.append(f"{name}: no anchor {link}")
    return faults


def listening_tab(context, base, faults):
    "A tab that writes down what its pages ask for elsewhere, what does not come, and what their scripts complain of."
    inside, tab = (base, "data:", "about:", "blob:"), context.new_page()
    name = lambda url: url.partition("#")[0].rpartition("/")[2] or url
    tab.on("request", lambda r: r.url.startswith(inside) or faults.append(f"{name(r.frame.url)}: asks for {r.url}"))
    tab.on("response", lambda r: r.status >= 400 and faults.append(f"{name(r.frame.url)}: {r.status} for {r.url}"))
    tab.on("console", lambda m: m.type == "error" and faults.append(f"{name(m.location['url'])}: console: {m.text}"))
    tab.on("pageerror", lambda e: faults.append(f"{e}: {e.stack}"))
    return tab


def faults_in_browser(browser, base, names):
    """What is wrong with the pages `names` below the address `base` when a browser loads them, as lines: console, requests, pictures.

    Each page is loaded whole, in a frame that is not drawn: that takes half the time, and what several pages need is read once."""
    context, faults, visited = browser.new_context(), [], set()
    tabs = [listening_tab(context, base, faults) for _ in range(TABS)]
    for tab in tabs: tab.goto(f"{base}/{names[0]}", wait_until="load", timeout=120_000)
    batches = [names[k:k+FRAMES] for k in range(0, len(names), FRAMES)]
    for k in range(0, len(batches), TABS):
        working = list(zip(tabs, batches[k:k+TABS]))
        for tab, batch in working: tab.evaluate(OPEN_ALL, [f"{base}/{name}" for name in batch])
        for tab, batch in working:
            tab.evaluate(ALL_LOADED)
            for frame in tab.main_frame.child_frames:
                name, unnamed, blank = frame.evaluate(PICTURES)
                visited.add(name)
                if unnamed: faults.append(f"{name}: {unnamed} pictures or frames without a description")
                if blank: faults.append(f"{name}: {blank} pictures that do not load")
    context.close()
    return faults + [f"{name}: was not loaded" for name in names if name not in visited]


def test_links_lead_somewhere(site):
    names = sorted(p.name for p in site.glob("*.html"))
    assert len(names) == len(list((ROOT/"nbs").glob("*.ipynb")))
    faults = broken_links(site, names)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("how", ["from disk", "over HTTP"])
def test_every_page_is_whole(site, browser, request, how):
    base = site.as_uri() if how == "from disk" else request.getfixturevalue("served")
    faults = faults_in_browser(browser, base, sorted(p.name for p in site.glob("*.html")))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("how", ["from disk", "over HTTP"])
def test_the_walk_sees_planted_faults(tmp_path, browser, how, here_served):
    page = "<title>a</title><p id=x></p><p id=x></p><a href='b.html'></a><a href='#y'></a><img src='data:,'><script>{}</script>"
    (tmp_path/"a.html").write_text(page.format("console.error('oh')"))
    (tmp_path/"c.html").write_text("<script src='https://example.org/x.js'></script><script>throw Error('no')</script>")
    (tmp_path/"d.html").write_text("<title>d</title><script src='gone.js'></script><iframe title=x srcdoc='<script>console.error(1234)</script>'>")
    faults = broken_links(tmp_path, ["a.html", "c.html"])
    assert sorted(faults) == ["a.html: no anchor #y", "a.html: no page b.html", "a.html: the id x occurs twice"]
    base = tmp_path.as_uri() if how == "from disk" else here_served(tmp_path)
    faults = "\n".join(faults_in_browser(browser, base, ["a.html", "c.html", "d.html"]))
    for part in ("a.html: console: oh", "a.html: 1 pictures or frames without", "a.html: 1 pictures that do not load",
                 "c.html: asks for https://example.org/x.js", "no: Error: no", "console: Failed to load resource", "console: 1234"):
        assert part in faults, (part, faults)


@pytest.mark.parametrize("how", ["from disk", "over HTTP"])
def test_search_finds_a_function(site, browser, request, how):
    base = site.as_uri() if how == "from disk" else request.getfixturevalue("served")
    page = browser.new_page()
    page.goto(f"{base}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("draw_action")
    page.locator("a.search-result[href$='viz.screens.html#draw_action']").first.click(timeout=60_000)
    page.wait_for_url("**/viz.screens.html#draw_action")
    assert page.locator("#draw_action").is_visible()
    page.locator(".smalldocs-search input").fill("install")
    first = page.locator("a.search-result").filter(has_text="pip install").first
    first.wait_for(timeout=60_000)
    assert page.locator("a.search-result").first.get_attribute("href") == "./index.html#two-minutes"  # how one installs oaml, and not InstallApk
    page.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    "axe-core's script, from the npm registry."
    if not shutil.which("npm"): pytest.skip("needs npm, to get axe-core")
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(["npm", "pack", "--silent", "axe-core@4.14.1"], cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode: pytest.skip("axe-core can't be had from the npm registry here")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed: return packed.extractfile("package/axe.min.js").read().decode()


@pytest.mark.parametrize("mode", MODES)
def test_axe_finds_nothing_serious(site, browser, axe, mode):
    names = sorted(p.stem for p in site.glob("*.html")) if os.environ.get("OAML_DOCS_ALL") else LOOKED_AT
    context, serious = browser.new_context(**MODES[mode]), []
    page = context.new_page()
    for name in names:
        page.goto((site/f"{name}.html").as_uri())
        if name == "index" and mode != "narrow":  # there the box is in a menu
            page.locator(".smalldocs-search input").fill("install")
            page.locator("a.search-result").first.wait_for(timeout=60_000)
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then(r => r.violations)")
        serious += [f"{name}: {v['id']}: {n['html'][:160]}" for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"][:3]]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the window"
    context.close()
    assert not serious, "\n".join(serious)


# The parts

def test_words_in_backticks_become_links():
    links = {"draw_action": "viz.screens.html#draw_action", "viz.screens": "viz.screens.html", "01a_viz.screens": "viz.screens.html"}
    assert docs.linkify("see `draw_action()`, `01a_viz.screens`, `other`", links) == (
        "see [`draw_action()`](viz.screens.html#draw_action), [`viz.screens`](viz.screens.html), `other`")
    assert docs.linkify("`viz.screens` and `draw_action`", links, "viz.screens.html") == "`viz.screens` and [`draw_action`](#draw_action)"
    for kept in ("# `draw_action`", "```\n`draw_action`\n```", "[`draw_action`](x)"): assert docs.linkify(kept, links) == kept


def test_pictures_are_described_by_the_words_before_them():
    png = lambda: dict(output_type="display_data", data={"image/png": "AAAA"})
    cells = [dict(cell_type="markdown", source="## Marks\n\nA *red* [ring](x) where `click` acts."),
             dict(cell_type="code", source="f()", outputs=[png(), png()]),
             dict(cell_type="code", source='#| fig-alt: "Two <rings>"\nf()', outputs=[png()]),
             dict(cell_type="code", source="f()", outputs=[dict(data={"text/html": "<svg></svg><img alt='own' src='x'>"})])]
    docs.describe_pictures(cells, "Title")
    shown = [o["data"]["text/html"] for c in cells[1:] for o in c["outputs"]]
    assert 'alt="Marks: A red ring where click acts. (1 of 2)"' in shown[0] and "(2 of 2)" in shown[1]
    assert 'alt="Two &lt;rings&gt;"' in shown[2]
    assert shown[3] == '''<svg role="img" aria-label="Marks: A red ring where click acts."></svg><img alt='own' src='x'>'''


def test_a_widget_is_shown_in_a_frame():
    cells = [dict(cell_type="code", source="#| live: two 300\nshow()", outputs=[])]
    docs.show_widgets(cells, lambda name: f"<p>{name} & more</p>")
    shown = cells[0]["outputs"][0]["data"]["text/html"]
    assert cells[0]["source"] == "show()" and "height:300px" in shown and 'sandbox="allow-scripts"' in shown
    assert 'srcdoc="&lt;p&gt;two &amp; more&lt;/p&gt;"' in shown
    with pytest.raises(ValueError, match="no function 'nothing_of_the_kind'"): docs.live_page("nothing_of_the_kind")


def test_only_what_changed_is_built_again(tmp_path):
    "A changed word costs one page; a page that is gone leaves the site; nothing else changes."
    root, work, out = tmp_path/"repo", tmp_path/"work", tmp_path/"site"
    (root/"nbs").mkdir(parents=True)
    for name in ("index", "00d_schemas.arguments", "02e_ui.icons"): shutil.copy(ROOT/f"nbs/{name}.ipynb", root/"nbs")
    for name in ("_quarto.yml", "styles.css"): shutil.copy(ROOT/"nbs"/name, root/"nbs")
    for name in ("nbs/images", "oaml"): shutil.copytree(ROOT/name, root/name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT/"settings.ini", root)
    assert set(docs.build(root, work, out)[1]) == {"index.ipynb", "schemas.arguments.ipynb", "ui.icons.ipynb"}
    pages = {p.name: p.read_bytes() for p in out.glob("*.html")}
    assert docs.build(root, work, out)[1] == [] and pages == {p.name: p.read_bytes() for p in out.glob("*.html")}
    notebook = root/"nbs/02e_ui.icons.ipynb"
    nb = json.loads(notebook.read_text(encoding="utf-8"))
    nb["cells"][1] = dict(cell_type="markdown", id="planted", metadata={}, source="A word that was *planted*.")
    notebook.write_text(json.dumps(nb), encoding="utf-8")
    assert docs.build(root, work, out)[1] == ["ui.icons.ipynb"]
    now = {p.name: p.read_bytes() for p in out.glob("*.html")}
    assert b"was <em>planted</em>" in now["ui.icons.html"] and {n for n in now if now[n] != pages[n]} == {"ui.icons.html"}
    notebook.unlink()
    docs.build(root, work, out)
    assert sorted(p.name for p in out.glob("*.html")) == ["index.html", "schemas.arguments.html"]


def test_a_new_smalldocs_does_not_pass_unseen():
    with pytest.raises(SystemExit, match="the search index is not where"): docs.replace_once("x", "fetch", "script", "the search index")
