"""A/B: measure two servers in turns with the same prompts, so that drift affects both alike.

    async for side, event in interleave(first, second): ...

Each side is a run of its own, as `measure` makes it; here they only take turns, repetition by repetition.
Both get the same prompts (equal `salt` and seed), so that their answers at temperature 0 can be compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Literal

from firesteel.bench.compare.runs import INTERLEAVED_WITH
from firesteel.bench.load.measure import Event, RunOrder, RunProgress, measure
from firesteel.bench.load.recorded import FoundServer, find_server, make_order, record
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes
from firesteel.bench.results.history import History
from firesteel.bench.values import RequestSettings
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.run.service import all_services, api_key
from firesteel.values import replace

Side = Literal[0, 1]
_REQUESTS = {"llamacpp": {"cache_prompt": False}}
"""Per engine, what keeps an answer independent of earlier prompts. Two servers of one llama.cpp build gave
different answers to 4 of 6 prompts while they reused parts of earlier ones, and to none without
(2026-11-15)."""


async def find_servers(
    home: Home, names: Sequence[str], model: str | None = None, key: str | None = None
) -> tuple[FoundServer, FoundServer]:
    """Two URLs or running services. They must differ: both get the same prompts, so that one server would
    answer the second time from its cache."""
    one, other = [await _find(home, name, model, key) for name in names]
    first, second = one[0].subject, other[0].subject
    if (first.url, first.model) == (second.url, second.model):
        raise UsageError(
            f"both are {first.model} at {first.url}; it would answer the second time from its cache",
            next="give two servers; for one, run firesteel bench twice, then firesteel compare last~1 last",
        )
    return one, other


async def _find(home: Home, name: str, model: str | None, key: str | None) -> FoundServer:
    if name.startswith(("http://", "https://")):
        return await find_server(home, None, name, model, key)
    service = next((each for each in all_services(home) if each.name == name), None)
    if service is None:
        raise UsageError(f"`{name[:80]}` is neither a URL nor a running service", next="firesteel ps")
    return await find_server(home, None, service.spec.url, service.spec.model, api_key(service.spec))


async def measure_in_turns(
    history: History,
    servers: tuple[FoundServer, FoundServer],
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
    seed: int = 0,
) -> AsyncIterator[tuple[Side, Event]]:
    """Each side is stored as a run of its own; half of the budget is for each."""
    limits = limits or RunLimits(240.0)
    limits, settings = replace(limits, budget_s=limits.budget_s / 2), RequestSettings(seed=seed)
    context = min((found.context for found, _ in servers if found.context), default=None)
    orders = [
        make_order(
            server, shapes, sizes, settings, limits, context=context,
            requests=_REQUESTS.get(server[0].subject.engine or ""),
        )
        for server in servers
    ]  # fmt: skip
    ids = [order.id for order in orders]
    first, second = (
        replace(order, notes=(*order.notes, f"{INTERLEAVED_WITH}{other}"))
        for order, other in zip(orders, reversed(ids), strict=True)
    )
    async for side, event in interleave(first, second):
        record(history, ids[side], event)
        yield side, event


async def measure_alone(
    history: History, server: FoundServer, salt: str, limits: RunLimits
) -> AsyncIterator[Event]:
    """One of two that cannot run side by side; with an equal `salt` the other gets the same prompts."""
    own = _REQUESTS.get(server[0].subject.engine or "")
    order = replace(make_order(server, limits=limits, requests=own), salt=salt)
    async for event in measure(order):
        record(history, order.id, event)
        yield event


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
