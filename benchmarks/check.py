#!/usr/bin/env python3
"""How long `check` takes: one command in a process that has checked before, and a folder of 200 recipes.

    .venv/bin/python benchmarks/check.py [rounds]

Bars: 150 ms, and 5 s on two cores. Exits 1 when one is missed. The first check, which loads rules and
schemas, is shown beside it. The folder holds compose files, manifests, scripts, guides, units and recipes
in equal parts, and is checked by the program itself, including its start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import firesteel

LINE = (
    "docker run -d --gpus all --shm-size 64g -e VLLM_FP8_MOE_BACKEND=x -p 8000:8000 vllm/vllm-openai:v0.24.0 "
    "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --gpu-memory-utilization 0.92 --max-num-queued-reqs 9"
)
BAR_MS = 150
FOLDER_BAR_S = 5.0
FILES = {
    "run.sh": f"#!/bin/sh\n{LINE}\n",
    "guide.md": f"# Guide\n\nSet `VLLM_ATTENTION_BACKEND`.\n\n```bash\n{LINE}\n```\n",
    "compose.yaml": (
        "services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    gpus: all\n    shm_size: 64gb\n"
        "    command: >\n      Qwen/Qwen3-32B --gpu-memory-utilization 0.8 --max-model-len 32768\n"
    ),
    "pod.yaml": (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - name: a\n"
        "      image: vllm/vllm-openai:v0.24.0\n"
        "      args: [openai/gpt-oss-120b, --gpu-memory-utilization, '0.85']\n"
        "      resources: {limits: {nvidia.com/gpu: 1}}\n"
    ),
    "a.service": f"[Service]\nExecStart=/usr/bin/{LINE}\nRestart=always\n",
    "recipe.yaml": (
        "recipe_version: '1'\nname: a\nmodel: org/m\nruntime: vllm\ncontainer: vllm/vllm-openai:v0.28.0\n"
        "defaults: {port: 8000}\n"
        "command: |\n  vllm serve {model} --port {port} --gpu-memory-utilization 0.8\n"
    ),
}


def time_ms() -> float:
    start = time.perf_counter()
    assert len(firesteel.check(LINE)) >= 5
    return (time.perf_counter() - start) * 1000


def folder_s(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name, text = list(FILES.items())[number % len(FILES)]
            place = Path(folder, f"{number:03}")
            place.mkdir()
            (place / name).write_text(text)
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "firesteel", "check", "--json", folder], capture_output=True, check=False
        )
        took = time.perf_counter() - start
    assert done.returncode == 3, done.stderr
    return took


def main(rounds: int) -> int:
    first = time_ms()
    later = [time_ms() for _ in range(rounds)]
    print(
        f"first {first:.0f} ms, then median {median(later):.1f} ms, slowest {max(later):.1f} ms of {rounds}"
    )
    folder = folder_s(200)
    print(f"a folder of 200 files {folder:.1f} s")
    return int(median(later) > BAR_MS or folder > FOLDER_BAR_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
