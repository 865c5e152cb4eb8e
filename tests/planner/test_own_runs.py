"""A user's own benches are the first rung: laid over the estimate, with their interval for a band."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import firesteel
from firesteel.bench.measurements import (
    BenchRun,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSettings,
    Subject,
)
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from firesteel.edge.records import read_own_runs
from firesteel.launch import Ask
from firesteel.library import plans
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan, plan
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.units import Band
from firesteel.values import replace
from tests.cli.inside import inside

GB10 = firesteel.host("gb10")
BEFORE = firesteel.propose(Ask("qwen3.6-35b-a3b-nvfp4"), GB10)[0].plan
_FLAGS = {name: value for name, value in BEFORE.launch.flags.items() if name != "speculative-config"}
PLAIN = replace(BEFORE.launch, flags=_FLAGS)
assert BEFORE.speed is not None


def row(rate: float = 60.0, *, n: int = 9, off: float = 0.02, **seen: object) -> OwnRun:
    parts = {
        "key": "0" * 32,
        "run": "a-run",
        "seen": "2026-11-15",
        "version": PLAIN.version,
        "text": "prose",
        "users": 1,
        "prompt_tokens": 1000,
        "shared_tokens": 0,
        "answer_tokens": 100,
        "decode_tps": (Band(rate * (1 - off), rate, rate * (1 + off)), n),
        **seen,
    }
    return OwnRun(**parts)  # type: ignore[arg-type]  # a table of fields


def planned(own: Sequence[OwnRun] = ()) -> Plan:
    return plan(PLAIN, BEFORE.shape, BEFORE.weights, GB10, own=own)


def test_a_nearby_point_is_used_unchanged() -> None:
    speed = planned([row(60.0)]).speed
    assert speed is not None
    assert (speed.basis, speed.explanation) == ("measured here", "measured here on 2026-11-15, 1 run")
    assert speed.decode_tokens_per_s == Band(58.8, 60.0, 61.2)
    assert speed.sources == ()


def test_without_own_runs_the_estimate_stays() -> None:
    assert planned([]) == plan(PLAIN, BEFORE.shape, BEFORE.weights, GB10)


@pytest.mark.parametrize(("n", "says"), [(1, "measured once"), (2, "measured twice")])
def test_too_few_repetitions_are_mentioned(n: int, says: str) -> None:
    speed = planned([row(60.0, n=n, off=1.0)]).speed
    assert speed is not None and speed.basis != "measured here"
    assert (
        f"{says} on 2026-11-15; 3 repetitions are needed: firesteel bench --shape single" in speed.explanation
    )


def test_runs_of_several_users_only_are_mentioned() -> None:
    speed = planned([row(60.0, users=4)]).speed
    assert speed is not None and speed.basis != "measured here"
    assert "not for one user: firesteel bench --shape single" in speed.explanation


def test_several_runs_are_combined() -> None:
    speed = planned([row(60.0), row(66.0, run="other", seen="2026-11-14")]).speed
    assert speed is not None
    assert speed.decode_tokens_per_s == Band(60.0 * 0.98, 63.0, 66.0 * 1.02)
    assert speed.explanation == "measured here on 2026-11-15, 2 runs"


def test_a_distant_point_scales_the_curve() -> None:
    """Measured 100k in, the figure for the start is higher, as the estimate has it, and less sure."""
    estimate = planned().speed
    deep = row(60.0, prompt_tokens=100_000)
    speed = planned([deep]).speed
    assert speed is not None and estimate is not None
    rate = speed.decode_tokens_per_s
    assert rate.expected > 60.0 and "along the estimate's curve (1.30 times)" in speed.explanation
    assert rate.high / rate.expected > 1.02 and rate.low / rate.expected < 0.98
    there = dict(speed.at_depth)[131072]
    before = dict(estimate.at_depth)
    assert there.expected < 60.0
    assert there.expected / rate.expected == pytest.approx(
        before[131072].expected / before[1024].expected, rel=0.05
    )


def test_the_nearest_run_is_used() -> None:
    speed = planned([row(40.0, prompt_tokens=30_000), row(60.0), row(1.0, users=4)]).speed
    assert speed is not None and speed.decode_tokens_per_s.expected == 60.0
    assert dict(speed.at_depth)[32768].expected == 40.0


@pytest.mark.parametrize(
    "unusable", [row(n=2), row(is_open_loop=True), row(users=2), row(decode_tps=None), row(version="0.1.0")]
)
def test_unusable_runs_change_nothing(unusable: OwnRun) -> None:
    before, after = planned().speed, planned([unusable]).speed
    assert before is not None and after is not None
    assert after.basis == before.basis and after.decode_tokens_per_s == before.decode_tokens_per_s


def test_another_version_is_mentioned_and_not_used() -> None:
    speed = planned([row(version="0.1.0")]).speed
    assert speed is not None and "on 2026-11-15 was of version 0.1.0 and is not used" in speed.explanation
    assert planned([row(version=f"v{PLAIN.version}+cu130")]).speed.basis == "measured here"  # type: ignore[union-attr]


def test_with_a_drafter_runs_apply_by_kind_of_text() -> None:
    """What was measured has the drafter's gain in it, which the plain figure has not."""
    own = [row(90.0, text="code"), row(70.0, text="prose")]
    found = plan(BEFORE.launch, BEFORE.shape, BEFORE.weights, GB10, own=own).speed
    assert found is not None and BEFORE.speed is not None
    assert found.decode_tokens_per_s == BEFORE.speed.decode_tokens_per_s
    by_text = {each.text: each for each in found.drafted}
    assert by_text["code"].decode_tokens_per_s.expected == 90.0
    assert by_text["prose"].explanation == "measured here on 2026-11-15, 1 run"
    assert by_text["reasoning"] in BEFORE.speed.drafted


def test_prefill_and_batch() -> None:
    users = BEFORE.cache.users
    assert users > 1
    own = [
        row(60.0, prompt_tokens=4096, prefill_tps=(Band(1900, 2000, 2100), 5), ttft_ms=2100.0),
        row(60.0, prefill_tps=(Band(900, 1000, 1100), 5)),
        row(20.0, users=users, total_tps=(Band(70, 75, 80), 5)),
    ]
    speed = planned(own).speed
    assert speed is not None and speed.prefill is not None and speed.batch is not None
    assert (speed.prefill.prompt_tokens, speed.prefill.ttft_ms.expected) == (4096, 2100.0)
    assert speed.prefill.tokens_per_s == Band(1900, 2000, 2100)
    assert speed.batch.total_tokens_per_s == Band(70, 75, 80)
    assert speed.batch.per_user_tokens_per_s.expected == 20.0


def test_an_unmeasured_batch_is_scaled_as_one_user() -> None:
    before, after = planned().speed, planned([row(30.0)]).speed
    assert before is not None and before.batch is not None and after is not None and after.batch is not None
    factor = 30.0 / before.decode_tokens_per_s.expected
    assert after.batch.per_user_tokens_per_s.expected == pytest.approx(
        factor * before.batch.per_user_tokens_per_s.expected
    )


# --- from the history to the plan ---

POINT = Point("single", users=1, prompt_tokens=1000, answer_tokens=100)


def measured(home: Home, key: str, rate: float = 61.5, origin: str = "measured here") -> None:
    figures = PointFigures(
        POINT, 5, decode_tokens_per_s=MeasuredFigure(rate, rate - 1, rate + 1, 5), ttft_ms={"p50": 400.0}
    )
    subject = Subject("http://127.0.0.1:1/v1", "smollm2", "llamacpp", launch_key=key)
    run = BenchRun(
        "a-run", "2026-11-15T10:00:00+00:00", subject, RequestSettings(), (POINT,), (figures,), is_whole=True
    )
    with open_history(home) as history:
        history.begin(run, origin)


def test_a_plan_for_this_machine_says_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    firesteel = inside(home.root, monkeypatch, capsys)
    monkeypatch.setenv("FIRESTEEL_HOME", str(home.root))
    before = firesteel("plan", "smollm2", "--json").json
    kept = firesteel("plan", "gpt-oss-20b", "--host", "gb10", "--json")
    launch = plans.propose(Ask("smollm2"), plans.host())[0].plan.launch
    assert before["speed"]["basis"] == "roofline"
    measured(home, launch_key(launch))
    after = firesteel("plan", "smollm2", "--json").json
    assert after["speed"]["basis"] == "measured here"
    assert after["speed"]["decode_tokens_per_s"] == {"low": 60.5, "expected": 61.5, "high": 62.5}
    assert "measured here on 2026-11-15, 1 run" in firesteel("plan", "smollm2").out
    assert firesteel("plan", "gpt-oss-20b", "--host", "gb10", "--json").out == kept.out
    assert firesteel("plan", "smollm2", "--host", "gb10", "--json").json["speed"]["basis"] != "measured here"


def test_reported_runs_are_not_used(tmp_path: Path) -> None:
    home = Home(tmp_path)
    measured(home, "0" * 32, origin="reported")
    assert read_own_runs(home) == {}


def test_own_runs_are_read_back(tmp_path: Path) -> None:
    home = Home(tmp_path)
    measured(home, "a" * 32)
    (found,) = read_own_runs(home)["a" * 32]
    assert found.decode_tps == (Band(60.5, 61.5, 62.5), 5)
    assert (found.run, found.seen, found.depth, found.ttft_ms) == ("a-run", "2026-11-15", 1050, 400.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"decode_tokens_per_s": {"value": -1, "low": -2, "high": 0, "n": 5}},
        {"decode_tokens_per_s": {"value": 1e300, "low": 0, "high": 1e300, "n": 5}},
        {"decode_tokens_per_s": {"value": 50, "low": 60, "high": 70, "n": 5}},
        {"decode_tokens_per_s": {"value": 10**400, "low": 1, "high": 10**400, "n": 5}},
        {"decode_tokens_per_s": "fast"},
        {"point": {"users": "many"}},
        {"point": None},
        {"ttft_ms": []},
    ],
)
def test_impossible_figures_are_ignored(tmp_path: Path, lie: dict[str, object]) -> None:
    home = Home(tmp_path)
    measured(home, "a" * 32)
    with closing(sqlite3.connect(tmp_path / "history.db")) as file:
        (text,) = file.execute("SELECT text FROM figures").fetchone()
        file.execute("UPDATE figures SET text = ?", (json.dumps({**json.loads(text), **lie}),))
        file.commit()
    assert read_own_runs(home) == {}


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1000])
def test_a_damaged_history_is_ignored(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "history.db").write_bytes(damage)
    assert read_own_runs(Home(tmp_path)) == {}


def test_a_newer_history_is_ignored(tmp_path: Path) -> None:
    home = Home(tmp_path)
    measured(home, "a" * 32)
    with closing(sqlite3.connect(tmp_path / "history.db")) as file:
        file.execute("PRAGMA user_version = 99")
    assert read_own_runs(home) == {}
