"""Whether the GPU was throttled while it was measured, by the same checks as `doctor`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.bench.load.sampler import HostReading
from firesteel.facts.host.host_facts import host_facts
from firesteel.facts.host.probe import Probe, Section
from firesteel.rules.host.findings import judge

_CHECKS = ("clock-under-load", "heat")


def throttle_notes(readings: Sequence[HostReading], gpus: Sequence[str]) -> tuple[str, ...]:
    """For a run on a GB10; on other GPUs only a slowdown by the hardware is known to be one."""
    if not gpus or not readings:
        return ()
    rows = "\n".join(_row(gpus[0].partition(",")[0], reading) for reading in readings)
    findings = judge(host_facts(Probe({"gpu": Section(rows)})), _CHECKS)
    return tuple(
        f"the GPU was throttled ({finding.check}): {finding.says}; {finding.do}"
        for finding in findings
        if finding.level in ("stop", "warn")
    )


def _row(name: str, reading: HostReading) -> str:
    """As nvidia-smi would print it."""
    cells = (
        name, "", "", "[N/A]", reading.temperature_c, reading.power_w, reading.clock_mhz, "",
        reading.use_percent, "", None if reading.reasons is None else f"0x{int(reading.reasons):x}",
    )  # fmt: skip
    return ", ".join("[N/A]" if cell is None else f"{cell}" for cell in cells)
