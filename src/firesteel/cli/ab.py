"""`firesteel compare --ab`: two servers measured in turns, each kept as a run of its own."""

from __future__ import annotations

import os
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
from firesteel.cli.options.bench import seconds, share
from firesteel.cli.output.show import err
from firesteel.cli.verify import base_of
from firesteel.errors import FiresteelError, UsageError
from firesteel.run.verify.prove import key_of

_APART = {"llamacpp": {"cache_prompt": False}}
"""By engine, what keeps an answer from hanging on what was asked before. Two servers of one llama.cpp build
gave other words to 4 of 6 prompts while they reused parts of earlier ones, to none without (2026-11-15)."""
_KEYS = ("FIRESTEEL_API_KEY", "OPENAI_API_KEY")


async def measured_ab(
    history: History, first: str, second: str, asked: dict[str, Any]
) -> tuple[StoredRun, StoredRun]:
    found = [await _subject(word, asked["model"]) for word in (first, second)]
    _insist_on_two(found)
    orders = _orders(found, asked)
    names = [order.id for order in orders]
    orders = [
        replace(order, notes=(*order.notes, f"{INTERLEAVED_WITH}{names[1 - at]}"))
        for at, order in enumerate(orders)
    ]
    done: dict[int, RunFinished] = {}
    async for side, event in interleave(orders[0], orders[1]):
        if isinstance(event, RunStarted):
            history.begin(event.run)
        elif isinstance(event, SampleTaken):
            history.add(names[side], event.sample)
        elif isinstance(event, RunProgress):
            err.print(f"{'AB'[side]}       {event.text} ...", markup=False)
        elif isinstance(event, RunFinished):
            history.finish(event.run)
            done[side] = event
    if len(done) < 2:
        raise FiresteelError("one of them could not be measured", next="firesteel bench --url ADDRESS")
    return StoredRun(done[0].run, done[0].samples), StoredRun(done[1].run, done[1].samples)


def _insist_on_two(found: list[tuple[FoundSubject, str | None]]) -> None:
    """Both ask the same prompts: one server would answer the second time from its cache."""
    one, other = (each.subject for each, _ in found)
    if (one.url, one.model) == (other.url, other.model):
        raise UsageError(
            f"both are {one.model} at {one.url}, which would answer the second from its cache of the first",
            next="two servers; of one, firesteel bench at two times, and then firesteel compare last~1 last",
        )


async def _subject(word: str, model: str | None) -> tuple[FoundSubject, str | None]:
    """An address, or the name of what runs here."""
    if word.startswith(("http://", "https://")):
        key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        return await of_url(base_of(word), model, key), key
    for service in library.services():
        if service.name == word:
            found = await of_url(base_of(service.spec.url), service.spec.model, key_of(service.spec))
            return found, key_of(service.spec)
    raise UsageError(f"`{word[:80]}` is no address and nothing that runs", next="firesteel ps")


def _orders(found: list[tuple[FoundSubject, str | None]], asked: dict[str, Any]) -> list[RunOrder]:
    sizes = Sizes(asked["users"], asked["depth"], asked["text"], answer=next(iter(asked["answer"]), None))
    room = [each.context for each, _ in found if each.context]
    wanted, notes = fit_context(points(asked["shapes"] or ("quick",), sizes), min(room, default=None))
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="another --shape")
    limits = RunLimits(seconds(asked["budget"]) / 2, share(asked["precision"]))
    settings = RequestSettings(temperature=0.0, seed=asked["seed"])
    return [
        RunOrder(
            each.subject, wanted, settings, limits, key, new_run_id(),
            requests=_APART.get(each.subject.engine or "", {}), notes=tuple(notes),
        )
        for each, key in found
    ]  # fmt: skip
