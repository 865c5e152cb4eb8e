"""How often two servers that are the same seem to differ. A run stops when its intervals are narrow, which
finds narrow ones by luck too: 10 to 20 comparisons in a hundred showed a difference before that was minded.

Simulated with seeds: visits as `measure` makes them, from one truth on both sides.
"""

from __future__ import annotations

import random
from math import exp, log, sqrt

import pytest

from firesteel.bench.compare.runs import Comparison, compare
from firesteel.bench.compare.stats import compare_values, effective_n, mean_interval
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import (
    BenchRun,
    PointFigures,
    RequestSample,
    RequestSettings,
    StoredRun,
    Subject,
)
from firesteel.values import replace
from tests.bench.stored_runs import POINT, SUBJECT, rates, stored_run

_LIMITS = RunLimits()


def simulated(
    chance: random.Random,
    spreads: tuple[float, float],
    most: int,
    rho: float = 0.0,
    between: float = 0.0,
    gain: float = 1.0,
    subject: Subject = SUBJECT,
) -> StoredRun:
    """Decode about 100 tok/s, the first word after half a second; each visit hangs on the last by `rho`. A
    whole run is off by `between`."""
    speed, wait = (exp(chance.gauss(0, between)) for _ in range(2))
    at = [chance.gauss(0, 1), chance.gauss(0, 1)]
    decode: list[float] = []
    first: list[float] = []
    samples: list[RequestSample] = []
    for visit in range(most):
        decode.append(100 * gain * speed * exp(spreads[0] * at[0]))
        first.append(0.5 * wait * exp(spreads[1] * at[1]))
        last = first[-1] + 99 / decode[-1]
        gaps = (11 / decode[-1],) * 9
        samples.append(RequestSample(0, visit, float(visit), first[-1], last, last, gaps, 1000, 100))
        at = [rho * each + sqrt(1 - rho**2) * chance.gauss(0, 1) for each in at]
        seen = [mean_interval(values) for values in (decode, first)]
        if visit + 1 >= _LIMITS.least_repetitions and all(
            each and each.half_width <= _LIMITS.precision for each in seen
        ):
            break
    first_ms = [1000 * each for each in first]
    figures = PointFigures(
        POINT,
        len(samples),
        decode_tokens_per_s=mean_interval(decode),
        prefill_tokens_per_s=mean_interval([1000 / each for each in first]),
        ttft_mean_ms=mean_interval(first_ms),
    )
    name, began = f"r{chance.random()}", "2026-11-15T10:00:00+00:00"
    run = BenchRun(name, began, subject, RequestSettings(), (POINT,), (figures,), is_whole=True)
    return StoredRun(run, tuple(samples))


def share_that_differs(spreads: tuple[float, float], most: int, rho: float = 0.0, times: int = 150) -> float:
    chance = random.Random(11)
    found = (
        compare(simulated(chance, spreads, most, rho), simulated(chance, spreads, most, rho))
        for _ in range(times)
    )
    return sum(any(row.difference.is_real for row in each.rows) for each in found) / times


@pytest.mark.parametrize("most", [6, 24])
@pytest.mark.parametrize("spreads", [(0.005, 0.01), (0.01, 0.02), (0.02, 0.05), (0.05, 0.1)])
def test_equal_servers_rarely_seem_to_differ(spreads: tuple[float, float], most: int) -> None:
    assert share_that_differs(spreads, most) <= 0.05


@pytest.mark.parametrize("spreads", [(0.01, 0.02), (0.02, 0.05)])
def test_correlated_repetitions(spreads: tuple[float, float]) -> None:
    """Half of each visit is the one before: it was 40 to 50 in a hundred."""
    assert share_that_differs(spreads, 24, rho=0.5) <= 0.15


def verdicts(found: Comparison) -> set[str]:
    return {row.difference.verdict for row in found.rows if row.measure == "decode"}


# --- runs of one server vary by themselves ---

BEFORE, AFTER = replace(SUBJECT, launch_key="before"), replace(SUBJECT, launch_key="after")


def calls(between: float, gain: float, known: int, pairs: int = 200) -> float:
    """The share of pairs of runs for which `compare` says that decode, or with equal servers anything,
    differs. `known`: earlier runs of each of the two launches."""
    chance, within, found = random.Random(5), (0.01, 0.02), 0

    def measured(subject: Subject, gain: float) -> StoredRun:
        return simulated(chance, within, 12, between=between, gain=gain, subject=subject)

    for _ in range(pairs):
        earlier = [measured(BEFORE, 1.0).run for _ in range(known)]
        earlier += [measured(AFTER, gain).run for _ in range(known)]
        rows = compare(measured(BEFORE, 1.0), measured(AFTER, gain), earlier=earlier).rows
        found += any(row.difference.is_real and (gain == 1 or row.measure == "decode") for row in rows)
    return found / pairs


@pytest.mark.parametrize(("between", "known"), [(0.01, 0), (0.02, 0), (0.01, 5), (0.02, 5), (0.05, 5)])
def test_runs_of_one_server_rarely_seem_to_differ(between: float, known: int) -> None:
    """It was 25 to 92 of 100 when only the repetitions within a run counted."""
    assert calls(between, 1.0, known) <= 0.05


@pytest.mark.parametrize(
    ("between", "gain", "known", "least"),
    [(0.01, 1.1, 0, 0.8), (0.02, 1.15, 0, 0.9), (0.005, 1.05, 8, 0.8), (0.01, 1.1, 8, 0.9)],
)
def test_the_power_to_see_a_true_difference(between: float, gain: float, known: int, least: float) -> None:
    """As docs/bench.md states it."""
    assert calls(between, gain, known, 60) >= least


def test_the_note_says_how_much_runs_vary() -> None:
    chance = random.Random(1)
    one, other, *more = (simulated(chance, (0.01, 0.02), 12, between=0.03, subject=BEFORE) for _ in range(22))
    (note,) = (note for note in compare(one, other).notes if "vary by themselves" in note)
    assert "about 2%" in note and "--ab" in note
    measured = compare(one, other, earlier=[each.run for each in (one, other, *more)]).notes
    (note,) = (note for note in measured if "vary by themselves" in note)
    assert "20 earlier runs" in note and ("decode 2." in note or "decode 3." in note)
    unknown = [replace(each.run, subject=replace(BEFORE, launch_key=None)) for each in more]
    assert any("about 2%" in note for note in compare(one, other, earlier=unknown).notes)
    in_turns = compare(one, one, is_interleaved=True, earlier=[each.run for each in more]).notes
    assert not any("vary by themselves" in note for note in in_turns)


def test_a_relevant_difference_is_still_seen() -> None:
    assert verdicts(compare(stored_run("a", rates(50, seed=1)), stored_run("b", rates(55, seed=2)))) == {
        "faster"
    }
    assert verdicts(compare(stored_run("a", rates(50, n=4, seed=1)), stored_run("b", rates(44, n=4)))) == {
        "slower"
    }


def test_less_than_two_percent_is_never_reported() -> None:
    one, other = rates(50, n=40, spread=0.002, seed=1), rates(50.6, n=40, spread=0.002, seed=2)
    assert compare_values(other, one).p < 1e-6
    assert verdicts(compare(stored_run("a", one), stored_run("b", other))) == {"no difference seen"}


def test_more_figures_need_more_significance() -> None:
    """The same two sets of values, alone and among forty loads in which nothing differs."""
    one, other = (
        stored_run("a", rates(50, n=6, spread=0.03, seed=3)),
        stored_run("b", rates(55.5, n=6, spread=0.03, seed=4)),
    )
    row = next(row for row in compare(one, other).rows if row.measure == "decode")
    assert 1e-4 < row.difference.p < 0.007
    assert verdicts(compare(one, other)) == {"faster"}
    assert verdicts(compare(_among_equals(one), _among_equals(other))) == {"no difference seen"}


def _among_equals(made: StoredRun) -> StoredRun:
    loads = tuple(replace(POINT, prompt_tokens=2000 + at) for at in range(40))
    points = (POINT, *loads)
    equal = stored_run("e", rates(50, n=6, spread=0.03, seed=9)).samples
    more = tuple(replace(each, point=at) for at in range(1, 41) for each in equal)
    return StoredRun(replace(made.run, points=points), (*made.samples, *more))


def test_the_stated_false_positive_rate_holds() -> None:
    found = compare(stored_run("a", rates(50)), stored_run("b", rates(50, seed=1)))
    (note,) = (note for note in found.notes if "figures are judged" in note)
    assert "2 %" in note and "5 of 100" in note


@pytest.mark.parametrize(("rho", "low", "high"), [(0.0, 60, 100), (0.5, 20, 50), (0.9, 3, 15)])
def test_correlated_values_count_for_fewer(rho: float, low: float, high: float) -> None:
    """Of 100 values with lag-1 correlation r there are about 100 (1 - r) / (1 + r)."""
    chance, found = random.Random(2), []
    for _ in range(100):
        values = [chance.gauss(0, 1)]
        for _ in range(99):
            values.append(rho * values[-1] + sqrt(1 - rho**2) * chance.gauss(0, 1))
        found.append(effective_n(values))
    assert low <= sum(found) / len(found) <= high
    assert effective_n([1.0, 2.0, 3.0]) == 3, "of so few nothing can be said"
    assert log(effective_n([5.0] * 9)) == log(9)
