"""For every path that engines answer: what the engine is sent and what the client gets are, byte for byte,
what they would be without us between them."""

from __future__ import annotations

import asyncio
import random

import pytest

from firesteel.gateway.http.routes import ROUTES
from tests.gateway.http.kit import EngineConnection, Person, RunningGateway, answer, chunked, request

_FORM = b"----form%d"


def _body(path: bytes, kind: str, seed: int) -> tuple[bytes, bytes]:
    """A body that names a model, with bytes in it that are no text, and its type."""
    noise = random.Random(seed).randbytes(5000)
    if kind == "multipart":
        line = _FORM % seed
        part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        body = part % (line, b"model", b"m") + part % (line, b'file"; filename="a.wav', noise)
        return body + b"--%b--\r\n" % line, b"multipart/form-data; boundary=" + line
    return b'{"input":"\\u00e9 %b","model":"m", "n" : 1 }' % noise.hex().encode(), b"application/json"


async def _scripted(connection: EngineConnection) -> None:
    """A whole answer, then one in chunks, then an event stream, with odd head lines and any bytes."""
    for seed in range(3):
        await connection.receive()
        noise = random.Random(seed).randbytes(20_000)
        if seed == 0:
            await connection.send(
                answer(noise, b"Content-Type: audio/wav", b"X-Odd:   a  b ", b"x-odd: again")
            )
            continue
        kind = b"text/event-stream" if seed == 2 else b"application/octet-stream"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % kind
        pieces = [noise[at : at + 777] for at in range(0, len(noise), 777)]
        await connection.send(head + b"".join(map(chunked, pieces)) + b"0\r\n\r\n")


async def _asked(person: Person, path: bytes, body: bytes, kind: bytes) -> list[tuple[int, bytes]]:
    said = []
    for _ in range(3):
        raw = request(body, path=path).replace(b"Content-Type: application/json", b"Content-Type: " + kind)
        await person.send(raw)
        got = await person.get()
        said.append((got.status, got.body))
    return said


FORWARDED = sorted(path for path, route in ROUTES.items() if route.family != "ollama")
"""Ollama's are translated."""


@pytest.mark.parametrize("path", FORWARDED, ids=lambda path: path.decode())
async def test_bodies_are_the_same_with_us_between(gateway: RunningGateway, path: bytes) -> None:
    gateway.engine.script = _scripted
    kind = "multipart" if ROUTES[path].body == "multipart" else "json"
    body, content_type = _body(path, kind, len(path))
    direct = Person(*await asyncio.open_connection("127.0.0.1", gateway.engine.port))
    through = await gateway.client()
    try:
        assert await _asked(through, path, body, content_type) == await _asked(
            direct, path, body, content_type
        )
    finally:
        direct.close()
    received = gateway.engine.received
    assert len(received) == 6
    assert {each.body for each in received} == {body}
    assert {each.head.split(b" ")[1] for each in received} == {path}
    assert {each.value(b"content-type") for each in received} == {content_type}
