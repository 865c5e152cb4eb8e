"""Examine a host, once or again and again: this one, a folder that stands for one, or a bundle.

`doctor --watch` shows temperature, power, clock, throttling, memory, pressure and links, reading by reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from firesteel.edge import files
from firesteel.edge.home import Home
from firesteel.edge.host.machine import latest_measurements, read_probe
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import UsageError
from firesteel.facts.host.host_facts import HostFacts, measured_section
from firesteel.facts.host.probe import WATCHED, Probe
from firesteel.rules.host.check import CheckLevel
from firesteel.rules.host.findings import WATCHED_CHECKS, HostFinding, judge, worst
from firesteel.values import Value, replace

_MAX_BUNDLE_BYTES = 20 * 2**20


class Examination(Value):
    facts: HostFacts
    findings: tuple[HostFinding, ...]
    """The worst first."""

    @property
    def level(self) -> CheckLevel:
        return worst(self.findings)


def examine(
    home: Home, *, root: Path | None = None, only: Iterable[str] = (), sections: tuple[str, ...] = ()
) -> Examination:
    """This host, or the one whose files are under `root`. Needs no root rights, loads and changes nothing."""
    probe = read_probe(root, sections)
    if root is None and "measured" not in probe.sections:
        probe = with_measurements(probe, home)
    return examine_probe(probe, only)


def with_measurements(probe: Probe, home: Home) -> Probe:
    """The last figures of `doctor --measure` as one more section; a simulated Spark has none."""
    figures = {} if sim_folder() else latest_measurements(home)
    if not figures:
        return probe
    return replace(probe, sections={**probe.sections, "measured": measured_section(figures)})


def examine_file(path: Path, only: Iterable[str] = ()) -> Examination:
    """A bundle that `doctor --bundle` wrote, or the output of the probe."""
    text = files.read_text(path, next="firesteel doctor --bundle FILE, on the host in question")
    probe = Probe.parse(text[:_MAX_BUNDLE_BYTES])
    if "probe" not in probe.sections:
        raise UsageError(
            f"{path} is not a `firesteel doctor` bundle", next="firesteel doctor --bundle FILE writes one"
        )
    return examine_probe(probe, only)


def examine_probe(probe: Probe, only: Iterable[str] = ()) -> Examination:
    facts = HostFacts.of(probe)
    return Examination(facts, judge(facts, only))


# --- `doctor --watch` ---


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
