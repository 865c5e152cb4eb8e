"""Every row of the knowledge is a rule, or says why it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel import yaml_reader
from firesteel.rules.rule import rules

FILES = sorted((Path(__file__).parent / "coverage").glob("*.yaml"))
ROWS = {
    "engines": [f"1a.{n}" for n in range(1, 42)],
    "peers": [f"T{n:02}" for n in (*range(1, 25), *range(30, 71), *range(75, 82), *range(85, 100))],
}
"""Rows that must be there; the sections' own numbering."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows(path: Path) -> None:
    rows, _ = yaml_reader.read(path.name, path.read_text())
    names = [row["row"] for row in rows]
    assert len(set(names)) == len(names)
    assert set(ROWS.get(path.stem, ())) <= set(names)
    known = {rule.id for rule in rules()}
    for row in rows:
        assert ("rules" in row) != ("why" in row), row["row"]
        assert set(row.get("rules", ())) <= known, row["row"]
        assert row["about"] and row.get("why", "x"), row["row"]


def test_there_are_three() -> None:
    assert [path.stem for path in FILES] == ["engines", "peers", "seeds"]
