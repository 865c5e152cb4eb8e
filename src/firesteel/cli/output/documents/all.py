"""Every document that `--json` can print, for the schemas in `docs/schemas` and for tests."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from firesteel.cli.main import COMMANDS
from firesteel.facts.documents import Document
from firesteel.package_data import PACKAGE

for _path in (*PACKAGE.rglob("documents.py"), *PACKAGE.glob("cli/output/documents/[a-z]*.py")):
    import_module(".".join(_path.relative_to(PACKAGE.parent).with_suffix("").parts))


def id_of(document: type[Document]) -> str:
    """`firesteel.plan/1`"""
    return str(document.model_fields["document"].default)


def _place(document: type[Document]) -> int:
    """Bare `firesteel` comes first, and a failed command last."""
    command = id_of(document).removeprefix("firesteel.").partition("/")[0].partition("-")[0]
    return ["overview", *COMMANDS, "error"].index(command)


DOCUMENTS = sorted(
    (each for each in Document.__subclasses__() if "document" in each.model_fields), key=_place
)
"""In the order of `firesteel --help`."""


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """By id: the JSON Schema of what is printed."""
    return {id_of(document): document.model_json_schema(mode="serialization") for document in DOCUMENTS}
