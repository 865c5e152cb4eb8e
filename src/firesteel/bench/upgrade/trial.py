"""Measure a candidate against what it would replace, and judge whether it may take its place.

Both are measured in turns where both run, else one after the other. Refused: a figure that is slower by more
than chance, answers that changed (`equal`) or got worse (`as_good`), and a measurement that cannot tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal

from firesteel.bench.compare.answers import (
    QualityComparison,
    ask_alone,
    ask_both,
    compare_quality,
    paired,
)
from firesteel.bench.compare.runs import ComparedFigure, Comparison, answers, compare
from firesteel.bench.compare.servers import find_servers, measure_alone, measure_in_turns
from firesteel.bench.load.measure import RunFinished, find_server
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import StoredRun
from firesteel.bench.report.tables import load
from firesteel.bench.results.history import new_run_id, open_history
from firesteel.edge.home import Home
from firesteel.edge.http.answer import Answer
from firesteel.edge.programs.build import BuildProgress
from firesteel.values import Value, replace

_DOUBTFUL = 0.05
"""Slower by so much, users would notice."""
AnswerPolicy = Literal["equal", "as_good"]
"""At temperature 0: the same words, or as many right answers. Releases that compute in another order change
some words."""


class TrialVerdict(Value):
    accepted: bool
    reasons: tuple[str, ...]
    """Why it is refused, or what speaks for it."""
    figures: tuple[str, ...] = ()
    """Every compared figure, a line each."""


def judge_trial(
    comparison: Comparison, answers: AnswerPolicy, quality: QualityComparison | None = None
) -> TrialVerdict:
    """`quality`: how both answered questions; needed where answers may change."""
    figures = tuple(_figure_line(row) for row in comparison.rows)
    reasons = [*_speed_reasons(comparison), *_answer_reasons(comparison, answers, quality)]
    if reasons:
        return TrialVerdict(False, tuple(reasons), figures)
    faster = [row for row in comparison.rows if row.difference.verdict == "faster"]
    good = [f"{_what(row)} is faster by {abs(row.difference.ratio - 1):.1%}" for row in faster]
    return TrialVerdict(True, (*(good or ["as fast as before"]), _answers_kept(comparison)), figures)


def _speed_reasons(comparison: Comparison) -> list[str]:
    if comparison.why_not:
        setting, values = comparison.why_not[0]
        return [f"they cannot be compared: {setting} differs, {values}"]
    judged = [row for row in comparison.rows if row.difference.verdict != "too few"]
    if not judged:
        return ["too few measurements to tell whether it is slower; give it more time"]
    slower = [row for row in judged if row.difference.verdict == "slower"]
    if slower:
        return [f"{_what(row)} is slower by {abs(row.difference.ratio - 1):.1%}" for row in slower]
    return [
        f"{_what(row)} may be slower by {abs(row.difference.ratio - 1):.1%}: too few measurements to tell; "
        "give it more time"
        for row in judged
        if _may_be_slower(row)
    ]


def _may_be_slower(row: ComparedFigure) -> bool:
    """Its own interval says so. Among several figures that may be chance, which a comparison allows for; but
    the candidate has to show that it is as good."""
    difference = row.difference
    if row.measure == "TTFT":
        return difference.low > 1 and difference.ratio > 1 + _DOUBTFUL
    return difference.high < 1 and difference.ratio < 1 - _DOUBTFUL


def _answer_reasons(
    comparison: Comparison, answers: AnswerPolicy, quality: QualityComparison | None
) -> list[str]:
    compared = comparison.answers
    if answers == "equal":
        if compared is None:
            return ["its answers were not compared"]
        if compared.changed:
            return [f"{compared.changed} of {compared.compared} answers changed at temperature 0"]
        return []
    if quality is None:
        return [] if compared and not compared.changed else ["its answers were not compared"]
    score = quality.questions
    if score.verdict == "first is better":
        return [f"{score.only_first} of {score.asked} questions are answered wrongly that were right before"]
    return []


def _answers_kept(comparison: Comparison) -> str:
    compared = comparison.answers
    if compared and not compared.changed:
        return f"all {compared.compared} answers are the same"
    return "its answers are as good"


def _what(row: ComparedFigure) -> str:
    return f"{row.measure} ({load(row.point)})"


def _figure_line(row: ComparedFigure) -> str:
    difference = row.difference
    measured = f"{_what(row)}: {row.first.value:.1f} -> {row.second.value:.1f} {row.unit}"
    if difference.verdict == "too few":
        return f"{measured}, too few measurements to compare"
    interval = f"{difference.low:.3f} to {difference.high:.3f}"
    return f"{measured}, ratio {difference.ratio:.3f} ({interval}), {difference.verdict}"


# --- measure ---


async def try_side_by_side(
    home: Home, current: str, candidate: str, policy: AnswerPolicy, budget_s: float
) -> AsyncIterator[BuildProgress | TrialVerdict]:
    """Two services that run, measured in turns; the last item is the verdict."""
    servers = await find_servers(home, (current, candidate))
    done: dict[int, StoredRun] = {}
    yield BuildProgress("measuring both in turns", budget_s)
    with open_history(home) as history:
        async for side, event in measure_in_turns(history, servers, limits=RunLimits(budget_s)):
            if isinstance(event, RunFinished):
                done[side] = StoredRun(event.run, event.samples)
    comparison = compare(done[0], done[1], is_interleaved=True)
    asked = None
    if policy == "as_good" and (comparison.answers is None or comparison.answers.changed):
        yield BuildProgress("asking both the same questions", budget_s)
        pairs = [pair async for pair in ask_both(servers, budget_s)]
        asked = compare_quality((current, candidate), pairs)
    yield judge_trial(comparison, policy, asked)


class MeasuredService(Value):
    """One service, measured by itself, to be compared with another that gets the same prompts."""

    run: StoredRun
    answers: Sequence[Answer]
    salt: str


async def measure_service(
    home: Home, name: str, policy: AnswerPolicy, budget_s: float, like: MeasuredService | None = None
) -> MeasuredService:
    server = await find_server(home, name)
    salt = like.salt if like else new_run_id()
    found: StoredRun | None = None
    with open_history(home) as history:
        async for event in measure_alone(history, server, salt, RunLimits(budget_s / 2)):
            if isinstance(event, RunFinished):
                found = StoredRun(event.run, event.samples)
    assert found is not None, "a measurement ends with its run"
    asked = await ask_alone(server, budget_s / 2) if policy == "as_good" else ()
    return MeasuredService(found, asked, salt)


def judge_in_sequence(first: MeasuredService, second: MeasuredService, policy: AnswerPolicy) -> TrialVerdict:
    """Runs at different times differ by themselves, so a difference must be larger to count."""
    comparison = compare(first.run, second.run)
    comparison = replace(comparison, answers=answers(first.run, second.run))
    pairs = paired(first.answers, second.answers)
    asked = compare_quality(("before", "after"), pairs) if pairs else None
    return judge_trial(comparison, policy, asked)
