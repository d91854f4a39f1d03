"""Widgets that the site shows live: each function makes one page, whole and small, when the site is built.

A cell with `#| live: NAME` or `#| live: NAME HEIGHT` shows what the function NAME returns, in a frame."""


def inspector():
    "Two episodes of an oracle, in the inspector."
    import tempfile
    from oaml.ingest.store import load_sessions, save_sessions
    from oaml.ingest.synthetic import generate_synthetic_sessions
    from oaml.viz.inspector import Inspector
    with tempfile.TemporaryDirectory() as folder:
        save_sessions([s for app in ("login", "mail") for s in generate_synthetic_sessions(1, seed=1, app=app)], folder)
        return Inspector(load_sessions(folder)).to_html()
