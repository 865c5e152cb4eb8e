"""The plot of the history: measured lines, reported markers, and nothing that breaks the page."""

from __future__ import annotations

from xml.etree import ElementTree

from firesteel.bench.report.history_page import history_page
from firesteel.bench.results.serialize import StoredRun
from firesteel.values import replace
from tests.bench.example_run import example_run


def stored(day: int, model: str = "m", origin: str = "measured here", began: str | None = None) -> StoredRun:
    run = example_run().run
    when = began if began is not None else f"2026-11-{day:02}T12:00:00+00:00"
    subject = replace(run.subject, model=model, engine="vllm", version=f"0.{day}")
    return StoredRun(replace(run, id=f"run-{day}", began=when, subject=subject), origin=origin)


def test_runs_of_one_load_are_a_line() -> None:
    page = history_page([stored(3), stored(1), stored(2, origin="reported"), stored(4, model="other")])
    root = ElementTree.fromstring(page.partition("\n")[2])
    text = "".join(root.itertext())
    assert page.count("<svg") == 2 and "days since 2026-11-01 12:00" in text
    assert "0.1, run run-1" in text and "0.3, run run-3" in text
    assert "reported: vllm" in text and text.index("run-1") < text.index("run-3")


def test_runs_without_a_date_or_a_speed_are_left_out() -> None:
    empty = replace(stored(5, "none"), run=replace(stored(5, "none").run, figures=()))
    page = history_page([stored(1), stored(2, began=""), stored(3, began="soon"), empty])
    assert "run-1" in page and "run-2" not in page and "run-3" not in page
    assert "No run of it has a date" in page


def test_a_hostile_name_stays_text() -> None:
    page = history_page([stored(1, "<script>alert(1)</script>")])
    assert "<script>" not in page
    ElementTree.fromstring(page.partition("\n")[2])


def test_many_loads() -> None:
    run = stored(1).run
    points = [replace(run.figures[0].point, users=users) for users in range(1, 30)]
    figures = tuple(replace(run.figures[0], point=point) for point in points)
    page = history_page([StoredRun(replace(run, figures=figures))])
    assert "more loads are only in the table" in page and page.count("29 users") == 1
