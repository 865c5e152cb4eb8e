#!/usr/bin/env python3
"""How long `firesteel --help` takes, beside the least that a click program can take.

    python3 benchmarks/start.py [rounds]

Three commands, run in turn so that a busy machine slows all alike:

    click     .venv/bin/python -c "import click"
    help      .venv/bin/python -m firesteel --help
    launcher  ./firesteel --help

Bars: help at most 1.6 x click; the launcher at most 50 ms more than help. Exits 1 when one is missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv/bin/python")
COMMANDS = {
    "click": [PYTHON, "-c", "import click"],
    "help": [PYTHON, "-m", "firesteel", "--help"],
    "launcher": [str(ROOT / "firesteel"), "--help"],
}
HELP_BAR = 1.6
LAUNCHER_BAR_MS = 50


def time_ms(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def main(rounds: int) -> int:
    for command in reversed(COMMANDS.values()):
        time_ms(command)  # the first run compiles bytecode, or makes .venv
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(time_ms(command))
    for name, spent in times.items():
        print(f"{name:<9} median {median(spent):6.1f} ms  fastest {min(spent):6.1f} ms  of {rounds}")
    ratio = median(times["help"]) / median(times["click"])
    added = median(times["launcher"]) - median(times["help"])
    print(f"help / click        {ratio:.2f} x   (bar {HELP_BAR} x)")
    print(f"launcher - help     {added:.1f} ms  (bar {LAUNCHER_BAR_MS} ms)")
    return int(ratio > HELP_BAR or added > LAUNCHER_BAR_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
