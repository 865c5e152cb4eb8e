"""The processes of this machine: who runs which command, and whose child it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from firesteel.edge.host.process import Pid, children, find


def commands() -> Iterator[tuple[Pid, tuple[str, ...]]]:
    """Every process with its arguments, as far as we may see them; the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1]
        except OSError:
            continue
        pid = find(int(folder.name)) if arguments else None
        if pid:
            found.append((pid, tuple(arguments)))
    yield from sorted(found, key=lambda pair: pair[0].started_ticks)


def oldest_child(pid: Pid) -> Pid | None:
    found = [child for number in children(pid.number) if (child := find(number))]
    return min(found, key=lambda child: child.started_ticks, default=None)


def started_at(pid: Pid) -> float:
    """By the wall clock."""
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    return boot + pid.started_ticks / os.sysconf("SC_CLK_TCK")
