"""What `bench` and `tune` print with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.bench.compare.against import PublishedComparison
from firesteel.bench.compare.answers import QualityComparison
from firesteel.bench.compare.runs import AnswerComparison, Comparison
from firesteel.bench.compare.stats import FigureDifference, Measure, mean_interval
from firesteel.bench.measurements import (
    FoundLoad,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSettings,
    Subject,
)
from firesteel.bench.results.history import RunSummary
from firesteel.bench.tune.journal import Role, Trial
from firesteel.bench.tune.knobs import Goal
from firesteel.bench.tune.outcome import TuneResult
from firesteel.bench.tune.search import SearchSpace
from firesteel.launch import Text
from firesteel.library.documents.document import Document
from firesteel.units import Band


class BenchJson(Document, tag_field="document", tag="firesteel.bench/1"):
    """`firesteel bench --json` and `firesteel bench show RUN --json`"""

    id: str
    began: str
    subject: Subject
    settings: RequestSettings
    points: tuple[Point, ...]
    figures: tuple[PointFigures, ...]
    is_whole: bool
    client: Mapping[str, float]
    beside: Mapping[str, Any]
    notes: tuple[str, ...]
    html: str | None = None
    """Where the report was written."""
    found: tuple[FoundLoad, ...] = ()
    """With --find: the most users and the highest rate that hold the target."""


class ShapeJson(Document):
    name: str
    about: str
    users: tuple[int, ...]
    prompt: tuple[int, ...]
    answer: int
    shared: int
    turns: int
    rates: tuple[float, ...]
    texts: tuple[Text, ...]


class BenchShapesJson(Document, tag_field="document", tag="firesteel.bench-shapes/1"):
    """`firesteel bench --shape list --json`"""

    shapes: tuple[ShapeJson, ...]


# --- compare ---


class ComparedRowJson(Document):
    """One figure of both runs; `difference` is the second over the first."""

    point: Point
    measure: Measure
    unit: str
    first: MeasuredFigure
    second: MeasuredFigure
    difference: FigureDifference


class DifferingSettingJson(Document):
    setting: str
    says: str


class CompareJson(Document, tag_field="document", tag="firesteel.compare/1"):
    """`firesteel bench compare RUN RUN --json` and `firesteel bench compare --ab --json`"""

    first: str
    second: str
    is_comparable: bool
    why_not: tuple[DifferingSettingJson, ...]
    is_interleaved: bool
    apart: tuple[str, ...]
    rows: tuple[ComparedRowJson, ...]
    only_first: tuple[Point, ...]
    only_second: tuple[Point, ...]
    answers: AnswerComparison | None
    notes: tuple[str, ...]


class CompareQualityJson(Document, tag_field="document", tag="firesteel.compare-quality/1"):
    """`firesteel bench compare --quality A B --json`"""

    comparison: QualityComparison


class ComparePlanRowJson(Document):
    point: Point
    measure: Measure
    measured: MeasuredFigure
    planned: Band
    off: float
    """Measured over expected."""
    verdict: str


class ComparePlanJson(Document, tag_field="document", tag="firesteel.compare-plan/1"):
    """`firesteel bench compare RUN --plan --json`"""

    run: str
    planned_from: str | None
    rows: tuple[ComparePlanRowJson, ...]


class ComparePublishedRowJson(Document):
    point: Point
    measured: MeasuredFigure
    published_tokens_per_s: float
    depth: int | None
    version: str
    ratio: float
    verdict: str
    source: str
    note: str


class ComparePublishedJson(Document, tag_field="document", tag="firesteel.compare-published/1"):
    """`firesteel bench compare RUN --published --json`"""

    run: str
    rows: tuple[ComparePublishedRowJson, ...]


# --- history ---


class HistoryJson(Document, tag_field="document", tag="firesteel.history/1"):
    """`firesteel bench list --json`"""

    runs: tuple[RunSummary, ...]
    notes: tuple[str, ...]


class HistoryChartJson(Document, tag_field="document", tag="firesteel.history-chart/1"):
    """`firesteel bench chart --html FILE --json`"""

    html: str
    """Where it was written."""


class HistoryImportJson(Document, tag_field="document", tag="firesteel.history-import/1"):
    """`firesteel bench import FILE --json`"""

    done: tuple[str, ...]


class HistoryDeleteJson(Document, tag_field="document", tag="firesteel.history-delete/1"):
    """`firesteel bench delete RUN --json`"""

    done: tuple[str, ...]


# --- tune ---


class TrialJson(Document):
    role: Role
    changes: Mapping[str, str]
    run: str | None
    failed: str | None
    tokens_per_s: float | None
    low: float | None
    high: float | None
    rounds: int
    was_beaten: bool
    start_s: float | None
    took_s: float


class RefusedSettingJson(Document):
    changes: Mapping[str, str]
    why: str


class DraftingJson(Document):
    text: str
    users: int
    drafting_tokens_per_s: float
    plain_tokens_per_s: float
    ratio: float
    verdict: str


class TuneJson(Document, tag_field="document", tag="firesteel.tune/1"):
    """`firesteel tune MODEL --json`"""

    id: str
    model: str
    goal: Goal
    users: int | None
    settings_in_all: int
    is_better: bool
    changes: Mapping[str, str]
    words: str
    ratio: float
    ratio_low: float
    ratio_high: float
    verdict: str
    recipe: str | None
    recipe_path: str | None
    running: str | None
    trials: tuple[TrialJson, ...]
    refused: tuple[RefusedSettingJson, ...]
    drafting: tuple[DraftingJson, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]


class KnobJson(Document):
    name: str
    choices: tuple[str, ...]
    now: str
    why: str


class TuneDryRunJson(Document, tag_field="document", tag="firesteel.tune-dry-run/1"):
    """`firesteel tune MODEL --dry-run --json`"""

    model: str
    knobs: tuple[KnobJson, ...]
    refused: tuple[RefusedSettingJson, ...]


# --- values -> documents ---


def compare_json(comparison: Comparison) -> CompareJson:
    return CompareJson.of(
        comparison,
        is_comparable=not comparison.why_not and bool(comparison.rows),
    )


def published_row(row: PublishedComparison) -> ComparePublishedRowJson:
    rate = row.published.decode_tps or 0.0
    return ComparePublishedRowJson.of(row.published, row, published_tokens_per_s=rate)


def tune_json(result: TuneResult) -> TuneJson:
    journal, difference = result.journal, result.difference
    return TuneJson.of(
        journal,
        journal.options,
        difference,
        result,
        model=journal.name,
        settings_in_all=result.space.size,
        words=result.text,
        ratio_low=difference.low,
        ratio_high=difference.high,
        trials=tuple(_trial_json(result.space, trial) for trial in journal.trials),
        refused=result.space.refused(),
        drafting=tuple(DraftingJson.of(row.difference, row) for row in result.drafts),
    )


def _trial_json(space: SearchSpace, trial: Trial) -> TrialJson:
    interval = mean_interval(trial.values)
    return TrialJson.of(
        trial,
        changes=space.changes(space.setting(trial.labels)),
        tokens_per_s=interval.value if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        rounds=len(trial.values),
    )


def space_json(model: str, space: SearchSpace) -> TuneDryRunJson:
    return TuneDryRunJson.of(
        model=model,
        knobs=tuple(
            KnobJson.of(name=knob.name, choices=knob.labels, now=knob.labels[index], why=knob.why)
            for knob, index in zip(space.knobs, space.start, strict=True)
        ),
        refused=space.refused(),
    )
