"""Compare published runs with each other: same configuration, other machine or version, one Spark and two.

The bands of speeds that are based on published runs come from here. Two runs are compared through the fit,
which removes differences of depth and KV format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from calibration.accuracy import spread
from calibration.decode import configuration, measured_ms, predicted_tps, run_errors
from calibration.measured_models import models
from firesteel.planner.speed import published
from firesteel.planner.speed.constants import ErrorsSchema, SpreadSchema
from firesteel.planner.speed.decode import all_reduces
from firesteel.planner.speed.published import CALIBRATED, PublishedRun

CostsByEngine = Mapping[str, Mapping[str, float]]


def repeated(costs: CostsByEngine) -> SpreadSchema:
    """A run over what the other runs of the same checkpoint, engine and version predict."""
    return spread(_ratios(costs, lambda run: (*configuration(run), run.version), lambda a, b: a is not b))


def carried(costs: CostsByEngine) -> SpreadSchema:
    """A run over what runs of the same shape and layout by other people, or in another version, predict."""
    return spread(
        _ratios(
            costs,
            lambda run: (run.shape, run.layout),
            lambda a, b: configuration(a) != configuration(b) or a.version != b.version,
        )
    )


def _ratios(
    costs: CostsByEngine,
    group_key: Callable[[PublishedRun], tuple[str, ...]],
    counts: Callable[[PublishedRun, PublishedRun], bool],
) -> Iterator[float]:
    """Each run over its fitted figure, after correcting that by the mean error of the runs that count."""
    groups: dict[tuple[str, ...], list[tuple[PublishedRun, float]]] = {}
    for run in published.runs_with_layout():
        if run.is_plain and run.engine in costs and run.decode_tps:
            ratio = run.decode_tps / predicted_tps(run.engine, run, costs[run.engine])
            groups.setdefault((run.engine, *group_key(run)), []).append((run, ratio))
    for members in groups.values():
        for run, ratio in members:
            others = [other_ratio for other, other_ratio in members if counts(run, other)]
            if others:
                yield ratio * len(others) / sum(others)


def all_reduce_ms() -> SpreadSchema:
    """What an all-reduce over two Sparks costs one user, from runs that were made on one and on two."""
    return spread(
        (measured_ms(two) - measured_ms(one) / 2) / _all_reduces(two)
        for one, two in pairs()
        if two.users == 1
    )


def two_sparks(all_reduce_ms: float) -> ErrorsSchema:
    """Errors of half the step of one Spark plus its all-reduces, for any number of users."""
    return run_errors(
        (two, 1000 / (measured_ms(one) / 2 + all_reduce_ms * _all_reduces(two))) for one, two in pairs()
    )


def pairs() -> list[tuple[PublishedRun, PublishedRun]]:
    """The same setting on one Spark and on two, by the same source."""
    one_spark = {
        _setting(run): run for run in published.runs() if run.sparks == 1 and run.shape and run.decode_tps
    }
    return [
        (one_spark[_setting(run)], run)
        for run in published.runs()
        if run.sparks == 2 and run.decode_tps and run.shape and _setting(run) in one_spark
    ]


def _setting(run: PublishedRun) -> tuple[object, ...]:
    return run.model, run.quant, run.engine, run.version, run.users, run.speculation, run.source, run.depth


def _all_reduces(run: PublishedRun) -> int:
    return all_reduces(models().shapes[run.shape].architecture(run.shape))


def elsewhere(costs: CostsByEngine) -> dict[str, ErrorsSchema]:
    """Errors of the costs of vLLM and llama.cpp on runs that they were not fitted to, outliers included."""
    groups: dict[str, list[tuple[PublishedRun, float]]] = {}
    for run in published.runs_with_layout():
        if not run.is_plain or run.source in CALIBRATED.get(run.engine, ()):
            continue
        engine = run.engine if run.engine in costs else "vllm"
        predicted = predicted_tps(engine, run, costs[engine])
        groups.setdefault(run.engine, []).append((run, predicted))
    return {engine: run_errors(results) for engine, results in sorted(groups.items())}
