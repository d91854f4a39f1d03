// The inspector: anywidget imports this file in Jupyter; a saved page runs the same file with a stand-in for the model.
// Rows (small) are in the model; pixels and details come by message, when somebody looks. No text from a record ever
// becomes markup: every node is built by `h`, every string goes in as text.

const AHEAD = 10;     // steps whose screens are fetched before they are asked for
const KEPT = 24;      // decoded screens kept
const QUIET = 80;     // ms after the last key until details are fetched
const AGAIN = 1500;   // ms until a lost answer is asked for again
const LONG = 4000;    // characters of a text shown at once
const STRIP = 60;     // thumbnails on either side of the current step
const SVG = "http://www.w3.org/2000/svg";

// ---- building blocks ----

function h(tag, props = {}, ...kids) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = value;
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...kids.flat().filter((kid) => kid !== null && kid !== undefined && kid !== false));
  return node;
}

// A text of any length and direction; the rest of a long one comes with a button.
function longText(text, tag = "pre") {
  const node = h(tag, { class: "long", dir: "auto", text: text.slice(0, LONG) });
  if (text.length <= LONG) return node;
  const more = h("button", { type: "button", class: "more", text: `Show all ${text.length.toLocaleString("en")} characters`,
    onclick: () => { node.textContent = text; more.remove(); } });
  return h("div", {}, node, more);
}

const ICONS = {  // strokes in a square of 16
  prev: "M10 3 5 8l5 5", next: "M6 3l5 5-5 5", first: "M12 3 7 8l5 5M4 3v10", last: "M4 3l5 5-5 5M12 3v10",
  list: "M2 4h3M2 8h3M2 12h3M7 4h7M7 8h7M7 12h7", filter: "M2 3h12L9.5 8.5V13l-3-1.5v-3z", compare: "M2 3h5v10H2zM9 3h5v10H9z",
  play: "M4 2.5v11l9-5.5z", edit: "M3 13l.6-3L11 2.6l2.4 2.4L6 12.4z", help: "M5.5 6a2.5 2.5 0 1 1 3.6 2.2C8.3 8.7 8 9 8 10M8 12.6v.4",
  copy: "M5 5h8v9H5zM3 11V2h8", link: "M7 9.5 9.5 7M6.5 5.5 8 4a2.5 2.5 0 0 1 4 4l-1.5 1.5M9.5 10.5 8 12a2.5 2.5 0 0 1-4-4l1.5-1.5",
  save: "M3 3h8l2 2v8H3zM5.5 3v3.5h5V3M5 13V9.5h6V13", undo: "M6 3 3 6l3 3M3 6h6.5a3.5 3.5 0 0 1 0 7H6", close: "M4 4l8 8M12 4l-8 8",
};
function icon(name) {
  return h("svg:svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", class: "icon" }, h("svg:path", { d: ICONS[name] }));
}
function button(name, label, onclick, props = {}) {
  return h("button", { type: "button", title: label, "aria-label": label, onclick, ...props }, icon(name));
}

// ---- screens: asked for by number, kept decoded, asked for again when an answer is lost ----

class Screens {
  constructor(model, changed) {
    Object.assign(this, { model, changed, ready: new Map(), asked: new Map(), gone: new Set(), wanted: [] });
    this.timer = setInterval(() => this.askAgain(), AGAIN / 3);
  }
  close() { clearInterval(this.timer); for (const one of this.ready.values()) one.close?.(); this.ready.clear(); }
  want(numbers) {  // nearest first; what is far and old goes
    this.wanted = [...new Set(numbers.filter((n) => n !== null && n !== undefined))].slice(0, KEPT);
    const missing = this.wanted.filter((n) => !this.ready.has(n) && !this.asked.has(n) && !this.gone.has(n));
    if (missing.length) this.ask(missing);
    const near = new Set(this.wanted);
    for (const [n, one] of this.ready) {
      if (this.ready.size <= KEPT) break;
      if (!near.has(n)) { one.close?.(); this.ready.delete(n); }
    }
  }
  ask(numbers) {
    const now = performance.now();
    for (const n of numbers) this.asked.set(n, now);
    this.model.send({ ask: "screens", numbers });
  }
  askAgain() {
    const late = performance.now() - AGAIN, near = new Set(this.wanted);
    for (const [n, when] of this.asked) if (!near.has(n) && when < late) this.asked.delete(n);
    const lost = [...this.asked].filter(([n, when]) => when < late && near.has(n)).map(([n]) => n);
    if (lost.length) this.ask(lost);
  }
  async receive(number, bytes, type, url) {
    try {
      let picture;
      if (url) { picture = new Image(); picture.src = url; await picture.decode(); }
      else if (bytes && bytes.byteLength) picture = await createImageBitmap(new Blob([bytes], { type }));
      else throw new Error("gone");
      if (this.ready.has(number)) picture.close?.();
      else this.ready.set(number, picture);
    } catch { this.gone.add(number); }
    this.asked.delete(number);
    this.changed(number);
  }
}

// ---- marks: the shapes of viz.screens.marks, as SVG ----

function arcPath(x, y, r, from, to, pie) {
  if (to - from >= 360) return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  const at = (deg) => `${x + r * Math.cos(deg * Math.PI / 180)} ${y + r * Math.sin(deg * Math.PI / 180)}`;
  return (pie ? `M${x} ${y}L` : "M") + `${at(from)}A${r} ${r} 0 ${to - from > 180 ? 1 : 0} 1 ${at(to)}${pie ? "z" : ""}`;
}
function shape([kind, ...v]) {
  const line = (points) => "M" + points.map((p) => p.join(" ")).join("L");
  switch (kind) {
    case "arc": return { d: arcPath(v[0], v[1], v[2], v[3], v[4], false), width: v[5] };
    case "pie": return { d: arcPath(v[0], v[1], v[2], v[3], v[4], true), fill: true };
    case "line": return { d: line(v[0]), width: v[1] };
    default: return { d: line(v[0]) + "z", fill: true };
  }
}
function markNodes(marks, unit) {
  const paths = marks.map(shape), draw = (one, halo) => h("svg:path", {
    d: one.d, class: (halo ? "halo " : "mark ") + (one.fill ? "filled" : "stroked"),
    "stroke-width": halo ? (one.width || 0) + 2.2 * unit : one.width || 0 });
  return [...paths.map((one) => draw(one, true)), ...paths.map((one) => draw(one, false))];
}

// ---- one screen with its marks ----

class Stage {
  constructor(label) {
    this.canvas = h("canvas", { width: 4, height: 3, "aria-hidden": "true" });
    this.svg = h("svg:svg", { class: "marks", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.badge = h("div", { class: "badge", dir: "auto", "aria-hidden": "true" });
    this.veil = h("div", { class: "veil" });
    this.frame = h("div", { class: "frame" }, this.canvas, this.svg, this.badge, this.veil);
    this.caption = h("div", { class: "caption" });
    this.node = h("div", { class: "stage", role: "group", tabindex: 0, "aria-label": label }, this.frame, this.caption);
    this.picture = this.pen = null;
  }
  size([w, hgt]) {
    if (this.canvas.width !== w || this.canvas.height !== hgt) {
      this.canvas.width = w; this.canvas.height = hgt;
      this.svg.setAttribute("viewBox", `0 0 ${w} ${hgt}`);
      this.frame.style.setProperty("--ratio", w / hgt);
      this.frame.classList.toggle("small", w <= 640 && hgt <= 640);
    }
    this.unit = Math.max(1, (Math.min(w, hgt) / 192) ** 0.75);
  }
  draw(picture, size) {
    this.size(size || [picture.width, picture.height]);
    this.pen = this.pen || this.canvas.getContext("2d", { alpha: false });
    this.pen.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
  }
  mark(row, colour) {
    const [w, hgt] = row.size;
    this.size(row.size);
    const box = (b) => h("svg:rect", { class: "right", x: b[0] * w, y: b[1] * hgt, width: (b[2] - b[0]) * w, height: (b[3] - b[1]) * hgt, rx: 3 * this.unit });
    this.hot = h("svg:g", { class: "hot" });
    this.svg.replaceChildren(h("svg:g", { class: "boxes" }, row.boxes.map(box)),
      h("svg:g", { class: `act ${colour}` }, markNodes(row.marks, this.unit)), this.hot);
    const words = { type: row.badge, answer: row.badge, key_press: row.badge, wait: "wait", done: "done", failed: "failed" }[row.type];
    this.badge.hidden = words === undefined;
    this.badge.className = `badge ${row.type} ${colour}`;
    this.badge.textContent = words ?? "";
  }
  light(box) {  // the element or expected action under the pointer
    if (!this.hot) return;
    const [w, hgt] = [this.canvas.width, this.canvas.height];
    this.hot.replaceChildren(...(box ? [h("svg:rect", { x: box[0] * w, y: box[1] * hgt, width: (box[2] - box[0]) * w, height: (box[3] - box[1]) * hgt })] : []));
  }
  heat(map) {
    this.frame.querySelector(".heat")?.remove();
    if (!map || !map.length || !map[0].length) return;
    const rows = map.length, columns = map[0].length, top = Math.max(...map.flat()) || 1;
    const canvas = h("canvas", { class: "heat", width: columns, height: rows, "aria-hidden": "true" });
    const data = new ImageData(columns, rows);
    map.flat().forEach((v, i) => data.data.set([224, 17, 95, 200 * Math.max(0, v) / top], 4 * i));
    canvas.getContext("2d").putImageData(data, 0, 0);
    this.frame.insertBefore(canvas, this.svg);
  }
  place(event) {  // of a pointer, in shares of the screen
    const r = this.canvas.getBoundingClientRect();
    const share = (v, from, length) => Math.min(1, Math.max(0, (v - from) / length));
    return [share(event.clientX, r.left, r.width), share(event.clientY, r.top, r.height)];
  }
}

// ---- the inspector ----

const OUTCOMES = { true: ["good", "✓ reached"], false: ["bad", "✗ not reached"] };

class Inspector {
  constructor(model, el) {
    this.model = model;
    this.host = el;
    this.open = { thought: true, answer: true, targets: true, prompt: false, elements: true, data: false };
    this.filter = { episode: "", step: "", type: "", app: "", family: "", run: "", tag: "", words: "" };
    this.details = new Map();
    this.thumbs = new Map();
    this.asking = new Map();
    this.drawn = -1;
    this.stops = [];
    this.build();
    this.screens = new Screens(model, (n) => this.arrived(n));
    this.listen();
    this.read();
    const at = Math.min(model.get("at") || 0, this.rows.length - 1), linked = this.can_link() && /step=(\d+)/.exec(location.hash);
    const given = model.get("first_screen");  // so that the first frame waits for no answer
    if (given?.byteLength && this.rows[at].screen === model.get("first_number")) { this.screens.asked.set(this.rows[at].screen, performance.now()); this.screens.receive(this.rows[at].screen, given, ""); }
    if (model.get("comparing") && this.runs.length > 1) this.setComparing(true);
    this.show(linked ? Math.min(+linked[1], this.rows.length - 1) : at, { first: true });
  }

  // -- what the model says --

  read() {
    this.rows = this.model.get("rows") || [];
    this.heads = this.model.get("heads") || [];
    this.can = this.model.get("can") || {};
    this.order = this.rows.map((_, i) => i);
    this.runs = [...new Set(this.heads.map((t) => t.run))];
    this.title.textContent = this.model.get("title") || "Inspector";
    this.compareButton.hidden = this.runs.length < 2;
    this.editButton.hidden = !this.can.edit;
    this.playButton.hidden = !this.can.play;
    this.fillFilters();
    this.applyFilter();
    if (this.at !== undefined) this.stripTrack = null;
  }

  listen() {
    const on = (name, f) => { this.model.on(name, f); this.stops.push(() => this.model.off(name, f)); };
    on("msg:custom", (message, buffers) => this.hear(message, buffers || []));
    on("change:at", () => { const at = this.model.get("at"); if (at !== this.at) this.show(at); });
    on("change:rows change:heads", () => { const at = this.at; this.read(); this.details.clear(); this.show(Math.min(at, this.rows.length - 1)); });
    on("change:tags", () => { this.fillFilters(); this.showTags(); this.buildStrip(); });
    const dark = matchMedia("(prefers-color-scheme: dark)"), look = () => this.look(dark.matches);
    dark.addEventListener("change", look);
    const watch = new MutationObserver(look);
    watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class", "data-theme"] });
    this.stops.push(() => dark.removeEventListener("change", look), () => watch.disconnect());
    look();
    const hash = () => { const m = /step=(\d+)/.exec(location.hash); if (m) this.show(+m[1]); };
    if (this.can_link()) { addEventListener("hashchange", hash); this.stops.push(() => removeEventListener("hashchange", hash)); }
    const unfocused = (e) => { if (e.target === document.body || e.target === document.documentElement) this.key(e); };
    if (this.model.page) { document.addEventListener("keydown", unfocused); this.stops.push(() => document.removeEventListener("keydown", unfocused)); }
  }
  can_link() { return !!this.model.page && location.protocol !== "about:"; }

  look(dark) {  // JupyterLab, VS Code and plain pages each say in their own way whether they are dark
    const { jpThemeLight } = document.body.dataset, classes = document.body.className;
    if (jpThemeLight) dark = jpThemeLight === "false";
    else if (/vscode-(light|dark)/.test(classes)) dark = classes.includes("vscode-dark");
    this.root.dataset.theme = dark ? "dark" : "light";
  }

  close() { this.screens.close(); for (const t of [this.quiet, this.detailTimer, this.thumbTimer, this.noticeTimer]) clearTimeout(t); this.stops.forEach((f) => f()); }

  hear(message, buffers) {
    if ("screen" in message) this.screens.receive(message.screen, buffers[0], message.type, message.url);
    else if ("thumb" in message) this.gotThumb(message.thumb, buffers[0]);
    else if ("detail" in message) { this.details.set(message.detail, message.value); if (message.detail === this.at || this.comparing && message.detail === this.rows[this.at].peer) this.showDetail(); }
    else if ("edited" in message) this.editor?.hear(message);
    else if ("live" in message) this.live?.hear(message, buffers[0]);
  }

  // -- the parts --

  build() {
    this.title = h("span", { class: "title" });
    this.where = h("span", { class: "where", "aria-hidden": "true" });
    this.say = h("div", { class: "silent", "aria-live": "polite" });
    this.listButton = button("list", "Episodes (e)", () => this.toggleList(), { "aria-expanded": "false" });
    this.filterButton = button("filter", "Filters (f)", () => this.toggleFilters(), { "aria-expanded": "false" });
    this.compareButton = button("compare", "Two runs side by side (c)", () => this.compare(), { "aria-pressed": "false" });
    this.editButton = button("edit", "Correct this step", () => this.edit(), { "aria-pressed": "false" });
    this.playButton = button("play", "Play: act yourself", () => this.play(), { "aria-pressed": "false" });
    this.helpButton = button("help", "Keys (?)", () => this.help(), { "aria-expanded": "false" });
    const steps = h("div", { class: "steps", role: "group", "aria-label": "Move" },
      button("first", "First step (Home)", () => this.go("first")), button("prev", "Step back (←)", () => this.go(-1)), this.where,
      button("next", "Step on (→)", () => this.go(1)), button("last", "Last step (End)", () => this.go("last")));
    this.bar = h("div", { class: "bar" }, this.listButton, this.filterButton, this.title, steps,
      this.compareButton, this.editButton, this.playButton, this.helpButton);
    this.filters = h("div", { class: "filters", hidden: true });
    this.list = h("div", { class: "list", hidden: true });
    this.keys = h("div", { class: "keys", hidden: true }, Object.entries({
      "← →, j k": "step back and on", "Home End": "first and last step", "[ ]": "episode before and after", "x": "next wrong step",
      "e": "episodes", "f": "filters", "c": "two runs side by side", "t": "tag this step", "?": "these keys",
    }).map(([k, what]) => h("span", {}, h("kbd", { text: k }), " " + what)));
    this.notice = h("div", { class: "notice", role: "status", dir: "auto", hidden: true });
    this.goal = h("div", { class: "goal", dir: "auto" });
    this.chips = h("div", { class: "chips" });
    this.stage = new Stage("Screen of the step");
    this.other = new Stage("Screen of the other run");
    this.other.node.hidden = true;
    this.pair = h("div", { class: "pair" }, this.stage.node, this.other.node);
    this.panel = h("div", { class: "panel", tabindex: 0, role: "region", "aria-label": "The step" });
    this.strip = h("div", { class: "strip", role: "listbox", tabindex: 0, "aria-label": "Steps of this episode", "aria-orientation": "horizontal" });
    this.root = h("div", { class: "oaml", "data-theme": "light" }, h("style", { text: CSS }), this.bar, this.keys, this.filters, this.notice,
      h("div", { class: "head" }, this.goal, this.chips), h("div", { class: "middle" }, this.list, this.pair, this.panel), this.strip, this.say);
    this.host.setAttribute("data-lm-suppress-shortcuts", "true");  // JupyterLab's own keys stay quiet in here
    this.host.attachShadow?.({ mode: "open" }).append(this.root);
    this.root.addEventListener("keydown", (e) => this.key(e));
    this.strip.addEventListener("click", (e) => { const one = e.target.closest("[data-row]"); if (one) this.show(+one.dataset.row); });
    this.stage.frame.addEventListener("pointermove", (e) => this.hover(e));
    this.stage.frame.addEventListener("pointerleave", () => this.light(-1));
    this.seen = new IntersectionObserver((all) => this.wantThumbs(all), { root: this.strip, rootMargin: "0px 200px" });
    this.stops.push(() => this.seen.disconnect());
  }

  // -- moving --

  go(by) {
    const i = this.order.indexOf(this.at), last = this.order.length - 1;
    if (last < 0) return;
    const near = i >= 0 ? i : this.order.findIndex((r) => r > this.at);
    const next = by === "first" ? 0 : by === "last" ? last : Math.min(last, Math.max(0, (near < 0 ? last : near) + by));
    if (this.order[next] !== this.at) this.show(this.order[next]);
  }
  goEpisode(by) {
    const tracks = [...new Set(this.order.map((r) => this.rows[r].track))], i = tracks.indexOf(this.rows[this.at].track);
    const track = tracks[Math.min(tracks.length - 1, Math.max(0, i + by))];
    const row = this.order.find((r) => this.rows[r].track === track);
    if (row !== undefined && track !== this.rows[this.at].track) this.show(row);
  }
  goWrong() {
    const next = this.order.find((r) => r > this.at && this.rows[r].right === false) ?? this.order.find((r) => this.rows[r].right === false);
    if (next !== undefined) this.show(next);
  }

  show(at, { first = false } = {}) {
    if (!(at >= 0 && at < this.rows.length) || this.live) return;
    if (this.editor && at !== this.editor.row) this.editor.close();
    const before = this.rows[this.at];
    this.direction = at < (this.at ?? 0) ? -1 : 1;
    this.at = at;
    const row = this.rows[at], head = this.heads[row.track];
    if (first || !before || before.track !== row.track) this.showHead(head);
    this.where.textContent = `${row.n + 1} / ${head.n + this.rows[head.first].n}`;
    this.stage.mark(row, this.colour(row));
    this.stage.heat(null);
    if (this.comparing) this.showPeer();
    this.paint();
    this.showStrip();
    this.panel.dataset.old = "true";
    this.needed();
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.settle(), first ? 0 : QUIET);
  }
  colour(row) { return row.type === "failed" ? "bad" : row.right === false ? "wrong" : row.right ? "good" : "done"; }

  paint() {  // draw what is there; the old picture stays, dimmed, until the new one comes
    if (this.live) return;
    for (const [stage, row] of [[this.stage, this.rows[this.at]], [this.other, this.comparing ? this.peer() : null]]) {
      if (!row) continue;
      const picture = this.screens.ready.get(row.screen), none = row.screen === null || this.screens.gone.has(row.screen);
      if (picture) stage.draw(picture, row.size);
      else if (none && stage.pen) { stage.pen.fillStyle = "#808080"; stage.pen.fillRect(0, 0, stage.canvas.width, stage.canvas.height); }
      stage.veil.textContent = none ? (row.screen === null ? "no screenshot was recorded" : "the screenshot cannot be read") : "";
      stage.frame.classList.toggle("waiting", !picture && !none);
      if (stage === this.stage && (picture || none)) this.wasDrawn();
    }
  }
  wasDrawn() {
    this.root.dataset.drawn = this.at;
    if (this.drawn < 0) { this.model.set("first_drawn", Date.now()); this.model.save_changes(); }
    this.drawn = this.at;
  }
  arrived(number) {
    const peer = this.comparing && this.peer();
    if (this.rows[this.at]?.screen === number || (peer && peer.screen === number)) this.paint();
  }
  needed() {  // this screen, ten ahead in the direction of travel, a few behind
    const i = Math.max(0, this.order.indexOf(this.at)), near = [this.at];
    for (let k = 1; k <= AHEAD; k++) near.push(this.order[i + k * this.direction]);
    for (let k = 1; k <= 4; k++) near.push(this.order[i - k * this.direction]);
    const rows = near.map((r) => this.rows[r]).filter(Boolean);
    this.screens.want(rows.flatMap((r) => this.comparing && r.peer != null ? [r.screen, this.rows[r.peer].screen] : [r.screen]));
  }

  settle() {  // the keys are quiet: text, elements, heat map
    this.model.set("at", this.at);
    this.model.save_changes();
    if (this.can_link() && this.drawn >= 0 && (this.at || location.hash)) history.replaceState(null, "", `#step=${this.at}`);
    const row = this.rows[this.at], head = this.heads[row.track];
    this.stage.node.setAttribute("aria-label", `Screen of step ${row.n + 1}: ${row.text}`);
    this.say.textContent = `Step ${row.n + 1} of ${head.n + this.rows[head.first].n}: ${row.text}${row.right === false ? ", wrong" : row.right ? ", right" : ""}`;
    this.showDetail();
    if (!this.details.has(this.at)) this.askDetail(this.at);
    if (this.comparing && row.peer != null && !this.details.has(row.peer)) this.model.send({ ask: "detail", row: row.peer });
    for (let k = -1; k <= 1; k++) if (this.rows[this.at + k]?.screen != null) this.askThumb(this.rows[this.at + k].screen);
    this.flushThumbs();
  }
  askDetail(row) {
    this.model.send({ ask: "detail", row });
    clearTimeout(this.detailTimer);
    this.detailTimer = setTimeout(() => { if (this.at === row && !this.details.has(row)) this.askDetail(row); }, AGAIN);
    if (this.details.size > 200) this.details.delete(this.details.keys().next().value);
  }

  // -- keys --

  key(e) {
    e.stopPropagation();  // the notebook around has keys of its own
    const at = e.composedPath()[0];
    if (this.live) return at === this.stage.node ? this.live.key(e) : undefined;
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) {
      const closes = at.tagName === "SELECT" && e.key === "f" && !e.ctrlKey && !e.metaKey && !e.altKey;  // not the choice that begins with it
      if (closes) { e.preventDefault(); this.toggleFilters(); }
      else if (e.key === "Escape" && at !== this.stage.node) this.stage.node.focus();
      return;
    }
    const act = { ArrowLeft: () => this.go(-1), ArrowRight: () => this.go(1), k: () => this.go(-1), j: () => this.go(1),
      Home: () => this.go("first"), End: () => this.go("last"), "[": () => this.goEpisode(-1), "]": () => this.goEpisode(1),
      x: () => this.goWrong(), e: () => this.toggleList(), f: () => this.toggleFilters(), "?": () => this.help(),
      c: () => this.runs.length > 1 && this.compare(), t: () => this.tagInput?.focus() }[e.key];
    if (!act || this.editor && /^[a-z?]$/.test(e.key)) return;
    e.preventDefault();
    act();
  }
  notify(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
    clearTimeout(this.noticeTimer);
    if (text) this.noticeTimer = setTimeout(() => this.notify(""), 12000);
  }
  help() { this.toggle(this.keys, this.helpButton); }
  toggle(node, control) {
    const held = node.contains(this.root.getRootNode().activeElement);
    node.hidden = !node.hidden;
    if (node.hidden && held) this.stage.node.focus();  // what is hidden has no focus, and keys would go nowhere
    control.setAttribute("aria-expanded", String(!node.hidden));
    return !node.hidden;
  }

  // -- goal and outcome --

  showHead(head) {
    const long = head.goal.length > 160, goal = h("span", { dir: "auto", text: head.goal });
    this.goal.replaceChildren(goal);
    this.goal.classList.toggle("long", long);
    const outcome = OUTCOMES[String(head.success)];
    this.chips.replaceChildren(...[
      outcome && h("span", { class: `chip ${outcome[0]}`, text: outcome[1] }), head.app && h("span", { class: "chip", text: head.app }),
      head.family && h("span", { class: "chip", text: head.family }), head.run && h("span", { class: "chip run", text: head.run }),
      h("span", { class: "chip id", dir: "auto", text: head.id }),
      this.heads.length > 1 && h("span", { class: "chip", text: `episode ${this.heads.indexOf(head) + 1} of ${this.heads.length}` }),
    ].filter(Boolean));
    this.buildStrip();
    for (const one of this.list.hidden ? [] : this.list.querySelectorAll(".episode")) {
      const here = +one.dataset.track === this.heads.indexOf(head);
      one.classList.toggle("here", here);
      here ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current");
    }
  }

  // -- the strip of thumbnails --

  buildStrip() {
    if (this.at === undefined) return;
    const track = this.rows[this.at].track, mine = this.order.filter((r) => this.rows[r].track === track);
    if (!mine.includes(this.at)) mine.push(this.at), mine.sort((a, b) => a - b);
    const i = mine.indexOf(this.at);
    this.stripRows = mine.slice(Math.max(0, i - STRIP), i + STRIP + 1);
    this.stripTrack = track;
    this.seen.disconnect();
    this.options = new Map();
    const tags = this.model.get("tags") || {};
    this.strip.replaceChildren(...this.stripRows.map((r) => {
      const row = this.rows[r], verdict = row.right === false ? "wrong" : row.right ? "right" : "", mark = tags[this.tagKey(r)]?.length;
      const option = h("div", { role: "option", id: `oaml-${this.uid}-${r}`, "data-row": r, class: `thumb ${verdict}${row.differs ? " differs" : ""}`,
        "aria-selected": "false", "aria-label": `${row.n + 1}, ${row.text}${verdict ? ", " + verdict : ""}`, style: `--ratio:${row.size[0] / row.size[1]}` },
        h("canvas", { width: 4, height: 3, "aria-hidden": "true" }),
        h("span", { class: "label", "aria-hidden": "true" }, h("b", { text: row.n + 1 }), h("span", { class: "verb", text: row.type.replace("_", " ") }), mark ? h("i", { text: "⚑" }) : null));
      this.options.set(r, option);
      this.seen.observe(option);
      return option;
    }));
    for (const r of this.stripRows) if (this.thumbs.has(this.rows[r].screen)) this.drawThumb(r);
    this.chosen = null;
  }
  get uid() { return (this._uid = this._uid || Math.random().toString(36).slice(2, 8)); }
  showStrip() {
    const track = this.rows[this.at].track, i = this.stripRows?.indexOf(this.at) ?? -1;
    const edge = i < 8 && this.stripRows?.[0] !== this.order.find((r) => this.rows[r].track === track) || i >= 0 && i > this.stripRows.length - 8 && this.rows[this.stripRows.at(-1) + 1]?.track === track && this.stripRows.length > 2 * STRIP - 10;
    if (this.stripTrack !== track || i < 0 || edge && this.stripRows.length > STRIP) this.buildStrip();
    const option = this.options.get(this.at);
    if (this.chosen) { this.chosen.classList.remove("now"); this.chosen.setAttribute("aria-selected", "false"); }
    if (!option) return;
    option.classList.add("now");
    option.setAttribute("aria-selected", "true");
    this.strip.setAttribute("aria-activedescendant", option.id);
    this.strip.scrollLeft = option.offsetLeft - this.strip.offsetLeft - (this.strip.clientWidth - option.clientWidth) / 2;
    this.chosen = option;
  }
  wantThumbs(entries) {
    for (const e of entries) if (e.isIntersecting) this.askThumb(this.rows[+e.target.dataset.row]?.screen);
    clearTimeout(this.thumbTimer);
    this.thumbTimer = setTimeout(() => this.flushThumbs(), QUIET);
  }
  askThumb(n) { if (n != null && !this.thumbs.has(n) && !this.asking.has(n)) this.asking.set(n, 0); }
  flushThumbs() {  // a few at a time: the screens themselves come first
    const now = performance.now();
    const some = [...this.asking].filter(([, when]) => !when || now - when > 2 * AGAIN).slice(0, 6).map(([n]) => n);
    if (!some.length || [...this.asking.values()].filter((when) => when && now - when <= 2 * AGAIN).length > 6) return;
    for (const n of some) this.asking.set(n, now);
    this.model.send({ ask: "thumbs", numbers: some });
    clearTimeout(this.thumbTimer);
    this.thumbTimer = setTimeout(() => this.flushThumbs(), 2 * AGAIN + 50);
  }
  async gotThumb(n, bytes) {
    this.asking.delete(n);
    try { this.thumbs.set(n, bytes?.byteLength ? await createImageBitmap(new Blob([bytes], { type: "image/jpeg" })) : null); }
    catch { this.thumbs.set(n, null); }
    for (const r of this.stripRows || []) if (this.rows[r].screen === n) this.drawThumb(r);
    if ([...this.asking.values()].every((when) => !when)) this.flushThumbs();
  }
  drawThumb(r) {
    const picture = this.thumbs.get(this.rows[r].screen), canvas = this.options.get(r)?.firstChild;
    if (!picture || !canvas) return;
    canvas.width = picture.width; canvas.height = picture.height;
    canvas.getContext("2d").drawImage(picture, 0, 0);
    const marks = this.rows[r].marks[0];
    if (!marks) return;
    const [x, y] = marks[0] === "line" || marks[0] === "area" ? marks[1][0] : [marks[1], marks[2]], pen = canvas.getContext("2d"), k = picture.width / this.rows[r].size[0];
    pen.beginPath(); pen.arc(x * k, y * k, 5, 0, 7); pen.lineWidth = 4; pen.strokeStyle = "#fff"; pen.stroke();
    pen.lineWidth = 2; pen.strokeStyle = "#e0115f"; pen.stroke();
  }

  // -- the panel --

  showDetail() {
    const row = this.rows[this.at], detail = this.details.get(this.at);
    if (this.editor || this.live) return;
    this.lines = [];
    const peer = this.comparing && this.peer(), theirs = peer && this.details.get(row.peer);
    const parts = [this.actionLine(row, detail), peer && this.actionLine(peer, theirs)];
    if (detail) {
      if (detail.error) parts.push(h("p", { class: "error", dir: "auto" }, h("b", { text: "Why: " }), detail.error.slice(0, LONG)));
      parts.push(this.section("targets", row.right === false ? "What would have been right" : "Acceptable actions", this.targetList(detail), detail.targets.length),
        this.section("thought", "Thought", detail.thought && longText(detail.thought, "p")),
        this.section("answer", "The model's answer", this.answerOf(detail)), ...this.peerParts(peer, theirs),
        this.section("prompt", "Prompt", detail.messages && detail.messages.map((m) => h("div", { class: "turn" }, h("b", { text: m.role }), longText(String(m.content))))),
        this.section("elements", "On the screen", detail.elements.length && this.elementList(detail.elements), detail.elements.length),
        this.section("data", "Data", this.dataOf(detail)));
    } else parts.push(h("p", { class: "quiet", text: "…" }));
    this.tagsNode = h("div", { class: "tags" });
    parts.push(this.tagsNode);
    const typing = this.typedTag();
    this.panel.replaceChildren(...parts.filter(Boolean));
    delete this.panel.dataset.old;
    this.showTags();
    if (typing !== null) { this.tagInput.value = typing; this.tagInput.focus(); }
    if (detail) this.stage.heat(detail.heat);
    if (detail) this.panel.dataset.row = this.at;
  }
  actionLine(row, detail) {
    const verdict = row.type === "failed" ? ["bad", "not an action"] : row.right === false ? ["bad", "wrong"] : row.right ? ["good", "right"] : null;
    return h("div", { class: "act" }, this.comparing && h("b", { dir: "auto", text: this.heads[row.track].run || "run" }),
      h("code", { class: "dsl", dir: "auto", text: detail?.text.slice(0, LONG) ?? row.text }), verdict && h("span", { class: `chip ${verdict[0]}`, text: verdict[1] }));
  }
  peerParts(peer, detail) {  // what the other run said at this step
    if (!peer || !detail) return [];
    const run = this.heads[peer.track].run || "the other run";
    return [detail.error && h("p", { class: "error", dir: "auto" }, h("b", { text: `${run}: ` }), detail.error.slice(0, LONG)),
      this.section("thought", `Thought of ${run}`, detail.thought && longText(detail.thought, "p")), this.section("answer", `Answer of ${run}`, this.answerOf(detail))];
  }
  section(name, title, content, count) {
    if (!content || Array.isArray(content) && !content.length) return null;
    const label = count === undefined ? title : `${title} (${count})`;
    return h("details", { open: this.open[name], ontoggle: (e) => { this.open[name] = e.target.open; } }, h("summary", { text: label }), content);
  }
  line(box, ...kids) {  // a row of a list that lights its box on the screen, and is lit from there
    const i = this.lines.length;
    const node = h("li", { tabindex: box ? 0 : null, onpointerenter: () => this.light(i), onpointerleave: () => this.light(-1),
      onfocus: () => this.light(i), onblur: () => this.light(-1) }, ...kids);
    this.lines.push({ node, box });
    return node;
  }
  targetList(detail) {
    return detail.targets.length ? h("ul", { class: "lines" }, detail.targets.slice(0, 50).map((t) => this.line(t.box, h("code", { dir: "auto", text: t.text.slice(0, 300) }),
      t.name ? h("span", { class: "quiet", dir: "auto", text: ` ${t.role || ""} ${t.name}`.slice(0, 200) }) : null))) : null;
  }
  elementList(elements) {
    const list = (all) => h("ul", { class: "lines" }, all.map((e) => this.line(e.box, h("span", { class: "role", text: String(e.role || "").slice(0, 40) }),
      h("span", { dir: "auto", class: "name", text: String(e.name || "").slice(0, 200) }), e.value ? h("span", { dir: "auto", class: "value", text: String(e.value).slice(0, 200) }) : null)));
    if (elements.length <= 200) return list(elements);
    const more = h("button", { type: "button", class: "more", text: `Show all ${elements.length} elements`, onclick: () => { more.before(list(elements.slice(200))); more.remove(); } });
    return h("div", {}, list(elements.slice(0, 200)), more);
  }
  answerOf(detail) {
    if (!detail.answer) return null;
    const parts = [];
    if (detail.tokens?.length) {
      parts.push(h("p", { class: "tokens", dir: "auto" }, detail.tokens.slice(0, 600).map(([text, p]) =>
        h("span", { title: `${(100 * p).toFixed(1)}%`, style: `--p:${p}`, class: p < 0.5 ? "unsure" : "", text }))));
      const sure = Math.min(...detail.tokens.map(([, p]) => p));
      parts.push(h("p", { class: "quiet", text: `least sure of a token: ${(100 * sure).toFixed(1)}%` }));
    } else parts.push(longText(detail.answer));
    if (detail.seconds != null) parts.push(h("p", { class: "quiet", text: `${detail.seconds.toFixed(2)} s` }));
    return parts;
  }
  dataOf(detail) {
    const rows = Object.entries(detail.meta).filter(([, v]) => v !== null).map(([k, v]) =>
      [h("dt", { dir: "auto", text: k.slice(0, 60) }), h("dd", { dir: "auto", text: (typeof v === "string" ? v : JSON.stringify(v)).slice(0, 300) })]);
    const tools = h("div", { class: "tools" },
      detail.python && h("button", { type: "button", onclick: (e) => this.copy(detail.python, e.target), text: "Copy as Python" }),
      this.can_link() && h("button", { type: "button", onclick: (e) => this.copy(location.href, e.target), text: "Copy link to this step" }));
    return [h("dl", {}, rows), detail.python ? h("pre", { class: "python", text: detail.python.slice(0, LONG) }) : null, tools];
  }
  async copy(text, from) {
    const label = from.textContent;
    try { await navigator.clipboard.writeText(text); }
    catch {  // no clipboard here: let a field do it
      const field = h("textarea", { class: "silent", value: text });
      this.root.append(field); field.select(); document.execCommand("copy"); field.remove(); from.focus();
    }
    from.textContent = "Copied";
    this.say.textContent = "Copied";
    setTimeout(() => { from.textContent = label; }, 1200);
  }

  // -- hover, both ways --

  hover(event) {
    if (this.editor || this.live || !this.lines?.length) return;
    const [x, y] = this.stage.place(event);
    let best = -1, area = 2;
    this.lines.forEach(({ box }, i) => {
      if (!box || x < box[0] || x > box[2] || y < box[1] || y > box[3]) return;
      const mine = (box[2] - box[0]) * (box[3] - box[1]);
      if (mine < area) [best, area] = [i, mine];
    });
    if (best !== this.lit) this.light(best, true);
  }
  light(i, scroll = false) {
    this.lines?.[this.lit]?.node.classList.remove("lit");
    this.lit = i;
    const line = this.lines?.[i];
    this.stage.light(line?.box);
    line?.node.classList.add("lit");
    if (scroll && line) {  // only inside the panel: the page around stays where it is
      const a = line.node.getBoundingClientRect(), b = this.panel.getBoundingClientRect();
      if (a.top < b.top || a.bottom > b.bottom) this.panel.scrollTop += a.top - b.top - b.height / 2;
    }
  }

  // -- tags --

  tagKey(r) { const row = this.rows[r], head = this.heads[row.track]; return `${head.run ? head.run + "/" : ""}${head.id}#${row.n}`; }
  typedTag() {  // what stands in the field that is being typed in, or null: it goes on when the panel is drawn anew
    const input = this.tagInput;
    return input && input.dataset.row === String(this.at) && input.getRootNode().activeElement === input ? input.value : null;
  }
  showTags() {
    if (!this.tagsNode) return;
    const mine = (this.model.get("tags") || {})[this.tagKey(this.at)] || [];
    this.tagInput = h("input", { type: "text", placeholder: "tag", "aria-label": "Add a tag to this step", "data-row": this.at, maxlength: 60, list: `oaml-tags-${this.uid}`,
      onkeydown: (e) => { if (e.key === "Enter" && e.target.value.trim()) this.setTags([...new Set([...mine, e.target.value.trim()])], true); } });
    const known = [...new Set(Object.values(this.model.get("tags") || {}).flat())];
    this.tagsNode.replaceChildren(...mine.map((t) => h("button", { type: "button", class: "chip tag", dir: "auto", title: "Remove this tag", "aria-label": `Remove tag ${t}`, text: t + " ×",
      onclick: () => this.setTags(mine.filter((o) => o !== t)) })), this.tagInput, h("datalist", { id: `oaml-tags-${this.uid}` }, known.map((t) => h("option", { value: t }))));
  }
  setTags(list, stay = false) {
    const all = { ...(this.model.get("tags") || {}) }, key = this.tagKey(this.at);
    if (list.length) all[key] = list; else delete all[key];
    this.model.set("tags", all);
    this.model.save_changes();
    this.fillFilters(); this.buildStrip(); this.showStrip(); this.showTags();
    (stay ? this.tagInput : this.panel).focus();
  }

  // -- filters --

  fillFilters() {
    const values = (name) => [...new Set(name === "type" ? this.rows.map((r) => r.type) : name === "tag" ? Object.values(this.model.get("tags") || {}).flat() : this.heads.map((t) => t[name]))].filter(Boolean).sort();
    const choices = { episode: [["", "all episodes"], ["failed", "failed"], ["reached", "reached"]],
      step: [["", "all steps"], ["wrong", "wrong"], ["right", "right"], ["invalid", "not an action"], ...(this.runs.length > 1 ? [["differs", "runs disagree"]] : [])],
      ...Object.fromEntries(Object.entries({ type: "any action", app: "any application", family: "any kind of goal", run: "any run", tag: "any tag" })
        .map(([k, any]) => [k, [["", any], ...values(k).map((v) => [v, v.replaceAll("_", " ")])]])) };
    const fields = Object.entries(choices).filter(([, all]) => all.length > 2 || all === choices.episode || all === choices.step).map(([name, all]) =>
      h("select", { "aria-label": `Filter by ${name}`, "data-filter": name, onchange: (e) => { this.filter[name] = e.target.value; this.applyFilter(true); } },
        all.map(([v, label]) => h("option", { value: v, selected: this.filter[name] === v, text: label }))));
    const words = h("input", { type: "search", placeholder: "words in goal or action", "aria-label": "Filter by words", "data-filter": "words", value: this.filter.words,
      oninput: (e) => { this.filter.words = e.target.value; this.applyFilter(true); } });
    this.count = h("span", { class: "quiet count", role: "status" });
    this.filters.replaceChildren(...fields, words, this.count);
  }
  keeps(r) {
    const row = this.rows[r], head = this.heads[row.track], f = this.filter;
    if (f.episode && (f.episode === "failed" ? head.success !== false : head.success !== true)) return false;
    if (f.step && !{ wrong: row.right === false, right: row.right === true, invalid: row.type === "failed", differs: row.differs }[f.step]) return false;
    if (f.type && row.type !== f.type || ["app", "family", "run"].some((k) => f[k] && head[k] !== f[k])) return false;
    if (f.tag && !((this.model.get("tags") || {})[this.tagKey(r)] || []).includes(f.tag)) return false;
    if (!f.words) return true;
    const words = f.words.toLowerCase();
    return `${head.goal} ${head.id} ${row.text}`.toLowerCase().includes(words);
  }
  applyFilter(moved = false) {
    this.order = this.rows.map((_, r) => r).filter((r) => this.keeps(r));
    if (this.count) this.count.textContent = this.order.length === this.rows.length ? `${this.rows.length} steps` : `${this.order.length} of ${this.rows.length} steps`;
    this.filterButton.classList.toggle("on", this.order.length < this.rows.length);
    if (!this.list.hidden) this.buildList();
    if (!moved) return;
    this.stripTrack = null;
    if (this.order.length && !this.order.includes(this.at)) this.show(this.order.find((r) => r >= this.at) ?? this.order[0]);
    else this.show(this.at);
  }
  toggleFilters() { if (this.toggle(this.filters, this.filterButton)) this.filters.querySelector("select")?.focus(); }

  // -- all episodes, each with its steps as ticks --

  toggleList() { if (this.toggle(this.list, this.listButton)) { this.buildList(); (this.list.querySelector(".here") || this.list.querySelector("button"))?.focus(); } }
  buildList(most = 200) {
    const kept = new Set(this.order), tracks = this.heads.map((t, i) => ({ ...t, i })).filter((t) => { for (let r = t.first; r < t.first + t.n; r++) if (kept.has(r)) return true; return false; });
    const one = (t) => {
      const rows = this.rows.slice(t.first, t.first + t.n), mark = { true: "✓", false: "✗" }[String(t.success)] || "·", wrong = rows.filter((r) => r.right === false).length;
      const to = () => this.show(kept.has(t.first) ? t.first : this.order.find((r) => r >= t.first));
      const here = this.rows[this.at]?.track === t.i;
      return h("button", { type: "button", "data-track": t.i, "aria-current": here ? "true" : null, class: `episode ${here ? "here " : ""}${t.success === false ? "bad" : t.success ? "good" : ""}`, onclick: to,
        "aria-label": `${t.goal.slice(0, 120)}, ${t.app}, ${t.success === false ? "not reached" : t.success ? "reached" : "outcome unknown"}, ${t.n} steps${wrong ? `, ${wrong} wrong` : ""}` },
        h("span", { class: "sign", text: mark }), h("span", { class: "words", dir: "auto", text: t.goal.slice(0, 200) }),
        h("span", { class: "ticks" }, rows.slice(0, 80).map((r) => h("i", { class: r.type === "failed" || r.right === false ? "bad" : r.right ? "good" : "" }))),
        this.runs.length > 1 ? h("span", { class: "quiet", text: t.run }) : null);
    };
    const more = tracks.length > most ? h("button", { type: "button", class: "more", text: `Show all ${tracks.length} episodes`, onclick: () => this.buildList(Infinity) }) : null;
    this.list.replaceChildren(...tracks.slice(0, most).map(one), ...(more ? [more] : []));
  }

  // -- two runs in step --

  peer() { const p = this.rows[this.at]?.peer; return p == null ? null : this.rows[p]; }
  compare() { this.setComparing(!this.comparing); this.show(this.at); }
  setComparing(both) {
    this.comparing = both;
    this.compareButton.setAttribute("aria-pressed", String(both));
    this.other.node.hidden = !both;
    this.root.classList.toggle("comparing", both);
  }
  showPeer() {
    const row = this.rows[this.at], peer = this.peer(), head = (r) => this.heads[r.track];
    const label = (r) => [h("b", { text: head(r).run || "run" }), " ", OUTCOMES[String(head(r).success)] && h("span", { class: `chip ${OUTCOMES[String(head(r).success)][0]}`, text: OUTCOMES[String(head(r).success)][1] }),
      " ", h("code", { dir: "auto", text: r.text })].filter(Boolean);
    this.stage.caption.replaceChildren(...label(row));
    this.other.caption.replaceChildren(...(peer ? label(peer) : ["this run has ended here, or has no such episode"]));
    this.root.classList.toggle("disagree", row.differs === true);
    if (peer) this.other.mark(peer, this.colour(peer));
    this.other.frame.hidden = !peer;
  }

  edit() { this.editor ? this.editor.close() : this.live || (this.editor = new Editor(this)); }
  play() { this.live ? this.live.stop() : this.editor || (this.live = new Live(this)); }
}

// ---- correcting a step ----

class Editor {
  constructor(view) {
    this.view = view;
    this.row = view.at;
    const row = view.rows[view.at], detail = view.details.get(view.at), target = detail?.targets[0], id = `oaml-${view.uid}`;
    const field = (name, label, node) => {
      const error = h("div", { class: "wrong-field", id: `${id}-${name}`, role: "alert" });
      node.setAttribute("aria-describedby", error.id);
      this[name] = node; this[`${name}Error`] = error;
      return h("label", {}, label, node, error);
    };
    const text = row.type === "failed" || row.right === false && target ? target?.text ?? "" : detail?.text ?? row.text;
    const box = target?.box && row.right !== true ? target.box : null;
    this.form = h("form", { class: "form", onsubmit: (e) => { e.preventDefault(); this.send(); } },
      h("b", { text: `Correct step ${row.n + 1}` }),
      field("action", "The right action", h("input", { type: "text", class: "dsl", value: text, spellcheck: "false", autocomplete: "off" })),
      field("thought", "Why", h("textarea", { rows: 2, value: detail?.thought || "" })),
      field("box", "Its box: left, top, right, bottom", h("input", { type: "text", value: box ? box.map((v) => +v.toFixed(4)).join(", ") : "", spellcheck: "false", autocomplete: "off", oninput: () => this.show() })),
      h("p", { class: "quiet", text: "On the screen, a click says where, a drag draws the box." }),
      h("div", { class: "tools" }, h("button", { type: "submit", class: "plain main", text: view.can.save ? "Save" : "Correct" }),
        h("button", { type: "button", text: "Cancel", onclick: () => this.close() })));
    view.panel.replaceChildren(this.form);
    view.root.classList.add("editing");
    view.editButton.setAttribute("aria-pressed", "true");
    const on = (name, f) => { view.stage.frame.addEventListener(name, f); this.offs = [...this.offs || [], () => view.stage.frame.removeEventListener(name, f)]; };
    on("pointerdown", (e) => { this.from = view.stage.place(e); view.stage.frame.setPointerCapture(e.pointerId); e.preventDefault(); });
    on("pointermove", (e) => { if (this.from) this.drag(view.stage.place(e)); });
    on("pointerup", (e) => { if (this.from) this.drop(view.stage.place(e)); this.from = null; });
    this.was = { thought: this.thought.value, box: this.box.value };  // what nobody changes is left as it is
    this.show();
    this.action.focus();
  }
  numbers() { const all = this.box.value.split(/[,\s]+/).filter(Boolean).map(Number); return all.length ? all : null; }
  show() {
    const b = this.numbers(), [w, hgt] = this.view.rows[this.row].size;
    this.view.stage.svg.querySelector(".draft")?.remove();
    if (b?.length === 4 && b.every(Number.isFinite) && b[2] > b[0] && b[3] > b[1])
      this.view.stage.svg.append(h("svg:rect", { class: "draft", x: b[0] * w, y: b[1] * hgt, width: (b[2] - b[0]) * w, height: (b[3] - b[1]) * hgt }));
  }
  drag([x, y]) {
    const [a, b] = this.from;
    if (Math.hypot(x - a, y - b) < 0.012) return;
    this.box.value = [Math.min(a, x), Math.min(b, y), Math.max(a, x), Math.max(b, y)].map((v) => v.toFixed(4)).join(", ");
    this.show();
  }
  drop([x, y]) {
    if (Math.hypot(x - this.from[0], y - this.from[1]) >= 0.012) return this.drag([x, y]);
    const verb = /^\s*(CLICK|DOUBLE_CLICK|RIGHT_CLICK|LONG_PRESS|MOVE)\b/.exec(this.action.value)?.[1] || "CLICK";
    this.action.value = `${verb}(x=${x.toFixed(3)}, y=${y.toFixed(3)})`;
  }
  send() {
    const box = this.box.value === this.was.box ? null : this.numbers(), thought = this.thought.value === this.was.thought ? null : this.thought.value;
    this.view.model.send({ ask: "edit", row: this.row, action: this.action.value, thought, box: box && box.map((v) => Number.isFinite(v) ? v : "no number") });
  }
  hear({ edited, errors, notice }) {
    if (edited !== this.row) return;
    for (const name of ["action", "thought", "box"]) {
      this[`${name}Error`].textContent = errors[name] || "";
      this[name].setAttribute("aria-invalid", String(!!errors[name]));
    }
    const first = ["action", "thought", "box"].find((name) => errors[name]);
    if (first) return this[first].focus();
    this.view.details.delete(this.row);
    this.close();
    this.view.notify(`Corrected; ${notice}`);
  }
  close() {
    this.offs.forEach((f) => f());
    this.view.editor = null;
    this.view.root.classList.remove("editing");
    this.view.editButton.setAttribute("aria-pressed", "false");
    this.view.show(this.view.at);
    this.view.stage.node.focus();
  }
}

// ---- acting oneself: pointer and keys become actions, one in flight ----

const KEY_NAMES = { ArrowLeft: "Left", ArrowRight: "Right", ArrowUp: "Up", ArrowDown: "Down" };
const NAMED = /^(Enter|Escape|Backspace|Delete|Insert|Left|Right|Up|Down|PageUp|PageDown|Home|End|F\d+)$/;

class Live {
  constructor(view) {
    Object.assign(this, { view, queue: [], busy: false, n: 0, offs: [] });
    const act = (label, action) => h("button", { type: "button", class: "plain", text: label, onclick: () => { this.push(action); view.stage.node.focus(); } });
    this.answer = h("input", { type: "text", "aria-label": "Answer", placeholder: "answer", size: 12, onkeydown: (e) => { if (e.key === "Enter" && e.target.value) { this.push({ type: "answer", text: e.target.value.normalize("NFC") }); e.target.value = ""; } } });
    this.goal = h("p", { dir: "auto", class: "long" });
    this.did = h("ol", { class: "did" });
    this.note = h("p", { class: "quiet", role: "status", text: "Starting…" });
    view.panel.replaceChildren(h("b", { text: "Playing" }), this.goal, h("div", { class: "livebar" },
      h("button", { type: "button", class: "plain", onclick: () => this.push({ type: "undo" }), text: "Undo" }), act("Wait", { type: "wait" }), act("Tab key", { type: "key_press", key: "Tab" }),
      act("Done", { type: "done" }), this.answer, h("button", { type: "button", class: "plain main", text: "Stop and keep", onclick: () => this.stop() })), this.note, this.did);
    view.root.classList.add("living");
    view.playButton.setAttribute("aria-pressed", "true");
    view.stage.svg.replaceChildren();
    view.stage.badge.hidden = true;
    const on = (node, name, f, how) => { node.addEventListener(name, f, how); this.offs.push(() => node.removeEventListener(name, f, how)); };
    const frame = view.stage.frame;
    on(frame, "pointerdown", (e) => this.down(e));
    on(frame, "pointerup", (e) => this.up(e));
    on(frame, "contextmenu", (e) => e.preventDefault());
    on(frame, "wheel", (e) => this.wheel(e), { passive: false });
    this.head("");
    this.ask({ do: "start" });
    view.stage.node.focus();
  }
  head(goal, verdict) {  // what is played now, not the episode that was looked at before
    this.view.goal.textContent = this.goal.textContent = goal;
    this.view.chips.replaceChildren(h("span", { class: "chip", text: "playing" }), ...(verdict ? [h("span", { class: `chip ${verdict[0]}`, text: verdict[1] })] : []));
  }
  down(e) {
    e.preventDefault();
    this.view.stage.node.focus({ preventScroll: true });
    this.view.stage.frame.setPointerCapture(e.pointerId);
    this.from = { place: this.view.stage.place(e), when: performance.now() };
  }
  up(e) {
    if (!this.from) return;
    const [x, y] = this.from.place, [x2, y2] = this.view.stage.place(e), now = performance.now(), held = now - this.from.when;
    const near = this.last && now - this.last.when < 400 && Math.hypot(x - this.last.x, y - this.last.y) < 0.01;
    if (Math.hypot(x2 - x, y2 - y) > 0.015) this.push({ type: "drag", x, y, x2, y2 });
    else if (e.button === 2) this.push({ type: "right_click", x, y });
    else if (held > 600) this.push({ type: "long_press", x, y });
    else this.push({ type: near ? "double_click" : "click", x, y });
    this.last = near ? null : { x, y, when: now };
    this.from = null;
  }
  wheel(e) {
    e.preventDefault();
    const [x, y] = this.view.stage.place(e), r = this.view.stage.canvas.getBoundingClientRect(), line = e.deltaMode ? 16 : 1;
    const share = (v) => Math.min(1, Math.max(-1, v));
    const action = { type: "scroll", x, y, dx: share(e.deltaX * line / r.width), dy: share(e.deltaY * line / r.height) }, last = this.queue.at(-1);
    if (last?.type === "scroll") { last.dx = share(last.dx + action.dx); last.dy = share(last.dy + action.dy); } else this.push(action);
  }
  key(e) {
    const key = KEY_NAMES[e.key] || e.key, mods = ["ctrl", "alt", "meta"].filter((m) => e[`${m}Key`]);
    if (e.key === "Tab" || e.isComposing) return;  // Tab leaves the screen; the button sends one
    if (NAMED.test(key)) this.push({ type: "key_press", key: [e.ctrlKey && "ctrl", e.altKey && "alt", e.shiftKey && "shift", e.metaKey && "meta", key].filter(Boolean).join("+") });
    else if (key.length === 1 && mods.length && !(e.altKey && e.ctrlKey)) this.push({ type: "key_press", key: [...(e.ctrlKey ? ["ctrl"] : []), ...(e.altKey ? ["alt"] : []), ...(e.shiftKey ? ["shift"] : []), ...(e.metaKey ? ["meta"] : []), key.toLowerCase()].join("+") });
    else if ([...key].length === 1) this.push({ type: "type", text: key.normalize("NFC") });
    else return;
    e.preventDefault();
  }
  push(action) {
    const last = this.queue.at(-1);
    if (last?.type === "type" && action.type === "type") last.text += action.text;
    else this.queue.push(action);
    this.next();
  }
  next() {
    if (this.busy || !this.queue.length) return;
    const action = this.queue.shift();
    this.ask(action.type === "undo" ? { do: "undo" } : { do: "act", action });
  }
  ask(what) {
    this.busy = true;
    this.sent = performance.now();
    this.view.model.send({ ask: "play", n: ++this.n, ...what });
  }
  async hear(message, bytes) {
    if (message.stopped) return this.close(message);
    if (message.live !== this.n) return;
    if (message.error) this.note.textContent = message.error;
    else if (bytes) {
      const picture = await createImageBitmap(new Blob([bytes], { type: "image/jpeg" }));
      this.view.stage.draw(picture, message.size);
      picture.close();
      this.view.root.dataset.live = message.live;
      this.view.root.dataset.liveMs = (performance.now() - this.sent).toFixed(1);
      this.head(message.goal, message.over && OUTCOMES[String(message.success)]);
      this.did.replaceChildren(...message.steps.map((text) => h("li", { dir: "auto" }, h("code", { text }))));
      this.did.lastChild?.scrollIntoView?.({ block: "nearest" });
      this.note.textContent = message.over ? (message.success ? "Ended: the goal is reached." : "Ended, and the goal is not reached.") : "Click, drag, scroll and type on the screen. The Tab key leaves it.";
    }
    this.busy = false;
    this.next();
    if (this.stopping) this.stop();
  }
  stop() {  // after what is still to be done
    this.stopping = this.busy || this.queue.length > 0;
    if (!this.stopping) this.view.model.send({ ask: "stop", n: ++this.n });
  }
  close({ row, notice } = {}) {
    this.offs.forEach((f) => f());
    this.view.live = null;
    this.view.root.classList.remove("living");
    this.view.playButton.setAttribute("aria-pressed", "false");
    this.view.stage.size(this.view.rows[this.view.at].size);
    this.view.show(row !== undefined && row < this.view.rows.length ? row : this.view.at, { first: true });  // its goal and verdict, too
    if (notice) this.view.notify(notice);
    this.view.playButton.focus();
  }
}

// ---- curves of trainings, as they grow ----

const LINES = ["#1f6fd6", "#c2410c", "#128a4a", "#8b3fc7", "#b8860b", "#0f8b8d", "#c0267e", "#5d6672"];

function smoothed(values, half) {  // means of neighbours, fewer at the ends, so that nothing lags; a gap stays one
  return values.map((v, i) => {
    const n = Math.min(half, i, values.length - 1 - i), near = values.slice(i - n, i + n + 1).filter((w) => w !== null);
    return v === null ? null : near.reduce((a, b) => a + b) / near.length;
  });
}
function ticks(low, high, most = 4) {  // round numbers between
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw)), unit = [1, 2, 5, 10].find((u) => u * power >= raw) * power, out = [];
  for (let v = Math.ceil(low / unit) * unit; v <= high + unit * 1e-6; v += unit) out.push(+v.toPrecision(10));
  return out;
}
const short = (v) => v === null ? "not finite" : Math.abs(v) >= 1e5 || v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1) : +v.toPrecision(4) + "";

class Training {
  constructor(model, el) {
    Object.assign(this, { model, hidden: new Set(), smooth: true, stops: [] });
    this.status = h("span", { class: "quiet", role: "status" });
    this.legend = h("div", { class: "legend", role: "group", "aria-label": "Runs" });
    this.charts = h("div", { class: "charts" });
    const smooth = h("button", { type: "button", class: "plain", "aria-pressed": "true", text: "Smooth", onclick: () => { this.smooth = !this.smooth; smooth.setAttribute("aria-pressed", String(this.smooth)); this.draw(); } });
    this.root = h("div", { class: "oaml", "data-theme": "light" }, h("style", { text: CSS }),
      h("div", { class: "bar" }, h("span", { class: "title", text: model.get("title") || "Training" }), this.status, smooth), this.legend, this.charts);
    el.setAttribute("data-lm-suppress-shortcuts", "true");
    el.attachShadow?.({ mode: "open" }).append(this.root);
    this.root.addEventListener("keydown", (e) => e.stopPropagation());
    const dark = matchMedia("(prefers-color-scheme: dark)"), look = () => Inspector.prototype.look.call(this, dark.matches), change = () => this.draw();
    dark.addEventListener("change", look);
    model.on("change:curves", change);
    const watch = new MutationObserver(look);
    watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class", "data-theme"] });
    this.stops.push(() => dark.removeEventListener("change", look), () => model.off("change:curves", change), () => watch.disconnect());
    look();
    this.draw();
  }
  close() { this.stops.forEach((f) => f()); }

  draw() {
    const runs = this.model.get("curves"), names = Object.keys(runs), all = [...new Set(names.flatMap((r) => Object.keys(runs[r])))];
    const last = Math.max(0, ...names.flatMap((r) => Object.values(runs[r]).map(([steps]) => steps.at(-1) ?? 0)));
    this.status.textContent = `step ${last.toLocaleString("en")}`;
    this.root.dataset.step = last;
    this.legend.replaceChildren(...names.map((r, i) => h("button", { type: "button", class: "plain", "aria-pressed": String(!this.hidden.has(r)), style: `--c:${LINES[i % LINES.length]}`, dir: "auto",
      onclick: () => { this.hidden.has(r) ? this.hidden.delete(r) : this.hidden.add(r); this.draw(); } }, h("i", {}), r)));
    this.charts.replaceChildren(...all.map((name) => this.chart(name, names.filter((r) => runs[r][name] && !this.hidden.has(r)).map((r) => ({ run: r, colour: LINES[names.indexOf(r) % LINES.length], steps: runs[r][name][0], values: runs[r][name][1] })))).filter(Boolean));
  }

  chart(name, lines) {
    if (!lines.length) return null;
    const W = 320, H = 170, left = 46, right = 10, top = 10, bottom = 24, values = lines.flatMap((l) => l.values).filter((v) => v !== null), rate = /success|accuracy|reached|click_in_box|click_within/.test(name);
    let low = rate ? 0 : Math.min(...values), high = rate ? 1 : Math.max(...values);
    if (!values.length) low = high = 0;
    if (low > 0 && low < 0.4 * high) low = 0;
    if (low === high) high = low + (Math.abs(low) || 1);
    const first = Math.min(...lines.map((l) => l.steps[0])), last = Math.max(first + 1, ...lines.map((l) => l.steps.at(-1)));
    const x = (v) => left + (W - left - right) * (v - first) / (last - first), y = (v) => top + (H - top - bottom) * (1 - (v - low) / (high - low));
    const path = (steps, vs) => steps.map((s, i) => vs[i] === null ? "" : `${i && vs[i - 1] !== null ? "L" : "M"}${x(s).toFixed(1)} ${y(vs[i]).toFixed(1)}`).join("");
    const svg = h("svg:svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${name} over steps: ` + lines.map((l) => `${l.run} ends at ${short(l.values.at(-1))}`).join("; ") });
    for (const t of ticks(low, high)) svg.append(h("svg:line", { class: "grid", x1: left, x2: W - right, y1: y(t), y2: y(t) }), h("svg:text", { x: left - 6, y: y(t) + 3.5, "text-anchor": "end", text: short(t) }));
    for (const t of ticks(first, last, 5)) svg.append(h("svg:text", { x: x(t), y: H - 8, "text-anchor": "middle", text: short(t) }));
    for (const l of lines) {
      const half = Math.round(l.values.length / 30), soft = this.smooth && half > 0 && !rate;
      if (soft) svg.append(h("svg:path", { class: "curve faint", d: path(l.steps, l.values), stroke: l.colour }));
      svg.append(h("svg:path", { class: "curve", d: path(l.steps, soft ? smoothed(l.values, half) : l.values), stroke: l.colour }));
      if (l.steps.length < 40) for (let i = 0; i < l.steps.length; i++) if (l.values[i] !== null) svg.append(h("svg:circle", { cx: x(l.steps[i]), cy: y(l.values[i]), r: 2.4, fill: l.colour }));
    }
    const rule = h("svg:line", { class: "rule", y1: top, y2: H - bottom, x1: -9, x2: -9 });
    svg.append(rule);
    const note = h("p", { class: "quiet", text: lines.map((l) => short(l.values.at(-1))).join("  ·  ") });
    svg.addEventListener("pointermove", (e) => {
      const r = svg.getBoundingClientRect(), step = first + ((e.clientX - r.left) / r.width * W - left) / (W - left - right) * (last - first);
      const near = (l) => l.steps.reduce((best, s, i) => Math.abs(s - step) < Math.abs(l.steps[best] - step) ? i : best, 0), at = near(lines[0]);
      rule.setAttribute("x1", x(lines[0].steps[at])); rule.setAttribute("x2", x(lines[0].steps[at]));
      note.textContent = `step ${lines[0].steps[at].toLocaleString("en")}:  ` + lines.map((l) => short(l.values[near(l)])).join("  ·  ");
    });
    svg.addEventListener("pointerleave", () => { rule.setAttribute("x1", -9); rule.setAttribute("x2", -9); note.textContent = lines.map((l) => short(l.values.at(-1))).join("  ·  "); });
    return h("figure", {}, h("figcaption", { text: name, dir: "auto" }), svg, note);
  }
}

// ---- the look ----

const CSS = `
:host { display: block; }
.oaml { --bg: #fff; --panel: #f6f7f9; --raise: #fff; --ink: #1c2128; --soft: #56606c; --line: #d8dde4; --accent: #b30d4d; --mark: #e0115f;
  --good: #0b6e3b; --good-bg: #e2f4ea; --bad: #b4182a; --bad-bg: #fde8ea; --warn: #9a4a05; --blue: #1a5fc4; --hover: #eceff3; --right: #128a4a; --halo: #fff;
  container-type: inline-size; background: var(--bg); color: var(--ink); border: 1px solid var(--line); border-radius: 10px;
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; overflow: hidden; text-align: start; }
.oaml[data-theme=dark] { --bg: #14171c; --panel: #1a1e25; --raise: #222731; --ink: #e8ebef; --soft: #a5afbb; --line: #353c47; --accent: #ff7ab0; --mark: #ff3d86;
  --good: #5bd197; --good-bg: #12331f; --bad: #ff8b93; --bad-bg: #411a1f; --warn: #f3a956; --blue: #82b5ff; --hover: #262c36; --halo: #0d0f12; color-scheme: dark; }
.oaml *, .oaml *::before { box-sizing: border-box; }
.oaml [hidden] { display: none !important; }
button, select, input, textarea { font: inherit; color: inherit; }
button { background: none; border: 1px solid transparent; border-radius: 6px; padding: 4px 6px; cursor: pointer; line-height: 1; }
button:hover { background: var(--hover); }
button[aria-pressed=true], button[aria-expanded=true] { background: var(--hover); border-color: var(--line); color: var(--accent); }
button.on { color: var(--accent); }
button:disabled { opacity: .45; cursor: default; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 1px; }
.icon { display: block; fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; pointer-events: none; }
select, input, textarea { background: var(--raise); border: 1px solid var(--line); border-radius: 6px; padding: 4px 7px; min-width: 0; max-width: 100%; }
code, pre, .dsl, .role { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: 12.5px; }
.silent { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; padding: 0; border: 0; }
.quiet { color: var(--soft); } p.quiet { margin: 4px 0; font-size: 12.5px; }
.bar { display: flex; align-items: center; gap: 2px; padding: 6px 8px; border-bottom: 1px solid var(--line); background: var(--panel); }
.title { font-weight: 600; margin: 0 8px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; flex: 1; unicode-bidi: isolate; }
.steps { display: flex; align-items: center; margin-inline-end: 6px; }
.where { font-variant-numeric: tabular-nums; min-width: 5.2em; text-align: center; white-space: nowrap; }
.keys, .filters { display: flex; flex-wrap: wrap; gap: 6px 10px; padding: 8px 12px; border-bottom: 1px solid var(--line); align-items: center; }
.keys { color: var(--soft); }
kbd { font: 12px ui-monospace, Menlo, Consolas, monospace; color: var(--ink); background: var(--raise); border: 1px solid var(--line); border-bottom-width: 2px; border-radius: 4px; padding: 1px 5px; }
.notice { padding: 6px 14px; color: var(--good); background: var(--good-bg); font-weight: 600; overflow-wrap: anywhere; }
.filters input { flex: 1 1 150px; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; padding: 10px 14px 8px; }
.goal { font-size: 16px; font-weight: 550; line-height: 1.35; flex: 1 1 320px; min-width: 0; overflow-wrap: anywhere; max-height: 6.75em; overflow: auto; unicode-bidi: isolate; }
.goal.long { font-size: 14px; }
.chips { display: flex; flex-wrap: wrap; gap: 5px; }
.chip { display: inline-block; font-size: 12px; line-height: 1.3; padding: 2px 8px; border-radius: 99px; border: 1px solid var(--line); color: var(--soft); max-width: 24em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; vertical-align: middle; }
.chip.good { color: var(--good); background: var(--good-bg); border-color: transparent; font-weight: 600; }
.chip.bad { color: var(--bad); background: var(--bad-bg); border-color: transparent; font-weight: 600; }
.chip.run { color: var(--blue); border-color: currentColor; }
.chip.tag { color: var(--accent); border-color: currentColor; cursor: pointer; }
.middle { display: grid; grid-template-columns: minmax(0, 1fr) minmax(260px, 340px); border-top: 1px solid var(--line); }
.list { grid-column: 1 / -1; max-height: 220px; overflow: auto; border-bottom: 1px solid var(--line); padding: 4px; }
.episode { display: flex; gap: 10px; align-items: center; width: 100%; text-align: start; padding: 6px 8px; }
.episode .words { flex: 1; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; line-height: 1.4; }
.episode.here { background: var(--hover); font-weight: 600; }
.episode .sign { width: 1.2em; text-align: center; color: var(--soft); font-weight: 700; }
.episode.good .sign { color: var(--good); } .episode.bad .sign { color: var(--bad); }
.ticks { display: flex; gap: 2px; flex: 0 1 auto; overflow: hidden; }
.ticks i { width: 5px; height: 14px; border-radius: 2px; background: var(--line); }
.ticks .good { background: var(--right); } .ticks .bad { background: var(--mark); height: 14px; }
.pair { display: flex; gap: 10px; padding: 12px; background: var(--panel); min-width: 0; align-items: flex-start; justify-content: center; }
.stage { flex: 1 1 0; min-width: 0; border-radius: 6px; display: flex; flex-direction: column; align-items: center; }
.stage:focus-visible { outline-offset: 4px; }
.frame { position: relative; width: min(100%, calc(min(66vh, 620px) * var(--ratio, 1.33))); aspect-ratio: var(--ratio, 1.33); background: #8883; border-radius: 4px; overflow: hidden; box-shadow: 0 0 0 1px var(--line), 0 4px 16px #0002; }
.frame.small { width: min(100%, 800px, calc(min(66vh, 620px) * var(--ratio, 1.33))); }
.frame canvas, .frame .marks { position: absolute; inset: 0; width: 100%; height: 100%; }
.frame .heat { opacity: .75; image-rendering: auto; pointer-events: none; }
.frame.waiting > canvas:first-child { opacity: .55; }
.marks { pointer-events: none; overflow: hidden; }
.act { --c: var(--mark); } .act.good { --c: #128a4a; } .act.bad, .act.wrong { --c: #d3202a; }
.act .mark.stroked { fill: none; stroke: var(--c); } .act .mark.filled { fill: var(--c); }
.act .halo { stroke: #fff; fill: none; stroke-linejoin: round; } .act .halo.filled { fill: #fff; }
rect.right { fill: #128a4a22; stroke: #128a4a; stroke-width: 2; vector-effect: non-scaling-stroke; }
.hot rect { fill: #1a5fc433; stroke: #1a5fc4; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
.badge { position: absolute; inset-block-end: 3%; left: 50%; translate: -50%; max-width: 92%; padding: 3px 12px; border-radius: 8px; background: #fff; color: #20242a; border: 2px solid #e0115f; font-weight: 600; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; box-shadow: 0 1px 6px #0004; }
.badge.type::after { content: ""; border-inline-end: 2px solid #e0115f; margin-inline-start: 2px; }
.badge.key_press { border-bottom-width: 5px; font-family: ui-monospace, Menlo, Consolas, monospace; }
.badge.done, .badge.wait, .badge.failed { background: #b30d4d; color: #fff; border-color: #fff; }
.badge.done::before { content: "✓ "; } .badge.failed::before { content: "✗ "; } .badge.wait::before { content: "… "; }
.badge.good { border-color: #128a4a; } .badge.done.good, .badge.wait.good { background: #0b6e3b; border-color: #fff; }
.badge.bad, .badge.wrong { border-color: #d3202a; } .badge.done.wrong, .badge.wait.wrong, .badge.failed { background: #b4182a; color: #fff; border-color: #fff; }
.veil { position: absolute; inset: 0; display: grid; place-items: center; color: #fff; font-weight: 600; text-shadow: 0 1px 3px #000; pointer-events: none; }
.caption { display: none; width: 100%; padding-top: 6px; font-size: 12.5px; overflow-wrap: anywhere; }
.comparing .caption { display: block; } .disagree .caption { color: var(--bad); }
.panel { border-inline-start: 1px solid var(--line); padding: 12px 14px; overflow: auto; max-height: min(calc(66vh + 24px), 660px); overflow-wrap: anywhere; background: var(--bg); }
.panel:focus-visible { outline-offset: -2px; }
.panel > .act { display: flex; gap: 8px; align-items: start; justify-content: space-between; margin-bottom: 8px; }
.dsl { font-size: 14px; font-weight: 600; unicode-bidi: isolate; }
details { border-top: 1px solid var(--line); padding: 7px 0; }
summary { cursor: pointer; font-weight: 600; font-size: 13px; border-radius: 4px; }
summary + * { margin-top: 6px; }
.long { white-space: pre-wrap; margin: 4px 0 0; overflow-wrap: anywhere; unicode-bidi: plaintext; max-height: 320px; overflow: auto; }
pre.long, .python { background: var(--panel); border-radius: 6px; padding: 8px 10px; }
.python { white-space: pre-wrap; margin: 6px 0; }
.turn b { color: var(--soft); font-size: 12px; }
.error { color: var(--bad); margin: 0 0 8px; }
.lines { list-style: none; margin: 4px 0 0; padding: 0; }
.lines li { padding: 3px 6px; border-radius: 5px; display: flex; flex-wrap: wrap; gap: 2px 8px; align-items: baseline; }
.lines li.lit, .lines li:hover { background: var(--hover); }
.lines code { flex-basis: auto; }
.lines .role { color: var(--soft); font-size: 11.5px; } .lines .name, .lines .value { unicode-bidi: isolate; } .lines .value { color: var(--blue); }
.tokens { white-space: pre-wrap; margin: 4px 0; line-height: 1.9; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12.5px; }
.tokens span { background: color-mix(in srgb, var(--bad) calc((1 - var(--p)) * 55%), transparent); border-radius: 3px; padding: 2px 0; }
.tokens .unsure { text-decoration: underline dotted var(--bad) 2px; text-underline-offset: 3px; }
dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 2px 12px; margin: 4px 0; font-size: 12.5px; } dt { color: var(--soft); } dd { margin: 0; }
.tools { display: flex; flex-wrap: wrap; gap: 6px; } .tools button, .more, .plain { border-color: var(--line); background: var(--raise); padding: 6px 10px; line-height: 1.2; }
.tags { display: flex; flex-wrap: wrap; gap: 5px; border-top: 1px solid var(--line); padding-top: 9px; margin-top: 4px; } .tags input { width: 8em; padding: 2px 8px; font-size: 12.5px; border-radius: 99px; }
.strip { display: flex; gap: 6px; overflow-x: auto; padding: 10px 12px; border-top: 1px solid var(--line); background: var(--panel); scrollbar-width: thin; position: relative; }
.strip:focus-visible { outline-offset: -2px; }
.thumb { flex: none; cursor: pointer; border-radius: 6px; padding: 3px; border: 2px solid transparent; }
.thumb canvas { display: block; height: 58px; width: calc(58px * clamp(.45, var(--ratio), 2)); object-fit: cover; background: #8882; border-radius: 3px; }
.thumb .label { display: flex; gap: 5px; font-size: 11px; line-height: 1.3; margin-top: 3px; max-width: calc(58px * clamp(.8, var(--ratio), 2)); color: var(--soft); white-space: nowrap; overflow: hidden; }
.thumb b { color: var(--ink); } .thumb i { color: var(--accent); font-style: normal; }
.thumb.now { border-color: var(--accent); background: var(--raise); }
.thumb .label::before { content: ""; flex: none; width: 7px; height: 7px; border-radius: 9px; background: var(--line); margin-top: 4px; }
.thumb.right .label::before { background: var(--right); } .thumb.wrong .label::before { background: var(--mark); border-radius: 1px; rotate: 45deg; }
.thumb.differs canvas { outline: 2px dashed var(--warn); outline-offset: -2px; }
.form { display: grid; gap: 8px; } .form label { display: grid; gap: 3px; font-size: 12.5px; color: var(--soft); } .form input, .form textarea { color: var(--ink); width: 100%; }
.form .wrong-field { color: var(--bad); font-size: 12.5px; } .form [aria-invalid=true] { border-color: var(--bad); }
.form .plain.main, .livebar .main { background: var(--accent); color: var(--bg); border-color: transparent; font-weight: 600; }
.editing .frame, .living .frame { cursor: crosshair; outline: 3px solid var(--accent); outline-offset: 2px; touch-action: none; }
.draft { fill: #1a5fc433; stroke: #1a5fc4; stroke-width: 2; stroke-dasharray: 5 3; vector-effect: non-scaling-stroke; }
.livebar { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0; } .did { margin: 6px 0; padding-inline-start: 2.2em; } .did li { padding: 1px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 6px; padding: 10px 12px 0; } .legend button { display: flex; gap: 7px; align-items: center; unicode-bidi: isolate; } .legend i { width: 14px; height: 4px; border-radius: 2px; background: var(--c); } .legend [aria-pressed=false] i { background: var(--line); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); gap: 10px; padding: 12px; }
figure { margin: 0; padding: 10px 12px 6px; border: 1px solid var(--line); border-radius: 8px; background: var(--raise); min-width: 0; } figcaption { font-weight: 600; font-size: 13px; margin-bottom: 4px; } figure p { margin: 2px 0 0; font-size: 12px; font-variant-numeric: tabular-nums; white-space: pre-wrap; } figure svg { display: block; width: 100%; }
figure text { font-size: 10px; fill: var(--soft); } .grid { stroke: var(--line); stroke-width: .7; } .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { opacity: .28; stroke-width: 1; } .rule { stroke: var(--soft); stroke-width: .8; }
@container (max-width: 720px) {
  .middle { grid-template-columns: minmax(0, 1fr); } .panel { border-inline-start: 0; border-top: 1px solid var(--line); max-height: 420px; }
  .comparing .pair { flex-direction: column; align-items: stretch; } .stage { width: 100%; }
}
@container (max-width: 460px) {
  .bar { flex-wrap: wrap; } .title { order: -1; flex-basis: 100%; margin-bottom: 4px; } .steps { margin-inline: auto; } .where { min-width: 4.2em; } .steps button:first-child, .steps button:last-child { display: none; } .pair { padding: 8px; } .head { padding: 8px 10px; } .episode .ticks { display: none; }
}
@media (pointer: coarse) { .bar button { padding: 8px 9px; } }
@media print { .panel, .list { max-height: none; } }
@media (prefers-reduced-motion: no-preference) { .frame.waiting > canvas:first-child { transition: opacity .1s .12s; } }
`;

// ---- a page without a kernel ----

// Stands in for anywidget's model: the rows are in the page, each screen in an element of its own, which may not have
// been read yet when it is asked for; then the question is asked again.
class PageModel {
  constructor(state, folder) {
    Object.assign(this, { state, folder, page: true, listeners: {} });
    try { state.tags = JSON.parse(localStorage.getItem(state.page_id)) || {}; } catch { state.tags = {}; }
  }
  get(key) { return this.state[key]; }
  set(key, value) { this.state[key] = value; }
  save_changes() { try { localStorage.setItem(this.state.page_id, JSON.stringify(this.state.tags)); } catch { /* no storage here */ } }
  on(name, f) { (this.listeners[name] = this.listeners[name] || []).push(f); }
  off(name, f) { this.listeners[name] = (this.listeners[name] || []).filter((one) => one !== f); }
  answer(message, buffers = []) { for (const f of this.listeners["msg:custom"] || []) f(message, buffers); }
  text(id) { return document.getElementById(id)?.textContent; }
  bytes(id) { const text = this.text(id); return text === undefined ? null : text ? Uint8Array.from(atob(text), (c) => c.charCodeAt(0)) : new Uint8Array(); }
  async send({ ask, numbers, row }) {
    await null;
    const there = (ask === "screens" && (this.folder || document.getElementById(`s${numbers[0]}`))) || document.readyState !== "loading";
    if (!there) await new Promise((go) => addEventListener("DOMContentLoaded", go, { once: true }));
    if (ask === "detail") { const text = this.text(`d${row}`); if (text) this.answer({ detail: row, value: JSON.parse(text) }); }
    for (const n of numbers || []) {
      if (ask === "screens" && this.folder) this.answer({ screen: n, url: `screens/${n}${this.folder[n]}` });
      else { const bytes = this.bytes((ask === "screens" ? "s" : "t") + n); if (bytes) this.answer(ask === "screens" ? { screen: n, type: this.state.types[n] } : { thumb: n }, [bytes]); }
    }
  }
}
function openPage() {
  const state = JSON.parse(document.getElementById("state").textContent);
  render({ model: new PageModel(state, state.files), el: document.getElementById("oaml") });
}

function render({ model, el }) {
  const view = model.get("curves") ? new Training(model, el) : new Inspector(model, el);
  return () => view.close();
}
export default { render };
