"""`firesteel compare --ab`: measures two servers in turns and keeps each as a run of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from firesteel import library
from firesteel.bench.compare.ab import interleave
from firesteel.bench.compare.runs import INTERLEAVED_WITH
from firesteel.bench.load.measure import (
    RunFinished,
    RunOrder,
    RunProgress,
    RunStarted,
    SampleTaken,
)
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes, fit_context, points
from firesteel.bench.load.subject import FoundSubject, of_url
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import RequestSettings
from firesteel.cli.endpoints import base_url, key_from
from firesteel.cli.output.show import err
from firesteel.errors import FiresteelError, UsageError
from firesteel.run.verify.prove import key_of

_REQUESTS = {"llamacpp": {"cache_prompt": False}}
"""Per engine, what keeps an answer independent of earlier prompts. Two servers of one llama.cpp build gave
different answers to 4 of 6 prompts while they reused parts of earlier ones, and to none without
(2026-11-15)."""
_Side = tuple[FoundSubject, str | None]
"""A server and its key."""


async def measure_in_turns(
    history: History, names: Sequence[str], options: Mapping[str, Any]
) -> list[StoredRun]:
    sides = [await _subject(name, options["model"]) for name in names]
    _require_two_servers(sides)
    orders = _orders(sides, options)
    ids = [order.id for order in orders]
    first, second = (
        replace(order, notes=(*order.notes, f"{INTERLEAVED_WITH}{other}"))
        for order, other in zip(orders, reversed(ids), strict=True)
    )
    done: dict[int, RunFinished] = {}
    async for side, event in interleave(first, second):
        if isinstance(event, RunStarted):
            history.begin(event.run)
        elif isinstance(event, SampleTaken):
            history.add(ids[side], event.sample)
        elif isinstance(event, RunProgress):
            err.print(f"{'AB'[side]}       {event.text} ...", markup=False)
        elif isinstance(event, RunFinished):
            history.finish(event.run)
            done[side] = event
    if len(done) < 2:
        raise FiresteelError("one of the servers could not be measured", next="firesteel bench --url URL")
    return [StoredRun(done[side].run, done[side].samples) for side in (0, 1)]


def _require_two_servers(sides: list[_Side]) -> None:
    """Both get the same prompts, so one server would answer the second time from its cache."""
    one, other = (server.subject for server, _ in sides)
    if (one.url, one.model) == (other.url, other.model):
        raise UsageError(
            f"both are {one.model} at {one.url}; it would answer the second time from its cache",
            next="give two servers; for one, run firesteel bench twice, then firesteel compare last~1 last",
        )


async def _subject(name: str, model: str | None) -> _Side:
    """`name` is a URL or a running service."""
    if name.startswith(("http://", "https://")):
        key = key_from(os.environ)
        return await of_url(base_url(name), model, key), key
    for service in library.services():
        if service.name == name:
            key = key_of(service.spec)
            return await of_url(base_url(service.spec.url), service.spec.model, key), key
    raise UsageError(f"`{name[:80]}` is neither a URL nor a running service", next="firesteel ps")


def _orders(sides: list[_Side], options: Mapping[str, Any]) -> list[RunOrder]:
    sizes = Sizes(
        options["users"], options["depth"], options["text"], answer=next(iter(options["answer"]), None)
    )
    contexts = [server.context for server, _ in sides if server.context]
    wanted, notes = fit_context(points(options["shapes"] or ("quick",), sizes), min(contexts, default=None))
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="another --shape")
    limits = RunLimits(options["budget"] / 2, options["precision"])
    settings = RequestSettings(temperature=0.0, seed=options["seed"])
    return [
        RunOrder(
            server.subject, wanted, settings, limits, key, new_run_id(),
            requests=_REQUESTS.get(server.subject.engine or "", {}), notes=tuple(notes),
        )
        for server, key in sides
    ]  # fmt: skip
