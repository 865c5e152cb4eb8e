#!/usr/bin/env python3
"""What grows with connections, and with rows of the request log.

    PYTHONPATH=src:benchmarks/gateway python benchmarks/gateway/growth.py [--requests 3000]

`firesteel serve` in front of the mock upstream: CPU of a request at 1, 32 and 512 connections, and with idle
connections beside them; then the request log alone: CPU of a row with 0 to 1,000,000 rows before it.
`schedule.py` has the curve of the scheduler.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from pathlib import Path

import tree
from load import Load
from stacks import Proxy, Room, firesteel

from firesteel.gateway.admin.request_log import RequestLog
from firesteel.gateway.interfaces import RequestOutcome, Usage
from run import run_load, start_mock

CONNECTIONS = (1, 32, 512)
IDLE = (0, 1_000, 3_000)
ROWS = (0, 10_000, 100_000, 1_000_000)
BATCH = 20_000


def cpu_us(proxy: Proxy, at_once: int, count: int) -> float:
    load = Load(proxy.port, proxy.pid, proxy.headers, proxy.is_exact, at_once=at_once, count=count, warm_up=3)
    return float(run_load(load, None)["cpu_us"])


def connections(proxy: Proxy, count: int) -> None:
    print("| connections | CPU of a request, us |\n|---:|---:|")
    for at_once in CONNECTIONS:
        best = min(cpu_us(proxy, at_once, max(count, 3 * at_once)) for _ in range(3))
        print(f"| {at_once} | {best:.0f} |", flush=True)
    print("\n| idle connections beside 32 | CPU of a request, us | memory, MB |\n|---:|---:|---:|")
    idle: list[socket.socket] = []
    for wanted in IDLE:
        while len(idle) < wanted:
            idle.append(socket.create_connection(("127.0.0.1", proxy.port)))
        best = min(cpu_us(proxy, 32, count) for _ in range(3))
        assert proxy.pid is not None
        print(f"| {wanted} | {best:.0f} | {tree.rss_bytes(proxy.pid) / 1e6:.0f} |", flush=True)
    for each in idle:
        each.close()


def log_rows(folder: Path) -> None:
    print("\n| rows in the request log | CPU of another row, us |\n|---:|---:|")
    log, outcome = RequestLog(folder / "requests.db"), RequestOutcome("whole", 200, Usage(100, 50))
    written = 0
    for wanted in ROWS:
        while written < wanted:
            written += add(log, outcome, BATCH)[0]
        count, seconds = add(log, outcome, BATCH)
        written += count
        print(f"| {wanted} | {seconds / count * 1e6:.1f} |", flush=True)
    log.close()


def add(log: RequestLog, outcome: RequestOutcome, count: int) -> tuple[int, float]:
    """Add rows and wait until they are in the database. Return their number and the CPU time of all."""
    began, target = time.process_time(), log.written + log.dropped + count
    for index in range(count):
        log.add(time.time(), "key", "model", "chat", outcome, 0, None)
        if index % 500 == 0:
            time.sleep(0.02)  # no faster than its thread writes
    while log.written + log.dropped < target:
        time.sleep(0.01)
    return count, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=3_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        room = Room(Path(name), core=None)
        try:
            connections(firesteel.start(room, start_mock(room)), asked.requests)
        finally:
            room.end()
        log_rows(Path(name))


if __name__ == "__main__":
    main()
