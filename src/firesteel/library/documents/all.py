"""Every document that `--json` can print, for the schemas in `docs/schemas` and for tests."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import fields

from firesteel.library.documents.document import Document
from firesteel.values import printed_schema

for _path in Path(__file__).parent.glob("[a-z]*.py"):
    import_module(f"firesteel.library.documents.{_path.stem}")


def id_of(document: type[Document]) -> str:
    """`firesteel.plan/1`"""
    return str(next(key.default for key in fields(document) if key.name == "document"))


DOCUMENTS = sorted(
    (each for each in Document.__subclasses__() if "document" in each.__struct_fields__), key=id_of
)


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """By id: the JSON Schema of what is printed."""
    return {id_of(document): printed_schema(document) for document in DOCUMENTS}
