
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

// The entries that have every word of the query, as words or their beginnings: whole words first, guides before signatures ("install" is how one installs
// oaml, not InstallApk). Where there are none, those that look alike.
window.oamlFound = (index, query, alike) => {
  "use strict";
  const filler = new Set("a an and do for how i in is it my of on or own the to what with".split(" "));
  const split = (text) => text.toLowerCase().split(/[^\w.]+/).filter(Boolean);
  const asked = split(query), words = asked.filter((w) => !filler.has(w));
  const fit = (text) => {
    const there = split(text), whole = new Set(there);
    return (words.length ? words : asked).map((w) => whole.has(w) ? 0 : there.some((t) => t.startsWith(w)) ? 1 : 9).reduce((a, b) => Math.max(a, b), 0);
  };
  const place = (e) => {
    const head = fit(`${e.title} ${e.section}`), body = Math.min(head, fit(`${e.title} ${e.section} ${e.text}`));
    if (body > 1) return 99;
    const guide = /^howto\./.test(e.href), signature = /^(def|class) /.test(e.text);
    return 4*body + Math.min(head, 2) + (/^index\./.test(e.href) ? 0 : guide ? .5 : signature ? 1.5 : 1);
  };
  const found = index.map((e, k) => [place(e), k, e]).filter(([p]) => p < 99);
  return found.length ? found.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , e]) => e) : alike();
};
