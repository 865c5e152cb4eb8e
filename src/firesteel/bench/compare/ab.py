"""A/B: two subjects measured in turns, with the same prompts, so that what drifts falls on both alike.

    async for side, event in in_turns(first, second): ...

Each is a run of its own, as `measure` makes it; here they only take turns, visit by visit. Both ask the same
(`salt` and seed), so that at temperature 0 their answers can be held against each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from firesteel.bench.load.measure import Event, RunLimits, RunOrder, RunProgress, measure

Side = Literal[0, 1]


def alike(first: RunOrder, second: RunOrder) -> tuple[RunOrder, RunOrder]:
    """The same prompts in the same order. Each waits while the other is asked, so both get twice the time."""
    salt = first.salt or first.id
    limits: RunLimits = replace(first.limits, budget_s=2 * first.limits.budget_s)
    return (
        replace(first, salt=salt, limits=limits),
        replace(second, salt=salt, limits=limits, points=first.points, settings=first.settings),
    )


async def in_turns(first: RunOrder, second: RunOrder) -> AsyncIterator[tuple[Side, Event]]:
    """A turn is all that one says until it is about to ask again; who was last begins the next round."""
    one, other = (measure(each) for each in alike(first, second))
    async with aclosing(one) as a, aclosing(other) as b:  # type: ignore[type-var]  # they are generators
        open_: list[tuple[Side, AsyncIterator[Event]]] = [(0, a), (1, b)]
        while open_:
            for turn in tuple(open_):
                side, events = turn
                is_over = True
                async for event in events:
                    yield side, event
                    if isinstance(event, RunProgress):
                        is_over = False
                        break
                if is_over:
                    open_.remove(turn)
            open_.reverse()
