"""The load that a tune applies to its candidates: that of its goal, and the sweep that judges drafting.
Pure."""

from __future__ import annotations

from firesteel.bench.tune.journal import TuneOptions
from firesteel.bench.values import Point
from firesteel.engines.engine import served_capacity
from firesteel.launch import Text
from firesteel.planner.propose import Proposal

_GOAL_TEXTS: tuple[Text, ...] = ("code", "prose")
_ALL_TEXTS: tuple[Text, ...] = ("code", "prose", "json", "math")
_MAX_DOUBLINGS = 10


def goal_texts(options: TuneOptions) -> tuple[Text, ...]:
    return options.texts or _GOAL_TEXTS


def served_users(base: Proposal) -> int:
    return served_capacity(base.plan.launch).users or 1


def goal_users(options: TuneOptions, base: Proposal) -> int:
    """Users at once for the goal."""
    return options.users or (served_users(base) if options.goal == "throughput" else 1)


def goal_points(options: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    users = goal_users(options, base)
    return tuple(_point(options, text, users) for text in goal_texts(options))


def sweep_points(options: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    """The points of the goal first, then all texts with 1, 2, 4 and so on up to the largest number of
    users."""
    most = max(goal_users(options, base), served_users(base))
    counts = sorted({1, most, *(2**power for power in range(1, _MAX_DOUBLINGS + 1) if 2**power < most)})
    more = (_point(options, text, users) for text in (options.texts or _ALL_TEXTS) for users in counts)
    return tuple(dict.fromkeys((*goal_points(options, base), *more)))


def _point(options: TuneOptions, text: Text, users: int) -> Point:
    shape = "single" if users == 1 else "sweep"
    return Point(shape, text, users, options.prompt_tokens, options.answer_tokens)
