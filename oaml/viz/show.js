// The page of `oaml show`: what a hand does on the picture goes to the device, one thing after the other; what comes back is all that is shown.
const $ = (id) => document.getElementById(id), stage = $("stage"), token = location.hash.slice(1);
const LOOK_MS = 1500;
const MARKS = { optional: "optional", until_gone: "until there is no more", left_out: "leave out" };
let state = {}, queue = [], busy = false, from = null, waiting = null;

const node = (tag, props = {}, ...kids) => { const n = Object.assign(document.createElement(tag), props); n.append(...kids); return n; };

// ---- asking ----

async function ask(message) {
  busy = true;
  stage.classList.toggle("busy", message.do !== "look");
  try {
    const answer = await fetch("do", { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: JSON.stringify({ ...message, screen: state.screen || "" }) });
    const got = await answer.json();
    if (answer.ok) show(got, message.do !== "look");
    else $("problem").textContent = answer.status === 401 ? "This address is an old one: open the one that `oaml show` said last." : got.error;
  } catch { $("problem").textContent = "oaml show does not answer; is it still running? What was shown is kept as long as it runs."; }
  busy = false;
  stage.classList.remove("busy");
  next();
}

function push(message) {
  const last = queue.at(-1), [a, b] = [last?.action, message.action];
  if (a?.type === "type" && b?.type === "type") a.text += b.text;
  else if (a?.type === "scroll" && b?.type === "scroll") for (const k of ["dx", "dy"]) a[k] = Math.max(-1, Math.min(1, a[k] + b[k]));
  else queue.push(message);
  next();
}
const act = (action) => push({ do: "act", action });
function next() { if (!busy && queue.length) ask(queue.shift()); }

setInterval(() => { if (!busy && !queue.length && !from && !waiting && !document.hidden && state.mode === "live" && !state.written) ask({ do: "look" }); }, LOOK_MS);

// ---- showing ----

function show(got, said) {
  const picture = got.picture || state.picture;
  state = { ...got, picture };
  if (got.picture) { $("screen").src = got.picture; stage.classList.toggle("small", got.size[0] < 500); stage.style.setProperty("--twice", `${2 * got.size[0]}px`); }
  const live = state.mode === "live", ended = Boolean(state.written);
  $("goal").textContent = state.goal;
  $("device").textContent = state.device;
  $("screen").alt = live ? `${state.device}: ${state.things.length} things that can be acted on` : "";
  for (const [id, on] of [["live", live], ["undo", live], ["pause", live], ["file", !live], ["none", live && !state.steps.length], ["parameters", state.values.length], ["secrets", live && state.secrets.length]]) $(id).hidden = !on;
  $("pause").setAttribute("aria-pressed", Boolean(state.paused));
  stage.classList.toggle("paused", Boolean(state.paused));
  $("undo").disabled = !state.actions;
  if (said) {
    $("problem").textContent = state.problem;
    $("note").textContent = ended ? `Written to ${state.written}. You can close this page.` : state.note || (state.paused ? "Pause: what you do now is done, and not written down." : "") || (state.over ? "The device has ended the task: press Done." : "") ||
      [state.last && `You: ${state.last}.`, state.reached && "The goal is reached: press Done."].filter(Boolean).join(" ");
  }
  const focus = document.activeElement?.dataset?.key;
  $("steps").replaceChildren(...state.steps.map((s, k) => node("li", { className: s.left_out ? "gone" : "" }, node("div", { className: "words", dir: "auto", textContent: s.words }),
    ...Object.entries(MARKS).filter(([m]) => !(m === "until_gone" && (s.already || !/^(press|double|right|long|hold)/.test(s.words)) && !s[m])).map(([m, words]) => tick(`step-${k}-${m}`, words, s[m], `Step ${k + 1}, ${words}`, (on) => push({ do: "mark", step: k, mark: m, on }))))));
  $("values").replaceChildren(...state.values.map((v) => {
    const name = node("input", { type: "text", value: v.name, disabled: v.fixed || v.secret, onchange: (e) => push({ do: "name", key: v.key, name: e.target.value.trim() }) });
    name.setAttribute("aria-label", `Name of the value ${v.text}`);
    name.dataset.key = `value-${v.key}`;
    return node("li", {}, name, node("span", { className: "value", dir: "auto", textContent: v.secret ? "a secret, not written down" : v.text }),
      ...(v.secret ? [] : [tick(`same-${v.key}`, "the same each time", v.fixed, `${v.text}, the same each time`, (on) => push({ do: "fix", key: v.key, on }), "same")]));
  }));
  if (live) {
    $("secrets").replaceChildren(...state.secrets.map((name) => node("button", { type: "button", textContent: `Type {${name}}`, onclick: () => act({ type: "type", text: `{${name}}` }) })));
    $("keys").replaceChildren(...keys().map(([label, action]) => node("button", { type: "button", textContent: label, onclick: () => act(action) })));
    if ($("things").open) list();
  } else if (document.activeElement !== $("yaml") || said && !state.problem) $("yaml").value = state.text;
  if (focus) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
  if (ended) for (const n of document.querySelectorAll("button, input, textarea")) n.disabled = true;
}

function tick(key, words, on, label, change, className = "") {
  const box = node("input", { type: "checkbox", checked: Boolean(on), onchange: (e) => change(e.target.checked) });
  box.setAttribute("aria-label", label);
  box.dataset.key = key;
  return node("label", { className }, box, words);
}

const keys = () => [["Enter", { type: "key_press", key: "Enter" }], ["Tab", { type: "key_press", key: "Tab" }], ["Escape", { type: "key_press", key: "Escape" }],
  ...(state.phone ? [["Back", { type: "key_press", key: "BACK" }], ["Home", { type: "key_press", key: "HOME" }]] : []), ["Wait", { type: "wait" }]];

function list() {  // whoever has no pointer presses things by their names
  const spot = (t) => { $("spot").hidden = !t; if (t) Object.assign($("spot").style, { left: `${100 * t.x}%`, top: `${100 * t.y}%` }); };
  $("things").querySelector("ul").replaceChildren(...state.things.map((t) => node("li", {}, node("button", { type: "button", onclick: () => { spot(null); act({ type: "click", x: t.x, y: t.y }); },
    onmouseenter: () => spot(t), onmouseleave: () => spot(null), onfocus: () => spot(t), onblur: () => spot(null) }, node("i", { textContent: `${t.role} ` }), t.name))));
}
$("things").addEventListener("toggle", () => state.things && list());

// ---- hands ----

const settle = listenToHands(stage, {
  act, next,
  place: (e) => { const r = $("screen").getBoundingClientRect(); return [(e.clientX - r.left) / r.width, (e.clientY - r.top) / r.height]; },
  size: () => { const r = $("screen").getBoundingClientRect(); return [r.width, r.height]; },
  began: (e, gesture) => {
    from = gesture;
    if (!e) return;
    stage.focus({ preventScroll: true });
    stage.setPointerCapture(e.pointerId);
  },
  waits: (press) => { waiting = press; },
});
stage.addEventListener("paste", (e) => { const text = e.clipboardData.getData("text").replace(/\s+/g, " ").trim(); if (text) { settle(null); act({ type: "type", text: text.normalize("NFC") }); } });

// ---- buttons ----

$("words").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("text").value.normalize("NFC");
  if (!text) return;
  $("text").value = "";
  act({ type: e.submitter?.dataset.as || "type", text });
});
$("undo").onclick = () => push({ do: "undo" });
$("pause").onclick = () => push({ do: "pause", on: !state.paused });
$("done").onclick = () => { settle(null); push({ do: "done", ...(state.mode === "edit" ? { text: $("yaml").value } : {}) }); };
$("check").onclick = () => push({ do: "text", text: $("yaml").value });

ask({ do: "state" });
