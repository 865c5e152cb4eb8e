#!/usr/bin/env python3
"""CPU of one event of one stream, proxies in turns: steady figures on a busy machine.

    chrt -r 5 .venv-dev/bin/python benchmarks/gateway/one_event.py [--only nginx,firesteel] [--rounds 120]

The next event is sent when the client has the last one, so that no two are ever read together, as happens in
`run.py` when a busy machine delays a proxy. A round is 100 events, too short to be interrupted often; the
lower quartile of the rounds is the figure. FIRESTEEL_BEFORE as for `run.py`. Every wake-up from sleep is in
it, which is what a stream of 50 tokens a second costs; under load several events share one.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import tree
from stacks import Proxy, Room

import run

EVENTS = 100
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" 0123abcd 77"},"logprobs":null,"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = (
    b'{"messages":[{"role":"user","content":"MEASURED"}],"model":"bench","stream":true,'
    b'"stream_options":{"include_usage":true}}'
)


class Engine:
    """Hands the connection of a measured request to `streams`; anything else gets an empty object."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.streams: queue.Queue[socket.socket] = queue.Queue()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            while piece := connection.recv(65536):
                data += piece
                if BODY in data:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.streams.put(connection)
                    return
                if data.endswith((b"\r\n\r\n", b"{}")):
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    data = b""


class Stream:
    def __init__(self, proxy: Proxy, engine: Engine) -> None:
        assert proxy.pid is not None
        self.pid = proxy.pid
        self.client = socket.create_connection(("127.0.0.1", proxy.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench.local\r\n{proxy.headers}"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self.client.sendall((head + kind).encode() + BODY)
        self.engine = engine.streams.get(timeout=60)
        self.engine.sendall(HEAD + CHUNK)
        data = b""
        while not data.endswith(CHUNK):
            data += self.client.recv(65536)

    def round_us(self) -> float:
        began_ns = tree.cpu_ns(self.pid)
        for _ in range(EVENTS):
            self.engine.send(CHUNK)
            left = len(CHUNK)
            while left:
                left -= len(self.client.recv(65536))
        return (tree.cpu_ns(self.pid) - began_ns) / EVENTS / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="nginx,relay,before,firesteel")
    parser.add_argument("--rounds", type=int, default=120)
    asked = parser.parse_args()
    os.sched_setaffinity(0, {1})
    stacks = [each for each in run.STACKS if each.name in asked.only.split(",")]
    engine, rooms = Engine(), list[Room]()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rooms.append(Room(Path(scratch), 1))
            seen = run.start_all(stacks, rooms, Path(scratch), engine.port)
            streams = {name: Stream(each.proxy, engine) for name, each in seen.items()}
            rounds: dict[str, list[float]] = {name: [] for name in streams}
            for number in range(asked.rounds + 3):
                for name in random.sample(list(streams), len(streams)):
                    spent = streams[name].round_us()
                    if number >= 3:
                        rounds[name].append(spent)
        finally:
            for room in reversed(rooms):
                room.end()
    least = {name: sorted(spent)[len(spent) // 4] for name, spent in rounds.items()}
    print("| stack | us an event | x nginx |\n|---|---:|---:|")
    for name, spent_us in least.items():
        print(f"| {name} | {spent_us:.1f} | {spent_us / least.get('nginx', spent_us):.2f} |")


if __name__ == "__main__":
    sys.exit(main())
