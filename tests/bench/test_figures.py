"""Samples -> figures, by hand: what counts, what does not, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.measurements import (
    MeasuredFigure,
    Point,
    PointContext,
    RequestSample,
    RequestSettings,
    Subject,
    Wrong,
)
from firesteel.bench.report.verdict import verdict
from firesteel.bench.results.figures import decode_tokens_per_s, figures
from firesteel.values import replace
from tests.bench.example_run import example_run

POINT = Point("single", "prose", 1, 512, 101)
PLAN = {"bytes_per_token": 1_000_000_000, "bandwidth_bytes_per_s": 100e9}


def took(repetition: int = 1, tps: float = 50.0, first: float = 0.5, **more: Any) -> RequestSample:
    """101 tokens at so many a second after the first."""
    gap = 1 / tps
    plain: dict[str, Any] = {
        "point": 0, "repetition": repetition, "started_s": 10.0 * repetition, "first_s": first,
        "last_s": first + 100 * gap, "total_s": first + 100 * gap + 0.01, "gaps_s": (gap,) * 100,
        "prompt_tokens": 520, "completion_tokens": 101, "cached_tokens": 20,
    }  # fmt: skip
    return RequestSample(**{**plain, **more})


def test_the_figures_of_one_user() -> None:
    found = figures(POINT, [took(at, tps) for at, tps in enumerate((48, 50, 52), 1)])
    assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.value == pytest.approx(50)
    assert (
        found.decode_tokens_per_s.n == 3
        and found.decode_tokens_per_s.low < 48 < 52 < found.decode_tokens_per_s.high
    )
    assert found.prefill_tokens_per_s is not None and found.prefill_tokens_per_s.value == pytest.approx(1000)
    assert found.ttft_ms["p50"] == pytest.approx(500)
    assert found.inter_token_ms["p50"] == pytest.approx(20)
    assert found.time_per_output_token_ms["mean"] == pytest.approx(20, rel=0.01)
    assert found.total_tokens_per_s is None, (
        "of one user it is decode and waiting in one: no figure that anybody wants"
    )
    assert found.cached_share == pytest.approx(20 / 520)
    assert found.goodput_per_s is found.bandwidth_share is found.joules_per_token is None


def test_the_first_token_belongs_to_prefill() -> None:
    assert decode_tokens_per_s(took(tps=50)) == pytest.approx(50)
    assert decode_tokens_per_s(replace(took(), completion_tokens=1)) is None


def test_streams_side_by_side_are_one_observation() -> None:
    point = replace(POINT, users=4)
    samples = [took(visit, 20 + visit) for visit in (1, 2, 3) for _ in range(4)]
    found = figures(point, samples)
    assert found.samples == 12 and found.repetitions == 3
    assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.n == 3
    assert found.total_tokens_per_s is not None
    each = [4 * 101 / (0.5 + 100 / (20 + visit)) for visit in (1, 2, 3)]
    assert found.total_tokens_per_s.value == pytest.approx(sum(each) / 3)
    assert found.prefill_tokens_per_s is None


def test_a_late_client_spoils_no_figure_but_its_own() -> None:
    """Repetitions in which it was late are left out where enough others are left."""
    in_time = [took(at) for at in (1, 2, 3)]
    late = [took(at, tps=30, first=0.6, client_late_s=0.08) for at in (4, 5)]
    found = figures(POINT, [*in_time, *late])
    assert found.repetitions == 3 and found.decode_tokens_per_s is not None
    assert found.decode_tokens_per_s.value == pytest.approx(50) and found.ttft_ms["p99"] == pytest.approx(500)
    assert "up to 80.0 ms late in 2 of 5 repetitions: these are left out" in found.notes[0]
    kept = figures(POINT, [*in_time[:2], *late])
    assert kept.repetitions == 4 and "its times may be that much too long" in kept.notes[0]
    slightly = figures(POINT, [replace(each, client_late_s=0.002) for each in in_time])
    assert slightly.repetitions == 3 and not slightly.notes


def test_cold_samples_are_separate() -> None:
    found = figures(POINT, [took(0, 10, 5.0, is_cold=True), took(1), took(2)])
    assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.value == pytest.approx(50)
    assert found.cold == {"ttft_ms": pytest.approx(5000), "decode_tokens_per_s": pytest.approx(10)}


@given(st.lists(st.sampled_from(["stalled", "wrong usage", "http", "short", None]), min_size=1, max_size=30))
def test_no_wrong_sample_ever_moves_a_figure(kinds: list[Wrong | None]) -> None:
    samples = [
        took(at, 5.0, 9.0, wrong=kind, why="x") if kind else took(at) for at, kind in enumerate(kinds, 1)
    ]
    found, good = figures(POINT, samples), [each for each in samples if not each.wrong]
    assert found.samples == len(good) and sum(found.wrong.values()) == len(samples) - len(good)
    if good:
        assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.value == pytest.approx(50)
        assert found.ttft_ms["p99"] == pytest.approx(500)
    else:
        assert found.decode_tokens_per_s is None and found.ttft_ms == {} and found.ttft_mean_ms is None


def test_a_stream_beside_a_wrong_one_had_more_than_its_share() -> None:
    point = replace(POINT, users=2)
    samples = [took(1, 30), took(1, 30), took(2, 60), took(2, wrong="dropped", why="gone")]
    found = figures(point, samples)
    assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.value == pytest.approx(30)
    assert found.notes[:2] == (
        "1 of 4 requests dropped: gone",
        "1 good requests ran at the same time as wrong ones and are also left out",
    )


@pytest.mark.parametrize(
    ("tps", "share", "says"), [(60, 0.6, ""), (40, 0.4, "below 0.45"), (99, 0.99, "above 0.95")]
)
def test_an_unusual_bandwidth_share_is_noted(tps: float, share: float, says: str) -> None:
    found = figures(POINT, [took(1, tps), took(2, tps)], PointContext(plan=PLAN))
    assert found.bandwidth_share == pytest.approx(share)
    assert bool(found.notes) == bool(says) and says in " ".join(found.notes)


@pytest.mark.parametrize(("sparks", "notes"), [(1, 1), (2, 0)])
def test_hosts_that_wait_for_each_other_may_have_a_smaller_share(sparks: int, notes: int) -> None:
    subject = Subject("http://one", "m", plan=PLAN, launch={"sparks": sparks}, host={"gpus": ["NVIDIA GB10"]})
    found = figures(POINT, [took(1, 40), took(2, 40)], PointContext.of(subject, RequestSettings()))
    assert len(found.notes) == notes


def test_a_step_gives_several_tokens_with_drafts() -> None:
    around = PointContext(plan=PLAN, drafts=True, accepted_per_step=2.0)
    assert figures(POINT, [took(1, 120)], around).bandwidth_share == pytest.approx(0.6)
    unknown = figures(POINT, [took(1, 120)], PointContext(plan=PLAN, drafts=True))
    assert (
        unknown.bandwidth_share is None and "does not report how many drafts it accepts" in unknown.notes[0]
    )


def test_no_bandwidth_share_for_several_users_or_deep_prompts() -> None:
    crowd = replace(POINT, users=2)
    assert figures(crowd, [took(1), took(1)], PointContext(plan=PLAN)).bandwidth_share is None
    deep = replace(POINT, prompt_tokens=30_000)
    assert figures(deep, [took(1)], PointContext(plan=PLAN)).bandwidth_share is None


def test_goodput_counts_requests_that_met_the_target() -> None:
    samples = [took(1, 50, 0.5), took(2, 50, 2.0), took(3, 10, 0.5)]
    around = PointContext(target={"ttft_ms": 1000, "inter_token_ms": 30})
    found = figures(POINT, samples, around)
    seconds = (0.5 + 2) + (2 + 2) + (0.5 + 10)
    assert found.goodput_per_s == pytest.approx(1 / seconds)
    none = figures(POINT, samples, PointContext(target={"ttft_ms": 1}))
    assert none.goodput_per_s == 0


def test_joules_need_known_power() -> None:
    found = figures(POINT, [took(1, 50, 0.5)], PointContext(watts=50.0))
    assert found.joules_per_token == pytest.approx(50 * 2.5 / 101)


def test_a_disagreeing_engine_is_noted() -> None:
    found = figures(
        POINT, [took(1, 50, server_decode_tokens_per_s=70.0), took(2, 50, server_decode_tokens_per_s=70.0)]
    )
    assert found.server == {"decode_tokens_per_s": 70.0} and "reports 70.0 tok/s" in found.notes[0]
    near = figures(POINT, [took(1, 50, server_decode_tokens_per_s=51.0)])
    assert not near.notes


def test_cached_new_prompts_are_noted() -> None:
    found = figures(POINT, [took(1, cached_tokens=400)])
    assert found.notes == ("77% of the prompt tokens came from the cache, although all were new",)
    agent = replace(POINT, shared_tokens=400)
    assert not figures(agent, [took(1, cached_tokens=400)]).notes


def test_a_buffered_answer_has_no_decode_rate() -> None:
    found = figures(POINT, [took(1, gaps_s=(1e-6,) * 100, last_s=0.5001)])
    assert found.decode_tokens_per_s is None and found.time_per_output_token_ms == {}
    assert "1 answers came in one piece" in found.notes[0]


def test_no_samples_no_figures() -> None:
    found = figures(POINT, [])
    assert found.samples == found.repetitions == 0 and found.decode_tokens_per_s is None and not found.notes


def looped(user: int, started: float, tps: float = 50.0, **more: Any) -> RequestSample:
    return took(1, tps, started_s=started, stream=user, **more)


def test_a_closed_loop_counts_while_all_users_are_active() -> None:
    """Alone a stream is three times as fast; only from the second user's coming is it two users' load."""
    point = replace(POINT, users=2)
    first = [looped(0, 0.0, 150, first=0.1), looped(0, 1.0, 50, first=1.0), looped(0, 4.0, 50, first=1.0)]
    second = [looped(1, 1.0, 50, first=1.0), looped(1, 4.01, 50, first=1.0), looped(1, 7.02, 150, first=0.1)]
    found = figures(point, first + second)
    assert found.decode_tokens_per_s is not None and found.decode_tokens_per_s.value == pytest.approx(
        50, rel=0.01
    )
    assert found.ttft_ms["p99"] == pytest.approx(1000)
    assert found.total_tokens_per_s is not None and found.total_tokens_per_s.value == pytest.approx(
        4 * 101 / 6, rel=0.02
    )


def test_one_failure_in_ten_does_not_spoil_a_loop() -> None:
    point = replace(POINT, users=2)
    every = [looped(user, at * 2.51) for user in range(2) for at in range(5)]
    every[3] = replace(every[3], wrong="http", why="HTTP 500")
    assert figures(point, every).decode_tokens_per_s is not None
    every[4] = replace(every[4], wrong="http", why="HTTP 500")
    assert figures(point, every).decode_tokens_per_s is None


def test_goodput_includes_failures_and_their_time() -> None:
    around = PointContext(target={"ttft_ms": 1000})
    every = [took(1), took(2, wrong="dropped", why="gone"), took(3), took(4, wrong="http", why="500")]
    assert figures(POINT, every, around).goodput_per_s == pytest.approx(2 / (4 * 2.5))
    crowd = replace(POINT, users=2)
    beside = [took(1), took(1, wrong="dropped", why="gone")]
    assert figures(crowd, beside, around).goodput_per_s == pytest.approx(1 / 2.51, rel=0.01)
    assert figures(POINT, every[1:2], around).goodput_per_s == 0


def test_goodput_never_exceeds_the_offered_rate() -> None:
    point = replace(POINT, users=512, rate_per_s=2.0)
    every = [took(1, 1000, 0.1, started_s=at / 2) for at in range(8)]
    assert figures(point, every, PointContext(target={"ttft_ms": 1000})).goodput_per_s == pytest.approx(2.0)


def test_ttft_begins_when_the_request_was_due() -> None:
    point = replace(POINT, users=512, rate_per_s=2.0)
    found = figures(point, [took(1, late_s=3.0, queued_s=3.0)], PointContext(target={"ttft_ms": 1000}))
    assert found.ttft_ms["p50"] == pytest.approx(3500) and found.goodput_per_s == 0


def test_the_pace_of_a_user_includes_its_waits() -> None:
    """25 tok/s while it writes, but 40 for four together: a user has ten."""
    kept = example_run()
    one, four = (replace(kept.run.figures[0], point=replace(POINT, users=many)) for many in (1, 4))
    speed = MeasuredFigure(25.0, 24.0, 26.0, 5)
    found = (
        replace(one, decode_tokens_per_s=speed, total_tokens_per_s=None),
        replace(four, decode_tokens_per_s=speed, total_tokens_per_s=MeasuredFigure(40.0, 39.0, 41.0, 5)),
    )
    target = replace(kept.run.settings, target={"inter_token_ms": 50.0})
    said = " ".join(each.text for each in verdict(replace(kept.run, figures=found, settings=target)))
    assert "1 at 20 tok/s or more. Measured: 1 and 4" in said
