"""Runs held against other runs: how well one foretells another, on this machine, elsewhere, and on two.

Bands of measured rungs come from here. A run is compared through the fit, which takes the difference in
depth and KV format out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from firesteel.facts import Architecture
from firesteel.planner.calibration import configuration, predicted_tps, run_errors, took_ms
from firesteel.planner.speed import published
from firesteel.planner.speed.accuracy import Errors, Spread, spread
from firesteel.planner.speed.decode import all_reduces
from firesteel.planner.speed.published import CALIBRATED, PublishedRun
from firesteel.planner.speed.published_models import models


def repeated(fits: Mapping[str, Mapping[str, float]]) -> Spread:
    """A run over what the other runs of the same checkpoint, engine and version foretell."""
    return spread(_anchored(fits, lambda run: (*configuration(run), run.version), lambda a, b: a is not b))


def carried(fits: Mapping[str, Mapping[str, float]]) -> Spread:
    """A run over what runs of the same shape and layout foretell that others made, or another version."""
    return spread(
        _anchored(
            fits,
            lambda run: (run.shape, run.layout),
            lambda a, b: configuration(a) != configuration(b) or a.version != b.version,
        )
    )


def _anchored(
    fits: Mapping[str, Mapping[str, float]],
    alike: Callable[[PublishedRun], tuple[str, ...]],
    counts: Callable[[PublishedRun, PublishedRun], bool],
) -> Iterator[float]:
    """Each run over its fitted figure, corrected by how far off that is for the runs that count."""
    groups: dict[tuple[str, ...], list[tuple[PublishedRun, float]]] = {}
    for run in published.known():
        if run.is_plain and run.engine in fits and run.decode_tps:
            ratio = run.decode_tps / predicted_tps(run.engine, run, fits[run.engine])
            groups.setdefault((run.engine, *alike(run)), []).append((run, ratio))
    for members in groups.values():
        for run, ratio in members:
            others = [each for other, each in members if counts(run, other)]
            if others:
                yield ratio * len(others) / sum(others)


def all_reduce_ms() -> Spread:
    """What a sum over two Sparks costs one user, from runs that were made on one and on two."""
    return spread(
        (took_ms(two) - took_ms(one) / 2) / all_reduces(_shape(two.shape))
        for one, two in pairs()
        if two.users == 1
    )


def two_sparks(cost_ms: float) -> Errors:
    """Halving the step of one Spark and adding the sums, over the runs that it was seen in, users and all."""
    return run_errors(
        (two, 1000 / (took_ms(one) / 2 + cost_ms * all_reduces(_shape(two.shape)))) for one, two in pairs()
    )


def pairs() -> list[tuple[PublishedRun, PublishedRun]]:
    """The same on one Spark and on two, by the same hand."""
    alone = {
        _setting(run): run for run in published.runs() if run.sparks == 1 and run.shape and run.decode_tps
    }
    return [
        (alone[_setting(run)], run)
        for run in published.runs()
        if run.sparks == 2 and run.decode_tps and run.shape and _setting(run) in alone
    ]


def _setting(run: PublishedRun) -> tuple[object, ...]:
    return run.model, run.quant, run.engine, run.version, run.users, run.speculation, run.source, run.depth


def _shape(name: str) -> Architecture:
    return models().shapes[name].architecture(name)


def elsewhere(fits: Mapping[str, Mapping[str, float]]) -> dict[str, Errors]:
    """The costs of vLLM and llama.cpp on runs that they were not fitted to, with all their faults."""
    groups: dict[str, list[tuple[PublishedRun, float]]] = {}
    for run in published.known():
        if not run.is_plain or run.source in CALIBRATED.get(run.engine, ()):
            continue
        engine = run.engine if run.engine in fits else "vllm"
        told = predicted_tps(engine, run, fits[engine])
        groups.setdefault(run.engine, []).append((run, told))
    return {engine: run_errors(found) for engine, found in sorted(groups.items())}
