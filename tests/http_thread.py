"""A small HTTP server on loopback, in a thread, for as long as a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        return

    def send(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        """`Content_Type="text/html"` is a header."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving_http(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
