#!/usr/bin/env python3
"""What open web pages cost the gateway: its CPU with none and with three, ten models busy.

    .venv/bin/python benchmarks/gateway/pages.py [--pages 3] [--models 10] [--seconds 20] [--rounds 3]

A page is a reader of `/api/events`, which is all that its view Now asks for. Every model streams answers, so
that its state changes nearly each second. The figure is the gateway's CPU time with pages less that without,
as a share of a core: the minimum over the rounds, because other programs can only add to it. Exits 1 above
the bar of 2 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import orders
import tree
from stacks import Room, firesteel

from run import start_mock

BAR = 0.02


class Readers:
    """Pages that are open."""

    def __init__(self, url: str, count: int) -> None:
        self._answers = [urllib.request.urlopen(f"{url}/api/events", timeout=60) for _ in range(count)]
        self.events, self._ends = 0, False
        self._threads = [threading.Thread(target=self._read, args=(answer,)) for answer in self._answers]
        for thread in self._threads:
            thread.start()

    def _read(self, answer: HTTPResponse) -> None:
        with suppress(Exception):
            for line in answer:
                self.events += line.startswith(b"event: ")
                if self._ends:
                    return

    def close(self) -> None:
        self._ends = True
        for thread in self._threads:
            thread.join(timeout=30)
        for answer in self._answers:
            answer.close()


def keep_asking(url: str, model: str, seed: int, ends: threading.Event) -> None:
    """Streams of a second or less with pauses as long, so that the state of every model keeps changing."""
    chance = random.Random(seed)
    while not ends.wait(chance.random()):
        order = orders.Order(chance.randrange(10**6), events=chance.randint(2, 10), pace_us=100_000)
        body = orders.body(order, orders.prompt(200), model)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
        with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


def cpu_share(pid: int, seconds: float) -> float:
    began_s, began_ns = time.monotonic(), tree.cpu_ns(pid)
    time.sleep(seconds)
    return (tree.cpu_ns(pid) - began_ns) / 1e9 / (time.monotonic() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options)


def measure(folder: Path, options: argparse.Namespace) -> int:
    names = [f"model-{number}" for number in range(options.models)]
    room, mock = Room(folder), Room(folder, None)
    users: list[threading.Thread] = []
    ends = threading.Event()
    try:
        gateway, port = firesteel.serve(room, names, start_mock(mock))
        url = f"http://127.0.0.1:{port}"
        users = [
            threading.Thread(target=keep_asking, args=(url, name, seed, ends))
            for seed, name in enumerate(names)
        ]
        for user in users:
            user.start()
        without, with_pages, events = [], [], 0
        for _ in range(options.rounds):
            without.append(cpu_share(gateway.pid, options.seconds))
            readers = Readers(url, options.pages)
            with_pages.append(cpu_share(gateway.pid, options.seconds))
            readers.close()
            events += readers.events
    finally:
        ends.set()
        for user in users:
            user.join()
        room.end()
        mock.end()
    added = min(with_pages) - min(without)
    print(f"without pages {min(without):.2%} of a core, with {options.pages} {min(with_pages):.2%}")
    print(f"{events / options.rounds / options.seconds / options.pages:.1f} events a second and page")
    print(f"{added:.2%} of a core for the pages; the bar is {BAR:.0%}")
    return 0 if added <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
