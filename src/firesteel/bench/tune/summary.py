"""The result of a tune in values and sentences: is the best one better, and where does drafting lose.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from firesteel.bench.compare.stats import FigureDifference, compare_values
from firesteel.bench.tune.journal import Trial


@dataclass(frozen=True, slots=True)
class DraftRow:
    """With drafting against without, for one kind of text and number of users."""

    text: str
    users: int
    drafting_tokens_per_s: float
    plain_tokens_per_s: float
    difference: FigureDifference


def compare_drafting(drafting: Trial, plain: Trial) -> tuple[DraftRow, ...]:
    plain_rates = {(text, users): rates for text, users, rates in plain.rows}
    rows = []
    for text, users, rates in drafting.rows:
        others = plain_rates.get((text, users))
        if rates and others:
            rows.append(DraftRow(text, users, fmean(rates), fmean(others), compare_values(rates, others)))
    return tuple(rows)


def drafting_text(rows: Sequence[DraftRow]) -> tuple[str, ...]:
    """One sentence per kind of text: from how many users on it loses, or up to how many it gains."""
    texts = dict.fromkeys(row.text for row in rows)
    return tuple(_text_advice(text, [row for row in rows if row.text == text]) for text in texts)


def _text_advice(text: str, rows: Sequence[DraftRow]) -> str:
    ordered = sorted(rows, key=lambda row: row.users)
    loses = [row for row in ordered if row.difference.verdict == "slower"]
    gains = [row for row in ordered if row.difference.verdict == "faster"]
    if loses:
        first = loses[0]
        also = f", and gains up to {gains[-1].users}" if gains and gains[-1].users < first.users else ""
        ratio = f"{first.difference.ratio:.2f} x there"
        return f"{text}: drafting loses from {_users(first.users)} on ({ratio}){also}"
    if gains:
        ratios = [row.difference.ratio for row in gains]
        return (
            f"{text}: drafting gains up to {_users(ordered[-1].users)}, the most that were tried "
            f"({min(ratios):.2f} to {max(ratios):.2f} x)"
        )
    return f"{text}: no difference seen with drafting"


def _users(count: int) -> str:
    return "one user" if count == 1 else f"{count} users"


def verdict_text(difference: FigureDifference, changes: Mapping[str, str]) -> str:
    changed = ", ".join(f"{knob} {label}" for knob, label in changes.items())
    ratio = f"{difference.ratio:.2f} x"
    if not changes:
        return "no setting that was tried is better than the current one; nothing was changed"
    if difference.verdict == "faster":
        return f"{changed}: {ratio} as fast as before ({difference.low:.2f} to {difference.high:.2f})"
    return (
        f"no setting is really better than the current one (the best, {changed}, reached {ratio} when "
        f"measured again: {difference.verdict}); nothing was changed"
    )
