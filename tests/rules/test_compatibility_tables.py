"""What runs on a GB10, release by release."""

from __future__ import annotations

from importlib.resources import files

import pytest

from firesteel import values
from firesteel.errors import UsageError
from firesteel.rules.compatibility_tables import TableSchema, compatibility


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
