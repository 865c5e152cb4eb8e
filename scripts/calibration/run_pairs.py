"""Compare published runs with each other: same configuration, other machine or version, one Spark and two.

The bands of speeds that are based on published runs come from here. Two runs are compared through the fit,
which removes differences of depth and KV format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log, sqrt

from calibration.accuracy import spread
from calibration.decode import configuration, measured_ms, predicted_tps, run_errors
from calibration.measured_models import models
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import ErrorsSchema, SpreadSchema, all_reduces
from firesteel.planner.speed.published import CALIBRATED, PublishedRun
from firesteel.values import replace

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


def two_sparks(all_reduce_ms: float) -> list[tuple[PublishedRun, float]]:
    """Half the step of one Spark plus its all-reduces, for any number of users."""
    return [(two, _over_two(measured_ms(one), two, all_reduce_ms)) for one, two in pairs()]


def planned_two_sparks(all_reduce_ms: float, costs: CostsByEngine) -> list[tuple[PublishedRun, float]]:
    """Runs of one user on two Sparks, and what a plan predicts, whoever measured."""
    return [
        (run, _over_two(1000 / predicted_tps("vllm", run, costs["vllm"]), run, all_reduce_ms))
        for run in published.runs_with_layout()
        if run.sparks == 2 and run.users == 1 and run.speculation in ("", "?") and run.kind != "served_rate"
    ]


def _over_two(step_ms: float, run: PublishedRun, all_reduce_ms: float) -> float:
    return 1000 / (step_ms / 2 + all_reduce_ms * _all_reduces(run))


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


OtherHands = dict[str, list[tuple[PublishedRun, float]]]
_EIGHT_IN_TEN = 1.28
"""Standard deviations to each side that hold 8 in 10 of a normal distribution."""


def other_hands(costs: CostsByEngine) -> OtherHands:
    """Runs that the costs were not fitted to, with what they predict, by engine."""
    groups: OtherHands = {}
    for run in published.runs_with_layout():
        if not run.is_plain or run.source in CALIBRATED.get(run.engine, ()):
            continue
        engine = run.engine if run.engine in costs else "vllm"
        predicted = predicted_tps(engine, run, costs[engine])
        groups.setdefault(run.engine, []).append((run, predicted))
    return dict(sorted(groups.items()))


def elsewhere(hands: OtherHands) -> dict[str, ErrorsSchema]:
    """Errors on runs by other hands, outliers included.

    There are one to seven of an engine, too few for a range of their own: a band is at least as wide as the
    errors of similar engines were.
    """
    return {engine: with_range(run_errors(runs), *band_of(hands, engine)) for engine, runs in hands.items()}


def with_range(errors: ErrorsSchema, low: float, high: float) -> ErrorsSchema:
    return replace(errors, low=round(low, 4), high=round(high, 4))


def band_of(hands: OtherHands, engine: str) -> tuple[float, float]:
    """The range of its runs' measured over predicted, and of 8 in 10 of those of similar engines: all with
    the same costs, or for one that nothing was fitted to, all others like it."""
    costs = "llamacpp" if engine == "llamacpp" else "vllm"
    similar = ("llamacpp",) if costs == "llamacpp" else tuple(name for name in hands if name != "llamacpp")
    if engine not in CALIBRATED:
        similar = tuple(name for name in hands if name not in CALIBRATED)
    logs = [log(_ratio(*each)) for name in similar for each in hands[name]]
    usual = exp(_EIGHT_IN_TEN * sqrt(sum(value**2 for value in logs) / len(logs)))
    own = [_ratio(*each) for each in hands[engine]]
    return min([1 / usual, *own]), max([usual, *own])


def held(hands: OtherHands, engine: str) -> list[bool]:
    """Which runs of an engine lie in the band that all others give."""
    found = []
    for run, predicted in hands[engine]:
        others = {name: [each for each in results if each[0] is not run] for name, results in hands.items()}
        low, high = band_of(others, engine)
        found.append(low <= _ratio(run, predicted) <= high)
    return found


def range_of(results: Sequence[tuple[PublishedRun, float]]) -> tuple[float, float]:
    """The least and the most of measured over predicted."""
    ratios = [_ratio(*each) for each in results]
    return min(ratios), max(ratios)


def is_held(results: Sequence[tuple[PublishedRun, float]], one: tuple[PublishedRun, float]) -> bool:
    """Whether a run lies in the range of the others."""
    low, high = range_of([each for each in results if each is not one])
    return low <= _ratio(*one) <= high


def _ratio(run: PublishedRun, predicted: float) -> float:
    return (run.decode_tps or predicted) / predicted
