
// What oaml's site adds to smalldocs: whatever scrolls can be reached and moved by keys.
(() => {
  "use strict";
  const mark = () => document.querySelectorAll("main pre, main .cell-output, main div.sourceCode, main table, main .sd-table").forEach((el) => {
    const style = getComputedStyle(el), can = (way) => /auto|scroll/.test(way);
    const scrolls = el.scrollWidth > el.clientWidth + 1 && can(style.overflowX) || el.scrollHeight > el.clientHeight + 1 && can(style.overflowY);
    if (scrolls) el.setAttribute("tabindex", "0");
    else if (el.dataset.oamlTab !== undefined) el.removeAttribute("tabindex");
    if (scrolls) el.dataset.oamlTab = "";
  });
  window.addEventListener("load", mark);
  window.addEventListener("resize", mark);
})();

// Of what a search found, whole words come before parts of words, and guides before signatures: "install" is how one installs oaml, not InstallApk.
window.oamlRanked = (found, query) => {
  "use strict";
  const words = query.toLowerCase().split(/\s+/), has = (text) => { const own = new Set(text.toLowerCase().split(/[^\w.]+/)); return words.every((w) => own.has(w)); };
  const place = (e) => {
    const fit = has(`${e.title} ${e.section}`) ? 0 : has(e.text) ? 1 : 2;
    const kind = /^(index|howto)\./.test(e.href) ? 0 : /^(def|class) /.test(e.text) ? 2 : 1;
    return 3*fit + kind;
  };
  return found.map((e, k) => [place(e), k, e]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , e]) => e);
};
