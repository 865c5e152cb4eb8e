#!/usr/bin/env python3
"""How late the client of a whole `bench` run is at many streams, and how wrong its figures are because of it.

    python3 benchmarks/bench_streams.py [--users 16,64,128] [--rate 100] [--budget 20] [--profile FILE]

A server in a process of its own decodes as vLLM does: all streams get a token in the same step, `rate` steps
a second, by absolute times. So the true decode rate is known, and whatever `measure` finds less is the client
(or this machine: its own lateness is shown beside it). Unlike `bench_client.py`, which times the sockets
alone, this runs all that `firesteel bench` does: prompts, repetitions, timeouts, samples. Both sides request
real-time priority, so that other programs are not measured as well. To compare two versions, run it
with PYTHONPATH of each, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import time
from collections import deque
from typing import Any, cast

import uvloop
from bench_client import STREAM_HEAD, framed, take_priority

from firesteel.bench.load.measure import RunFinished, RunOrder, measure
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import Point, Subject

_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def event(choices: list[object], **more: object) -> bytes:
    document = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef", "object": "chat.completion.chunk",
        "created": 1794700000, "model": "m", "choices": choices, **more,
    }  # fmt: skip
    return framed(document)


def delta(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return event([choice])


_TOKEN = delta(" word")


class Connection(asyncio.Protocol):
    """Reads one request at a time; a stream is handed to the engine."""

    decoding: deque[tuple[Connection, int, bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.data = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not end or len(body) < int(length or 0):
            return
        self.data = b""
        request = json.loads(body) if body else {}
        if b"/chat/completions" in head:
            self.chat(request)
        elif b"/tokenize" in head:
            self.answer({"count": len(request["prompt"].split())})
        else:
            self.answer({"data": [{"id": "m", "max_model_len": 8192}]})

    def chat(self, request: dict[str, Any]) -> None:
        tokens = int(request["max_tokens"])
        prompt = request["messages"][0]["content"]
        usage = {"prompt_tokens": len(prompt.split()) + 7, "completion_tokens": tokens}
        if request.get("stream"):
            self.transport.write(STREAM_HEAD)
            last = delta("", "length") + event([], usage=usage) + _END
            self.decoding.append((self, tokens, last))
            return
        message = {"role": "assistant", "content": " word" * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        self.answer({"choices": [choice], "usage": usage})

    def answer(self, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)


async def decode(rate: int) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + 1 / rate, loop.time() - 1)
        await asyncio.sleep(max(0.0, due - loop.time()))
        for _ in range(len(Connection.decoding)):
            connection, left, last = Connection.decoding.popleft()
            if left:
                connection.transport.write(_TOKEN)
                Connection.decoding.append((connection, left - 1, last))
            else:
                connection.transport.write(last)


def serve(port: multiprocessing.Queue[int], rate: int) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
        port.put(server.sockets[0].getsockname()[1])
        await decode(rate)

    take_priority()  # without a core of its own: the client's clock is a process beside it, and must run
    uvloop.run(main())


async def bench(url: str, users: int, budget_s: float) -> RunFinished:
    point = Point("sweep", "prose", users, 512, 128)
    order = RunOrder(Subject(url, "m"), (point,), limits=RunLimits(budget_s, 0.0001))
    async for run_event in measure(order):
        if isinstance(run_event, RunFinished):
            return run_event
    raise AssertionError("a run ends with RunFinished")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", default="16,64,128")
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--budget", type=float, default=20)
    parser.add_argument("--profile")
    options = parser.parse_args()
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports, options.rate), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ports.get(timeout=10)}"
    has_priority = take_priority()
    profile = cProfile.Profile()
    for users in map(int, options.users.split(",")):
        began, cpu_s = time.perf_counter(), time.process_time()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if options.profile:
                profile.enable()
            done = runner.run(bench(url, users, options.budget))
            profile.disable()
        (figures,), client = done.run.figures, done.run.client
        row = {
            "users": users,
            "p99_lag_ms": round(client["p99_lag_ms"], 3),
            "machine_p99_lag_ms": round(client["machine_p99_lag_ms"], 3),
            "decode_of_true": round(figures.decode_tokens_per_s.value / options.rate, 4)
            if figures.decode_tokens_per_s
            else None,
            "ttft_p99_ms": round(figures.ttft_ms.get("p99", 0), 2),
            "repetitions": figures.repetitions,
            "cpu_share": round((time.process_time() - cpu_s) / (time.perf_counter() - began), 2),
            "real_time": has_priority,
            "load_average": round(os.getloadavg()[0], 1),
            "notes": figures.notes,
        }
        print(json.dumps(row), flush=True)
    if options.profile:
        profile.dump_stats(options.profile)
    server.kill()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
