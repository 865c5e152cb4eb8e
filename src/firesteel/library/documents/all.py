"""Every document that `--json` can print, for the schemas in `docs/schemas` and for tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from firesteel.values import Value, printed_schema

_SOURCES = (
    *(f"library.documents.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py")),
    "bench.upgrade.result",
    "gateway.admin.usage",
    "library.recipes",
    "library.run",
    "rules.tables",
    "workshop.audit",
    "workshop.images.built",
    "workshop.images.report",
    "workshop.quantize.other_quantizers",
    "workshop.repair.repair",
)
"""Modules with documents; some are values that are printed as they are."""
for _name in _SOURCES:
    import_module(f"firesteel.{_name}")


def id_of(document: type[Value]) -> str:
    """`firesteel.plan/1`"""
    return str(document.__struct_config__.tag)


def _documents(kind: type[Value]) -> Iterator[type[Value]]:
    for each in kind.__subclasses__():
        if each.__struct_config__.tag_field == "document":
            yield each
        yield from _documents(each)


DOCUMENTS = sorted(_documents(Value), key=id_of)


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """By id: the JSON Schema of what is printed."""
    return {id_of(document): printed_schema(document) for document in DOCUMENTS}
