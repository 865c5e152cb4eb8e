"""The result of a tune in values and sentences: is the best one better, and where does drafting lose.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from firesteel.bench.compare.stats import FigureDifference, compare_values
from firesteel.bench.tune.journal import Trial
from firesteel.values import Value

_MIN_GAIN = 0.02
"""A gain that is smaller than this is none: it is not worth another measurement."""


class DraftRow(Value):
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


def verdict_text(compared: Sequence[tuple[Mapping[str, str], FigureDifference]]) -> str:
    """`compared`: what was changed, and how it did against the current setting. The best one comes first,
    measured again."""
    if not compared:
        return "only the current setting could be measured, so nothing is known about others"
    changes, best = compared[0]
    if best.verdict == "faster":
        return f"{_changed(changes)}: {_ratio(best)} as fast as before"
    open_ones = [(changes, found) for changes, found in compared if not _is_no_better(found)]
    if not open_ones:
        return "no setting that was tried is better than the current one; nothing was changed"
    changes, found = open_ones[0]
    more = f", nor about {len(open_ones) - 1} others" if len(open_ones) > 1 else ""
    return (
        f"cannot tell whether {_changed(changes)} is better: {_ratio(found)} as fast as before{more}; "
        "nothing was changed. A larger --budget measures longer"
    )


def _is_no_better(found: FigureDifference) -> bool:
    """Slower, or surely not better by as much as would matter."""
    return found.verdict == "slower" or (found.verdict != "too few" and found.high < 1 + _MIN_GAIN)


def _changed(changes: Mapping[str, str]) -> str:
    return ", ".join(f"{knob} {label}" for knob, label in changes.items())


def _ratio(found: FigureDifference) -> str:
    if found.verdict == "too few":
        return f"{found.ratio:.2f} x (measured {'once' if found.n == 1 else f'{found.n} times'})"
    return f"{found.ratio:.2f} x ({found.low:.2f} to {found.high:.2f})"
