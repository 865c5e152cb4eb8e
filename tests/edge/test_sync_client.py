"""The synchronous client: its byte limit, its deadline, its token, and direct requests to an engine."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from firesteel.edge.checkpoints import UrlSource
from firesteel.edge.http.sync_client import Deadline, get, get_file, get_from_engine
from firesteel.errors import FiresteelError

REDIRECT = "HTTP/1.1 302 Found\r\nLocation: {}/blob\r\nContent-Length: 0\r\n\r\n"


def serve_once(answer: bytes, forever: bytes = b"") -> tuple[str, threading.Thread, list[bytes]]:
    """A server for one request that sends these bytes as they are; then, a byte at a time, others."""
    listener = socket.create_server(("127.0.0.1", 0))
    received: list[bytes] = []

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            received.append(peer.recv(65536))
            peer.sendall(answer)
            for _ in range(200 if forever else 0):
                try:
                    peer.sendall(forever)
                except OSError:
                    return
                time.sleep(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", thread, received


def test_a_server_that_sends_a_byte_now_and_then_is_too_slow() -> None:
    url, thread, _ = serve_once(b"HTTP/1.1 200 OK\r\n\r\n", forever=b"x")
    with pytest.raises(FiresteelError, match="is too slow"):
        get_file(f"{url}/x", {}, limit_bytes=10**6, deadline=Deadline(seconds=0.5))
    thread.join()


def test_a_body_over_the_limit_is_refused() -> None:
    url, thread, _ = serve_once(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000)
    with pytest.raises(FiresteelError, match="is longer than 1,000 bytes"):
        get_file(f"{url}/x", {}, limit_bytes=1000, deadline=Deadline())
    thread.join()


def test_the_token_does_not_follow_a_redirect_to_another_host() -> None:
    store, first, at_store = serve_once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    hub, second, at_hub = serve_once(REDIRECT.format(store).encode())
    headers = {"Authorization": "Bearer hf_SECRET"}
    response = get(f"{hub}/x", headers, limit_bytes=100, deadline=Deadline())
    first.join()
    second.join()
    assert response.body == b"{}"
    assert b"hf_SECRET" in at_hub[0] and b"hf_SECRET" not in at_store[0]


def test_an_engine_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through no proxy, with the key, and redirects are an answer like any other."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    url, thread, received = serve_once(REDIRECT.format("http://127.0.0.1:1").encode())
    assert get_from_engine(f"{url}/health", "fs-key") == (302, "")
    thread.join()
    assert b"Authorization: Bearer fs-key" in received[0]


def test_an_error_of_an_engine_is_an_answer() -> None:
    url, thread, _ = serve_once(b"HTTP/1.1 503 Busy\r\nContent-Length: 7\r\n\r\nLoading")
    assert get_from_engine(f"{url}/health") == (503, "Loading")
    thread.join()
    assert get_from_engine(f"{url}/health") == (None, "")


def test_a_long_answer_is_cut_at_the_limit() -> None:
    url, thread, _ = serve_once(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000)
    response = get(f"{url}/metrics", {}, limit_bytes=1000, deadline=Deadline(), direct=True)
    thread.join()
    assert (len(response.body), response.is_cut) == (1000, True)


def test_a_range_that_is_not_what_was_asked_for() -> None:
    url, thread, _ = serve_once(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc")
    with pytest.raises(FiresteelError, match="does not serve ranges"):
        UrlSource(f"{url}/x", {}, Deadline())
    thread.join()
