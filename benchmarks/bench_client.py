#!/usr/bin/env python3
"""How late the bench client reads its clock: 64 streams of 100 tokens per second, client on one core.

    python3 benchmarks/bench_client.py [seconds] [rounds]

A paced server in a process of its own sends each token of each stream at an absolute time and writes that
time into the chunk. The client under test notes when it arrives. Both use the monotonic clock of the machine,
so the difference is everything in between: two system calls, the kernel, and the client. The server runs on
one core and the client on another. Both request real-time priority, so that other programs are not measured
as well; where that is not allowed, a busy machine affects all clients alike.

The clients take turns in each round:

    ours        firesteel.bench.load.client on uvloop: httptools, times before parsing, JSON parsed afterwards
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
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

import aiohttp
import uvloop

from firesteel.bench.compare.stats import percentile
from firesteel.bench.load.client import RequestTimeouts, TargetServer, chat_body, stream_request
from firesteel.bench.load.transcript import read_stream

STREAMS, RATE = 64, 100
BAR_MS = 1.0
_SENT = re.compile(rb'"sent": ([0-9.]+)')
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Client = Callable[[int, int], Awaitable[tuple[list[float], float]]]


# --- the paced server ---


def chunk(delta: dict[str, str], **more: object) -> bytes:
    document = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef", "object": "chat.completion.chunk",
        "created": 1794700000, "model": "paced", "sent": time.perf_counter(),
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], **more,
    }  # fmt: skip
    data = b"data: " + json.dumps(document).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    match = re.search(rb"(?i)content-length: (\d+)", head)
    request = json.loads(await reader.readexactly(int(match[1]) if match else 0))
    tokens = int(request["max_tokens"])
    writer.write(_HEAD)
    loop = asyncio.get_running_loop()
    began = loop.time() + (hash(id(writer)) % 997) / 997 / RATE  # streams are not synchronous
    for token in range(tokens):
        await asyncio.sleep(max(0.0, began + token / RATE - loop.time()))
        writer.write(chunk({"content": f" word{token}"}))
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": tokens + 8}
    writer.write(chunk({}, usage=usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()
    writer.close()


def serve(port: multiprocessing.Queue[int]) -> None:
    async def main() -> None:
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0, backlog=256)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    pin(1)
    uvloop.run(main())


def pin(core: int) -> bool:
    """To one core, with real-time priority where that is allowed."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        return False
    return True


# --- the clients ---


async def ours(port: int, tokens: int) -> tuple[list[float], float]:
    server = TargetServer("127.0.0.1", port)
    body = chat_body("paced", [{"role": "user", "content": "go"}], tokens)
    cpu_s = time.process_time()
    raws = await asyncio.gather(
        *(stream_request(server, body, RequestTimeouts(), tokens) for _ in range(STREAMS))
    )
    cpu_s = time.process_time() - cpu_s
    assert all(read_stream(raw).usage["completion_tokens"] == tokens for raw in raws)
    return [
        at - float(sent) for raw in raws for at, piece in raw.pieces for sent in _SENT.findall(piece)
    ], cpu_s


async def with_aiohttp(port: int, tokens: int) -> tuple[list[float], float]:
    lags: list[float] = []
    document = json.loads(chat_body("paced", [{"role": "user", "content": "go"}], tokens))

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
        await asyncio.gather(*(one(session) for _ in range(STREAMS)))
    return lags, time.process_time() - cpu_s


class Floor(asyncio.Protocol):
    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.done = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


async def floor(port: int, tokens: int) -> tuple[list[float], float]:
    body = chat_body("paced", [{"role": "user", "content": "go"}], tokens)
    request = TargetServer("127.0.0.1", port).request(body)

    async def one() -> Floor:
        transport, stream = await asyncio.get_running_loop().create_connection(Floor, "127.0.0.1", port)
        transport.write(request)
        await stream.done
        return stream

    cpu_s = time.process_time()
    streams = await asyncio.gather(*(one() for _ in range(STREAMS)))
    cpu_s = time.process_time() - cpu_s
    return [
        at - float(sent) for each in streams for at, data in each.pieces for sent in _SENT.findall(data)
    ], cpu_s


def run(client: Client, port: int, tokens: int, fast: bool) -> tuple[list[float], float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if fast else None) as runner:
        return runner.run(client(port, tokens))  # type: ignore[arg-type]  # two clients, one call


def main(seconds: float, rounds: int) -> int:
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    port, tokens = ports.get(timeout=10), round(seconds * RATE)
    priority = "real-time" if pin(0) else "no"
    clients: dict[str, tuple[Client, bool]] = {
        "ours": (ours, True), "ours/plain": (ours, False),
        "aiohttp": (with_aiohttp, False), "floor": (floor, True),
    }  # fmt: skip
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in clients}
    for at in range(rounds):
        names = list(clients)
        for name in names[at % len(names) :] + names[: at % len(names)]:
            lags, cpu_s = run(clients[name][0], port, tokens, clients[name][1])
            assert len(lags) >= STREAMS * tokens, f"{name}: {len(lags)} of {STREAMS * tokens} chunks"
            results[name].append((1000 * percentile(lags, 50), 1000 * percentile(lags, 99), cpu_s / seconds))
    server.kill()
    for name, rows in results.items():
        p50, p99, cpu = (median(row[at] for row in rows) for at in range(3))
        least = min(row[1] for row in rows)
        print(f"{name:<11} p50 {p50:6.3f} ms   p99 {p99:6.3f} ms (best {least:.3f})   {cpu:5.1%} of a core")
    p99 = median(row[1] for row in results["ours"])
    print(f"ours at p99 {p99:.3f} ms   (bar {BAR_MS} ms), {priority} priority, load {os.getloadavg()[0]:.1f}")
    return int(p99 > BAR_MS)


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    sys.exit(main(arguments[0] if arguments else 4.0, round(arguments[1]) if arguments[1:] else 5))
