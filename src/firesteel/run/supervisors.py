"""Supervisors as the process table shows them, for when the files of a service do not tell.

A supervisor has the folder of its service as its last argument, and the engine is its oldest child. So a
service that runs is found, and can be stopped, whatever became of its lock, its state or its whole folder.
"""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.host.process import Pid, commands

_MODULE = "firesteel.run.supervise.supervisor"


def supervisors(home: Home) -> dict[str, Pid]:
    """By the name of the service."""
    services = home.services.resolve()
    found: dict[str, Pid] = {}
    for pid, arguments in commands():
        if _MODULE in arguments:
            folder = Path(arguments[-1])
            if folder.parent.resolve() == services:
                found.setdefault(folder.name, pid)
    return found
