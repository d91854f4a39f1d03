"""Widgets that the site shows live: each function makes one page, whole and small, when the site is built.

A cell with `#| live: NAME` or `#| live: NAME HEIGHT` shows what the function NAME returns, in a frame."""
