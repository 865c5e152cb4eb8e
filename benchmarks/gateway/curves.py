#!/usr/bin/env python3
"""What the curves cost: the file after a month, a query, a sample, and a request's share.

    .venv/bin/python benchmarks/gateway/curves.py [--days 31] [--models 10] [--before SRC]

A month is written sample by sample, as the gateway does it, only without its pauses; `--every 300` leaves
out most of them until the last six hours, which makes the same file in a fraction of the time. `--before` is
the `src` folder of another checkout: both versions of `ModelCounters.finish`, the only part of the curves on
the path of a request, run in turns in processes of their own, and the least of their times counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from firesteel.gateway.admin.meter import Meter
from firesteel.gateway.executor import ModelView
from firesteel.gateway.monitoring.sampler import CurveSampler
from firesteel.gateway.monitoring.store import RANGES, SAMPLE_S, CurveRow, CurveStore, curves_document
from firesteel.gateway.scheduler.events import ScheduledModel
from firesteel.gateway.service_config import ModelConfig

_FULL_S = 6 * 3600
T0 = 1_800_000_000 // 7200 * 7200
FINISH = """
import timeit
from firesteel.gateway.admin.meter import Meter
from firesteel.gateway.interfaces import RequestOutcome, Usage
counters = Meter(["coder"]).counters("coder", "laptop")
outcome = RequestOutcome("whole", 200, Usage(900, 200, 800), True, 1, 1, 0.1, 0.3, 5.0)
print(min(timeit.repeat(lambda: counters.finish("chat", outcome), number=20000, repeat=5)) / 20000 * 1e9)
"""


def month(path: Path, days: int, models: int, every_s: int) -> None:
    dice, store = random.Random(1), CurveStore(path)
    names = [f"model-{number}" for number in range(models)]
    end = T0 + days * 86400
    starts = [*range(T0, end - _FULL_S, every_s), *range(end - _FULL_S, end, SAMPLE_S)]
    began, samples = time.process_time(), len(starts)
    times: list[float] = []
    for at in starts:
        counts = tuple(dice.randrange(5) for _ in range(17))
        rows = [CurveRow(name, at, 5.0, 200.0, counts, counts, 1.0, 0.3, 3e10) for name in ("", *names)]
        start = time.perf_counter()
        problem = store.add(rows, at + SAMPLE_S)
        times.append(time.perf_counter() - start)
        assert problem is None, problem
    store.close()
    size = sum(
        Path(f"{path}{suffix}").stat().st_size for suffix in ("", "-wal") if Path(f"{path}{suffix}").exists()
    )
    cpu_us = (time.process_time() - began) / samples * 1e6
    print(f"{days} days, {models} models, {samples:,} samples: {size / 1e6:.2f} MB in all, ", end="")
    print(f"{size / (models + 1) / 1e3:.0f} KB a model; a write takes {cpu_us:.0f} us of CPU, ", end="")
    slow_ms = sorted(times)[-samples // 1000] * 1e3
    print(f"median {statistics.median(times) * 1e3:.2f} ms, p99.9 {slow_ms:.0f} ms")
    now = end
    for each in RANGES.values():
        for wanted in (None, frozenset(names[:1])):
            asyncio.run(query(store, each.name, now, wanted))


async def query(store: CurveStore, name: str, now: float, models: frozenset[str] | None) -> None:
    best_query = best_text = float("inf")
    for _ in range(5):
        start = time.process_time()
        points = store.query(RANGES[name], now, models)
        middle = time.process_time()
        text = await curves_document(RANGES[name], RANGES[name].start(now), points, {})
        best_query, best_text = min(best_query, middle - start), min(best_text, time.process_time() - middle)
    who = "all models" if models is None else "one model"
    took = f"query {best_query * 1e3:.1f} ms, document {best_text * 1e3:.1f} ms"
    print(f"  {name:>3} {who}: {took}, {len(text):,} bytes")


async def sample_cost(folder: Path, models: int) -> None:
    """CPU of one sample with as many engines, each with a vLLM page of 100 KB."""
    names = [f"model-{number}" for number in range(models)]
    meter = Meter(names)
    for name in names:
        for key in ("laptop", "desktop", "agent"):
            meter.counters(name, key).first(0.2)
    noise = "".join(f'vllm:noise_bucket{{engine="0",le="{n}"}} {n}.0\n' for n in range(2000))
    page = f"{noise}vllm:kv_cache_usage_perc 0.3\nvllm:num_preemptions_total 0\n"
    views = [
        ModelView(
            ModelConfig(name, "", ()),
            ScheduledModel(name, "ready", 1, 0, 1000, 0.0, "", 0.0, False, False, False),
            None,
            None,
        )
        for name in names
    ]

    async def pages() -> Mapping[str, str]:
        return dict.fromkeys(names, page)

    clock = [float(T0)]
    sampler = CurveSampler(
        CurveStore(folder / "sample.db"), meter.totals, lambda: views, pages, gpu=lambda: None,
        wall_clock=lambda: clock[0], clock=lambda: clock[0],
    )  # fmt: skip
    costs = []
    for _ in range(200):
        clock[0] += SAMPLE_S
        start = time.process_time()
        await sampler.sample()
        for name in names:
            sampler.recent(name)
        costs.append(time.process_time() - start)
    least = min(costs)
    print(f"a sample of {models} vLLM engines: {least * 1e3:.1f} ms of CPU, {least / SAMPLE_S:.2%} of a core")


def finish_cost(before: str) -> None:
    here = str(Path(__file__).parents[2] / "src")
    figures: dict[str, list[float]] = {before: [], here: []}
    for _ in range(15):
        for src, found in figures.items():
            env = {**os.environ, "PYTHONPATH": src}
            ran = subprocess.run(
                [sys.executable, "-c", FINISH], env=env, capture_output=True, text=True, check=True
            )
            found.append(float(ran.stdout))
    old, new = (min(found) for found in figures.values())
    print(f"finish() of a stream with a cached prompt: before {old:.0f} ns, now {new:.0f} ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--days", type=int, default=31)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument(
        "--every", type=int, default=SAMPLE_S, help="seconds between samples, but for the end"
    )
    parser.add_argument("--before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.before:
            finish_cost(arguments.before)
        asyncio.run(sample_cost(Path(folder), arguments.models))
        month(Path(folder) / "curves.db", arguments.days, arguments.models, arguments.every)


if __name__ == "__main__":
    main()
