"""The host's memory right now."""

from __future__ import annotations

from firesteel.edge.place import machine_file
from firesteel.errors import HostNotReady
from firesteel.facts import Meminfo, parse_meminfo


def meminfo() -> Meminfo:
    try:
        return parse_meminfo(machine_file("proc/meminfo").read_text())
    except (OSError, ValueError) as error:
        raise HostNotReady(
            f"this machine's memory cannot be read: {error}", next="run firesteel on Linux"
        ) from error
