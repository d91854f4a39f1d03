"""Build the site of oaml's notebooks in `_docs/`: no network, no Quarto, no cell is run. `python .ci/dev.py docs` calls this.

Five steps. *Process*: nbdev's processors, with the one that runs cells replaced by one that imports the notebook's module.
*Names*: pages by module (`viz.screens.html`), links relative, the sidebar in chapters. *Render*: smalldocs, from
`nbs/_quarto.yml`. *Finish*: nothing is fetched, search works from disk and puts
guides before signatures, scrolling code takes the focus. *Widgets*: a cell
with `#| live: NAME` shows the page that `.ci/live.py`'s function NAME makes, in a frame.

What a page was made from is remembered in `_proc/`, so that a changed notebook costs only itself."""
import ast, functools, hashlib, html, importlib, importlib.util, inspect, json, os, pickle, re, shutil, sys, time, warnings
from pathlib import Path

import smalldocs, yaml
from execnb.nbio import read_nb, write_nb
from fastcore import docments
from nbdev import processors as nbdev_procs
from nbdev.doclinks import patch_name
from nbdev.frontmatter import FrontmatterProc
from nbdev.process import NBProcessor, Processor
from smalldocs import layout
from smalldocs.config import load
from smalldocs.markdown import pandoc_id
from smalldocs.site import Site

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS, GALLERY = "20", "19"  # the chapters that a reader should meet first
FIRST, LAST = ("howto.first_agent", "howto.show_it_once", "howto.training_from_zero", "howto.commands"), ("howto.roadmap",)  # of the tutorials
MAX_ALT = 200                    # characters of a picture's description that is taken from the text before it
THEME_FONTS = re.compile(r"@import url\([^)]*\);?")


# 2. Names: what a page is called, and where a word in backticks leads

def page_name(path):
    "`viz.screens` for the notebook `01a_viz.screens.ipynb`: the number is the order, no part of the name."
    return re.sub(r"^\d+[a-z]*_", "", Path(path).stem.lower())


def module_name(cells):
    "The module that a notebook exports to, or None."
    found = [m[1] for c in cells for m in [re.search(r"^#\|\s*default_exp\s+(\S+)\s*$", c["source"], re.M)] if m and c["cell_type"] == "code"]
    return f"oaml.{found[0]}".removesuffix(".__init__") if found else None


def symbol_links(root):
    """{name: page#anchor} of everything public, by its short and its full name, from the index that `nbdev_export` writes.

    A method that is written inside its class leads to the class, whose entry it is part of."""
    index = ast.literal_eval((root/"oaml/_modidx.py").read_text(encoding="utf-8").split("d = ", 1)[1])["syms"]
    links = {}
    for module, names in index.items():
        own = definition_lines(module_path(root, module)) if names else {}
        for full, (target, _) in names.items():
            name = full.removeprefix(module + ".")
            shown = name if name in own and not own[name][1] else name.partition(".")[0]
            if any(part.startswith("_") for part in shown.split(".")): continue
            links[full] = links[name] = f"{target.partition('#')[0]}#{shown.lower()}"
    return links


def all_links(root):
    "{word in backticks: address}: symbols, modules (`viz.screens`) and notebooks (`01a_viz.screens`)."
    pages = {path.stem: page_name(path) + ".html" for path in sorted((root/"nbs").glob("[0-9]*.ipynb"))}
    modules = {target.removesuffix(".html"): target for target in pages.values()}
    symbols = {name: target for name, target in symbol_links(root).items() if target.partition("#")[0] in modules.values()}
    return {f"oaml.{m}": t for m, t in modules.items()} | symbols | modules | pages


def links_for(links, here, code):
    "Those of `links` that a page means: plain words (`plan`, `step`) only where they are its own, or imported in its `code`."
    imported = set(re.findall(r"\w+", " ".join(re.findall(r"^(?:from|import) (.*(?:\([^)]*\))?)", code, re.M))))
    return {name: target for name, target in links.items()
            if not re.fullmatch("[a-z]+", name) or target.startswith(here) or name in imported}


def linkify(text, links, here=""):
    "Markdown `text` with words in backticks made links, but for fences, headings and what is a link already; `here`: this page."
    def link(m):
        target = links.get(m[2].removesuffix("()"))
        if not target or target == here: return m[0]
        word = re.sub(r"^\d+[a-z]_", "", m[2]) if target == links.get(m[2]) and "#" not in target else m[2]
        return f"[`{word}`]({target.removeprefix(here) if '#' in target else target})"
    out, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        plain = fenced or line.startswith(("    ", "#", "```"))
        out.append(line if plain else re.sub(r"(?<!\[)(`)([^`\s]+)`(?!\]|`)", link, line))
    return "\n".join(out)


def notebook_links(text):
    "Links to notebooks and files of the repository, as they are on the site."
    return re.sub(r"(\]\()(?:\./)?(\d\d[a-z]_[\w.]+)\.ipynb", lambda m: m[1] + page_name(m[2]) + ".html", text)


# 1. Process: nbdev's processors, without running a cell

def module_path(root, name):
    "The file of the module `name`."
    path = root/name.replace(".", "/")
    return file if (file := path.with_suffix(".py")).exists() else path/"__init__.py"


@functools.cache
def definition_lines(path):
    "{name: (line, the class that it is written in or '')} of a module's functions, classes, methods and patched methods."
    kinds, lines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, kinds): continue
        names = patch_name(node)
        lines |= dict.fromkeys([names] if isinstance(names, str) else names, (node.lineno, ""))
        if isinstance(node, ast.ClassDef): lines |= {f"{node.name}.{n.name}": (n.lineno, node.name) for n in node.body if isinstance(n, kinds)}
    return lines


def lenient_signature(obj, eval_str=False, **kwargs):
    "`obj`'s signature; annotations that name what is not imported (`'uvicorn.Server'`) stay as they are written."
    try: return inspect.signature(obj, eval_str=eval_str, **kwargs)
    except NameError: return inspect.signature(obj, **kwargs)

docments.signature = lenient_signature


def documentation(obj, name, source, links, here):
    "Heading, link to the `source`, signature and docstring of `obj` as Markdown, called `name`."
    text = docments.MarkdownRenderer(obj, name=name)._repr_markdown_()
    signature, fence, words = text.rpartition("\n```")
    text = signature + fence + re.sub(r"`[^`]*`|<(?=[a-zA-Z/!])", lambda m: m[0] if m[0][0] == "`" else r"\<", words)  # words, not HTML
    link = f'[source]({source}){{target="_blank" style="float:right; font-size:smaller"}}\n\n' if source else ""
    shown = name.replace("_", r"\_").replace("*", r"\*")
    return f"---\n\n{link}### {shown} {{#{name.lower()}}}\n\n{linkify(text, links, here)}\n"


class ImportedDocs(Processor):
    """Gives each `show_doc` cell its output, from the imported module: nbdev would run a part of the cells, and stop at what they lack.

    The texts are remembered beside the processed notebooks: while its module stays as it is, a notebook needs no import."""
    def begin(self):
        self.name, self.texts, self.memory = self.nb.module_, {}, self.nb.memory_
        if not self.name: return
        self.file = module_path(self.nb.root_, self.name)
        self.key = digest(self.file, self.nb.common_)
        stored = json.loads(self.memory.read_text(encoding="utf-8")) if self.memory.exists() else {}
        if stored.get("key") == self.key: self.texts = stored["texts"]

    def cell(self, cell):
        if cell.cell_type != "code" or not re.search(r"^show_doc\(", cell.source, re.M): return
        name = ast.unparse(next(n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Call)).args[0])
        if name not in self.texts: self.texts[name] = self._text(name)
        cell.outputs = [dict(output_type="display_data", metadata={}, data={"text/markdown": self.texts[name]})]

    def _text(self, name):
        obj, lines = functools.reduce(getattr, name.split("."), importlib.import_module(self.name)), definition_lines(self.file)
        where = f"{self.nb.git_}/{self.file.relative_to(self.nb.root_).as_posix()}#L{lines[name][0]}" if name in lines else ""
        return documentation(obj, name, where, self.nb.links_, self.nb.here_)

    def end(self):
        if self.texts: self.memory.write_text(json.dumps(dict(key=self.key, texts=self.texts)), encoding="utf-8")


class AddLinks(Processor):
    "Makes words in backticks links, relative ones, and keeps headings' anchors apart from those of the symbols."
    def begin(self):
        texts = ["".join(o.get("data", {}).get("text/markdown", "")) for c in self.nb.cells for o in c.get("outputs", [])]
        self.symbols = {m for t in texts for m in re.findall(r"^### .* {#(\S+)}$", t, re.M)}

    def _heading(self, m): return f"{m[0]} {{#about-{pandoc_id(m[1])}}}" if pandoc_id(m[1]) in self.symbols else m[0]

    def cell(self, cell):
        if cell.cell_type != "markdown": return
        text = re.sub(r"^#+ (.*[^}\s])$", self._heading, cell.source, flags=re.M)
        cell.source = notebook_links(linkify(text, self.nb.links_, self.nb.here_))


# Pictures say what they show

def plain_text(md):
    "Markdown as plain text in one line."
    md = re.sub(r"```.*?```", " ", md, flags=re.S)
    md = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", md)
    md = "\n".join(line for line in md.splitlines() if not line.startswith(("|", "#", "    ")))
    return re.sub(r"\s+", " ", re.sub(r"[`*_>]", "", md)).strip()


def shortened(text, n=MAX_ALT):
    "The first `n` characters of `text`, up to a word's end."
    return text if len(text) <= n else text[:n].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def described(markup, alt, k, n):
    "HTML `markup` in which pictures without a description have `alt`; `k` of `n` is said where a cell shows several."
    label = html.escape(alt + (f" ({k} of {n})" if n > 1 else ""), quote=True)
    markup = re.sub(r"<img\b(?![^>]*\balt\s*=)", f'<img alt="{label}"', markup)
    markup = re.sub(r"<iframe\b(?![^>]*\btitle\s*=)", f'<iframe title="{label}"', markup)
    return re.sub(r"<svg\b(?![^>]*\b(?:role|aria-hidden|aria-label)\s*=)", f'<svg role="img" aria-label="{label}"', markup)


def describe_pictures(cells, title):
    "Writes into the outputs what each picture shows: the cell's `fig-alt`, or the heading and the words before it."
    heading, prose = title, ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            heads = re.findall(r"^#+\s+(.+)$", cell["source"], re.M)
            text = plain_text(cell["source"])
            if heads: heading, prose = plain_text(heads[-1].replace("#", "")) or heading, ""
            if text: prose = text
        if cell["cell_type"] != "code": continue
        given = re.search(r"^#\|\s*fig-alt:\s*(.+?)\s*$", cell["source"], re.M)
        alt = given[1].strip("\"'") if given else shortened(f"{heading}: {prose}" if prose else heading)
        shown = [o for o in cell.get("outputs", []) if {"image/png", "image/jpeg", "image/svg+xml", "text/html"} & set(o.get("data", {}))]
        for k, output in enumerate(shown, 1):
            data, joined = output["data"], lambda x: "".join(x)
            for kind in ("image/png", "image/jpeg"):
                if kind in data and "text/html" not in data:
                    data["text/html"] = f'<img src="data:{kind};base64,{joined(data[kind]).strip()}" class="img-fluid">'
            if "image/svg+xml" in data and "text/html" not in data: data["text/html"] = joined(data["image/svg+xml"])
            data["text/html"] = described(joined(data["text/html"]), alt, k, len(shown))


# 5. Widgets, live

def live_page(name):
    "The HTML that `.ci/live.py`'s function `name` makes."
    spec = importlib.util.spec_from_file_location("oaml_live", Path(__file__).with_name("live.py"))
    live = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(live)
    if not hasattr(live, name): raise ValueError(f".ci/live.py has no function {name!r}, which a cell's `#| live:` asks for")
    return getattr(live, name)()


def frame(page, title, height=560):
    "The HTML `page` in a frame of its own, `height` pixels high: its scripts and styles do not meet the site's."
    return (f'<iframe class="oaml-live" title="{html.escape(title)}" loading="lazy" sandbox="allow-scripts" '
            f'style="width:100%;height:{height}px;border:1px solid #8888" srcdoc="{html.escape(page)}"></iframe>')


def show_widgets(cells, make=live_page):
    "Puts a frame in place of the outputs of cells with `#| live: NAME [HEIGHT]`."
    for cell in cells:
        wanted = re.search(r"^#\|\s*live:\s*(\w+)(?:\s+(\d+))?\s*$", cell["source"], re.M) if cell["cell_type"] == "code" else None
        if not wanted: continue
        cell["source"] = re.sub(r"^#\|\s*live:.*\n?", "", cell["source"], flags=re.M)
        cell["outputs"] = [dict(output_type="display_data", metadata={}, data={"text/html": frame(make(wanted[1]), wanted[1], int(wanted[2] or 560))})]


def procs():
    "nbdev's processors in their order, two of them replaced."
    p = nbdev_procs
    return [FrontmatterProc, p.populate_language, p.add_show_docs, p.insert_warning, p.strip_ansi, p.hide_line, p.filter_stream_,
            p.rm_header_dash, p.clean_show_doc, ImportedDocs, p.rm_export, p.ai_magics, p.clean_magics, p.hide_, AddLinks,
            p.add_fold, p.mv_exports, p.strip_hidden_metadata]


def process(root, path, links, git, common, memory):
    "The notebook at `path` as smalldocs reads it; `memory`: the file with its symbols' texts, `common`: what they depend on besides."
    nb = read_nb(path)
    nb.path_, nb.module_, nb.here_, nb.git_ = path, module_name(nb.cells), page_name(path) + ".html", git
    nb.links_ = links_for(links, nb.here_, "\n".join(c.source for c in nb.cells if c.cell_type == "code"))
    nb.root_, nb.common_, nb.memory_ = root, common, memory
    describe_pictures(nb.cells, re.sub(r"^# ", "", nb.cells[0].source.splitlines()[0]))
    show_widgets(nb.cells)
    NBProcessor(nb=nb, procs=procs()).process()
    nb.cells[0].source = re.sub(r"^output-file:.*\n", "", nb.cells[0].source, flags=re.M)
    nb.metadata.pop("widgets", None)
    return nb


# The folder that smalldocs renders

def digest(*parts):
    "A hash of bytes, texts and files."
    h = hashlib.sha256()
    for part in parts:
        h.update(part.read_bytes() if isinstance(part, Path) else part if isinstance(part, bytes) else str(part).encode())
        h.update(b"\0")
    return h.hexdigest()


def chapter_names(root):
    "{number: name} of the chapters, from the table in index.ipynb."
    text = "".join("".join(c["source"]) + "\n" for c in json.loads((root/"nbs/index.ipynb").read_text(encoding="utf-8"))["cells"])
    return {m[1]: m[2].strip() for m in re.finditer(r"^\| (\d\d) ([\w ]+?) \|", text, re.M)}


def sidebar(paths, names):
    "The sidebar: tutorials, gallery, then the chapters in their order, each by its number and name."
    by = {}
    for path in paths: by.setdefault(path.stem[:2], []).append(page_name(path) + ".ipynb")
    by.get(TUTORIALS, []).sort(key=lambda page: FIRST.index(name) - len(FIRST) if (name := page[:-6]) in FIRST else name in LAST)
    title = {TUTORIALS: "Tutorials", GALLERY: "Gallery"}
    rest = [n for n in sorted(by) if n not in title]
    label = lambda n: title.get(n) or f"{n} {names.get(n) or by[n][0].split('.')[0]}"
    sections = [dict(section=label(n), contents=by[n]) for n in [TUTORIALS, GALLERY, *rest] if n in by]
    return dict(website=dict(sidebar=dict(style="docked", contents=["index.ipynb", *sections], **{"collapse-level": 1})))


def settings(root):
    "settings.ini's values."
    from configparser import ConfigParser
    parser = ConfigParser()
    parser.read(root/"settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def prepare(root, work, paths, out):
    "Writes into `work` what smalldocs reads beside the pages."
    cfg = settings(root)
    site = dict(title=cfg["title"], description=cfg["description"])
    site |= {"site-url": cfg["doc_host"] + cfg["doc_baseurl"], "repo-branch": cfg["branch"], "repo-url": cfg["git_url"]}
    write = lambda name, value: (work/name).write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    source = [dict(text=f"v{cfg['version']}", href=f"{cfg['git_url']}/blob/{cfg['branch']}/CHANGELOG.md"),
              dict(text="GitHub", href=cfg["git_url"])]
    write("nbdev.yml", dict(project={"output-dir": os.path.relpath(out, work)}, website=site | dict(navbar=dict(right=source))))
    write("sidebar.yml", sidebar([p for p in paths if p.stem != "index"], chapter_names(root)))
    for name in ("_quarto.yml", "styles.css"): shutil.copy(root/"nbs"/name, work)
    shutil.copytree(root/"nbs/images", work/"images", dirs_exist_ok=True)


def module_bytes(root, path):
    "The bytes of the module that a notebook exports to; nothing if it has none."
    found = re.search(r"#\|\s*default_exp\s+([\w.]+)", path.read_text(encoding="utf-8"))
    file = found and module_path(root, f"oaml.{found[1]}".removesuffix(".__init__"))
    return file.read_bytes() if file and file.exists() else b""


def process_all(root, work, paths):
    "Processes the notebooks that changed; returns their names."
    links, git = all_links(root), f"{settings(root)['git_url']}/blob/{settings(root)['branch']}"
    common = digest(Path(__file__), Path(__file__).with_name("live.py"), json.dumps(links), git, smalldocs.__version__)
    stamps_file, changed, stamps = work/".stamps.json", [], {}
    known = json.loads(stamps_file.read_text()) if stamps_file.exists() else {}
    for path in paths:
        to = work/f"{page_name(path)}.ipynb"
        stamps[to.name] = digest(common, path, module_bytes(root, path))
        if known.get(to.name) == stamps[to.name] and to.exists(): continue
        try: write_nb(process(root, path, links, git, common, work/f".{to.stem}.symbols.json"), to)
        except Exception as e:
            e.add_note(f"in nbs/{path.name}")
            raise
        changed.append(to.name)
    for old in set(p.name for p in work.glob("*.ipynb")) - set(stamps): (work/old).unlink()
    stamps_file.write_text(json.dumps(stamps))
    return changed


# 3. Render: smalldocs, which remembers the pages that did not change

def self_contained(text):
    "A page that asks a server for nothing: an empty icon, and no links of an application shown in an output to its own server's pages."
    text = replace_once(text, "</head>", '<link rel="icon" href="data:,">\n</head>', "the end of a page's head")
    return re.sub(r'(<a\b[^>]*?) href="/[^"]*"', r"\1", text)


class RememberingSite(Site):
    "smalldocs' site, with its rendered pages kept between builds."
    memory: Path  # the folder with one pickle a page

    def _key(self, src):
        names = " ".join(sorted(p.name for p in self.root.glob("*.ipynb")))
        return digest(self.root/str(src), self.root/"_quarto.yml", self.root/"nbdev.yml", names, smalldocs.__version__)

    def read(self, src):
        "The page of `src`: as remembered, or read anew."
        file, key = self.memory/f"{src}.pickle", self._key(src)
        if file.exists():
            stored, page, self_broken = pickle.loads(file.read_bytes())
            if stored == key:
                page.env["remembered"] = True
                self.broken += self_broken
                return page
        return super().read(src)

    def render_page(self, page):
        "Renders a page that is not remembered, and remembers it."
        if page.env.pop("remembered", False): return
        before = len(self.broken)
        super().render_page(page)
        page.env = {k: v for k, v in page.env.items() if not callable(v)}
        body, page.body = page.body, ""  # the Markdown is not needed any more
        (self.memory/f"{page.src}.pickle").write_bytes(pickle.dumps((self._key(page.src), page, self.broken[before:])))
        page.body = body


    def page_html(self, nav, page):
        "The whole HTML of `page`: laid out anew where it or a name in the sidebar changed."
        names = [(str(p.src), p.title) for p in self.pages.values()]
        key = digest(self._key(page.src), self.root/"sidebar.yml", json.dumps(names))
        file = self.memory/f"{page.src}.html"
        stored, _, text = file.read_text(encoding="utf-8").partition("\n") if file.exists() else ("", "", "")
        if stored == key: return text
        text = self_contained(layout_page(self, nav, page))
        file.write_text(f"{key}\n{text}", encoding="utf-8")
        return text


layout_page, layout.page = layout.page, RememberingSite.page_html
side_item = layout.Layout.side_item


def remembered_side_item(self, it, depth):
    "An entry of the sidebar as text: all pages lie in one folder, so it is the same on each but its own. (Written anew, all entries on all pages take longer than all else.)"
    if it.sep or it.section or it.page is self.page: return side_item(self, it, depth)
    if not hasattr(it, "text_"): it.text_ = layout.Safe(layout.to_xml(side_item(self, it, depth), indent=False))
    return it.text_


layout.Layout.side_item = remembered_side_item


def render(work):
    "The pages of `work` as a site."
    site = RememberingSite(load(work), quiet=True)
    site.memory = work/".pages"
    site.memory.mkdir(exist_ok=True)
    site.build()
    return site


# 4. Finish: what the themes and scripts would fetch lies beside them

SEARCH_HITS = "fuse.search(q, { limit }).map((h) => h.item)"
SEARCH_RANKED = "window.oamlFound(index, q, () => fuse.search(q).map((h) => h.item)).slice(0, limit)"
SEARCH_FETCH = 'const r = await fetch(offset + "search.json");\n      index = await r.json();'
SEARCH_SCRIPT = ('index = await new Promise((done, failed) => { const s = document.createElement("script"); s.src = offset + "search.js";\n'
                 '        s.onload = () => done(window.smalldocsSearch); s.onerror = failed; document.head.appendChild(s); });')


def replace_once(text, old, new, what):
    "`text` with `old` replaced by `new`; an error where it is not there, so that a new version of smalldocs does not pass unseen."
    if text.count(old) != 1: raise SystemExit(f"smalldocs {smalldocs.__version__}: {what} is not where .ci/docs.py expects it")
    return text.replace(old, new)


def finish(out):
    "Takes from the site in `out` what would need a network or a server."
    for css in (out/"site_libs/themes").glob("*.css"):
        css.write_text(THEME_FONTS.sub("", css.read_text(encoding="utf-8")), encoding="utf-8")
    script = out/"site_libs/smalldocs.js"
    text = replace_once(script.read_text(encoding="utf-8"), SEARCH_FETCH, SEARCH_SCRIPT, "the search index")
    text = replace_once(text, SEARCH_HITS, SEARCH_RANKED, "the search")
    script.write_text(text + (Path(__file__).with_name("site.js")).read_text(encoding="utf-8"), encoding="utf-8")
    index = out/"search.json"
    (out/"search.js").write_text("window.smalldocsSearch = " + index.read_text(encoding="utf-8") + ";\n", encoding="utf-8")
    index.unlink()
    (out/".nojekyll").touch()


def build(root=ROOT, work=ROOT/"_proc", out=ROOT/"_docs"):
    "Builds the site of `root`'s notebooks in `out`; returns smalldocs' site and the pages that were processed anew."
    if str(ROOT) not in sys.path: sys.path.insert(0, str(ROOT))
    work.mkdir(parents=True, exist_ok=True)
    paths = sorted((root/"nbs").glob("*.ipynb"))
    changed = process_all(root, work, paths)
    prepare(root, work, paths, out)
    site = render(work)
    finish(out)
    return site, changed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    start = time.process_time()
    site, changed = build()
    for line in site.warnings: print("warning:", line)
    print(f"{len(site.pages)} pages in _docs/ ({len(changed)} processed anew), {time.process_time() - start:.1f} s of CPU")
    if site.broken: raise SystemExit("\n".join(f"{src}: broken link {href}" for src, href in site.broken))
