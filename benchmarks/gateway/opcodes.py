#!/usr/bin/env python3
"""Python instructions that the gateway's HTTP path executes for a request, for an event of a stream, and for
a turn of a conversation of 100 KB, which is followed (`gateway/prompt_chain.py`); and the time until an
engine in another process has the first byte of such a turn, where every second one is followed (medians).

    python benchmarks/gateway/opcodes.py [SRC]...     SRC: another checkout's `src`, to compare this one with

Counts bytecode instructions in `firesteel.gateway` by tracing them, so the figures do not depend on how busy
the machine is. Requests go over one connection through the real HTTP server to an engine that answers at
once; a dispatcher that grants everything takes the place of the scheduler. What follows the last byte of an
answer is not counted: its `finish` does nothing, so neither the meter nor the request log runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any, cast

HERE = Path(__file__).resolve()
REQUESTS, EVENTS = 200, 200
KEY = b"Authorization: Bearer fs-0123456789\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"max_tokens":5}' % (b"hello " * 150)
STREAM = BODY[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'
TURNS = 60
ANSWER = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'


def request(body: bytes) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
    return (
        head + KEY + b"User-Agent: bench\r\nAccept: */*\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def turn(number: int) -> bytes:
    """The next one of a conversation: 70 KB of tools, and a result of 500 bytes more each time."""
    tools = b",".join(
        b'{"type":"function","function":{"name":"tool%d","description":"%b","parameters":{"type":"object"}}}'
        % (at, b"does what it says. " * 180)
        for at in range(20)
    )
    messages = b",".join(
        b'{"role":"%b","content":"line one\\nline two %d %b"}'
        % (b"user" if at % 2 else b"assistant", at, b"word " * 100)
        for at in range(1, 2 * number + 40)
    )
    return b'{"model":"m","messages":[%b],"tools":[%b],"max_tokens":5}' % (messages, tools)


class Counter:
    """Instructions in `firesteel.gateway`."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "call":
            if "firesteel/gateway" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.count += 1
        return self.trace


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends an event only when the client has the one before, so that each is a piece of its own."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        arrived = perf_counter()
        body = await reader.readexactly(size)
        if b'"stream":true' not in body:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
                % (b"X-At: %.9f\r\n" % arrived if IS_TIMED else b"", len(ANSWER))
            )
            writer.write(ANSWER)
            continue
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(EVENTS):
            writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            await NEXT.acquire()
        writer.write(b"0\r\n\r\n")


IS_TIMED = "--engine" in sys.argv


async def serve() -> None:
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


NEXT = asyncio.Semaphore(0)


async def count() -> dict[str, float]:
    from firesteel.gateway.http.server import HttpServer
    from firesteel.gateway.interfaces import Caller, Endpoint

    try:
        from firesteel.gateway.prompt_chain import PromptChains
    except ImportError:  # of a checkout before it
        chains: Any = None
    else:
        chains = PromptChains()
    is_followed = True
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    endpoint = Endpoint("m", ("127.0.0.1", server.sockets[0].getsockname()[1]))

    class Grants:
        """What is not asked for here is not there."""

        def admit(self, token: bytes | None) -> Caller:
            return Caller("bench")

        def submit(self, request: Any) -> None:
            request.granted(endpoint, None)

        def sent(self, request: Any, prompt: bytes) -> None:
            if chains is not None and is_followed:
                asyncio.get_running_loop().call_soon(chains.take, "bench", "m", prompt, ("m", 0))

        def finish(self, request: Any, outcome: object) -> None: ...

    gateway = HttpServer(cast(Any, Grants()))
    reader, writer = await asyncio.open_connection("127.0.0.1", await gateway.start("127.0.0.1", 0))

    async def ask(body: bytes = BODY) -> None:
        writer.write(request(body))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))

    async def stream() -> None:
        writer.write(request(STREAM))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(EVENTS):
            await reader.readuntil(EVENT + b"\r\n")
            NEXT.release()
        await reader.readuntil(b"0\r\n\r\n")

    counted = {}
    for name, run, times in (("request", ask, REQUESTS), ("stream", stream, 3)):
        await run()
        counter = Counter()
        sys.settrace(counter.trace)
        for _ in range(times):
            await run()
        sys.settrace(None)
        counted[name] = counter.count / times
    counter = Counter()
    turns = [request(turn(number)) for number in range(TURNS)]

    async def take_turn(text: bytes) -> float:
        """Return when the engine had its first byte, as the engine says."""
        began = perf_counter()
        writer.write(text)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        return float(head.split(b"X-At: ")[1].split(b"\r\n")[0]) - began if b"X-At" in head else 0.0

    await take_turn(turns[0])
    sys.settrace(counter.trace)
    for text in turns[1:]:
        await take_turn(text)
    sys.settrace(None)
    counted["turn"] = counter.count / (TURNS - 1)
    command = (sys.executable, str(HERE), "--engine")
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    endpoint = Endpoint("m", ("127.0.0.1", int(await child.stdout.readline())))
    await take_turn(turns[0])
    times: dict[bool, list[float]] = {True: [], False: []}
    for text in turns * 10:
        is_followed = not is_followed
        times[is_followed].append(1e6 * await take_turn(text))
    child.kill()
    await child.wait()
    counted["first byte"], counted["first byte, not followed"] = median(times[True]), median(times[False])
    writer.close()
    await gateway.drain(0)
    server.close()
    counted["event"] = (counted.pop("stream") - counted["request"]) / EVENTS
    return counted


def main(sources: list[str]) -> None:
    rows = []
    for source in (*sources, str(HERE.parents[2] / "src")):
        environment = {**os.environ, "PYTHONPATH": source}
        words = [sys.executable, str(HERE), "--count"]
        rows.append(
            json.loads(subprocess.run(words, env=environment, check=True, capture_output=True).stdout)
        )
        row = rows[-1]
        print(f"{source}: {row['request']:.1f} instructions a request, {row['event']:.1f} an event", end="; ")
        times = f"{row['first byte']:.0f} us, {row['first byte, not followed']:.0f} us if not followed"
        print(f"{row['turn']:.1f} a turn of 100 KB, its first byte after {times}")
    if len(rows) > 1:
        print(*(f"{name}: x {rows[-1][name] / rows[0][name]:.4f}" for name in rows[0]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--engine"]:
        asyncio.run(serve())
    elif sys.argv[1:] == ["--count"]:
        print(json.dumps(asyncio.run(count())))
    else:
        main(sys.argv[1:])
