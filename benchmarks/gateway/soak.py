#!/usr/bin/env python3
"""Many concurrent streams through one proxy for a while, with the failures that happen in practice.

    .venv/bin/python benchmarks/gateway/soak.py [--stack firesteel] [--seconds 60] [--streams 200]

The number of streams is constant: when one ends, the next begins, on the same connection if it is still
usable. Most are plain. Some clients disconnect in the middle (FIN or RST), some read slowly while a large
stream fills every buffer, some upstream connections are reset in the middle of a stream or closed after an
answer, some prompts are 400 KB long, some answers are not streamed. Every byte is compared with what the seed
of the stream determines.

Correct means: no bytes lost, mixed, duplicated or invented; a stream that was cut off upstream never ends
with `[DONE]`; no order reaches the upstream twice; nothing is sent to clients that left; memory is flat; and
in the end the proxy has as many open files as before. Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import cast

import httptools
import orders
import tree
import uvloop
from stacks import Proxy, Room

from run import STACKS, start_mock

KINDS = {"plain": 66, "leaver": 12, "slow": 4, "dying": 6, "closing": 5, "answer": 5, "prompt": 2}
"""How often each, of a hundred."""
SETTLE_S = 10.0
STUCK_S = 30.0
EARLY_S = 0.5
"""Who leaves so long before a stream's end must be missed upstream."""
RSS_SLACK = 6_000_000
"""Of the last third of the time over the second; in a run of a few seconds a heap has not settled."""


class Wrong(Exception):
    pass


@dataclass(slots=True)
class Result:
    counts: Counter[str] = field(default_factory=Counter)
    events: int = 0
    bytes: int = 0
    early: int = 0
    """Clients that left well before the end."""
    wrong: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    files: tuple[int, int] = (0, 0)
    left_open: list[str] = field(default_factory=list)
    upstream: dict[str, int] = field(default_factory=dict)


class Checker:
    """Takes a stream's bytes as they come, and says at once when one is not what it must be."""

    def __init__(self, order: orders.Order, asked: bytes) -> None:
        self.order = order
        self.rest = bytearray()
        self.events = 0
        self.is_over = False
        self.error = b""
        self.whole = b"" if order.events else orders.answer(order, asked)

    def feed(self, piece: bytes) -> None:
        self.rest += piece
        if not self.order.events:
            if not self.whole.startswith(self.rest):
                raise Wrong(f"an answer differs: {bytes(self.rest[:300])!r}")
            self.is_over = len(self.rest) == len(self.whole)
            return
        while not self.is_over and (end := self.rest.find(b"\n\n")) >= 0:
            if self.events < self.order.events:
                self.event(bytes(self.rest[: end + 2]))
            elif len(self.rest) >= len(orders.ending(self.order)):
                self.last()
                return
            else:
                return
            del self.rest[: end + 2]
        if self.is_over and self.rest:
            raise Wrong(f"more after the end: {bytes(self.rest[:200])!r}")

    def event(self, whole: bytes) -> None:
        is_cut = self.order.dies_after == self.events > 0
        if is_cut and whole == b"\n\n":
            return  # ends an event that was half sent
        if is_cut and whole.startswith((b'data: {"error"', b"event: error\n")):
            self.error = whole
            self.is_over = True
            return
        bare, times = orders.times_in(whole)
        if bare != orders.event(self.order, self.events) or len(times) != 1:
            raise Wrong(f"event {self.events} of {self.order.text} is {whole[:300]!r}")
        self.events += 1

    def last(self) -> None:
        ending = orders.ending(self.order)
        if self.order.dies_after or bytes(self.rest) != ending:
            raise Wrong(f"the end of {self.order.text} is {bytes(self.rest[:300])!r}")
        self.rest.clear()
        self.is_over = True


class Line(asyncio.Protocol):
    """A client's connection."""

    def __init__(self) -> None:
        self.done: asyncio.Future[str] | None = None
        self.checker: Checker | None = None
        self.is_lost = False
        self.taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def ask(self, order: orders.Order, payload: bytes, headers: bytes) -> asyncio.Future[str]:
        self.checker = Checker(order, payload)
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(orders.request(payload, headers))
        return self.done

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self.fail(error)

    def fail(self, why: BaseException) -> None:
        if self.done and not self.done.done():
            self.done.set_exception(why if isinstance(why, Wrong) else Wrong(repr(why)))
        self.transport.abort()

    def on_body(self, piece: bytes) -> None:
        if self.done is None or self.done.done() or self.checker is None:
            raise Wrong(f"bytes that nobody asked for: {piece[:200]!r}")
        if self.parser.get_status_code() != 200:
            raise Wrong(f"status {self.parser.get_status_code()}: {piece[:300]!r}")
        self.checker.feed(piece)

    def on_message_complete(self) -> None:
        if self.done and not self.done.done():
            self.done.set_result("complete")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.done and not self.done.done():
            self.done.set_result("closed")


class Soak:
    def __init__(self, proxy: Proxy, streams: int, seconds: float, seed: int) -> None:
        self.proxy = proxy
        self.streams = streams
        self.seconds = seconds
        self.dice = random.Random(seed)
        self.seeds = iter(range(seed * 10_000_000, (seed + 1) * 10_000_000))
        self.short, self.long = orders.prompt(800), orders.prompt(400_000)
        self.result = Result()
        self.end = 0.0

    async def run(self) -> None:
        """Every place filled until the time is up, then the last ones to their end."""
        self.end = time.monotonic() + self.seconds
        watch = asyncio.create_task(self.watch())
        await asyncio.gather(*(self.place() for _ in range(self.streams)))
        watch.cancel()

    async def watch(self) -> None:
        while self.proxy.pid is not None:
            self.result.rss.append(tree.rss_bytes(self.proxy.pid))
            await asyncio.sleep(max(0.1, self.seconds / 60))

    async def place(self) -> None:
        line: Line | None = None
        await asyncio.sleep(self.dice.random() * min(1.0, self.seconds / 5))
        while time.monotonic() < self.end and len(self.result.wrong) < 20:
            [kind] = self.dice.choices(list(KINDS), list(KINDS.values()))
            if line is None or line.is_lost or kind == "slow":
                if line:
                    line.transport.close()
                line = await self.connect(kind == "slow")
            try:
                await self.one(kind, line)
                self.result.counts[kind] += 1
            except Wrong as why:
                self.result.wrong.append(f"{kind}: {why}")
                line.transport.abort()
                line = None
            else:
                if kind in ("leaver", "slow") or line.is_lost:
                    line.transport.close()
                    line = None
        if line:
            line.transport.close()

    async def connect(self, is_slow: bool) -> Line:
        connection = socket.socket()
        connection.setblocking(False)
        if is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", self.proxy.port))
        return (await loop.create_connection(Line, sock=connection))[1]

    def order(self, kind: str) -> orders.Order:
        """None lasts longer than a fifth of the soak, so that places are filled anew."""
        longest_us = min(10e6, self.seconds * 1e6 / 5)
        pace_us = int(self.dice.uniform(10_000, 80_000))
        events = self.dice.randint(2, max(3, int(longest_us / pace_us)))
        seed = next(self.seeds)
        match kind:
            case "slow":
                return orders.Order(seed, 200, 2000, fat=12_000)
            case "dying":
                return orders.Order(seed, events, pace_us, dies_after=self.dice.randint(1, events - 1))
            case "closing":
                return orders.Order(seed, 0 if self.dice.random() < 0.5 else events, pace_us, leaves=1)
            case "answer" | "prompt":
                return orders.Order(seed)
            case _:
                return orders.Order(seed, events, pace_us)

    async def one(self, kind: str, line: Line) -> None:
        order = self.order(kind)
        payload = orders.body(order, self.long if kind == "prompt" else self.short)
        done = line.ask(order, payload, self.proxy.headers.encode())
        if kind == "leaver":
            await self.leave(line, order, done)
            return
        if kind == "slow":
            await self.dawdle(line, done)
        checker, seen = cast(Checker, line.checker), -1
        while not done.done():  # until it stands still: a busy machine takes long for the large ones
            if checker.events == seen:
                raise Wrong(f"{order.text} stands still at event {seen}")
            seen = checker.events
            await asyncio.wait({done}, timeout=STUCK_S)
        how = done.result()
        self.result.events += checker.events
        self.result.bytes, line.taken = self.result.bytes + line.taken, 0
        self.judge(order, checker, how)

    def judge(self, order: orders.Order, checker: Checker, how: str) -> None:
        if not order.dies_after:
            if how != "complete" or not checker.is_over:
                raise Wrong(f"{order.text} stopped at event {checker.events}, {how}")
            return
        if checker.events > order.dies_after:
            raise Wrong(f"{order.text} has {checker.events} events")
        self.result.counts["told of it" if checker.error else "cut off"] += 1
        if how == "complete" and not checker.error:
            raise Wrong(f"{order.text} was cut off upstream and ended as if it were whole")

    async def leave(self, line: Line, order: orders.Order, done: asyncio.Future[str]) -> None:
        """Somewhere in the middle, before the first byte, or long after it."""
        length_s = order.events * order.pace_us / 1e6
        stays_s = self.dice.random() * length_s
        await asyncio.sleep(stays_s)
        if done.done():
            done.result()
            return
        self.result.early += length_s - stays_s > EARLY_S
        line.transport.abort() if self.dice.random() < 0.5 else line.transport.close()
        await done

    async def dawdle(self, line: Line, done: asyncio.Future[str]) -> None:
        for _ in range(8):
            if done.done():
                return
            line.transport.pause_reading()
            await asyncio.sleep(self.dice.random() * self.seconds / 40)
            if not line.is_lost:
                line.transport.resume_reading()
            await asyncio.sleep(0.02)


def stats(port: int) -> dict[str, int]:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: mock\r\n\r\n")
        response = b""
        while b"}" not in response:
            response += connection.recv(65536)
    return cast(dict[str, int], json.loads(response.partition(b"\r\n\r\n")[2]))


async def until(good: object, seconds: float) -> None:
    """Waits, bounded; whoever called looks again and says what is wrong."""
    assert callable(good)
    end = time.monotonic() + seconds
    while not good() and time.monotonic() < end:
        await asyncio.sleep(0.05)


async def warm(soak: Soak) -> None:
    """Whatever is opened at the first request stays open: a database, a log."""
    for _ in range(3):
        line = await soak.connect(False)
        order = orders.Order(next(soak.seeds), leaves=1)
        await line.ask(order, orders.body(order, soak.short), soak.proxy.headers.encode())
        line.transport.close()


def open_files(pid: int) -> list[str]:
    """Without the curves, which are opened once, at the first sample after five seconds, and stay open."""
    return [file for file in tree.open_files(pid) if "curves.db" not in file]


async def settled(pid: int) -> list[str]:
    """The files that are open once nothing changes for two seconds: logs are written late."""
    seen, since = open_files(pid), time.monotonic()
    end = since + SETTLE_S
    while time.monotonic() < min(end, since + 2):
        await asyncio.sleep(0.1)
        now = open_files(pid)
        if len(now) != len(seen):
            seen, since = now, time.monotonic()
    return seen


async def soak(proxy: Proxy, mock: Room, upstream: int, job: Soak) -> Result:
    """The whole of it. Ends the mock at the end, so that no kept connection is counted as a leak."""
    result, pid = job.result, cast(int, proxy.pid)
    await warm(job)
    await until(lambda: stats(upstream)["open"] == 1, SETTLE_S)
    before = await settled(pid)
    await job.run()
    await until(lambda: stats(upstream)["speaking"] == 0, 2.0)
    result.upstream = stats(upstream)
    mock.end()
    await until(lambda: len(open_files(pid)) <= len(before), SETTLE_S)
    after = open_files(pid)
    result.files = (len(before), len(after))
    result.left_open = sorted((Counter(after) - Counter(before)).elements())
    result.wrong += verdict(result, job.seconds >= 20)
    return result


def verdict(result: Result, is_long: bool) -> list[str]:
    wrong = []
    if result.upstream["twice"]:
        wrong.append(f"{result.upstream['twice']} orders reached the upstream twice")
    if result.upstream["cut"] < result.early:
        wrong.append(f"{result.early} clients left early, and only {result.upstream['cut']} streams stopped")
    if result.upstream["speaking"]:
        wrong.append(f"{result.upstream['speaking']} streams are still spoken to nobody")
    if result.files[1] > result.files[0]:
        wrong.append(f"open files: {result.files[0]} before, {result.files[1]} after: {result.left_open}")
    third = len(result.rss) // 3
    if is_long and median(result.rss[-third:]) > median(result.rss[third : 2 * third]) + RSS_SLACK:
        wrong.append(f"memory grows: {[size // 1_000_000 for size in result.rss]} MB")
    return wrong


def show(result: Result, seconds: float) -> None:
    counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.most_common())
    print(f"{seconds:.0f} s: {counts}; {result.events:,} events, {result.bytes / 1e6:.0f} MB checked")
    print(f"upstream {result.upstream}")
    if result.rss:
        rss = [
            f"{size / 1e6:.0f}"
            for size in (result.rss[0], median(result.rss), max(result.rss), result.rss[-1])
        ]
        print(f"memory MB: {rss[0]} first, {rss[1]} median, {rss[2]} most, {rss[3]} last")
    print(f"open files: {result.files[0]} before, {result.files[1]} after")
    print("\n".join(result.wrong) if result.wrong else "nothing lost, mixed or doubled")


async def main(name: str, streams: int, seconds: float, seed: int) -> int:
    stack = next(each for each in STACKS if each.name == name)
    if why := stack.missing():
        print(f"{name}: not here ({why})")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        mock, room = Room(Path(scratch), None), Room(Path(scratch), None)
        try:
            upstream = start_mock(mock)
            proxy = stack.start(room, upstream)
            result = await soak(proxy, mock, upstream, Soak(proxy, streams, seconds, seed))
        finally:
            room.end()
            mock.end()
        told = room.log()
    show(result, seconds)
    if result.wrong:
        print(f"the proxy's own words:\n{told}")
    return int(bool(result.wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stack", default="firesteel")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(uvloop.run(main(given.stack, given.streams, given.seconds, given.seed)))
