#!/usr/bin/env python3
"""How long `check` takes for 700 files of other people, each with at least one launch.

    .venv/bin/python benchmarks/check_files.py FOLDER ... [--rounds 3]

Folders are checkouts of public repositories; the first 700 files of them that have a launch are copied and
checked by the program itself, on one core and on all, in turns with `firesteel --help`. The least of the
rounds counts. Bar: 4 s on all cores; exits 1 when it is missed. CPU seconds hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firesteel.catalog.catalog import shipped
from firesteel.edge.files import find_files, read_text
from firesteel.errors import FiresteelError
from firesteel.rules.linter import LintOptions, lint

FILES = 700
BAR_S = 4.0
OPTIONS = LintOptions(shipped().images)


def copy_files(folders: list[Path], target: Path) -> tuple[int, int, int]:
    """How many files, launches and bytes."""
    files = launches = size = 0
    for folder in folders:
        for path in find_files([folder]):
            count = launches_in(path)
            if count and files < FILES:
                copy = target / folder.name / path.relative_to(folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                files, launches, size = files + 1, launches + count, size + path.stat().st_size
    return files, launches, size


def launches_in(path: Path) -> int:
    try:
        return len(lint(read_text(path), str(path), OPTIONS).launches)
    except FiresteelError:
        return 0


def spent(arguments: list[str], cores: set[int]) -> tuple[float, float]:
    """CPU seconds and wall seconds of the program on these cores."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "firesteel", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def main(folders: list[Path], rounds: int) -> int:
    every = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as name:
        files, launches, size = copy_files(folders, Path(name))
        print(f"{files} files, {launches:,} launches, {size / 1e6:.1f} MB")
        kinds = {
            "help": (["--help"], every),
            "one core": (["check", "--json", name], {min(every)}),
            f"{len(every)} cores": (["check", "--json", name], every),
        }
        found = [{kind: spent(*how) for kind, how in kinds.items()} for _ in range(rounds)]
    least = {kind: tuple(min(times[kind][i] for times in found) for i in (0, 1)) for kind in kinds}
    for kind, (cpu, wall) in least.items():
        ratio = cpu / least["help"][0]
        print(f"{kind:<9} {cpu:5.2f} s of CPU ({ratio:5.1f} x help), {wall:5.2f} s", flush=True)
    return int(least[f"{len(every)} cores"][1] > BAR_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sys.exit(main(arguments.folders, arguments.rounds))
