"""May a candidate take the place of what runs? Decides from a measured comparison. Pure.

Refused: a figure that is slower by more than chance, answers that changed (`equal`) or got worse
(`as_good`), and a measurement that cannot tell.
"""

from __future__ import annotations

from typing import Literal

from firesteel.bench.compare.quality import QualityComparison
from firesteel.bench.compare.runs import ComparedFigure, Comparison
from firesteel.bench.report.formatting import load
from firesteel.values import Value

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
    the candidate has to prove that it is as good, not we that it is worse."""
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
