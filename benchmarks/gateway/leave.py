#!/usr/bin/env python3
"""How soon the connection to the engine is closed when a client goes: the bar is 5 ms in all six cases.

    .venv-dev/bin/python benchmarks/gateway/leave.py [--rounds 200]

Before the headers, in a stalled and in a dripping stream; by FIN and by RST. Client, gateway and engine share
one event loop. The figure is the median, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import median
from time import monotonic

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.gateway.http.kit import STREAMING, FakeDispatcher, request, run_gateway
from tests.gateway.http.test_cancel import Watch, leave

from firesteel.gateway.http.limits import HttpLimits

BAR_MS = 5.0
PHASES, WAYS = ("before headers", "stalled", "dripping"), ("fin", "rst")


async def closing_ms(phase: str, how: str, rounds: int) -> float:
    took_ms = []
    async with run_gateway(FakeDispatcher(), HttpLimits()) as gateway:
        for _ in range(rounds):
            watch = gateway.engine.script = Watch(phase)
            client = await gateway.client()
            await client.send(request(STREAMING))
            await watch.is_under_way.wait()
            if phase != "before headers":
                await client.head()
                await client.chunk()
            left_at = monotonic()
            leave(client, how)
            took_ms.append((await watch.closed_at - left_at) * 1000)
    return median(took_ms)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| client gone | asyncio, ms | uvloop, ms |")
    print("|---|---|---|")
    worst_ms = 0.0
    for phase in PHASES:
        for how in WAYS:
            found = []
            for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    found.append(runner.run(closing_ms(phase, how, rounds)))
            worst_ms = max(worst_ms, *found)
            print(f"| {phase}, {how.upper()} | {found[0]:.2f} | {found[1]:.2f} |", flush=True)
    sys.exit(worst_ms > BAR_MS)


if __name__ == "__main__":
    main()
