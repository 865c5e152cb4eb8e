"""A chat of the page is read up to the end of its stream, which may come later than `[DONE]`."""

from __future__ import annotations

import time

from playwright.sync_api import expect

from tests.gateway.page.conftest import WAIT_MS, OpenPage, Serve
from tests.http_thread import QuietHandler, serving_http

expect.set_options(timeout=WAIT_MS)


class LateEnd(QuietHandler):
    def do_GET(self) -> None:
        self.send(b'{"data": []}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")
        self.wfile.flush()
        time.sleep(1)  # then the connection closes, which is the end


def test_a_chat_is_complete_though_its_stream_ends_after_done(open_page: OpenPage, serve: Serve) -> None:
    with serving_http(LateEnd) as url, serve(f"models: {{far: {{url: '{url}'}}}}\n") as gateway:
        page = open_page(f"{gateway.url}/#try?model=far")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("main [role=status]").first).to_contain_text("complete")
        page.get_by_role("link", name="Requests").click()
        found = page.locator("table.requests tbody tr").filter(has_text="far").first
        expect(found).to_contain_text("complete", timeout=10_000)
