"""A chat of the page is read up to the end of its stream, which may come later than `[DONE]`."""

from __future__ import annotations

import re
import time

import pytest
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


class Played(QuietHandler):
    """Thinks, answers and ends as `pieces` says."""

    pieces: tuple[bytes, ...] = ()

    def do_GET(self) -> None:
        self.send(b'{"data": []}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.pieces:
            self.wfile.write(b"data: " + piece + b"\n\n")


THOUGHT = b'{"choices": [{"index": 0, "delta": {"reasoning_content": "a greeting"}}]}'
WORD = b'{"choices": [{"index": 0, "delta": {"content": "Hello"}}]}'


def end(reason: str) -> bytes:
    return b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "%s"}]}' % reason.encode()


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ((THOUGHT, WORD, end("stop"), b"[DONE]"), "complete"),
        ((THOUGHT, WORD, end("length"), b"[DONE]"), "cut off: it reached the limit of tokens"),
        ((THOUGHT, end("length"), b"[DONE]"), "only thinking, no answer"),
        ((THOUGHT, WORD, end("content_filter"), b"[DONE]"), "cut off by the server's filter"),
    ],
)
def test_a_chat_says_how_it_ended_and_shows_its_thinking(
    open_page: OpenPage, serve: Serve, pieces: tuple[bytes, ...], says: str
) -> None:
    handler = type("Handler", (Played,), {"pieces": pieces})
    with serving_http(handler) as url, serve(f"models: {{far: {{url: '{url}'}}}}\n") as gateway:
        page = open_page(f"{gateway.url}/#try?model=far")
        page.get_by_role("button", name="Send").click()
        status = page.locator("main [role=status]").first
        expect(status).to_have_text("complete" if says == "complete" else re.compile(says))
        expect(page.locator(".thoughts")).to_have_text("a greeting")
        if WORD in pieces:  # the conversation as code, not only its last turn
            expect(page.locator("pre", has_text="from openai import")).to_contain_text(
                '"assistant", "content": "Hello"'
            )
