"""What runs on a GB10, release by release; facts with their sources."""

from __future__ import annotations

from importlib.resources import files

import pytest

from firesteel import values
from firesteel.errors import UsageError
from firesteel.rules.tables import FACT_TABLES, TableSchema, compatibility, fact_table
from tests.conftest import Firesteel


def test_the_table_follows_the_rules() -> None:
    rows = {row.what: row for row in compatibility("sm121").rows}
    sinks = rows["attention on FlashInfer, gpt-oss"].spans
    assert [(span.level, span.last) for span in sinks] == [("stop", "0.27.1"), (None, None)]
    marlin = rows["experts on Marlin"].spans
    assert marlin[0].level == "warn" and marlin[0].last == "0.22.1"
    assert [span.level for span in rows["GPTQ on Marlin"].spans] == [None]


def test_every_rule_that_is_named_decides_something() -> None:
    """A row whose rule never fires would say `no objection` by mistake."""
    text = (files("firesteel") / "data" / "facts" / "sm121.yaml").read_text("utf-8")
    named = {row.what: set(row.rules) for row in values.load("sm121", text, TableSchema).rows}
    for row in compatibility("sm121").rows:
        assert {rule for span in row.spans for rule in span.rules} == named[row.what], row.what


def test_no_such_table() -> None:
    with pytest.raises(UsageError, match="there is no table `sm120`"):
        compatibility("sm120")


@pytest.mark.parametrize("name", FACT_TABLES)
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
    found = firesteel("check", "--facts", "hardware", "--json")
    assert found.code == 0 and found.json["document"] == "firesteel.facts-table/1"
    wrong = firesteel("check", "--facts", "weather")
    assert wrong.code == 2 and "sm121, hardware, drivers, images, variables" in wrong.err
