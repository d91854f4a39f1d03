// What hands do, as actions: for the picture on the page of `oaml show` (show.js), and in a window that it listens in (devices.window).
const CLICK_MS = 280, HOLD_MS = 600, FAR = 0.015; // a second press within CLICK_MS makes a double one; FAR is a share of the screen
const KEY_NAMES = { ArrowLeft: "Left", ArrowRight: "Right", ArrowUp: "Up", ArrowDown: "Down" };
const NAMED = /^(Enter|Escape|Backspace|Delete|Insert|Left|Right|Up|Down|PageUp|PageDown|Home|End|F\d+)$/;

// `how`: place(event) as shares of the screen, size() in pixels, act(action), next() when nothing waits, whole: the whole window is listened to, before it hears anything;
// began(event or null, gesture) and waits(press or null) are told what is under way; mine(event): it is not a person's, and passes.
function listenToHands(target, how) {
  let from = null, waiting = null;
  const share = (v) => Math.min(1, Math.max(0, v)), most = (v) => Math.max(-1, Math.min(1, v));
  const place = (e) => how.place(e).map(share), began = (e, g) => { from = g; how.began?.(e, g); }, wait = (w) => { waiting = w; how.waits?.(w); };
  const stop = (e) => { e.preventDefault(); if (how.whole) e.stopImmediatePropagation(); };
  const listen = (type, hear) => target.addEventListener(type, (e) => { if (!how.mine?.(e)) hear(e); }, { capture: Boolean(how.whole), passive: false });

  function settle(action) {  // a press waits until it is clear that no second one comes
    if (waiting) { clearTimeout(waiting.timer); const { action } = waiting; wait(null); how.act(action); }
    if (action) wait({ action, timer: setTimeout(() => settle(null), CLICK_MS) });
    else how.next?.();
  }

  listen("pointerdown", (e) => { stop(e); began(e, { at: place(e), when: performance.now() }); });
  listen("pointercancel", () => began(null, null));
  listen("pointerup", (e) => {
    if (how.whole) stop(e);
    if (!from) return;
    const [x, y] = from.at, [x2, y2] = place(e), held = performance.now() - from.when > HOLD_MS, far = Math.hypot(x2 - x, y2 - y) > FAR;
    began(null, null);
    const again = waiting && Math.hypot(x - waiting.action.x, y - waiting.action.y) < FAR;
    if (far && e.pointerType === "touch" && !held) { settle(null); how.act({ type: "scroll", x, y, dx: x - x2, dy: y - y2 }); }
    else if (far) { settle(null); how.act({ type: "drag", x, y, x2, y2 }); }
    else if (e.button === 2) { settle(null); how.act({ type: "right_click", x, y }); }
    else if (held) { settle(null); how.act({ type: "long_press", x, y }); }
    else if (again) { clearTimeout(waiting.timer); wait(null); how.act({ type: "double_click", x, y }); }
    else settle({ type: "click", x, y });
  });
  listen("contextmenu", stop);
  if (how.whole) for (const type of ["mousedown", "mouseup", "click", "dblclick", "auxclick", "keyup", "keypress", "dragstart"]) listen(type, stop);
  listen("wheel", (e) => {
    stop(e);
    const [x, y] = place(e), [width, height] = how.size(), line = e.deltaMode ? 16 : 1;
    settle(null);
    how.act({ type: "scroll", x, y, dx: most(e.deltaX * line / width), dy: most(e.deltaY * line / height) });
  });
  listen("keydown", (e) => {
    const key = KEY_NAMES[e.key] || e.key, mods = ["ctrl", "alt", "shift", "meta"].filter((m) => e[`${m}Key`]), chord = mods.some((m) => m !== "shift") && !(e.ctrlKey && e.altKey);
    const tab = e.key === "Tab" && how.whole;
    if (e.key === "Tab" && !tab || e.isComposing || chord && key.toLowerCase() === "v") return;  // on a page Tab leaves the screen; what is pasted comes as text
    if (NAMED.test(key) || tab) { settle(null); how.act({ type: "key_press", key: [...mods, key].join("+") }); }
    else if ([...key].length === 1 && chord) { settle(null); how.act({ type: "key_press", key: [...mods, key.toLowerCase()].join("+") }); }
    else if ([...key].length === 1) { settle(null); how.act({ type: "type", text: key.normalize("NFC") }); }
    else return;
    stop(e);
  });
  return settle;
}
