#!/usr/bin/env python3
"""The upstream: answers as its order says (`orders.py`), on a uvloop Protocol so that it is never the
bottleneck.

    python benchmarks/gateway/mock.py

Prints its port. A stream is chunked, one event per chunk and write, as engines behind uvicorn send it. `GET`
of any path returns its counters: open connections, active streams, orders, and orders that came twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import ClassVar, cast

import httptools
import orders
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(slots=True)
class Seen:
    open: int = 0
    speaking: int = 0
    orders: int = 0
    twice: int = 0
    paused: int = 0
    """How often a stream had to wait because nobody read its bytes."""
    cut: int = 0
    """Streams whose reader went before the end."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """One connection; one request after the other."""

    seen = Seen()
    seeds: ClassVar[set[int]] = set()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.parser = httptools.HttpRequestParser(self)
        self.pieces: list[bytes] = []
        self.timer: asyncio.TimerHandle | None = None
        self.order: orders.Order | None = None
        self.sent_events = 0
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.seen.open += 1

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        asked, self.pieces = b"".join(self.pieces), []
        if self.parser.get_method() == b"GET":
            self.answer(json.dumps(asdict(self.seen)).encode())
            return
        order = orders.read_order(asked)
        self.count(order.seed)
        if order.events:
            self.seen.speaking += 1
            self.order, self.sent_events = order, 0
            self.transport.write(STREAM_HEAD)
            self.speak()
            return
        self.answer(orders.answer(order, asked))
        self.over(order)

    def count(self, seed: int) -> None:
        if not seed:
            return  # nobody's order: a gateway asks which APIs this is
        self.seen.orders += 1
        self.seen.twice += seed in self.seeds
        self.seeds.add(seed)

    def answer(self, whole: bytes) -> None:
        self.transport.write(HEAD % len(whole) + whole)

    def speak(self) -> None:
        self.timer = None
        order = self.order
        if order is None or self.is_full:
            return
        if self.sent_events == order.events:
            self.hush()
            self.transport.write(chunk(orders.ending(order)) + b"0\r\n\r\n")
            self.over(order)
            return
        if order.dies_after and self.sent_events == order.dies_after:
            self.hush()
            self.transport.abort()
            return
        stamp = b"@%016d" % time.monotonic_ns()
        self.sent_events += 1
        self.timer = self.loop.call_later(order.pace_us / 1e6, self.speak)
        self.transport.write(chunk(orders.event(order, self.sent_events - 1).replace(b"@", stamp, 1)))

    def hush(self) -> None:
        self.seen.speaking -= self.order is not None
        self.order = None

    def over(self, order: orders.Order) -> None:
        if order.leaves:
            self.transport.close()

    def pause_writing(self) -> None:
        self.is_full = True
        self.seen.paused += 1

    def resume_writing(self) -> None:
        self.is_full = False
        if self.timer is None:
            self.speak()

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.open -= 1
        self.seen.cut += self.order is not None
        self.hush()
        if self.timer:
            self.timer.cancel()


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(loop), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
