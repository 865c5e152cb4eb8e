#!/usr/bin/env python3
"""Hostile uploads: 256 clients send 60 MB each to an upstream that never answers.

    .venv/bin/python benchmarks/gateway/hostile.py [--clients 256] [--megabytes 60] [--seconds 20]

`firesteel serve` runs as users start it. Meanwhile `/health` is asked every 50 ms. Prints the peak of the
gateway's resident memory, the latency of `/health`, and what the uploads got. Exits 1 if the memory exceeds
300 MB or the 99th percentile of `/health` 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tree
import uvloop
from stacks import PYTHON, Room, firesteel

MB = 1_000_000
RSS_BAR, HEALTH_BAR_MS = 300 * MB, 50.0


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers health checks, and no request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:  # a connection that was only tried
        writer.close()
        return
    if head.startswith(b"GET"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()
        return
    while await reader.read(2**20):
        pass
    writer.close()


async def upload(port: int, size: int, seconds: float) -> str:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % size
    start, piece = b'{"model":"m","x":"', b"a" * 65536
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            reading = asyncio.ensure_future(reader.readline())
            writer.write(head + start)
            left = size - len(start) - 2
            while left > 0 and not reading.done():
                writer.write(piece[: min(left, len(piece))])
                left -= len(piece)
                await writer.drain()
            writer.write(b'"}')
            return (await reading).decode().strip() or "closed"
    except TimeoutError:
        return "no answer yet"
    except ConnectionError as error:
        return type(error).__name__


async def probe(port: int, until: float) -> list[float]:
    took = []
    while time.monotonic() < until:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        await reader.read()
        took.append((time.monotonic() - began) * 1000)
        writer.close()
        await asyncio.sleep(0.05)
    return sorted(took)


def attack(port: int, clients: int, size: int, seconds: float) -> None:
    """In a process of its own, so that the client's work is not counted as the gateway's delay; at ordinary
    priority, also if the rest is started with another one (`chrt -r 5`, on a busy machine)."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    async def run() -> None:
        said = Counter(await asyncio.gather(*(upload(port, size, seconds) for _ in range(clients))))
        print(json.dumps(said))

    uvloop.run(run())


async def watch(port: int, pid: int, seconds: float) -> tuple[list[float], int]:
    cpu = tree.cpu_ns(pid)
    took = await probe(port, time.monotonic() + seconds)
    print(f"the gateway used {(tree.cpu_ns(pid) - cpu) / 1e9:.1f} s of CPU in {seconds:.0f} s")
    return took, tree.peak_bytes(pid)


async def main(clients: int, megabytes: int, seconds: float) -> int:
    upstream = await asyncio.start_server(silent, "127.0.0.1", 0)
    upstream_port = upstream.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        room = Room(Path(scratch), None)
        try:
            child, port = await asyncio.to_thread(firesteel.serve, room, ["m"], upstream_port)
            await asyncio.sleep(1)
            arguments = [str(port), str(clients), str(megabytes * MB), str(seconds)]
            attacker = subprocess.Popen([PYTHON, __file__, "--attack", *arguments], stdout=subprocess.PIPE)
            took, peak = await watch(port, child.pid, seconds + 1)
            said = (await asyncio.to_thread(attacker.communicate))[0].decode().strip()
        finally:
            room.end()
            upstream.close()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(f"{clients} uploads of {megabytes} MB: {said}")
    health = f"/health p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {took[-1]:.1f} ms"
    print(f"gateway {peak / MB:.0f} MB at the peak; {health}")
    return int(peak > RSS_BAR or p99 > HEALTH_BAR_MS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        attack(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
        sys.exit(0)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.clients, given.megabytes, given.seconds)))
