"""The documents of `--json`: one pattern of ids, and schemas that are valid."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from firesteel.cli.main import COMMANDS, RENAMED
from firesteel.library.documents.all import DOCUMENTS, id_of, schemas

OF_NO_COMMAND = {f"firesteel.{name}/1" for name in ("overview", "error", "scenarios", "version")}
SOURCE = Path(__file__).parents[2] / "src" / "firesteel"


def test_an_id_names_the_command_and_what_changes_the_shape() -> None:
    ids = [id_of(document) for document in DOCUMENTS]
    assert len(set(ids)) == len(ids)
    for name in set(ids) - OF_NO_COMMAND:
        match = re.fullmatch(r"firesteel\.([a-z]+)(-[a-z-]+)?/[1-9]", name)
        assert match and match[1] in (*COMMANDS, *RENAMED), name


@pytest.mark.parametrize("name", schemas())
def test_a_schema_is_valid_and_names_its_document(name: str) -> None:
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["document"]["const"] == name and "document" in schema["required"]


def test_documents_load_only_with_json() -> None:
    """They take a tenth of a second to define, and most commands print a table."""
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "documents" and path.stem != "__init__":
            continue
        top = [
            line
            for line in path.read_text().splitlines()
            if re.match(r"(from|import) firesteel\.\S*documents", line)
        ]
        assert top == [], path
