"""Conditions over time: each problem once, its end once, and never a flood."""

from __future__ import annotations

import pytest

from firesteel.gateway.monitoring.alerts import MAX_PER_HOUR, Alert, AlertKey, AlertTracker

SICK = AlertKey("unhealthy", "coder")
FAILED = AlertKey("load_failed", "coder")
STEP_S = 5.0


class Play:
    """A tracker that is asked every five seconds."""

    def __init__(self) -> None:
        self.tracker, self.now_s = AlertTracker(), 0.0

    def during(self, seconds: float, *keys: AlertKey, text: str = "it is slow") -> list[tuple[float, Alert]]:
        """When, after its begin, which alert came."""
        began_s, told = self.now_s, []
        while self.now_s < began_s + seconds:
            self.tracker, alerts = self.tracker.after(dict.fromkeys(keys, text), self.now_s)
            told += [(self.now_s - began_s, alert) for alert in alerts]
            self.now_s += STEP_S
        return told


@pytest.fixture
def play() -> Play:
    return Play()


def test_a_problem_is_told_once_and_its_end_once(play: Play) -> None:
    assert play.during(3600, SICK) == [(60.0, Alert("unhealthy", "coder", "it is slow"))]
    ((at_s, end),) = play.during(3600)
    assert end.is_over and end.text == "coder is healthy again" and 50 <= at_s <= 65


def test_a_failed_load_and_the_guard_are_told_at_once(play: Play) -> None:
    assert [at for at, _ in play.during(600, FAILED, AlertKey("guard", "big"))] == [0.0, 0.0]


def test_a_moment_is_no_problem_and_a_moment_without_is_no_end(play: Play) -> None:
    assert play.during(50, SICK) + play.during(600) == []
    assert len(play.during(300, SICK)) == 1
    assert play.during(50) + play.during(300, SICK) + play.during(50) == []


def test_one_that_comes_and_goes_is_told_every_ten_minutes_at_most(play: Play) -> None:
    told = [alert for _ in range(36) for alert in play.during(100, SICK) + play.during(100)]
    assert 4 <= sum(not alert.is_over for _, alert in told) <= 12, "in two hours"


def test_what_lasts_is_told_again_after_hours(play: Play) -> None:
    assert len(play.during(24 * 3600, SICK)) == 4


def test_a_hundred_problems_are_no_flood_and_none_is_forgotten(play: Play) -> None:
    many = [AlertKey("load_failed", f"m{number}") for number in range(100)]
    first = play.during(3500, *many)
    assert len(first) == MAX_PER_HOUR and "and 70 more, which are reported later" in first[-1][1].text
    later = play.during(3 * 3600, *many)
    assert len({alert.subject for _, alert in first + later}) == 100


def test_the_newest_text_counts(play: Play) -> None:
    play.during(30, SICK, text="a bit slow")
    assert [alert.text for _, alert in play.during(60, SICK, text="very slow")] == ["very slow"]


def test_nothing_is_kept_of_what_is_long_over(play: Play) -> None:
    play.during(100, SICK)
    play.during(25 * 3600)
    assert play.tracker.problems == {} and play.tracker.active == {}
