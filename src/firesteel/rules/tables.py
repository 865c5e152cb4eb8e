"""Tables of `check --facts`: what runs on a machine, release by release, and facts with their sources.

A guide's table of what works is true on the day it is written. In a compatibility table each row is a
command, and the rules that decide it are applied to every known minor release: when the rules change, the
table changes. Facts do not repeat what an engine's release has either: the releases of a variable come from
the engine's own sources (`engines/schema`), the images from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby

from packaging.version import Version

from firesteel import shipped_data
from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines.schema.releases import known_versions, release_ranges
from firesteel.errors import UsageError
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName
from firesteel.reads.launches import read
from firesteel.rules.checker import TITLES, matches
from firesteel.rules.context import Context
from firesteel.rules.rule import SEVERITY, Confidence, Level, Rule, explain
from firesteel.values import FileValue, Value

COMPATIBILITY_TABLES = {"sm121": "gb10"}
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


class CompatibilityTable(Value, tag_field="document", tag="firesteel.facts/1"):
    """`firesteel check --facts TABLE --json`; a `level` of null: no rule objects"""

    table: str
    title: str
    rows: tuple[CompatibilityRow, ...]


def compatibility(name: str) -> CompatibilityTable:
    if name not in COMPATIBILITY_TABLES:
        raise UsageError(
            f"there is no table `{name:.60}`",
            next=f"firesteel check --facts {next(iter(COMPATIBILITY_TABLES))}",
        )
    schema = shipped_data.load(f"facts/{name}.yaml", TableSchema)
    rows = tuple(_compatibility_row(row, COMPATIBILITY_TABLES[name]) for row in schema.rows)
    return CompatibilityTable(name, schema.title, rows)


def _compatibility_row(row: RowSchema, hardware: str) -> CompatibilityRow:
    deciding = [explain(rule) for rule in row.rules]
    outcomes = [(version, _outcome(row, version, deciding, hardware)) for version in _minors()]
    return CompatibilityRow(row.what, row.guides, row.now, tuple(_spans(outcomes)))


def _outcome(row: RowSchema, version: str, deciding: list[Rule], hardware: str) -> Outcome:
    images = shipped().images
    # The upstream image of a release that has code for a GB10.
    suffix = "-cu130" if Version(version) < _PLAIN_TAG_SINCE else ""
    line = row.line.replace("{image}", f"vllm/vllm-openai:v{version}{suffix}")
    (parsed,) = read(line, row.what, images)
    container = parsed.launch.container
    context = Context(parsed.launch, hardware, identify(container.image, images) if container else None)
    hits = [rule for rule in deciding if matches(rule, context)]
    level = min((rule.level for rule in hits), key=SEVERITY.__getitem__, default=None)
    return level, tuple(rule.id for rule in hits)


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


FACT_TABLES = ("hardware", "drivers", "images", "variables")


class FactRow(Value):
    what: str
    values: tuple[str, ...]
    note: str | None
    confidence: Confidence
    source: Evidence


class FactRowSchema(FactRow, kw_only=True, forbid_unknown_fields=True):
    note: str | None = None
    engine: EngineName | None = None
    """Of a variable: its releases stand in place of the first value."""


class FactTableSchema(FileValue, kw_only=True):
    title: str
    columns: tuple[str, ...]
    rows: tuple[FactRowSchema, ...]


class FactTable(Value, tag_field="document", tag="firesteel.facts-table/1"):
    """`firesteel check --facts hardware|drivers|images|variables --json`; `values` are those of `columns`
    after the first"""

    table: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[FactRow, ...]


def fact_table(name: str) -> FactTable:
    """One of FACT_TABLES."""
    if name == "images":
        columns = ("image", "engine", "CUDA", "12.x code", "starts")
        return FactTable(name, "Images that are known", columns, tuple(_image_rows()))
    schema = shipped_data.load(f"facts/{name}.yaml", FactTableSchema)
    return FactTable(name, schema.title, schema.columns, tuple(map(_fact_row, schema.rows)))


def _fact_row(row: FactRowSchema) -> FactRow:
    values = row.values
    if row.engine:
        values = (f"{TITLES[row.engine]} {_releases(row.engine, row.what)}", *values[1:])
    return FactRow(row.what, values, row.note, row.confidence, row.source)


def _releases(engine: EngineName, variable: str) -> str:
    ranges = release_ranges(engine, variable)
    spans = (f"{first} to {last}" if last else f"{first} and later" for first, last in ranges)
    return ", ".join(spans) or "in no release"


def _image_rows() -> Iterator[FactRow]:
    for name, image in shipped().images.named.items():
        if not image.sources:
            continue
        engine = f"{TITLES[image.engine]} {image.version or 'of the day'}"
        starts = " ".join(image.entrypoint) if image.entrypoint else "the command it is given"
        values = (engine, image.cuda or "-", ", ".join(image.sm or ()) or "-", starts)
        shown = image.reference or image.package or name
        yield FactRow(f"{name} ({shown})", values, image.note, "reported", image.sources[0])
