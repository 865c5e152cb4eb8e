"""Runs as text to share: what is in it, and that nothing in it does harm."""

from __future__ import annotations

import csv
import io
import json

import pytest

from firesteel.bench.measurements import FoundLoad, RequestSample, StoredRun
from firesteel.bench.report.export import FORMATS, benchy_csv, benchy_json, csv_text, markdown_text
from firesteel.bench.results import other_tools
from firesteel.errors import UsageError
from firesteel.values import replace
from tests.bench.example_run import example_run

HOSTILE = '=HYPERLINK("http://x")|<script>`@octocat`\n[x](http://x)'


def example() -> StoredRun:
    return StoredRun(example_run().run)


def measured() -> StoredRun:
    """Three repetitions of two loads, with their requests."""
    run = example_run().run
    points = tuple(replace(run.points[0], users=users, prompt_tokens=512, turns=1) for users in (1, 2))
    samples = tuple(
        RequestSample(
            index, at, 10.0 * at, 0.5, 2.5, 2.5, (0.02,) * 100, 512, 101,
            stream=None if point.users == 1 else stream,
        )
        for index, point in enumerate(points)
        for at in (1, 2, 3)
        for stream in range(point.users)
    )  # fmt: skip
    figures = tuple(replace(run.figures[0], point=point) for point in points)
    return StoredRun(replace(run, points=points, figures=figures), samples)


def test_a_line_for_each_load() -> None:
    stored = example()
    rows = list(csv.DictReader(io.StringIO(csv_text([stored, stored]))))
    assert len(rows) == 2 * len(stored.run.figures)
    first, figures = rows[0], stored.run.figures[0]
    assert first["model"] == stored.run.subject.model and int(first["users"]) == figures.point.users
    assert figures.decode_tokens_per_s is not None
    assert float(first["decode_tokens_per_s"]) == figures.decode_tokens_per_s.value
    assert csv_text([]) == "run\n"


def test_a_name_is_no_formula_and_no_markup() -> None:
    run = example_run().run
    stored = StoredRun(replace(run, subject=replace(run.subject, model=HOSTILE), notes=(HOSTILE,)))
    (row, *_) = csv.DictReader(io.StringIO(csv_text([stored])))
    assert row["model"].startswith("'=HYPERLINK")
    text = markdown_text(stored, "1")
    assert "\\<script\\>" in text and "@octocat" not in text and "\\[x\\]" in text
    assert "<script>" not in text
    assert all("HYPERLINK" not in line or "\\|" in line for line in text.splitlines())


def test_markdown_has_the_table_and_its_notes() -> None:
    run = replace(example_run().run, notes=("a note",), found=(FoundLoad("users", 8, 16),))
    text = markdown_text(StoredRun(run, origin="reported", source="x"), "1.2")
    assert text.count("\n| ") == 1 + len(run.figures)
    assert "- a note" in text and "up to 8 users hold" in text and "firesteel 1.2" in text
    assert "Not measured here" in text and run.subject.url not in text


def test_our_files_are_read_as_those_of_llama_benchy() -> None:
    stored = measured()
    for text in (benchy_json(stored, "1"), benchy_csv(stored)):
        read = other_tools.read_results(text, "x")
        assert read.origin == "reported" and len(read.run.figures) == 2
        one, two = read.run.figures
        assert (one.point.users, two.point.users) == (1, 2)
        assert one.decode_tokens_per_s is not None and two.decode_tokens_per_s is not None
        assert one.decode_tokens_per_s.value == pytest.approx(50)
        assert one.prefill_tokens_per_s is not None
        assert one.prefill_tokens_per_s.value == pytest.approx(1024)
        assert one.point.answer_tokens == stored.run.points[0].answer_tokens
    assert json.loads(benchy_json(stored, "1"))["version"] == "firesteel 1"


def test_loads_that_llama_benchy_does_not_know_are_left_out() -> None:
    stored = measured()
    loads = (replace(stored.run.points[0], rate_per_s=1.0), replace(stored.run.points[1], prompts="mine"))
    figures = tuple(replace(stored.run.figures[0], point=point) for point in loads)
    unknown = replace(stored, run=replace(stored.run, points=loads, figures=figures))
    assert json.loads(benchy_json(unknown, "1"))["benchmarks"] == []
    with pytest.raises(UsageError, match="holds one run"):
        FORMATS["llama-benchy"]([stored, stored], "1")
