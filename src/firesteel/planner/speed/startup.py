"""How long a launch takes until it answers: process, weights, compilation, CUDA graphs, each with a band.

Loading takes bytes over a rate that depends on how they are read; the other phases belong to the engine.
There are few public logs of a GB10, so bands are wide, and estimates are marked as such.
"""

from __future__ import annotations

from functools import cache

from firesteel import shipped_data
from firesteel.facts.evidence import Evidence
from firesteel.facts.host.hardware import Host
from firesteel.launch import EngineName, Launch
from firesteel.units import Band, BandSchema
from firesteel.values import FileValue, Value, replace

WEIGHTS = "weights"


class StartPhase(Value):
    name: str
    seconds: Band
    is_first_only: bool
    """Skipped when the caches of an earlier start are still there."""
    explanation: str
    source: str


class StartUp(Value):
    phases: tuple[StartPhase, ...]

    @property
    def seconds(self) -> Band:
        """Duration of a first start."""
        return sum((phase.seconds for phase in self.phases), Band.exactly(0))

    @property
    def again_seconds(self) -> Band:
        """Duration of a later start, with warm caches."""
        return sum((phase.seconds for phase in self.phases if not phase.is_first_only), Band.exactly(0))


class PhaseSchema(BandSchema, kw_only=True):
    name: str
    engine: EngineName
    first: bool = False
    joined: bool = False
    """Only over several hosts."""
    unless: str | None = None
    source: str


class LoadSchema(BandSchema, kw_only=True):
    engine: EngineName
    format: str | None = None
    source: str


class StartUpSchema(FileValue, kw_only=True):
    phases: tuple[PhaseSchema, ...]
    loads: tuple[LoadSchema, ...]
    sources: dict[str, Evidence]


@cache
def _schema() -> StartUpSchema:
    return shipped_data.load("speed/startup.yaml", StartUpSchema)


def predict_start_up(launch: Launch, weight_bytes: int) -> StartUp:
    known = _schema()
    phases = [
        StartPhase(
            phase.name,
            Band(phase.low, phase.expected, phase.high),
            phase.first,
            known.sources[phase.source].note or "",
            known.sources[phase.source].url,
        )
        for phase in known.phases
        if phase.engine == launch.engine
        and launch.flags.get(phase.unless or "") is not True
        and (launch.sparks > 1 or not phase.joined)
    ]
    before = 2 if launch.sparks > 1 else 1
    load = _load_phase(known, launch, weight_bytes)
    return StartUp((*phases[:before], load, *phases[before:]))


def _load_phase(known: StartUpSchema, launch: Launch, weight_bytes: int) -> StartPhase:
    format = launch.flags.get("load-format") or launch.flags.get("load-mode")
    rate = next(row for row in known.loads if row.engine == launch.engine and row.format in (None, format))
    gigabytes = weight_bytes / 1e9 / max(1, launch.sparks)
    seconds = Band(gigabytes / rate.high, gigabytes / rate.expected, gigabytes / rate.low)
    source = known.sources[rate.source]
    explanation = f"{gigabytes:.0f} GB at {rate.low:g} to {rate.high:g} GB/s: {source.note}"
    return StartPhase(WEIGHTS, seconds, False, explanation, source.url)


def bounded_by_disk(start_up: StartUp, launch: Launch, weight_bytes: int, host: Host) -> StartUp:
    """With what `doctor --measure` found here: weights come no faster than the disk reads, except from the
    page cache, which stays the fast end of the band."""
    format = launch.flags.get("load-format") or launch.flags.get("load-mode")
    rate = host.mapped_bytes_per_s if format == "mmap" else host.disk_bytes_per_s
    if not rate:
        return start_up
    seconds = weight_bytes / max(1, launch.sparks) / rate
    return StartUp(
        tuple(
            replace(
                phase,
                seconds=Band(phase.seconds.low, seconds, max(seconds, phase.seconds.high)),
                explanation=f"this disk reads {rate / 1e9:.2f} GB/s, measured here by `doctor --measure`",
            )
            if phase.name == WEIGHTS and seconds > phase.seconds.expected
            else phase
            for phase in start_up.phases
        )
    )
