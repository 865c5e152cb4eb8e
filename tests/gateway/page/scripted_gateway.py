"""The page's files behind a server that plays given states: for what a real gateway reaches only in days."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import Any

import msgspec

from firesteel.gateway.page import page_responses, read_files
from firesteel.gateway.state import GatewayState, MemoryStatus, ModelHealth, ModelStatus
from firesteel.units import GIB
from firesteel.values import replace
from tests.http_thread import QuietHandler, serving_http

Events = Callable[[], Iterator[Mapping[str, Any]]]


def model(name: str, **more: Any) -> ModelStatus:
    usual: dict[str, Any] = {
        "phase": "off", "planned_bytes": 20 * GIB, "needed_bytes": 20 * GIB, "context": 65536,
        "engine": "vllm", "load_s": 120.0, "evicts": (), "health": ModelHealth(True, "healthy"),
    }  # fmt: skip
    return ModelStatus(name, **usual | more)


def state(*models: ModelStatus, **more: Any) -> GatewayState:
    held = sum(each.measured_bytes or 0 for each in models if each.phase != "off")
    memory = MemoryStatus(105 * GIB, held, 110 * GIB - held, 120 * GIB, 4 * GIB)
    return replace(GatewayState(models=models, memory=memory), **more)


@contextmanager
def played(
    first: GatewayState, events: Events = lambda: iter(()), answers: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Its URL. `answers` are documents by path; the stream stays open after the last of `events`."""
    ends = Event()
    with serving_http(_handler(first, events, answers or {}, ends)) as url:
        try:
            yield url
        finally:
            ends.set()


def _handler(
    first: GatewayState, events: Events, answers: Mapping[str, Any], ends: Event
) -> type[BaseHTTPRequestHandler]:
    files = page_responses(read_files())

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if response := files.get(path.encode()):
                headers = [(name.decode(), value.decode()) for name, value in response.headers]
                self._send(200, response.body, response.content_type.decode(), headers)
            elif path == "/api/events":
                self._stream()
            elif path == "/api/state":
                self._send(200, msgspec.json.encode(first))
            elif path in answers:
                self._send(200, json.dumps(answers[path]).encode())
            else:
                self._send(404, b'{"error": {"message": "no such path"}}')

        def _send(self, status: int, body: bytes, kind: str = "application/json", headers: Any = ()) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Type", kind), ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self._event({"event": "state", **msgspec.to_builtins(first)})
                for event in events():
                    self._event(event)
                while not ends.wait(1.0):
                    self.wfile.write(b": still here\n\n")
            except OSError:
                pass  # the page has gone

        def _event(self, event: Mapping[str, Any]) -> None:
            self.wfile.write(f"event: {event['event']}\ndata: {json.dumps(event)}\n\n".encode())

    return Handler
