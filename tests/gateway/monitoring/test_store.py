"""The curves on disk: three resolutions, bounded, and safe against crashes, clocks and damage. Their rows:
merging them, and percentiles from histograms.
"""

from __future__ import annotations

import signal
import sqlite3
import stat
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.admin.meter import FIRST_S, Histogram
from firesteel.gateway.monitoring.store import (
    RANGES,
    SAMPLE_S,
    VALUES,
    CurveRow,
    CurveStore,
    first_quantile,
    merged,
    packed,
    quantile,
    unpacked,
)

T0 = 1_800_000_000 // 7200 * 7200
QUARTER, DAY, MONTH = RANGES["15m"], RANGES["24h"], RANGES["30d"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CurveStore]:
    with closing(CurveStore(tmp_path / "home" / "curves.db")) as store:
        yield store


def row(start: int, tokens: float = 50.0, model: str = "coder") -> CurveRow:
    return CurveRow(model, start, 5.0, tokens, (0,) * 5 + (1,) + (0,) * 11, (), queue=1.0)


def fill(store: CurveStore, start: int, end: int, tokens: float = 50.0) -> None:
    for at in range(start, end, SAMPLE_S):
        assert store.add([row(at, tokens)], at + SAMPLE_S) is None


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM curves").fetchone()[0])


def value(store: CurveStore, name: str, start: int, now: float, range_name: str = "15m") -> float | None:
    point = store.query(RANGES[range_name], now)["coder"].get(start)
    return point[VALUES.index(name)] if point else None


def test_a_sample_is_there_at_once(store: CurveStore) -> None:
    fill(store, T0, T0 + 10)
    assert value(store, "tokens_per_s", T0, T0 + 10) == 10.0
    assert value(store, "ttft_p50_s", T0, T0 + 10) == pytest.approx(0.3)
    assert value(store, "gap_p50_s", T0, T0 + 10) is None
    assert (QUARTER.start(T0 + 10) + QUARTER.span_s) == T0 + 10, "its last step is that of the last sample"


def test_nobody_else_can_read_it(store: CurveStore, tmp_path: Path) -> None:
    fill(store, T0, T0 + 5)
    assert stat.S_IMODE((tmp_path / "home" / "curves.db").stat().st_mode) == 0o600


def test_coarse_steps_are_made_of_fine_ones_and_grow_while_under_way(store: CurveStore) -> None:
    fill(store, T0, T0 + 150)
    half = value(store, "tokens_per_s", T0, T0 + 150, "24h")
    assert half == 10.0 and value(store, "tokens_per_s", T0, T0 + 150, "30d") == 10.0
    fill(store, T0 + 150, T0 + 300, tokens=150.0)
    fill(store, T0 + 300, T0 + 400)
    assert value(store, "tokens_per_s", T0, T0 + 400, "24h") == pytest.approx(20.0)
    assert value(store, "queue", T0, T0 + 400, "30d") == 1.0


def test_a_month_keeps_no_more_rows_than_its_resolutions_have(store: CurveStore, tmp_path: Path) -> None:
    """By hours, not seconds: `benchmarks/gateway/curves.py` writes every sample of a month."""
    for at in range(T0, T0 + 40 * 86400, 1800):
        store.add([row(at)], at + SAMPLE_S)
    most = sum(each.points for each in RANGES.values()) + DAY.step_s // SAMPLE_S + MONTH.step_s // DAY.step_s
    assert MONTH.points <= rows(tmp_path / "home" / "curves.db") <= most
    assert len(store.query(MONTH, T0 + 40 * 86400)["coder"]) == pytest.approx(MONTH.points, abs=1)


def test_models_that_left_do_not_pile_up(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firesteel.gateway.monitoring.store.MAX_MODELS", 3)
    for number in range(20):
        at = T0 + 60 * number
        store.add([row(at, model=f"m{number}")], at + SAMPLE_S)
    assert set(store.query(DAY, T0 + 1200)) == {"m17", "m18", "m19"}


def test_a_pause_loses_nothing_of_the_step_that_it_interrupted(store: CurveStore, tmp_path: Path) -> None:
    fill(store, T0, T0 + 100)  # the last 40 s are not rolled up yet
    store.close()
    later = T0 + 3 * 3600
    with closing(CurveStore(tmp_path / "home" / "curves.db")) as again:
        fill(again, later, later + 10, tokens=0.0)
        assert value(again, "tokens_per_s", T0, later + 10, "24h") == 10.0
    with closing(sqlite3.connect(tmp_path / "home" / "curves.db")) as database:
        query = "SELECT seconds FROM curves WHERE step_s = 300 AND start = ?"
        assert database.execute(query, (T0,)).fetchone() == (100.0,)


def test_a_clock_that_was_wrong_for_a_while(store: CurveStore) -> None:
    fill(store, T0, T0 + 100)
    year = 365 * 86400
    fill(store, T0 + year, T0 + year + 10)
    fill(store, T0 + 100, T0 + 700)
    assert value(store, "tokens_per_s", T0 + 300, T0 + 700, "24h") == 10.0


def test_kill_9_loses_the_last_sample_at_most(tmp_path: Path) -> None:
    program = f"""
import itertools
from pathlib import Path
from firesteel.gateway.monitoring.store import CurveRow
from firesteel.gateway.monitoring.store import CurveStore
store = CurveStore(Path({str(tmp_path / "curves.db")!r}))
for number in itertools.count():
    start = {T0} + 5 * number
    store.add([CurveRow("coder", start, 5.0, 1.0)], start + 5)
    print(start, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    written = [int(next(child.stdout)) for _ in range(200)]
    child.send_signal(signal.SIGKILL)
    written += [int(line) for line in child.stdout if line.endswith("\n")]
    child.wait()
    child.stdout.close()
    now = written[-1] + 10
    with closing(CurveStore(tmp_path / "curves.db")) as store:
        found = store.query(QUARTER, now)["coder"]
        assert {start for start in written if start >= QUARTER.start(now)} <= found.keys()
        assert store.add([row(now)], now + 5) is None


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\0" * 8192])
def test_a_damaged_file_is_moved_aside(store: CurveStore, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "curves.db").write_bytes(content)
    problem = store.add([row(T0)], T0 + 5)
    assert problem and "moved to curves.damaged.db" in problem
    assert value(store, "tokens_per_s", T0, T0 + 5) == 10.0


def test_a_file_that_was_removed_is_created_again(store: CurveStore, tmp_path: Path) -> None:
    fill(store, T0, T0 + 10)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{tmp_path}/home/curves.db{suffix}").unlink()
    fill(store, T0 + 10, T0 + 20)
    assert value(store, "tokens_per_s", T0 + 10, T0 + 20) == 10.0


def test_a_disk_that_refuses_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with closing(CurveStore(tmp_path / "file" / "curves.db")) as store:
        problem = store.add([row(T0)], T0 + 5)
        assert problem and "cannot be written" in problem
        assert store.add([row(T0 + 5)], T0 + 10) is None
        (tmp_path / "file").unlink()
        assert store.add([row(T0 + 10)], T0 + 15) is None
        assert store.query(QUARTER, T0 + 15)["coder"]


def test_only_the_models_that_were_asked_for(store: CurveStore) -> None:
    store.add([row(T0), row(T0, model="small"), row(T0, model="")], T0 + 5)
    assert set(store.query(QUARTER, T0 + 5)) == {"coder", "small", ""}
    assert set(store.query(QUARTER, T0 + 5, {"small"})) == {"small"}
    assert set(store.query(QUARTER, T0 + 5, frozenset())) == set()


def test_before_the_first_sample(store: CurveStore) -> None:
    assert store.query(QUARTER, T0) == {}


BOUNDS = (1.0, 2.0, 4.0)
buckets = st.lists(st.integers(0, 1000), min_size=17, max_size=17).map(tuple)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((), 0.5, None),
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.5),
        ((0, 10, 0, 0), 0.5, 1.5),
        ((5, 5, 0, 0), 0.5, 1.0),
        ((50, 45, 5, 0), 0.95, 2.0),
        ((0, 0, 0, 3), 0.5, 4.0),  # beyond the last bound: at least that
    ],
)
def test_a_percentile_is_interpolated_in_its_bucket(
    counts: tuple[int, ...], share: float, value: float | None
) -> None:
    assert quantile(BOUNDS, counts, share) == value


@given(st.lists(st.floats(0.001, 1800), min_size=1, max_size=40), st.sampled_from([0.05, 0.5, 0.95]))
def test_a_percentile_is_between_the_least_and_the_most(values: list[float], share: float) -> None:
    histogram = Histogram(FIRST_S)
    for value in values:
        histogram.add(value)
    found = first_quantile(tuple(histogram.counts), share, *histogram.take_seen())
    assert found is not None and min(values) <= found <= max(values)


@given(st.lists(st.floats(0.001, 800), min_size=20, max_size=200))
def test_a_percentile_is_in_the_bucket_of_the_true_one(values: list[float]) -> None:
    histogram = Histogram(FIRST_S)
    for value in values:
        histogram.add(value)
    true, found = statistics.median_low(values), first_quantile(tuple(histogram.counts), 0.5)
    assert found is not None
    edges = (0.0, *FIRST_S)
    bucket = next(index for index, edge in enumerate(edges) if true <= edge)
    assert edges[bucket - 1] <= found <= edges[bucket] * (1 + 1e-9)


@given(st.lists(buckets, min_size=1, max_size=6))
def test_merging_all_at_once_or_in_parts_is_the_same(histograms: list[tuple[int, ...]]) -> None:
    rows = [CurveRow("m", 5 * i, 5.0, 2.0, counts) for i, counts in enumerate(histograms)]
    whole = merged(rows, 0)
    assert whole == merged([merged(rows[:1], 0), *([merged(rows[1:], 0)] if rows[1:] else [])], 0)
    assert sum(whole.firsts) == sum(map(sum, histograms))


def test_what_a_longer_step_shows() -> None:
    rows = [
        CurveRow("m", 0, 5.0, 100.0, queue=0.0, kv_used=None, memory_bytes=7.0, power_w=10.0),
        CurveRow("m", 5, 15.0, 0.0, queue=4.0, kv_used=0.5, memory_bytes=None, power_w=50.0),
    ]
    both = merged(rows, 0)
    assert (both.seconds, both.tokens_per_s) == (20.0, 5.0)
    assert (both.queue, both.kv_used, both.memory_bytes) == (4.0, 0.5, 7.0), "the most"
    assert both.power_w == 40.0, "the average, by time"


@given(buckets)
def test_a_histogram_survives_the_database(counts: tuple[int, ...]) -> None:
    assert unpacked(packed(counts)) == (counts if any(counts) else ())


def test_bytes_that_are_no_histogram() -> None:
    assert unpacked(b"abc") == ()
