
// What oaml's site adds to smalldocs: whatever scrolls can be reached and moved by keys.
(() => {
  "use strict";
  const mark = () => document.querySelectorAll("main pre, main .cell-output, main div.sourceCode, main table, main .sd-table").forEach((el) => {
    const scrolls = el.scrollWidth > el.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(el).overflowX);
    if (scrolls) el.setAttribute("tabindex", "0");
    else if (el.dataset.oamlTab !== undefined) el.removeAttribute("tabindex");
    if (scrolls) el.dataset.oamlTab = "";
  });
  window.addEventListener("load", mark);
  window.addEventListener("resize", mark);
})();
