"""Two servers in turns with the same prompts, so that drift affects both alike: which one is faster.

Each side is its own run, as `measure` makes it, repetition by repetition. `answers` compares what they say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from firesteel.bench.compare.runs import INTERLEAVED_WITH
from firesteel.bench.load.measure import (
    Event,
    FoundServer,
    RunOrder,
    RunProgress,
    find_server,
    make_order,
    measure,
    record,
)
from firesteel.bench.load.schedule import RunLimits, Sizes
from firesteel.bench.measurements import RequestSettings
from firesteel.bench.results.history import History
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.run.service import all_services, api_key
from firesteel.values import replace

Side = Literal[0, 1]
"""The first or the second of two servers."""
UNCACHED_REQUESTS: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"cache_prompt": False}}
"""Per engine, what keeps an answer independent of earlier prompts. Two servers of one llama.cpp build gave
different answers to 4 of 6 prompts while they reused parts of earlier ones, and to none without
(2026-11-15)."""


async def find_servers(
    home: Home, names: Sequence[str], model: str | None = None, key: str | None = None
) -> tuple[FoundServer, FoundServer]:
    """Find two URLs or running services. They must differ: both get the same prompts, so that one server
    would answer the second time from its cache."""
    one, other = [await _find_one(home, name, model, key) for name in names]
    first, second = one[0].subject, other[0].subject
    if (first.url, first.model) == (second.url, second.model):
        raise UsageError(
            f"both are {first.model} at {first.url}; it would answer the second time from its cache",
            next="two servers; or, for one, firesteel bench twice, then firesteel bench compare last~1 last",
        )
    return one, other


async def _find_one(home: Home, name: str, model: str | None, key: str | None) -> FoundServer:
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
    """Measure both; each side is stored as its own run and gets half of the budget."""
    limits = limits or RunLimits(240.0)
    limits, settings = replace(limits, budget_s=limits.budget_s / 2), RequestSettings(seed=seed)
    context = min((found.context for found, _ in servers if found.context), default=None)
    orders = [
        make_order(
            server, shapes, sizes, settings, limits, context=context,
            requests=UNCACHED_REQUESTS.get(server[0].subject.engine or ""),
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
    """Measure one of two that cannot run side by side; with an equal `salt` the other gets equal prompts."""
    own = UNCACHED_REQUESTS.get(server[0].subject.engine or "")
    order = replace(make_order(server, limits=limits, requests=own), salt=salt)
    async for event in measure(order):
        record(history, order.id, event)
        yield event


async def interleave(first: RunOrder, second: RunOrder) -> AsyncIterator[tuple[Side, Event]]:
    """Run both with equal prompts in equal order. A turn lasts until a run is about to start its next
    repetition; the last one begins the next round."""
    salt = first.salt or first.id
    second = replace(second, salt=salt, points=first.points, settings=first.settings)
    one, other = measure(replace(first, salt=salt)), measure(second)
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
