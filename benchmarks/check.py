#!/usr/bin/env python3
"""How long `check` takes for one command, in a process that has checked before.

    .venv/bin/python benchmarks/check.py [rounds]

Bar: 150 ms. Exits 1 when it is missed. The first check, which loads rules and schemas, is told beside it.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import firesteel

LINE = (
    "docker run -d --gpus all --shm-size 64g -e VLLM_FP8_MOE_BACKEND=x -p 8000:8000 vllm/vllm-openai:v0.24.0 "
    "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --gpu-memory-utilization 0.92 --max-num-queued-reqs 9"
)
BAR_MS = 150


def time_ms() -> float:
    start = time.perf_counter()
    assert len(firesteel.check(LINE)) >= 5
    return (time.perf_counter() - start) * 1000


def main(rounds: int) -> int:
    first = time_ms()
    later = [time_ms() for _ in range(rounds)]
    print(
        f"first {first:.0f} ms, then median {median(later):.1f} ms, slowest {max(later):.1f} ms of {rounds}"
    )
    return int(median(later) > BAR_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
