"A page that a daemon lends shows its own origin and those its operator named, wherever a way out begins."
import http.server
import threading
from contextlib import contextmanager

import pytest

for needed in ("starlette", "uvicorn", "httpx"): pytest.importorskip(needed, reason='needs pip install "oaml[serve]"')

from oaml.devices.chromium import PageDevice
from oaml.devices.connection import missing_browser
from oaml.devices.device import DeviceError, PressButton, StartIntent
from oaml.devices.remote import RemoteDevice
from oaml.devices.serve import serve_device
from oaml.schemas.sessions import Action

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=str(missing_browser()))

ROW, COLUMNS = 20, 4  # pixels of a way out on the page, and how many stand beside each other


@contextmanager
def site(pages):
    "A web server on a port of its own: its origin, and the paths it was asked for. A page \"-> URL\" is a redirect."
    asked = []
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            text = pages.get(self.path, "")
            self.send_response(302 if text.startswith("->") else 200)
            self.send_header("location", text[2:].strip()) if text.startswith("->") else self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())
        do_POST = do_GET
        def log_message(self, *_): pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try: yield f"http://127.0.0.1:{server.server_port}", asked
        finally: server.shutdown()


@pytest.fixture
def secret():
    "Another port of the machine, which nobody named."
    with site({"/": "<button>secret</button>"}) as there: yield there


def ways_out(to):
    "JavaScript that a click runs, by name: each wants to show `to`, an origin, or a file."
    frame = "document.body.append(Object.assign(document.createElement('iframe'), {%s}))"
    return {
        "link": f"Object.assign(document.createElement('a'), {{href: '{to}/'}}).click()",
        "location": f"location = '{to}/'", "replace": f"location.replace('{to}/')", "redirect": "location = '/redirect'",
        "other name": f"location = '{to}/'.replace('127.0.0.1', 'localhost')",
        "form": f"document.body.append(f = Object.assign(document.createElement('form'), {{action: '{to}/', method: 'post'}})); f.submit()",
        "refresh": f"document.head.insertAdjacentHTML('beforeend', '<meta http-equiv=refresh content=\"0;url={to}/\">')",
        "frame": frame % f"src: '{to}/'", "frame's redirect": frame % "src: '/redirect'",
        "frame in a frame": frame % f"srcdoc: `<iframe src='{to}/'></iframe>`",
        "frame that leaves": frame % f"srcdoc: `<script>location = '{to}/'</script>`".replace("</", "<\\/"),
        "frame of text that leaves": frame % f"src: `data:text/html,<script>location = '{to}/'</script>`".replace("</", "<\\/"),
        "object": f"document.body.insertAdjacentHTML('beforeend', '<object data=\"{to}/\" type=\"text/html\">')",
        "window": f"window.open('{to}/')", "window without opener": f"window.open('{to}/', '_blank', 'noopener')",
        "window that leaves": f"w = window.open('about:blank'); setTimeout(() => w.location = '{to}/', 50)",
        "window's redirect": "window.open('/redirect')", "file": "location = 'file:///etc/passwd'", "file's window": "window.open('file:///etc/passwd')",
        "source": f"location = 'view-source:{to}/'", "browser's own": "location = 'chrome://version'", "text": "location = 'data:text/html,secret'",
    }


def page_of(ways):
    "A page with a button for each way out."
    place = "position:absolute;width:60px;height:16px;overflow:hidden;left:%dpx;top:%dpx"
    return "<body style='margin:0'>" + "".join(
        f'<button style="{place % (70*(k % COLUMNS), ROW*(k//COLUMNS))}" onclick="{js.replace(chr(34), "&quot;")}">{name}</button>'
        for k, (name, js) in enumerate(ways.items()))


def names(device): return [e.name for e in device.read_elements() if e.role == "button"]


def test_no_click_leads_out_of_a_lent_page(secret):
    there, asked = secret
    ways = ways_out(there)
    with site({"/": page_of(ways), "/redirect": f"-> {there}/"}) as (here, _), serve_device(f"page:{here}/") as served, \
            RemoteDevice(served.url, timeout=30) as lent:
        for k, name in enumerate(ways):
            lent.reset(0)
            log = lent.perform(Action("click", x=(70*(k % COLUMNS) + 30)/320, y=(ROW*(k//COLUMNS) + 8)/256)).log
            log += lent.perform(Action("wait")).log
            assert names(lent)[:len(ways)] == [*ways] and asked == [], name
            if name in ("file", "file's window", "source", "browser's own", "text"): continue  # Chromium itself refuses a page these
            why = "a new window was asked for" if name.startswith("window") else f"{there[-5:]}/ is not shown: this device was not lent for it"
            assert any(why in line for line in log), (name, log)


def test_no_address_leads_out_of_a_lent_page(secret, tmp_path):
    there, asked = secret
    (tmp_path/"a.html").write_text("<button>secret</button>")
    with site({"/": "<button>own</button>", "/two": "<button>two</button>", "/redirect": f"-> {there}/"}) as (here, _), \
            serve_device(f"page:{here}/") as served, RemoteDevice(served.url, timeout=30) as lent:
        lent.reset(0)
        for url in ("file:///etc/passwd", (tmp_path/"a.html").as_uri(), f"view-source:{here}/", "view-source:file:///etc/passwd",
                    "chrome://version", "about:version", "data:text/html,<button>secret", f"{there}/", here.replace("127.0.0.1", "localhost"),
                    f"{here}/redirect", f"blob:{here}/1", "javascript:document.body.textContent='secret'", "", "/two",
                    " chrome://version", "chr\nome://version", f"{here}@{there[7:]}/", f"filesystem:{here}/"):
            with pytest.raises(DeviceError, match="not lent for it"): lent.manage(StartIntent(url))
            assert names(lent) == ["own"], url
        lent.manage(StartIntent(f"{here}/two"))
        assert names(lent) == ["two"] and asked == []
        lent.manage(PressButton("BACK"))
        assert names(lent) == ["own"]


def test_an_operator_may_name_more(secret):
    there, asked = secret
    with site({"/": f"<iframe src='{there}/'></iframe><button>own</button>"}) as (here, _):
        for more, reached in (dict(options=dict(origins=[there])), 1), (dict(shell=True), 2):
            with serve_device(f"page:{here}/", **more) as served, RemoteDevice(served.url, timeout=30) as lent:
                lent.reset(0)
                lent.manage(StartIntent(f"{there}/"))
                assert names(lent) == ["secret"]
                if reached == 2: lent.manage(StartIntent("data:text/html,<button>text"))
                else:
                    with pytest.raises(DeviceError, match="not lent for it"): lent.manage(StartIntent("data:text/html,x"))
        for wrong, match in ((None, "origins: null .* shell: true"), (["example.org"], "'example.org' is none; such as"), (["http://a.example/b"], "is none")):
            with pytest.raises(ValueError, match=match): serve_device(f"page:{here}/", options=dict(origins=wrong)).__enter__()


def test_a_page_that_begins_elsewhere_says_what_to_name(secret):
    there, asked = secret
    with site({"/": f"-> {there}/"}) as (here, _), serve_device(f"page:{here}/") as served, RemoteDevice(served.url, timeout=30) as lent:
        with pytest.raises(DeviceError, match=rf"it leads to {there}/; .*origins names"): lent.reset(0)
        assert asked == []


def test_a_lent_file_is_that_file(tmp_path):
    (tmp_path/"a.html").write_text(page_of({"other": "location = 'b.html'", "itself": "location = 'a.html?1#2'", "frame": "document.body.append(f = document.createElement('iframe')); f.src = 'b.html'"}))
    (tmp_path/"b.html").write_text("<button>secret</button>")
    with serve_device(f"page:{(tmp_path/'a.html').as_uri()}") as served, RemoteDevice(served.url, timeout=30) as lent:
        for k in range(3):
            lent.reset(0)
            log = lent.perform(Action("click", x=(70*k + 30)/320, y=8/256)).log
            assert names(lent) == ["other", "itself", "frame"] and ("b.html is not shown" in "".join(log)) == (k != 1)


def test_what_a_page_shows_inside_itself_stays_free(secret):
    there, asked = secret
    html = """<img id=i src="data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"><img src="%s/a.png">
        <iframe srcdoc="<script>top.told = 1</script>"></iframe><script>b = URL.createObjectURL(new Blob(['<script>top.blob = 1<\\/script>'], {type: 'text/html'}))
        document.body.append(f = document.createElement('iframe')); f.src = b</script>""" % there
    with site({"/": html}) as (here, _):
        device = PageDevice(f"{here}/", origins=[])
        try:
            device.reset(0)
            device.perform(Action("wait"))
            assert device.page.evaluate("[i.naturalWidth, told, blob]") == [1, 1, 1] and asked == []  # not the other port's
            assert device.page.gateway.refused == {there: 1}
        finally: device.close()


def test_the_rule_outlives_the_browser(secret):
    there, asked = secret
    with site({"/": "<button>own</button>"}) as (here, _):
        device = PageDevice(f"{here}/", origins=[])
        try:
            device.reset(0)
            device.chromium.restart()
            device.reset(1)
            device.page.evaluate(f"void (location = '{there}/')")
            device.perform(Action("wait"))
            assert names(device) == ["own"] and asked == []
        finally: device.close()
