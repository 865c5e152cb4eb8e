"""`firesteel facts`: tables with sources, and releases that come from the engines' own sources."""

from __future__ import annotations

import pytest

from firesteel.rules.fact_tables import TABLES, fact_table
from tests.conftest import Firesteel


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_its_values_its_source_and_its_day(name: str) -> None:
    table = fact_table(name)
    assert table.rows
    for row in table.rows:
        assert len(row.values) == len(table.columns) - 1, row.what
        assert row.source.url.startswith("https://") and row.source.seen.year >= 2026, row.what


def test_the_releases_of_a_variable_are_those_of_the_engine() -> None:
    rows = {row.what: row.values[0] for row in fact_table("variables").rows}
    assert rows["VLLM_ATTENTION_BACKEND"] == "vLLM 0.10.1 to 0.14.1"
    assert rows["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "vLLM 0.10.1 and later"


def test_ptxas_by_the_release_of_triton() -> None:
    rows = [row.values for row in fact_table("variables").rows if row.what == "TRITON_PTXAS_PATH"]
    assert [of for of, _ in rows] == ["Triton up to 3.5", "Triton 3.6 and newer"]
    assert rows[1][1].startswith("nothing on this GPU")


def test_the_command(firesteel: Firesteel) -> None:
    found = firesteel("facts", "hardware", "--json")
    assert found.code == 0 and found.json["document"] == "firesteel.facts-table/1"
    wrong = firesteel("facts", "weather")
    assert wrong.code == 2 and "sm121, hardware, drivers, images, variables" in wrong.err
