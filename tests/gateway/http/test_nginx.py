"""nginx as a second reader of what clients send: where both let a request through, the engine hears the same.

Ours may refuse more, never less: what the engine hears from us, it hears from nginx in the same order.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from firesteel.gateway.http.limits import HttpLimits
from tests.gateway.http.kit import Engine, FakeDispatcher, chunked, request, run_gateway
from tests.gateway.http.test_framing import BAD
from tests.gateway.http.test_head import ACCEPTED, REFUSED

pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None and os.environ.get("CI") != "true",
    reason="nginx is not installed; scripts/test installs it in CI",
)

CONF = """
daemon off; pid {home}/pid; error_log {home}/error.log crit; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {home}/b; proxy_temp_path {home}/p;
  fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  server {{
    listen unix:{home}/nginx.sock;
    location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; }}
  }}
}}
"""
LAST = request(b'{"model":"last"}', b"Connection: close")
HEARD = list[tuple[bytes, bytes]]


@asynccontextmanager
async def nginx(home: Path, port: int) -> AsyncIterator[str]:
    conf = home / "nginx.conf"
    conf.write_text(CONF.format(home=home, port=port))
    process = subprocess.Popen(["nginx", "-e", str(home / "error.log"), "-p", str(home), "-c", str(conf)])
    sock = home / "nginx.sock"
    try:
        for _ in range(200):
            if sock.exists():
                break
            await asyncio.sleep(0.02)
        yield str(sock)
    finally:
        process.terminate()
        process.wait(10)


async def heard_through(sock: str, engine: Engine, raw: bytes, patience_s: float = 0.25) -> HEARD:
    """What reaches the engine of these bytes; a peer that waits for more is given up on."""
    engine.received.clear()
    reader, writer = await asyncio.open_unix_connection(sock)
    try:
        writer.write(raw + LAST)
        async with asyncio.timeout(patience_s):
            await reader.read()
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return [(each.head.split(b"\r\n")[0], each.body) for each in engine.received]


def is_part_of(some: HEARD, more: HEARD) -> bool:
    """In the same order, perhaps with others between."""
    rest = iter(more)
    return all(each in rest for each in some)


def pieces(seed: int) -> bytes:
    """Requests put together from what is nearly right."""
    chance = random.Random(seed)
    lines = [b"Host: h", b"Content-Type: application/json"]
    body = b'{"model":"m"}'
    odd = [
        b"Content-Length: 13", b"Content-Length: 13", b"Content-Length: 0", b"content-length:13",
        b"Content-Length: 13 ", b"Content-Length : 13", b"Content-Length: 013", b"Content-Length: +13",
        b"Content-Length: 13,13", b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked",
        b"Transfer-Encoding : chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: x, chunked",
        b"Connection: close", b"Connection: keep-alive, Content-Length", b"X: a\r\n b",
        b"X: a\nContent-Length: 13", b"X: a\x00", b"Expect: 100-continue", b"Host: other", b"X-Y_Z: 1",
        b": 1", b"nonsense",
    ]  # fmt: skip
    lines += chance.sample(odd, chance.randint(1, 3))
    chance.shuffle(lines)
    ends = chance.choice([b"\r\n"] * 6 + [b"\n", b"\r"])
    start = b"POST /v1/chat/completions HTTP/1." + chance.choice([b"1"] * 5 + [b"0"])
    shapes = [
        body, body, b"", chunked(body) + b"0\r\n\r\n", chunked(body) + b"0\r\nX: y\r\n\r\n",
        b"d\n" + body + b"\n0\n\n", b"0d;a=b\r\n" + body + b"\r\n00\r\n\r\n",
        b"D \r\n" + body + b"\r\n0\r\n\r\n",
    ]  # fmt: skip
    return ends.join((start, *lines)) + ends * 2 + chance.choice(shapes)


def cases() -> list[bytes]:
    heads = [head + b"\r\n\r\n" for _, head in REFUSED.values()] + [
        head + b"\r\n\r\n" for head in ACCEPTED.values()
    ]
    start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    return heads + [start + body for body in BAD.values()] + [pieces(seed) for seed in range(1500)]


async def test_engine_hears_no_more_from_us_than_from_nginx(tmp_path: Path) -> None:
    async with (
        run_gateway(FakeDispatcher(), HttpLimits()) as gateway,
        nginx(tmp_path, gateway.engine.port) as theirs,
    ):
        ours = str(tmp_path / "ours.sock")
        await gateway.listen_at(ours)
        both = 0
        for raw in cases():
            from_us = await heard_through(ours, gateway.engine, raw)
            if not from_us:
                continue
            from_nginx = await heard_through(theirs, gateway.engine, raw)
            if not is_part_of(from_us, from_nginx):  # on a busy machine it may only be late
                from_nginx = await heard_through(theirs, gateway.engine, raw, patience_s=10)
            assert is_part_of(from_us, from_nginx), (raw, from_us, from_nginx)
            both += len(from_us) > 1
        assert both > 10  # or the question was never asked
