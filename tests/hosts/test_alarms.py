"""The checks of `doctor` in `up`, `ps` and `bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.bench.load.measure import throttle_notes
from firesteel.bench.load.sampler import HostReading
from firesteel.edge.sim.setup import create_spark, environment
from firesteel.edge.sim.spark import SimSpark
from firesteel.run.preflight import host_alarms
from tests.conftest import Firesteel

GB10 = ["NVIDIA GB10, driver 580.173.02"]


def reading(
    clock: float, power: float, use: float = 96, temperature: float = 60, reasons: int = 0
) -> HostReading:
    return HostReading(0, clock, power, temperature, use, reasons=reasons)


@pytest.mark.parametrize(
    ("rows", "check"),
    [
        ([reading(611, 13)], "clock-under-load"),
        ([reading(208, 8, use=0), reading(611, 13)], "clock-under-load"),
        ([reading(2400, 70)], None),
        ([reading(208, 8, use=0)], None),
        ([reading(1500, 88, reasons=0x48, temperature=93)], "heat"),
        ([reading(2400, 70, reasons=0x4)], None),
        ([], None),
    ],
)
def test_a_run_on_a_throttled_gpu_is_marked(rows: list[HostReading], check: str | None) -> None:
    notes = throttle_notes(rows, GB10)
    assert [note.partition(")")[0] for note in notes] == (
        [f"the GPU was throttled ({check}"] if check else []
    )


@pytest.mark.parametrize("fault", ["heat", "clock-under-load", "driver-match", "kernel-faults", ""])
def test_alarms_of_a_host(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_spark(tmp_path, SimSpark(host_fault=fault))
    for name, value in environment(tmp_path, {"PATH": "/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    assert [alarm.check for alarm in host_alarms()] == ([fault] if fault else [])


def test_up_warns_and_ps_and_bench_repeat_it(firesteel: Firesteel, free_port: int) -> None:
    sim = ("--sim", "bad-clock-under-load")
    env = {"FIRESTEEL_SIM_SPEED": "500"}
    ran = firesteel(*sim, "up", "gpt-oss-120b-llamacpp", "--port", str(free_port), env=env)
    try:
        assert ran.code == 0, ran.err
        assert "clock-under-load: the busy GPU runs at 611 MHz" in ran.err + ran.out
        shown = firesteel("--sim", "ps", "--json").json
        assert [alarm["check"] for alarm in shown["host"]] == ["clock-under-load"]
        ran = firesteel("--sim", "bench", "--budget", "1m", "--precision", "90%", "--json")
        notes = ran.json["run"]["notes"] if "run" in ran.json else ran.json["notes"]
        assert any("throttled (clock-under-load)" in note for note in notes), notes
    finally:
        firesteel("--sim", "down", "--all")
