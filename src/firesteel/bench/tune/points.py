"""Which load a tune puts on its candidates: its goal's own, and the sweep that judges drafting. Pure."""

from __future__ import annotations

from firesteel import engines
from firesteel.bench.tune.journal import TuneOptions
from firesteel.bench.values import Point, Text
from firesteel.rules import Proposal

_TEXTS: tuple[Text, ...] = ("code", "prose")
_ALL_TEXTS: tuple[Text, ...] = ("code", "prose", "json", "math")
_DOUBLINGS = 10


def texts(wish: TuneOptions) -> tuple[Text, ...]:
    return wish.texts or _TEXTS


def offered(base: Proposal) -> int:
    return engines.served_capacity(base.plan.launch).users or 1


def users(wish: TuneOptions, base: Proposal) -> int:
    """At once, for the goal."""
    return wish.users or (offered(base) if wish.goal == "throughput" else 1)


def goal_points(wish: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    return tuple(_point(wish, text, users(wish, base)) for text in texts(wish))


def sweep(wish: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    """The goal's points first, then the other texts and crowds: 1, 2, 4 and so on to the most."""
    most = max(users(wish, base), offered(base))
    crowds = sorted({1, most, *(2**power for power in range(1, _DOUBLINGS + 1) if 2**power < most)})
    more = (_point(wish, text, many) for text in (wish.texts or _ALL_TEXTS) for many in crowds)
    return tuple(dict.fromkeys((*goal_points(wish, base), *more)))


def _point(wish: TuneOptions, text: Text, many: int) -> Point:
    return Point("single" if many == 1 else "sweep", text, many, wish.prompt_tokens, wish.answer_tokens)
