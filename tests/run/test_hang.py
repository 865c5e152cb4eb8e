from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.engines.metrics import Activity, activity
from firesteel.run.supervise.hang import (
    BLIND_S,
    FROZEN_S,
    NOTICE_S,
    QUIET_S,
    UNREACHABLE_S,
    ActivityReading,
    FrozenTime,
    IdleTime,
    ProcessReading,
)

IDLE = Activity(0, 0, 900, 5000, 0.0, pulse=(900, 5000, 0.0))
BUSY = Activity(2, 1, 900, 5000, 0.4, pulse=(900, 5000, 0.4))
LLAMACPP = (Path(__file__).parents[1] / "engines" / "metrics" / "llamacpp-11549.txt").read_text()


def minutes(activity: Activity | None, start_s: float, end_s: float) -> list[ActivityReading]:
    """The same reading every five seconds."""
    return [ActivityReading(start_s + s, activity) for s in range(0, int(end_s - start_s) + 1, 5)]


def stuck(history: list[ActivityReading], prefill_s: float = 0.0) -> str | None:
    idle = IdleTime()
    for reading in history:
        idle = idle.after(reading)
    return idle.reason(prefill_s)


def test_requests_without_progress_are_a_hang() -> None:
    assert stuck(minutes(BUSY, 0, QUIET_S)) == (
        "the engine is stuck: 2 requests running and 1 waiting, and no progress for 3 min, 900 tokens so far"
    )


@pytest.mark.parametrize(
    "history",
    [
        [],
        minutes(BUSY, 0, QUIET_S - 5),
        minutes(IDLE, 0, 100_000),
        # Any progress restarts the wait.
        minutes(BUSY, 0, 170) + minutes(Activity(2, 1, 901, pulse=(901,)), 175, 340),
        # A prompt is read in pieces: no token, but the cache fills.
        [
            ActivityReading(at, Activity(1, 0, 900, 5000, at / 1e4, pulse=(900, 5000, at / 1e4)))
            for at in range(0, 900, 5)
        ],
        # The requests went away.
        minutes(BUSY, 0, 170) + minutes(IDLE, 175, 900),
        # No /metrics, or the one of another program.
        minutes(None, 0, 10_000),
        minutes(Activity(), 0, 10_000),
        # A short silence.
        [*minutes(IDLE, 0, 60), *minutes(None, 65, 180), ActivityReading(185, IDLE)],
        # Counters begin anew after a restart: that is a change.
        minutes(BUSY, 0, 175) + minutes(Activity(1, 0, 3, pulse=(3, 20)), 180, 350),
    ],
)
def test_these_are_not_hangs(history: list[ActivityReading]) -> None:
    assert stuck(history) is None


def test_a_long_prompt_is_not_a_hang() -> None:
    assert stuck(minutes(BUSY, 0, 700), prefill_s=300) is None
    assert stuck(minutes(BUSY, 0, 800), prefill_s=300) is not None


def test_what_computes_on_the_cpu_is_not_hung_however_slow_it_is() -> None:
    """A crowded host read 2,048 tokens in minutes, without a change in its metrics, or with no answer."""
    for activity_ in (BUSY, None):
        idle = IdleTime().after(ActivityReading(1.0, BUSY, 10.0))
        for at in range(5, 3600, 5):
            idle = idle.after(ActivityReading(at, activity_, 10.0 + 0.1 * at))
            assert idle.reason() is None
        for at in range(3600, 3600 + round(QUIET_S) + 10, 5):  # and then it does nothing any more
            idle = idle.after(ActivityReading(at, activity_, 370.0))
        assert idle.reason() is not None


def test_waiting_requests_without_a_running_one_are_a_hang() -> None:
    waiting = Activity(0, 5, 900, pulse=(900,))
    assert "0 requests running and 5 waiting" in (stuck(minutes(waiting, 0, QUIET_S)) or "")


def test_an_engine_that_stopped_answering_hangs() -> None:
    history = minutes(IDLE, 0, 60) + minutes(None, 65, 65 + UNREACHABLE_S)
    assert stuck(history) == "the engine runs but has not answered for 2 min"
    assert stuck(history[:-1]) is None
    assert stuck(history, prefill_s=1) is None, "a server that does not answer while it reads a prompt"


def test_a_missing_answer_does_not_reset_the_idle_time() -> None:
    history = minutes(BUSY, 0, 100) + minutes(None, 105, 150) + minutes(BUSY, 155, QUIET_S)
    assert stuck(history) is not None


def test_real_metrics_of_a_working_and_of_a_frozen_engine() -> None:
    """As build 11549 showed it: one request, the model called again and again, token counters still."""
    at_work = [
        LLAMACPP.replace("requests_processing 0", "requests_processing 1").replace(
            "n_decode_total 206", f"n_decode_total {206 + step}"
        )
        for step in range(100)
    ]
    working = [ActivityReading(5 * at, activity("llamacpp", page)) for at, page in enumerate(at_work)]
    frozen = [ActivityReading(5 * at, activity("llamacpp", at_work[0])) for at in range(100)]
    assert stuck(working) is None
    assert stuck(frozen) is not None


@given(st.lists(st.floats(0.1, QUIET_S / 2 - 1), min_size=1, max_size=100))
def test_an_engine_with_regular_progress_never_hangs(gaps: list[float]) -> None:
    now_s, history = 0.0, [ActivityReading(0.0, BUSY)]
    for number, gap in enumerate(gaps):
        now_s += gap
        history.append(ActivityReading(now_s, Activity(1, 9, pulse=(float(number // 2),))))
        assert stuck(history) is None


def watched(readings: list[ProcessReading]) -> FrozenTime:
    frozen = FrozenTime()
    for reading in readings:
        frozen = frozen.after(reading)
    return frozen


def silent(cpu_share: float, seconds: float, is_stopped: bool = False) -> list[ProcessReading]:
    """One that answered at second 1 and never since, with that use of a core, looked at once a second."""
    return [ProcessReading(at, 1.0, 50 + cpu_share * at, is_stopped) for at in range(1, round(seconds) + 2)]


def test_no_answer_and_no_cpu_time_is_frozen() -> None:
    assert watched(silent(0, NOTICE_S - 1)).notice is None
    assert watched(silent(0, NOTICE_S)).notice == "it does not answer and uses no CPU time"
    assert watched(silent(0.005, FROZEN_S - 1)).reason is None
    assert watched(silent(0.005, FROZEN_S)).reason == (
        "the engine is frozen: no answer and no CPU time used for 30 s"
    )


@pytest.mark.parametrize(
    "readings",
    [
        # It reads a long prompt and does not answer meanwhile, on a crowded host.
        silent(1.0, 3600),
        silent(0.02, 3600),
        # Its CPU time cannot be read, as of a container while docker does not answer.
        [ProcessReading(at, 1.0, None) for at in range(3600)],
        # It has not answered yet.
        [ProcessReading(at, None, 5.0) for at in range(3600)],
        # It is idle and answers.
        [ProcessReading(at, at - at % 5, 5.0) for at in range(3600)],
        # The host was suspended, or the supervisor itself was stopped.
        [*silent(0, 5), ProcessReading(6 + FROZEN_S + BLIND_S, 1.0, 50)],
    ],
)
def test_these_are_not_frozen(readings: list[ProcessReading]) -> None:
    for end in range(1, len(readings) + 1, max(1, len(readings) // 50)):
        frozen = watched(readings[:end])
        assert frozen.notice is None and frozen.reason is None, end


def test_a_stopped_process_is_frozen_though_the_others_answer() -> None:
    readings = [ProcessReading(at, at, 5.0 + at, is_stopped=True) for at in range(round(FROZEN_S) + 1)]
    assert watched(readings[:1]).notice == "one of its processes is stopped, as by SIGSTOP"
    assert watched(readings[:-1]).reason is None
    assert "has been stopped for 30 s" in (watched(readings).reason or "")
    assert watched([*readings, ProcessReading(len(readings), 0, 99.0)]).notice is None


@given(st.lists(st.tuples(st.floats(0.2, BLIND_S - 1), st.booleans()), min_size=2, max_size=200))
def test_an_engine_that_computes_is_never_frozen(steps: list[tuple[float, bool]]) -> None:
    """Whether it answers or not, at two percent of a core."""
    at, frozen, answered = 0.0, FrozenTime(), 0.0
    for seconds, answers in steps:
        at += seconds
        answered = at if answers else answered
        frozen = frozen.after(ProcessReading(at, answered, 0.02 * at))
        assert frozen.reason is None
