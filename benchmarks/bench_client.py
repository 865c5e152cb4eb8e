#!/usr/bin/env python3
"""How late the bench client reads its clock: 64 streams of 100 tokens per second, and 16 of 400.

    python3 benchmarks/bench_client.py [seconds] [rounds] [--anywhere]

A paced server in a process of its own sends each token of each stream at an absolute time and writes that
time into the chunk. The client under test notes when it arrives. Both use the monotonic clock of the machine,
so the difference is everything in between: two system calls, the kernel, and the client. The server runs on
one core and the client on another. Both request real-time priority, so that other programs are not measured
as well; where that is not allowed, a busy machine affects all clients alike. `--anywhere`: no cores, no
priority, as `firesteel bench` runs.

The clients take turns in each round:

    ours        firesteel.bench.load.client on uvloop: httptools, times before parsing, JSON parsed afterwards
    bench       the same with all that a run has beside it: the sampler (nvidia-smi, or a script that takes 30
                ms; the metrics of vLLM) and the client's own clock, which is shown beside the machine's
    ours/plain  the same on asyncio's own loop
    aiohttp     its session and `content.iter_any()`, JSON parsed as it arrives, as in most tools
    floor       a bare asyncio.Protocol on uvloop that notes the time and discards the bytes

Bar: at most 1 ms at p99 from sending to our clock, everything included. Exits 1 when missed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop

from firesteel.bench.compare.stats import percentile
from firesteel.bench.load.client import ClientCost, RequestTimeouts, TargetServer, chat_body, stream_request
from firesteel.bench.load.sampler import Sampler
from firesteel.bench.load.transcript import read_stream

LOADS = ((64, 100), (16, 400))
"""Streams, and tokens per second of each."""
BAR_MS = 1.0
_SENT = re.compile(rb'"sent": ([0-9.]+)')
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Client = Callable[[int, int, int, int], Awaitable[tuple[list[float], float]]]
"""Port, streams, rate, tokens -> seconds of lateness, and seconds of CPU."""


# --- the paced server ---

METRICS = b"".join(
    b'vllm:histogram_%d_bucket{engine="0",le="%d",model_name="m"} %d.0\n' % (name, le, le)
    for name in range(30)
    for le in range(30)
)
"""About as long as vLLM's page: 900 lines."""


def chunk(delta: dict[str, str], **more: object) -> bytes:
    document = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef", "object": "chat.completion.chunk",
        "created": 1794700000, "model": "paced", "sent": time.perf_counter(),
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], **more,
    }  # fmt: skip
    return framed(document)


def framed(document: dict[str, Any]) -> bytes:
    """An event of a stream as a chunk."""
    data = b"data: " + json.dumps(document).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"GET"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(METRICS), METRICS))
        await writer.drain()
        return
    match = re.search(rb"(?i)content-length: (\d+)", head)
    request = json.loads(await reader.readexactly(int(match[1]) if match else 0))
    tokens, rate = int(request["max_tokens"]), int(request["messages"][0]["content"])
    writer.write(STREAM_HEAD)
    loop = asyncio.get_running_loop()
    began = loop.time() + (hash(id(writer)) % 997) / 997 / rate  # streams are not synchronous
    for token in range(tokens):
        await asyncio.sleep(max(0.0, began + token / rate - loop.time()))
        writer.write(chunk({"content": f" word{token}"}))
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": tokens + 8}
    writer.write(chunk({}, usage=usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()
    writer.close()


def serve(port: multiprocessing.Queue[int], is_pinned: bool) -> None:
    async def main() -> None:
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0, backlog=256)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    if is_pinned:
        pin(1)
    uvloop.run(main())


def pin(core: int) -> bool:
    """To one core, with real-time priority where that is allowed."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    return take_priority()


def take_priority() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        return False
    return True


# --- the clients ---


def body(rate: int, tokens: int) -> bytes:
    return chat_body("paced", [{"role": "user", "content": str(rate)}], tokens)


async def ours(port: int, streams: int, rate: int, tokens: int) -> tuple[list[float], float]:
    server, request = TargetServer("127.0.0.1", port), body(rate, tokens)
    cpu_s = time.process_time()
    raws = await asyncio.gather(
        *(stream_request(server, request, RequestTimeouts(), tokens) for _ in range(streams))
    )
    cpu_s = time.process_time() - cpu_s
    assert all(read_stream(raw).usage["completion_tokens"] == tokens for raw in raws)
    return [
        at - float(sent) for raw in raws for at, piece in raw.pieces for sent in _SENT.findall(piece)
    ], cpu_s


CLOCKS: list[tuple[float, float]] = []
"""What the client's own clock said of itself and of the machine, p99 in ms."""


async def bench(port: int, streams: int, rate: int, tokens: int) -> tuple[list[float], float]:
    sampler = Sampler(f"http://127.0.0.1:{port}", "vllm")
    with ClientCost() as cost:
        async with sampler:
            while not sampler.readings:
                await asyncio.sleep(0.05)
            with cost.under_load():
                found = await ours(port, streams, rate, tokens)
    own = cost.summary()
    CLOCKS.append((own["p99_lag_ms"], own["machine_p99_lag_ms"]))
    return found


async def with_aiohttp(port: int, streams: int, rate: int, tokens: int) -> tuple[list[float], float]:
    lags: list[float] = []
    document = json.loads(body(rate, tokens))

    async def one(session: aiohttp.ClientSession) -> None:
        rest = b""
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=document) as answer:
            async for piece in answer.content.iter_any():
                now = time.perf_counter()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        lags.append(now - json.loads(line[6:])["sent"])

    cpu_s = time.process_time()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session) for _ in range(streams)))
    return lags, time.process_time() - cpu_s


class Floor(asyncio.Protocol):
    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.done = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


async def floor(port: int, streams: int, rate: int, tokens: int) -> tuple[list[float], float]:
    request = TargetServer("127.0.0.1", port).request(body(rate, tokens))

    async def one() -> Floor:
        transport, stream = await asyncio.get_running_loop().create_connection(Floor, "127.0.0.1", port)
        transport.write(request)
        await stream.done
        return stream

    cpu_s = time.process_time()
    done = await asyncio.gather(*(one() for _ in range(streams)))
    cpu_s = time.process_time() - cpu_s
    return [
        at - float(sent) for each in done for at, data in each.pieces for sent in _SENT.findall(data)
    ], cpu_s


def run(client: Client, is_fast: bool, *load: int) -> tuple[list[float], float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if is_fast else None) as runner:
        return runner.run(client(*load))  # type: ignore[arg-type]  # several clients, one call


def compare(port: int, streams: int, rate: int, seconds: float, rounds: int) -> float:
    """Prints a row for each client; p99 of a whole bench, in ms."""
    tokens = round(seconds * rate)
    clients: dict[str, tuple[Client, bool]] = {
        "bench": (bench, True), "ours": (ours, True), "ours/plain": (ours, False),
        "aiohttp": (with_aiohttp, False), "floor": (floor, True),
    }  # fmt: skip
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in clients}
    CLOCKS.clear()
    for at in range(rounds):
        names = list(clients)
        for name in names[at % len(names) :] + names[: at % len(names)]:
            lags, cpu_s = run(*clients[name], port, streams, rate, tokens)
            assert len(lags) >= streams * tokens, f"{name}: {len(lags)} of {streams * tokens} chunks"
            results[name].append((1000 * percentile(lags, 50), 1000 * percentile(lags, 99), cpu_s / seconds))
    for name, rows in results.items():
        p50, p99, cpu = (median(row[at] for row in rows) for at in range(3))
        least = min(row[1] for row in rows)
        print(f"{name:<11} p50 {p50:6.3f} ms   p99 {p99:6.3f} ms (best {least:.3f})   {cpu:5.1%} of a core")
    own, machine = (median(column) for column in zip(*CLOCKS, strict=True))
    print(f"its own clocks: client p99 {own:.3f} ms, machine {machine:.3f} ms")
    return median(row[1] for row in results["bench"])


def main(seconds: float, rounds: int, is_pinned: bool) -> int:
    if not shutil.which("nvidia-smi"):
        folder = Path(tempfile.mkdtemp())
        (folder / "nvidia-smi").write_text("#!/bin/sh\nsleep 0.03\necho 2400, 60, 52, 90\n")
        (folder / "nvidia-smi").chmod(0o755)
        os.environ["PATH"] += f":{folder}"
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports, is_pinned), daemon=True)
    server.start()
    port = ports.get(timeout=10)
    priority = "real-time" if is_pinned and pin(0) else "no"
    worst = 0.0
    for streams, rate in LOADS:
        print(f"{streams} streams of {rate} tok/s")
        worst = max(worst, compare(port, streams, rate, seconds, rounds))
    server.kill()
    load = os.getloadavg()[0]
    print(f"bench at p99 {worst:.3f} ms   (bar {BAR_MS} ms), {priority} priority, load {load:.1f}")
    return int(worst > BAR_MS)


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:] if argument != "--anywhere"]
    seconds, rounds = (*arguments, 4.0, 5.0)[:2] if not arguments[1:] else arguments[:2]
    sys.exit(main(seconds, round(rounds), "--anywhere" not in sys.argv))
