
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
