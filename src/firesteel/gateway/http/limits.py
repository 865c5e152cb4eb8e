"""Limits on what a client may send, and how long it may take."""

from __future__ import annotations

from firesteel.values import Value

KIB = 1024


class HttpLimits(Value):
    """Every loop and every buffer of the HTTP server is bounded by one of these."""

    head_bytes: int = 32 * KIB
    head_lines: int = 100
    uri_bytes: int = 8 * KIB
    body_bytes: int = 64 * KIB * KIB
    buffer_bytes: int = 128 * KIB * KIB
    """Bodies and buffers of all clients together (`buffers.py`)."""
    buffer_wait_s: float = 30.0
    """For room for a body; then 503."""
    keeps_bodies: bool = True
    """Keep bodies until the request ends, for a log of prompts; otherwise until the engine responds."""
    head_s: float = 30.0
    """From the first byte of a head to its last."""
    body_idle_s: float = 60.0
    """Between two pieces of a request's body."""
    keep_alive_s: float = 75.0
    """Between a response and the next request."""
    send_idle_s: float = 60.0
    """A client that reads nothing for so long is disconnected: it keeps a model busy."""
    linger_s: float = 5.0
    """After a rejection, how long the rest of its request is discarded, so that the rejection arrives."""
    hold_after_s: float = 1.0
    """A stream that waits longer gets its head and comments; before that a rejection has its real status."""
    comment_every_s: float = 5.0
    connect_s: float = 5.0
    idle_connections: int = 64
    """Per endpoint."""
    idle_connection_s: float = 4.0
    """Below the 5 s after which uvicorn (vLLM, SGLang) and cpp-httplib (llama.cpp) close idle ones."""
    sweep_s: float = 1.0
    """How often the deadlines are checked."""


def buffered_limits(buffer_bytes: int, *, keeps_bodies: bool) -> HttpLimits:
    """No body takes more than half of the common buffers."""
    body_bytes = min(HttpLimits().body_bytes, buffer_bytes // 2)
    return HttpLimits(buffer_bytes=buffer_bytes, body_bytes=body_bytes, keeps_bodies=keeps_bodies)
