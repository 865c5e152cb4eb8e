"""Compatibility tables: what runs on a machine, release by release, according to the rules.

A guide's table of what works is true on the day it is written. Here each row is a command to check, and the
rules that decide it are applied to every known minor release: when the rules change, the table changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby

from packaging.version import Version

from firesteel import shipped_data
from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import UsageError
from firesteel.reads.launches import read
from firesteel.rules.context import Context
from firesteel.rules.match import matches
from firesteel.rules.rule import SEVERITY, Level, Rule, explain
from firesteel.values import FileValue, Value

TABLES = {"sm121": "gb10"}
"""Table name -> hardware."""
_IMAGE_SINCE, _PLAIN_TAG_SINCE = Version("0.14"), Version("0.20")
Outcome = tuple[Level | None, tuple[str, ...]]


class RowSchema(FileValue, kw_only=True):
    what: str
    guides: str
    line: str
    rules: tuple[str, ...]
    now: str


class TableSchema(FileValue, kw_only=True):
    title: str
    rows: tuple[RowSchema, ...]


class SupportRange(Value):
    """Consecutive releases with the same outcome; `last` None: up to the newest."""

    first: str
    last: str | None
    level: Level | None
    """None: no rule objects."""
    rules: tuple[str, ...]


class CompatibilityRow(Value):
    what: str
    guides: str
    """What guides recommend."""
    now: str
    spans: tuple[SupportRange, ...]


class CompatibilityTable(Value):
    title: str
    rows: tuple[CompatibilityRow, ...]


def compatibility(name: str) -> CompatibilityTable:
    if name not in TABLES:
        raise UsageError(f"there is no table `{name:.60}`", next=f"firesteel facts {next(iter(TABLES))}")
    schema = shipped_data.load(f"facts/{name}.yaml", TableSchema)
    return CompatibilityTable(schema.title, tuple(_row(row, TABLES[name]) for row in schema.rows))


def _row(row: RowSchema, hardware: str) -> CompatibilityRow:
    deciding = [explain(rule) for rule in row.rules]
    outcomes = [(version, _outcome(row, version, deciding, hardware)) for version in _minors()]
    return CompatibilityRow(row.what, row.guides, row.now, tuple(_spans(outcomes)))


def _outcome(row: RowSchema, version: str, deciding: list[Rule], hardware: str) -> Outcome:
    images = shipped().images
    line = row.line.replace("{image}", _image(version))
    (reading,) = read(line, row.what, images)
    container = reading.launch.container
    context = Context(reading.launch, hardware, identify(container.image, images) if container else None)
    hits = [rule for rule in deciding if matches(rule, context)]
    level = min((rule.level for rule in hits), key=SEVERITY.__getitem__, default=None)
    return level, tuple(rule.id for rule in hits)


def _image(version: str) -> str:
    """The upstream image of a release that has code for a GB10, where there is one."""
    return f"vllm/vllm-openai:v{version}{'-cu130' if Version(version) < _PLAIN_TAG_SINCE else ''}"


def _spans(outcomes: Iterable[tuple[str, Outcome]]) -> Iterator[SupportRange]:
    """Neighbours with the same outcome become one span."""
    for outcome, group in groupby(outcomes, key=lambda pair: pair[1]):
        same = [version for version, _ in group]
        yield SupportRange(same[0], None if same[-1] == _minors()[-1] else same[-1], *outcome)


@cache
def _minors() -> tuple[str, ...]:
    """The last release of each minor of vLLM that has an image for a GB10, oldest first."""
    known = [version for version in known_versions("vllm") if Version(version) >= _IMAGE_SINCE]
    return tuple({Version(version).release[:2]: version for version in known}.values())
