#!/usr/bin/env python3
"""How long `firesteel --help` and a plan take, beside the minimum for a click program.

    python3 benchmarks/start.py [rounds]

Five commands, run in turn so that a busy machine slows all alike:

    click     .venv/bin/python -c "import click"
    help      .venv/bin/python -m firesteel --help
    launcher  ./firesteel --help
    plan      .venv/bin/python -m firesteel plan gpt-oss-120b --host gb10, again: the answer is cached
    new plan  the same with an empty FIRESTEEL_HOME: the answer is computed

Bars: help at most 1.6 x click; the launcher at most 50 ms more than help; plan at most 3 x help. Exits 1 when
one is missed. The new plan has no bar: it shows the cost of the first plan of a model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv/bin/python")
PLAN = [PYTHON, "-m", "firesteel", "plan", "gpt-oss-120b", "--host", "gb10"]
COMMANDS = {
    "plan": PLAN,
    "new plan": PLAN,
    "click": [PYTHON, "-c", "import click"],
    "help": [PYTHON, "-m", "firesteel", "--help"],
    "launcher": [str(ROOT / "firesteel"), "--help"],
}
HELP_BAR = 1.6
LAUNCHER_BAR_MS = 50
PLAN_BAR = 3.0


def time_ms(name: str, home: Path) -> float:
    """A new plan finds nothing kept; the next plan finds what this one keeps."""
    if name == "new plan":
        shutil.rmtree(home, ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(
        COMMANDS[name],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "FIRESTEEL_HOME": str(home)},
    )
    return (time.perf_counter() - start) * 1000


def main(rounds: int) -> int:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        for name in reversed(COMMANDS):
            time_ms(name, home)  # the first run compiles bytecode, or makes .venv
        for _ in range(rounds):
            for name in COMMANDS:
                times[name].append(time_ms(name, home))
    for name, spent in times.items():
        print(f"{name:<9} median {median(spent):6.1f} ms  fastest {min(spent):6.1f} ms  of {rounds}")
    ratio = median(times["help"]) / median(times["click"])
    added = median(times["launcher"]) - median(times["help"])
    print(f"help / click        {ratio:.2f} x   (bar {HELP_BAR} x)")
    print(f"launcher - help     {added:.1f} ms  (bar {LAUNCHER_BAR_MS} ms)")
    again, anew = (median(times[name]) / median(times["help"]) for name in ("plan", "new plan"))
    print(f"plan / help         {again:.2f} x   (bar {PLAN_BAR} x)")
    print(f"new plan / help     {anew:.2f} x")
    return int(ratio > HELP_BAR or added > LAUNCHER_BAR_MS or again > PLAN_BAR)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
