"""What a tune came to, in values and sentences: is the best better, and where does drafting lose. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firesteel.bench.compare.stats import FigureDifference, is_real
from firesteel.bench.tune.journal import Trial


@dataclass(frozen=True, slots=True)
class DraftRow:
    """With drafting against without it, for one kind of text and so many users."""

    text: str
    users: int
    drafting_tokens_per_s: float
    plain_tokens_per_s: float
    difference: FigureDifference


def drafting(with_it: Trial, without: Trial) -> tuple[DraftRow, ...]:
    plain = {(text, users): values for text, users, values in without.rows}
    return tuple(
        DraftRow(text, users, _mean(values), _mean(plain[text, users]), is_real(values, plain[text, users]))
        for text, users, values in with_it.rows
        if values and plain.get((text, users))
    )


def drafting_text(rows: Sequence[DraftRow]) -> tuple[str, ...]:
    """A sentence for each kind of text: from how many users on it loses, or up to how many it gains."""
    texts = dict.fromkeys(row.text for row in rows)
    return tuple(_of_text(text, [row for row in rows if row.text == text]) for text in texts)


def _of_text(text: str, rows: Sequence[DraftRow]) -> str:
    ordered = sorted(rows, key=lambda row: row.users)
    loses = [row for row in ordered if row.difference.verdict == "slower"]
    gains = [row for row in ordered if row.difference.verdict == "faster"]
    if loses:
        first = loses[0]
        alone = f", and gains up to {gains[-1].users}" if gains and gains[-1].users < first.users else ""
        return (
            f"{text}: drafting loses from {_users(first.users)} on ({first.difference.ratio:.2f} x there)"
            f"{alone}"
        )
    if gains:
        least = min(gains, key=lambda row: row.difference.ratio)
        return (
            f"{text}: drafting gains up to {_users(ordered[-1].users)}, the most that was tried "
            f"({least.difference.ratio:.2f} to {max(row.difference.ratio for row in gains):.2f} x)"
        )
    return f"{text}: no difference seen with drafting"


def _users(many: int) -> str:
    return "one user" if many == 1 else f"{many} users"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def verdict_text(difference: FigureDifference, changes: Mapping[str, str]) -> str:
    said = ", ".join(f"{knob} {label}" for knob, label in changes.items())
    if not changes:
        return "nothing that was tried is better than the setting as it is; nothing is changed"
    if difference.verdict == "faster":
        return (
            f"{said}: {difference.ratio:.2f} x as fast as before "
            f"({difference.low:.2f} to {difference.high:.2f})"
        )
    return (
        f"nothing really beats the setting as it is (the best that was seen, {said}, came to "
        f"{difference.ratio:.2f} x when measured again: {difference.verdict}); nothing is changed"
    )
