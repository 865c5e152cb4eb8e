"""A/B: measure two servers in turns with the same prompts, so that drift affects both alike.

    async for side, event in interleave(first, second): ...

Each side is a run of its own, as `measure` makes it; here they only take turns, repetition by repetition.
Both get the same prompts (equal `salt` and seed), so that their answers at temperature 0 can be compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from firesteel.bench.load.measure import Event, RunOrder, RunProgress, measure

Side = Literal[0, 1]


def with_same_prompts(first: RunOrder, second: RunOrder) -> tuple[RunOrder, RunOrder]:
    """Equal prompts in equal order. Each waits while the other is measured, so both get twice the time."""
    salt = first.salt or first.id
    limits = replace(first.limits, budget_s=2 * first.limits.budget_s)
    return (
        replace(first, salt=salt, limits=limits),
        replace(second, salt=salt, limits=limits, points=first.points, settings=first.settings),
    )


async def interleave(first: RunOrder, second: RunOrder) -> AsyncIterator[tuple[Side, Event]]:
    """A turn lasts until a run is about to start its next repetition; the last one begins the next round."""
    one, other = (measure(order) for order in with_same_prompts(first, second))
    async with aclosing(one) as a, aclosing(other) as b:  # type: ignore[type-var]  # they are generators
        unfinished: list[tuple[Side, AsyncIterator[Event]]] = [(0, a), (1, b)]
        while unfinished:
            for turn in tuple(unfinished):
                side, events = turn
                is_over = True
                async for event in events:
                    yield side, event
                    if isinstance(event, RunProgress):
                        is_over = False
                        break
                if is_over:
                    unfinished.remove(turn)
            unfinished.reverse()
