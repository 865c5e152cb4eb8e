"""How long until a launch answers: process, weights, compiling, graphs, each with its band.

Loading is bytes over a rate that depends on how they are read; the rest is the engine's own. Public logs
of a GB10 are few, so bands are wide, and what was only estimated says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from firesteel import yaml_schema
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Launch
from firesteel.planner.band import Band


@dataclass(frozen=True, slots=True)
class StartPhase:
    name: str
    seconds: Band
    is_first_only: bool
    """A cache that is kept from an earlier start saves it."""
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class StartUp:
    phases: tuple[StartPhase, ...]

    @property
    def seconds(self) -> Band:
        """Of a first start."""
        return sum((phase.seconds for phase in self.phases), Band.exactly(0))

    @property
    def again_seconds(self) -> Band:
        """Of a later one, whose caches were kept."""
        kept = (phase.seconds for phase in self.phases if not phase.is_first_only)
        return sum(kept, Band.exactly(0))


class PhaseSchema(yaml_schema.FileSchema):
    name: str
    engine: EngineName
    first: bool = False
    low: float
    expected: float
    high: float
    unless: str | None = None
    source: str


class LoadSchema(yaml_schema.FileSchema):
    engine: EngineName
    format: str | None = None
    low: float
    expected: float
    high: float
    source: str


class StartUpSchema(yaml_schema.FileSchema):
    phases: tuple[PhaseSchema, ...]
    loads: tuple[LoadSchema, ...]
    sources: dict[str, Evidence]


def start_up(launch: Launch, weight_bytes: int) -> StartUp:
    sheet = _sheet()
    phases = [
        StartPhase(
            each.name,
            Band(each.low, each.expected, each.high),
            each.first,
            sheet.sources[each.source].note or "",
            sheet.sources[each.source].url,
        )
        for each in sheet.phases
        if each.engine == launch.engine and launch.flags.get(each.unless or "") is not True
    ]
    return StartUp((phases[0], _load(sheet, launch, weight_bytes), *phases[1:]))


def _load(sheet: StartUpSchema, launch: Launch, weight_bytes: int) -> StartPhase:
    said = launch.flags.get("load-format") or launch.flags.get("load-mode")
    rate = next(each for each in sheet.loads if each.engine == launch.engine and each.format in (None, said))
    gigabytes = weight_bytes / 1e9 / max(1, launch.sparks)
    seconds = Band(gigabytes / rate.high, gigabytes / rate.expected, gigabytes / rate.low)
    words = f"{gigabytes:.0f} GB at {rate.low:g} to {rate.high:g} GB/s: {sheet.sources[rate.source].note}"
    return StartPhase("weights", seconds, False, words, sheet.sources[rate.source].url)


@cache
def _sheet() -> StartUpSchema:
    name = "startup.yaml"
    text = (files("firesteel") / "data" / "speed" / name).read_text("utf-8")
    return yaml_schema.load(name, text, StartUpSchema)
