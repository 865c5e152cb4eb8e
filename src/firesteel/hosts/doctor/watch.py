"""`doctor --watch`: temperature, power, clock, throttling, memory, pressure and links, reading by reading."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from firesteel.edge.home import Home
from firesteel.facts.host.probe import WATCHED
from firesteel.hosts.doctor.examine import Examination, examine
from firesteel.rules.host.findings import WATCHED_CHECKS
from firesteel.values import Value


class Alarm(Value):
    check: str
    level: str
    says: str
    evidence: str
    is_new: bool
    """It was not there in the reading before."""


class WatchReading(Value):
    at: str
    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    use_percent: float | None
    reasons: int | None
    """The bits of `clocks_event_reasons.active`."""
    memory_available_bytes: int | None
    pressure_percent: float | None
    rails_up: int
    rails_cabled: int
    alarms: tuple[Alarm, ...]


def watch(
    home: Home, every_s: float, count: int | None = None, root: Path | None = None
) -> Iterator[WatchReading]:
    """For ever, or `count` readings."""
    before: frozenset[str] = frozenset()
    number = 0
    while count is None or number < count:
        began = time.monotonic()
        examination = examine(home, root=root, only=WATCHED_CHECKS, sections=WATCHED)
        reading = _reading(examination, before)
        yield reading
        before = frozenset(alarm.check for alarm in reading.alarms)
        number += 1
        if number != count:
            time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def _reading(examination: Examination, before: frozenset[str]) -> WatchReading:
    facts = examination.facts
    gpu = facts.gpu[0] if facts.gpu else None
    rails = facts.cabled_rails
    return WatchReading(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        clock_mhz=gpu.clock_mhz if gpu else None,
        power_w=gpu.power_w if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        use_percent=gpu.use_percent if gpu else None,
        reasons=gpu.reasons if gpu else None,
        memory_available_bytes=facts.memory.available_bytes if facts.memory else None,
        pressure_percent=facts.pressure.some_avg10 if facts.pressure else None,
        rails_up=sum(rail.is_up and rail.has_carrier for rail in rails),
        rails_cabled=len(rails),
        alarms=tuple(
            Alarm(found.check, found.level, found.says, found.evidence, found.check not in before)
            for found in examination.findings
            if found.is_bad
        ),
    )
