"""What `doctor` would say about a GPU and its host right now: for a start, and for `ps`.

Only checks that take a moment. A host without an NVIDIA GPU is not read at all.
"""

from __future__ import annotations

import shutil

from firesteel.edge.host.machine import read_probe
from firesteel.facts.host.host_facts import host_facts
from firesteel.rules.host.findings import HostFinding, judge

_SECTIONS = ("gpu", "proc/driver/nvidia/version", "kernel", "module-version", "kernel-log", "sensors", "dmi")
_CHECKS = ("driver-match", "clock-under-load", "heat", "power-limits", "kernel-faults")


def host_alarms() -> tuple[HostFinding, ...]:
    """What is wrong now, the worst first."""
    if shutil.which("nvidia-smi") is None:
        return ()
    facts = host_facts(read_probe(only=_SECTIONS))
    return tuple(finding for finding in judge(facts, _CHECKS) if finding.level in ("stop", "warn"))
