"A small shop on loopback that counts what it is sent, and pages of it that misbehave."
import http.server
import json
import threading
import time
from contextlib import contextmanager

PAGE = """<!doctype html><title>Orders</title><style>body { font: 16px sans-serif; margin: 20px } p, button, label { display: block; margin: 8px 0 }</style>
<h1>Orders</h1><label>Name <input id=name></label><label>Amount <input id=amount></label><button id=order>Order</button><p id=said></p>
<script>
const $ = id => document.getElementById(id)
async function order() {
  const reply = await fetch('/order', {method: 'POST', body: JSON.stringify({name: $('name').value, amount: $('amount').value})})
  $('said').textContent = await reply.text()
}
$('order').onclick = order
</script>%s"""
DEMO = """demonstration: 1
goal: Order {amount} of tea for {name}.
values: {amount: '3', name: Ada}
title: Orders
steps:
- do: enter
  what: {role: textbox, name: Name}
  value: '{name}'
  source: goal
  title: Orders
- do: enter
  what: {role: textbox, name: Amount}
  value: '{amount}'
  source: goal
  title: Orders
- do: press
  what: {role: button, name: Order}
  title: Orders
  changes: ['+ text Ordered for {name}']
"""


class Shop:
    "What was ordered, oldest first, and how it answers."
    def __init__(self, url): self.url, self.orders, self.script, self.stall, self.reply = url, [], "", 0., "Ordered for {name}"


@contextmanager
def open_shop():
    "A shop at an address of its own."
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_): pass
        def _answer(self, text, kind):
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        def do_GET(self): self._answer(PAGE % shop.script, "text/html; charset=utf-8") if self.path == "/" else self.send_error(404)
        def do_POST(self):
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            shop.orders.append(order)
            time.sleep(shop.stall)
            try: self._answer(shop.reply.format(**order), "text/plain")
            except OSError: pass  # nobody waits any more
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        shop = Shop(f"http://127.0.0.1:{server.server_port}/")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try: yield shop
        finally: server.shutdown()
