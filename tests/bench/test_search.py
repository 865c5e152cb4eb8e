"""The search finds the best in few runs, the same each time, and asks for nothing that is forbidden."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from math import exp

import pytest

from firesteel.bench.tune.search import Search, SearchAxis
from firesteel.bench.tune.space import Setting

AXES = (SearchAxis(4, True), SearchAxis(3, True), SearchAxis(4, True), SearchAxis(2), SearchAxis(4))
START = (3, 1, 2, 0, 1)
GRID = list(product(*(range(axis.size) for axis in AXES)))
Truth = Callable[[Setting], float]


def truth(seed: int) -> Truth:
    """Each choice has its factor, ladders a peak, and some pairs one of their own."""
    lot = random.Random(seed)
    main = [[lot.gauss(0, 0.1) for _ in range(axis.size)] for axis in AXES]
    peaks = [lot.uniform(0, axis.size - 1) for axis in AXES]
    pairs = {(k, a, m, b): lot.gauss(0, 0.03) for k, a, m, b in ((0, 1, 3, 1), (2, 0, 4, 2), (0, 0, 4, 3))}

    def score(setting: Setting) -> float:
        total = 0.0
        for k, (axis, at) in enumerate(zip(AXES, setting, strict=True)):
            total += -0.06 * abs(at - peaks[k]) if axis.is_ladder else main[k][at]
        total += sum(gain for (k, a, m, b), gain in pairs.items() if (setting[k], setting[m]) == (a, b))
        return 100 * exp(total)

    return score


def run(search: Search, score: Truth, noise: float = 0.01, seed: int = 0) -> Search:
    lot = random.Random(seed)
    while (setting := search.ask()) is not None:
        search.tell(setting, [score(setting) * exp(lot.gauss(0, noise)) for _ in range(4)])
    return search


@pytest.mark.parametrize("seed", range(8))
def test_near_the_best_in_a_third_of_the_grid(seed: int) -> None:
    score = truth(seed)
    search = run(Search(AXES, START, max_runs=len(GRID)), score, seed=seed)
    assert search.best is not None
    assert score(search.best.setting) >= 0.98 * max(map(score, GRID))
    assert len(search.observations) <= len(GRID) / 3
    assert len({each.setting for each in search.observations}) == len(search.observations)


def test_far_fewer_runs_than_random_search() -> None:
    """How many drawn by lot come as near as often: the search must be worth its code."""
    ours, lots = [], []
    for seed in range(6):
        score = truth(seed)
        near = 0.98 * max(map(score, GRID))
        search = run(Search(AXES, START, max_runs=len(GRID)), score, seed=seed)
        ours.append(next(at for at, each in enumerate(search.observations, 1) if score(each.setting) >= near))
        good = sum(score(setting) >= near for setting in GRID)
        lots.append((len(GRID) + 1) / (good + 1))  # the mean place of the first good one
    assert sum(ours) < 0.5 * sum(lots), (ours, lots)


def test_the_current_setting_comes_first() -> None:
    assert Search(AXES, START).ask() == START


def test_each_knob_is_first_moved_by_itself() -> None:
    """A first alternative that changes five knobs says nothing about any of them."""
    search = run(Search(AXES, START, max_runs=1 + len(AXES)), truth(1), noise=0.3)
    moved = [
        [knob for knob, choice in enumerate(each.setting) if choice != START[knob]]
        for each in search.observations[1:]
    ]
    assert all(len(knobs) == 1 for knobs in moved) and len({knobs[0] for knobs in moved}) == len(AXES), moved


def test_a_knob_that_may_not_be_moved_is_left_out() -> None:
    search = Search(AXES, START, is_excluded=lambda setting: setting[0] != START[0], max_runs=8)
    found = run(search, truth(2)).observations
    assert len(found) == 8 and len({each.setting for each in found}) == 8


def test_the_search_is_deterministic() -> None:
    first, second = (run(Search(AXES, START, seed=3), truth(3)) for _ in range(2))
    assert [each.setting for each in first.observations] == [each.setting for each in second.observations]


def test_replayed_observations_continue_the_search() -> None:
    """What a journal has is all that there is to know."""
    whole = run(Search(AXES, START), truth(4))
    for cut in (1, 5, len(whole.observations) - 1):
        again = Search(AXES, START)
        for each in whole.observations[:cut]:
            again.tell(each.setting, each.values)
        assert again.ask() == whole.observations[cut].setting


def test_excluded_settings_are_never_asked_for() -> None:
    search = run(Search(AXES, START, is_excluded=lambda setting: setting[3] == 1), truth(5))
    assert len(search.observations) > 3 and all(each.setting[3] == 0 for each in search.observations)


def test_max_runs() -> None:
    assert len(run(Search(AXES, START, max_runs=4), truth(6)).observations) == 4


def test_a_choice_that_never_works_is_given_up() -> None:
    score = truth(7)
    search = Search(AXES, START, max_runs=len(GRID))
    while (setting := search.ask()) is not None:
        search.tell(setting, () if setting[4] == 2 else [score(setting)] * 4)
    failed = [each for each in search.observations if not each.values]
    assert len(failed) <= 2
    assert search.best is not None and search.best.setting[4] != 2


def test_it_ends_soon_if_nothing_matters() -> None:
    search = run(Search(AXES, START, max_runs=len(GRID)), lambda setting: 50.0)
    assert len(search.observations) < 30


def test_the_plan_decides_first() -> None:
    """What is expected to be far better is tried before the rest."""
    search = Search(AXES, START, expected=lambda setting: 300.0 if setting[3] == 1 else 100.0)
    search.tell(START, [100.0] * 4)
    asked = search.ask()
    assert asked is not None and asked[3] == 1


def test_clearly_beaten() -> None:
    search = Search(AXES, START)
    assert not search.is_beaten([1.0, 1.0, 1.0])  # nothing to be beaten by
    search.tell(START, [100.0, 101.0, 99.0, 100.0])
    assert search.is_beaten([80.0, 81.0, 79.0])
    assert not search.is_beaten([80.0, 120.0, 60.0])  # too wide to say
    assert not search.is_beaten([99.0, 101.0, 100.0])
    assert not search.is_beaten([50.0, 50.0])  # two may agree by chance


def test_invalid_values_are_a_failure() -> None:
    search = Search(AXES, START)
    search.tell(START, [0.0, -1.0])
    assert search.best is None and search.ask() is None


def test_a_very_large_space_is_drawn_from() -> None:
    axes = tuple(SearchAxis(10) for _ in range(6))
    search = Search(axes, (0,) * 6, max_runs=4)
    found = run(search, lambda setting: 100.0 + sum(setting))
    assert len(found.observations) == 4 and all(len(each.setting) == 6 for each in found.observations)
