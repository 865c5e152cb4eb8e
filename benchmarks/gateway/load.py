#!/usr/bin/env python3
"""The client: a process of its own that applies one kind of load to one port and prints figures as JSON.

    python benchmarks/gateway/load.py '{"port": 8080, "pid": 1, "kind": "streams", "at_once": 8, "count": 24}'

It warms up first, then reads the proxy's CPU time, works, and reads it again. Every answer is compared with
the expected one after the clock has stopped; an answer that differs in a byte is reported as an error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

import httptools
import orders
import tree
import uvloop


@dataclass(frozen=True, slots=True)
class Load:
    port: int
    pid: int | None = None
    """The process whose CPU time is read; None: none."""
    headers: str = ""
    is_exact: bool = True
    kind: str = "requests"
    """`requests` or `streams`."""
    at_once: int = 1
    count: int = 100
    prompt_bytes: int = 800
    events: int = 200
    pace_us: int = 3000
    warm_up: int = 1
    """Orders a connection before the clock starts."""
    seed: int = 1
    model: str = "bench"
    limit_s: float = 120.0


@dataclass(slots=True)
class Answer:
    order: orders.Order
    asked: bytes
    sent_ns: int
    status: int = 0
    pieces: list[bytes] = field(default_factory=list)
    arrived_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    cpu_us: float
    """Of the proxy, a request or an event."""
    wall_s: float
    units: int
    first_us: tuple[float, float]
    """From the request to the first byte of the body: p50, p99."""
    event_us: tuple[float, float] | None
    """From the mock's write to the client's read of one event."""
    gap_us: tuple[float, float] | None
    """Between two events."""
    faults: list[str]


class Line(asyncio.Protocol):
    """A kept connection to the proxy."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def ask(self, order: orders.Order, payload: bytes, headers: bytes) -> asyncio.Future[None]:
        self.answer = Answer(order, payload, time.monotonic_ns())
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(orders.request(payload, headers))
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        assert self.answer
        self.answer.pieces.append(piece)
        self.answer.arrived_ns.append(time.monotonic_ns())

    def on_message_complete(self) -> None:
        assert self.answer and self.done
        self.answer.status = self.parser.get_status_code()
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done and not self.done.done():
            self.done.set_exception(ConnectionError("the proxy closed the connection"))


class Work:
    def __init__(self, load: Load) -> None:
        self.load = load
        self.headers = load.headers.encode()
        self.text = orders.prompt(load.prompt_bytes)
        self.seeds = iter(range(load.seed * 1_000_000, (load.seed + 1) * 1_000_000))
        self.dice = random.Random(load.seed)
        self.left = load.count
        self.answers: list[Answer] = []

    async def worker(self, line: Line, count: int | None) -> None:
        """So many orders, or as many as are left for all workers."""
        if self.load.kind == "streams" and count is None:
            await asyncio.sleep(self.dice.random() * self.load.events * self.load.pace_us / 1e6)
        for _ in range(count or self.load.count):
            if count is None and self.left <= 0:
                return
            self.left -= count is None
            order = self.order()
            await line.ask(order, orders.body(order, self.text, self.load.model), self.headers)
            assert line.answer
            self.answers.append(line.answer)

    def order(self) -> orders.Order:
        if self.load.kind == "streams":
            return orders.Order(next(self.seeds), self.load.events, self.load.pace_us)
        return orders.Order(next(self.seeds))


async def measure(load: Load) -> Figures:
    work, loop = Work(load), asyncio.get_running_loop()
    lines = []
    for _ in range(load.at_once):
        lines.append((await loop.create_connection(Line, "127.0.0.1", load.port))[1])
    await asyncio.gather(*(work.worker(line, load.warm_up) for line in lines))
    warm, work.answers = work.answers, []
    cpu, start = _cpu(load.pid), time.monotonic()
    await asyncio.gather(*(work.worker(line, None) for line in lines))
    wall, cpu = time.monotonic() - start, _cpu(load.pid) - cpu
    for line in lines:
        line.transport.close()
    units = load.count * (load.events if load.kind == "streams" else 1)
    faults = [why for each in warm + work.answers if (why := fault(each, load.is_exact))]
    return figures(work.answers, cpu / 1000 / units, wall, units, faults)


def _cpu(pid: int | None) -> int:
    return 0 if pid is None else tree.cpu_ns(pid)


def fault(answer: Answer, is_exact: bool) -> str | None:
    got = b"".join(answer.pieces)
    if answer.status != 200:
        return f"order {answer.order.text}: status {answer.status}: {got[:200]!r}"
    return orders.fault(answer.order, answer.asked, got, is_exact)


def figures(
    answers: Sequence[Answer], cpu_us: float, wall_s: float, units: int, faults: list[str]
) -> Figures:
    first = [(each.arrived_ns[0] - each.sent_ns) / 1000 for each in answers if each.arrived_ns]
    delays: list[float] = []
    gaps: list[float] = []
    for each in answers:
        arrived, sent = moments(each)
        delays += [(there - here) / 1000 for here, there in zip(sent, arrived, strict=True)]
        gaps += [(later - sooner) / 1000 for sooner, later in itertools.pairwise(arrived)]
    return Figures(
        cpu_us,
        wall_s,
        units,
        (rank(first, 0.5), rank(first, 0.99)),
        (rank(delays, 0.5), rank(delays, 0.99)) if delays else None,
        (rank(gaps, 0.5), rank(gaps, 0.99)) if gaps else None,
        faults[:5] + ([f"and {len(faults) - 5} more"] if len(faults) > 5 else []),
    )


def moments(answer: Answer) -> tuple[list[int], list[int]]:
    """When each event's time stamp was read, and when it was written."""
    ends: list[int] = []
    for piece in answer.pieces:
        ends.append(len(piece) + (ends[-1] if ends else 0))
    found = list(orders.STAMP.finditer(b"".join(answer.pieces)))
    arrived = [answer.arrived_ns[bisect_left(ends, each.end())] for each in found]
    return arrived, [int(each[1]) for each in found]


def rank(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def main(load: Load) -> None:
    async with asyncio.timeout(load.limit_s):
        sys.stdout.write(json.dumps(asdict(await measure(load))) + "\n")


if __name__ == "__main__":
    uvloop.run(main(Load(**json.loads(sys.argv[1]))))
