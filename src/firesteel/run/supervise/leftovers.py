"""Processes that an engine left behind: those that outlived its supervisor and its reaper.

An engine's processes carry the folder of its service in their environment, and so do all that they start.
What has it although no supervisor is alive holds memory, on the GPU too, that nobody would free.
"""

from __future__ import annotations

import signal
from pathlib import Path

from firesteel.edge.host import process

SERVICE_VARIABLE = "FIRESTEEL_SERVICE"


def end_leftovers(folder: Path) -> int:
    """Kill them; how many there were. Only for a service whose supervisor is gone, or is the caller."""
    pids = process.with_variable(SERVICE_VARIABLE, str(folder))
    for pid in pids:
        process.send(pid, signal.SIGKILL)
    return len(pids)
