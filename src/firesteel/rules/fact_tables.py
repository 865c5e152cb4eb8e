"""Tables of facts with their sources: the chip, drivers and kernels, images, environment variables.

What an engine's release has is not written down a second time: the releases of a variable come from the
engine's own sources (`engines/schema`), the images from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel import shipped_data
from firesteel.catalog.catalog import shipped
from firesteel.engines.schema.releases import release_ranges
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName
from firesteel.rules.checker import TITLES
from firesteel.rules.rule import Confidence
from firesteel.values import FileValue, Value

WRITTEN = ("hardware", "drivers", "variables")
TABLES = ("hardware", "drivers", "images", "variables")


class FactRowSchema(FileValue, kw_only=True):
    what: str
    values: tuple[str, ...]
    note: str | None = None
    engine: EngineName | None = None
    """Of a variable: its releases stand in place of the first value."""
    confidence: Confidence
    source: Evidence


class FactTableSchema(FileValue, kw_only=True):
    title: str
    columns: tuple[str, ...]
    rows: tuple[FactRowSchema, ...]


class FactRow(Value):
    what: str
    values: tuple[str, ...]
    note: str | None
    confidence: Confidence
    source: Evidence


class FactTable(Value):
    title: str
    columns: tuple[str, ...]
    rows: tuple[FactRow, ...]


def fact_table(name: str) -> FactTable:
    """One of TABLES."""
    if name == "images":
        columns = ("image", "engine", "CUDA", "12.x code", "starts")
        return FactTable("Images that are known", columns, tuple(_image_rows()))
    schema = shipped_data.load(f"facts/{name}.yaml", FactTableSchema)
    return FactTable(schema.title, schema.columns, tuple(map(_row, schema.rows)))


def _row(row: FactRowSchema) -> FactRow:
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
