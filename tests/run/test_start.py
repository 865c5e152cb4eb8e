"""How long a start still takes, in a table; and that it never runs backwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.edge.home import Home
from firesteel.engines.logs import StartProgress
from firesteel.planner.speed.startup import StartPhase
from firesteel.run.start import (
    Seconds,
    StartTimes,
    StartTracker,
    describe,
    earlier_starts,
    record_start,
    time_left,
)
from firesteel.units import Band

PLANNED = tuple(
    StartPhase(name, Band(low, expected, high), first, "", "")
    for name, low, expected, high, first in (
        ("container and imports", 15, 30, 90, False),
        ("weights", 60, 120, 600, False),
        ("compile", 20, 60, 300, True),
        ("CUDA graphs", 5, 20, 90, False),
        ("kernels built on the spot", 0, 10, 600, True),
    )
)
SHARDS = StartProgress("weights", "loading weights", 9, 20, "shards")
WEIGHTS = StartProgress("weights", "loading weights")
COMPILE = StartProgress("compile", "compiling")
AT_WEIGHTS = StartTracker("vllm").advance(WEIGHTS, 30)


@pytest.mark.parametrize(
    ("tracker", "now_s", "expected"),
    [
        (StartTracker("vllm"), 0, 240),
        (StartTracker("vllm"), 10, 230),
        (AT_WEIGHTS, 30, 210),
        (AT_WEIGHTS.advance(SHARDS, 40), 120, 110 + 90),  # 9 of 20 took 90 s, so 11 take 110
        (AT_WEIGHTS.advance(COMPILE, 150), 160, 50 + 30),
        (AT_WEIGHTS.advance(COMPILE, 150), 250, 0 + 30),
        (
            StartTracker("vllm").advance(StartProgress("kv", "setting up"), 200),
            201,
            30,
        ),  # nobody planned it: no time to speak of
        (StartTracker("vllm").advance(StartProgress("listening", "listening"), 240), 240, 0),
    ],
)
def test_what_is_left(tracker: StartTracker, now_s: float, expected: float) -> None:
    band = time_left(tracker, PLANNED, (), now_s)
    assert band is not None
    assert band.expected == pytest.approx(expected)
    assert 0 <= band.low <= band.expected <= band.high


def test_a_late_stage_has_no_estimate() -> None:
    late = AT_WEIGHTS.advance(COMPILE, 150)
    assert time_left(late, PLANNED, (), 150 + 301) is None
    assert describe(late, PLANNED, (), 150 + 301) == "compiling, longer than planned: 5 min so far"


def test_a_late_stage_with_progress_has_an_estimate() -> None:
    late = AT_WEIGHTS.advance(SHARDS, 40)
    assert describe(late, PLANNED, (), 30 + 900) == "loading weights, 9 of 20 shards, about 20 min left"


@pytest.mark.parametrize(
    ("tracker", "now_s", "text"),
    [
        (StartTracker("vllm"), 0, "starting, about 4 min left"),
        (AT_WEIGHTS.advance(SHARDS, 40), 60, "loading weights, 9 of 20 shards, about 2 min left"),
        (StartTracker("vllm").advance(StartProgress("listening", "listening"), 9), 9, "listening"),
        (
            StartTracker("vllm").advance(StartProgress("download", "downloading", 45, 100), 9),
            20,
            "downloading, 45 %, about 4 min left",
        ),
    ],
)
def test_describe(tracker: StartTracker, now_s: float, text: str) -> None:
    assert describe(tracker, PLANNED, (), now_s) == text


def test_without_a_plan_only_the_elapsed_time_is_shown() -> None:
    assert time_left(AT_WEIGHTS, (), (), 40) is None
    assert describe(AT_WEIGHTS, (), (), 40) == "loading weights, 40 s so far"
    assert describe(StartTracker("vllm"), (), (), 1) == "starting"


def test_an_earlier_start_overrides_the_plan() -> None:
    before: list[Seconds] = [
        {"process": 20.0, "weights": 40.0, "compile": 50.0},
        {"process": 22.0, "weights": 44.0},
    ]
    band = time_left(StartTracker("vllm"), PLANNED, before, 0)
    assert band is not None
    assert band.expected == 22 + 44 + 0  # the last had its compiled model from the cache
    assert band.high == 1.25 * (22 + 44 + 50)


def test_stages_that_only_the_first_start_has_take_no_time_again() -> None:
    first: Seconds = {"process": 20.0, "download": 900.0, "weights": 40.0, "compile": 50.0}
    band = time_left(StartTracker("vllm"), PLANNED, [first], 0)
    assert band is not None
    assert band.expected == 20 + 40 and band.high == 1.25 * (20 + 900 + 40 + 50)


def test_the_tracker_never_goes_back() -> None:
    graphs = AT_WEIGHTS.advance(StartProgress("graphs", "capturing CUDA graphs"), 100)
    assert graphs.advance(WEIGHTS, 110) == graphs
    assert graphs.seconds(130) == {"process": 30, "weights": 70, "graphs": 30}
    assert sum(graphs.seconds(130).values()) == 130


@given(
    st.lists(st.tuples(st.sampled_from([WEIGHTS, SHARDS, COMPILE]), st.floats(0, 500)), max_size=8),
    st.floats(0, 2000),
)
def test_never_negative(met: list[tuple[StartProgress, float]], later_s: float) -> None:
    tracker, now_s = StartTracker("vllm"), 0.0
    for mark, after_s in met:
        now_s += after_s
        tracker = tracker.advance(mark, now_s)
    band = time_left(tracker, PLANNED, (), now_s + later_s)
    assert band is None or (0 <= band.low <= band.expected <= band.high)
    assert "-" not in describe(tracker, PLANNED, (), now_s + later_s)


def test_the_estimate_shrinks_with_time() -> None:
    rest = [time_left(AT_WEIGHTS, PLANNED, (), 30 + s) for s in range(0, 600, 10)]
    expected = [band.expected for band in rest if band]
    assert len(expected) == 60 and expected == sorted(expected, reverse=True)


def test_the_last_five_starts_are_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for n in range(7):
        record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": float(n)}))
    record_start(home, "m", StartTimes("vllm", "0.31.0", {"weights": 99.0}))
    assert [start["weights"] for start in earlier_starts(home, "m", "vllm", "0.32.0")] == [3, 4, 5, 6]
    assert earlier_starts(home, "m", "llamacpp", "0.32.0") == ()
    assert earlier_starts(home, "other", "vllm", "0.32.0") == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": 1}', '[{"engine": "vllm"}]', json.dumps([{"seconds": []}])]
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / "m.json").write_text(text)
    assert earlier_starts(home, "m", "vllm", None) == ()
    record_start(home, "m", StartTimes("vllm", None, {"weights": 1.0}))
    assert earlier_starts(home, "m", "vllm", None) == ({"weights": 1.0},)
