#!/usr/bin/env python3
"""Measure how long new processes take: `firesteel --help`, a plan, a check and the catalog, beside click.

    python3 benchmarks/start.py [rounds]          seconds, in turns, so that a busy machine slows all alike
    python3 benchmarks/start.py --instructions    instructions counted by valgrind, whatever else runs

    click     .venv/bin/python -c "import click"
    help      .venv/bin/python -m firesteel --help
    launcher  ./firesteel --help
    plan      firesteel plan gpt-oss-120b --host gb10
    check     firesteel check docker run ... vllm serve ...
    models    firesteel models --host gb10

Bars: help at most 1.6 x click; the launcher at most 50 ms more than help; plan at most 8 x, check 6 x and
models 14 x of help. Exits 1 when one is missed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv/bin/python")
FIRESTEEL = [PYTHON, "-m", "firesteel"]
LINE = "docker run --gpus all vllm/vllm-openai:v0.24.0 vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
COMMANDS = {
    "click": [PYTHON, "-c", "import click"],
    "help": [*FIRESTEEL, "--help"],
    "launcher": [str(ROOT / "firesteel"), "--help"],
    "plan": [*FIRESTEEL, "plan", "gpt-oss-120b", "--host", "gb10"],
    "check": [*FIRESTEEL, "check", *LINE.split()],
    "models": [*FIRESTEEL, "models", "--host", "gb10"],
}
HELP_BAR = 1.6
LAUNCHER_BAR_MS = 50
BARS = {"plan": 8.0, "check": 6.0, "models": 14.0}
"""Times `firesteel --help`."""


def run(command: list[str], home: str) -> str:
    env = {**os.environ, "FIRESTEEL_HOME": home}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is measured is a program that was run before
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False).stderr


def seconds(rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        for command in COMMANDS.values():
            run(command, home)  # the first run compiles modules and data, or makes .venv
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                began = time.perf_counter()
                run(command, home)
                times[name].append(time.perf_counter() - began)
    for name, taken in times.items():
        print(f"{name:<9} median {1000 * median(taken):6.1f} ms  fastest {1000 * min(taken):6.1f} ms")
    return {name: median(taken) for name, taken in times.items()}


def instructions() -> dict[str, float]:
    counted = {}
    with tempfile.TemporaryDirectory() as home:
        for name, command in COMMANDS.items():
            if name == "launcher":  # a shell script before the same Python
                continue
            run(command, home)
            valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={home}/out", *command]
            found = re.search(r"Collected : (\d+)", run(valgrind, home))
            counted[name] = float(found[1]) if found else float("nan")
            print(f"{name:<9} {counted[name] / 1e6:8.0f} M instructions", flush=True)
    return counted


def main(arguments: list[str]) -> int:
    is_counted = "--instructions" in arguments
    spent = instructions() if is_counted else seconds(int(arguments[0]) if arguments else 20)
    missed = spent["help"] / spent["click"] > HELP_BAR
    print(f"help / click     {spent['help'] / spent['click']:5.2f} x   (bar {HELP_BAR} x)")
    for name, bar in BARS.items():
        ratio = spent[name] / spent["help"]
        missed |= ratio > bar
        print(f"{name + ' / help':<16} {ratio:5.2f} x   (bar {bar:g} x)")
    if not is_counted:
        added_ms = 1000 * (spent["launcher"] - spent["help"])
        missed |= added_ms > LAUNCHER_BAR_MS
        print(f"launcher - help  {added_ms:5.1f} ms  (bar {LAUNCHER_BAR_MS} ms)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
