"""Exports can be imported as `reported`, contain nothing private, and invalid files are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firesteel.bench.measurements import Subject
from firesteel.bench.results import run_files
from firesteel.errors import UsageError
from firesteel.planner.speed import published
from firesteel.values import plain, replace
from tests.bench.stored_runs import POINT, rates, stored_run

SUBJECT = Subject(
    "http://secret-host:8000/v1",
    "coder",
    "vllm",
    "0.28.0",
    launch_key="f" * 32,
    launch={
        "model": "org/Coder-FP8",
        "flags": {"kv-cache-dtype": "fp8", "speculative-config": {"method": "mtp"}},
        "env": {"HF_TOKEN": "hf_secret"},
        "sparks": 2,
    },
    host={"title": "NVIDIA DGX Spark", "name": "secret-name"},
)
MADE = stored_run("a-run", rates(50), subject=SUBJECT)


def test_an_export_can_be_imported() -> None:
    text = run_files.export_text(run_files.export_rows(MADE))
    (found,) = run_files.import_text(text, "theirs.json")
    assert (found.origin, found.source) == ("reported", "theirs.json")
    assert found.run.points == (POINT,)
    ours, theirs = MADE.run.figures[0].decode_tokens_per_s, found.run.figures[0].decode_tokens_per_s
    assert ours == theirs
    assert found.run.subject.launch == {"model": "org/Coder-FP8", "sparks": 2}
    assert found.run.subject.launch_key is None, "it says nothing of a launch here"
    assert (found.run.subject.engine, found.run.subject.version) == ("vllm", "0.28.0")
    assert run_files.import_text(text, "again.json")[0].run.id == found.run.id


def test_an_export_contains_nothing_private() -> None:
    text = run_files.export_text(run_files.export_rows(MADE))
    assert "secret" not in text and "f" * 32 not in text
    theirs = replace(MADE, origin="reported", source="/home/somebody/private/x.json")
    assert "somebody" not in run_files.export_text(run_files.export_rows(theirs))


def test_rows_have_all_columns_of_the_measured_data() -> None:
    columns = set(published._lines()[0].split(","))
    assert columns <= set(run_files.ExportRow.__struct_fields__)
    (row,) = run_files.export_rows(MADE)
    assert (row.depth, row.generated, row.users, row.sparks) == (1000, 100, 1, 2)
    assert row.speculation == '{"method": "mtp"}' and row.kv_dtype == "fp8"
    assert (row.date, row.host, row.n) == ("2026-11-15", "NVIDIA DGX Spark", 8)


def test_other_loads_are_not_exported() -> None:
    open_loop = stored_run("a", rates(50), point=replace(POINT, rate_per_s=2.0))
    turns = stored_run("b", rates(50), point=replace(POINT, turns=4))
    assert run_files.export_rows(open_loop) == () == run_files.export_rows(turns)


def _document(**fault: Any) -> str:
    good = plain(run_files.export_rows(MADE)[0])
    return json.dumps({"firesteel_rows": 1, "rows": [{**good, **fault}]})


@pytest.mark.parametrize(
    "fault",
    [
        {"decode_tps": -1},
        {"decode_tps": "NaN"},
        {"decode_tps": 1e300},
        {"users": 0},
        {"users": 10**9},
        {"depth": 1.5},
        {"run": "../../etc"},
        {"run": ""},
        {"text": "poem"},
        {"date": "soon"},
        {"surprise": 1},
        {"model": "x" * 1000},
        {"model": None},
    ],
)
def test_an_invalid_row_names_its_place(fault: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"theirs.json: `rows.0.{next(iter(fault))}") as told:
        run_files.import_text(_document(**fault), "theirs.json")
    assert told.value.next


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "[]",
        "{}",
        "7",
        "[" * 99_999,
        '{"firesteel_rows": 2, "rows": []}',
        '{"firesteel_rows": 1, "rows": 7}',
    ],
)
def test_invalid_documents(hostile: str) -> None:
    with pytest.raises(UsageError, match=r"theirs.json"):
        run_files.import_text(hostile, "theirs.json")


def test_an_invalid_interval_is_ignored() -> None:
    (found,) = run_files.import_text(_document(decode_tps=50, decode_tps_low=60), "a")
    decode = found.run.figures[0].decode_tokens_per_s
    assert decode is not None and (decode.value, decode.n) == (50, 1)
