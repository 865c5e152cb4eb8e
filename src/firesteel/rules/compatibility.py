"""What runs on a machine, release by release, as the rules see it.

A guide's table of what works is true on the day it is written. Here each row is a line to check, and the
rules that decide it are held against every minor release that is known: when they move, the table moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

from packaging.version import Version

from firesteel import catalog, yaml_schema
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import UsageError
from firesteel.reads import read
from firesteel.rules.context import Context
from firesteel.rules.match import matches
from firesteel.rules.rule import Level, Rule, explain

TABLES = {"sm121": "gb10"}
"""A table's name -> the hardware that it is about."""
_IMAGE_SINCE, _PLAIN_TAG_SINCE = Version("0.14"), Version("0.20")
Fare = tuple[Level | None, tuple[str, ...]]
_WORST: dict[Level, int] = {"stop": 0, "warn": 1, "note": 2}


class RowSchema(yaml_schema.FileSchema):
    what: str
    guides: str
    line: str
    rules: tuple[str, ...]
    now: str


class TableSchema(yaml_schema.FileSchema):
    title: str
    rows: tuple[RowSchema, ...]


@dataclass(frozen=True, slots=True)
class SupportRange:
    """Releases that follow each other and fare alike; `last` None: to the newest."""

    first: str
    last: str | None
    level: Level | None
    """None: no rule objects."""
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompatibilityRow:
    what: str
    guides: str
    """What guides say."""
    now: str
    spans: tuple[SupportRange, ...]


@dataclass(frozen=True, slots=True)
class CompatibilityTable:
    title: str
    rows: tuple[CompatibilityRow, ...]


def compatibility(name: str) -> CompatibilityTable:
    if name not in TABLES:
        raise UsageError(f"there is no table `{name:.60}`", next=f"firesteel facts {next(iter(TABLES))}")
    path = f"facts/{name}.yaml"
    text = (files("firesteel") / "data" / path).read_text("utf-8")
    sheet = yaml_schema.load(path, text, TableSchema)
    return CompatibilityTable(sheet.title, tuple(_row(row, TABLES[name]) for row in sheet.rows))


def _row(row: RowSchema, hardware: str) -> CompatibilityRow:
    deciding = [explain(rule) for rule in row.rules]
    fares = [(version, _fare(row, version, deciding, hardware)) for version in _minors()]
    return CompatibilityRow(row.what, row.guides, row.now, tuple(_spans(fares)))


def _fare(row: RowSchema, version: str, deciding: list[Rule], hardware: str) -> Fare:
    images = catalog.shipped().images
    line = row.line.replace("{image}", _image(version))
    (reading,) = read(line, row.what, images)
    box = reading.launch.container
    scene = Context(reading.launch, hardware, catalog.identify(box.image, images) if box else None)
    hit = [rule for rule in deciding if matches(rule, scene)]
    return min((rule.level for rule in hit), key=_WORST.__getitem__, default=None), tuple(
        rule.id for rule in hit
    )


def _image(version: str) -> str:
    """The upstream image of a release that has code for a GB10, where there is one."""
    return f"vllm/vllm-openai:v{version}{'-cu130' if Version(version) < _PLAIN_TAG_SINCE else ''}"


def _spans(fares: Iterable[tuple[str, Fare]]) -> Iterator[SupportRange]:
    """Neighbours that fare alike become one span."""
    for fare, group in groupby(fares, key=lambda each: each[1]):
        alike = [version for version, _ in group]
        yield SupportRange(alike[0], None if alike[-1] == _minors()[-1] else alike[-1], *fare)


@cache
def _minors() -> tuple[str, ...]:
    """The last release of each minor of vLLM that has an image for a GB10, oldest first."""
    known = [version for version in known_versions("vllm") if Version(version) >= _IMAGE_SINCE]
    return tuple({Version(version).release[:2]: version for version in known}.values())
