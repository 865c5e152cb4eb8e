"""`doctor --measure` on this machine: real files, real sleeps; figures are plausible, not fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import Home
from firesteel.edge.host.machine import (
    LOAD_MODES,
    add_measurements,
    all_measurements,
    bandwidth,
    latest_measurements,
    local_host,
    read_speed,
    temporary_file,
)
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Host
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.hosts.doctor.measure import _busy, measure
from firesteel.planner.plan import Plan, plan
from firesteel.units import MIB
from firesteel.values import replace
from tests.hosts.cluster.service import wait_until


def test_figures_are_stored_and_nothing_is_left_over(tmp_path: Path) -> None:
    knobs = {path: path.read_text() for path in Path("/sys/block").glob("*/queue/read_ahead_kb")}
    home = Home(tmp_path)
    events = list(measure(home, size=16 * MIB))
    figures = {event.name: event for event in events if isinstance(event, HostMeasurement)}
    assert {"memory_read_bytes_per_s", "load (read)", "load (mmap)", "wake_up_us"} <= figures.keys()
    assert all(figure.value > 0 for figure in figures.values())
    assert latest_measurements(home) == figures
    assert {path: path.read_text() for path in knobs} == knobs, "the read-ahead is as it was"
    best = bandwidth(home, len(os.sched_getaffinity(0)))
    assert best >= figures["memory_read_bytes_per_s"].value, "plan uses the best since boot"
    again = replace(figures["wake_up_us"], value=7.0)
    add_measurements(home, [again])
    assert latest_measurements(home)["wake_up_us"] == again
    assert len(all_measurements(home)) == len(figures) + 1, "the history keeps both"


@pytest.mark.parametrize(("load", "is_busy"), [(0.4, False), (10.0, False), (10.1, True), (57.0, True)])
def test_figures_of_a_busy_host_are_called_so(load: float, is_busy: bool) -> None:
    assert (_busy(load, 20) is not None) == is_busy


def test_a_killed_measurement_leaves_the_read_ahead_as_it_was(tmp_path: Path) -> None:
    knob = tmp_path / "read_ahead_kb"
    knob.write_text("128\n")
    script = f"""
import os, pathlib
from firesteel.hosts.doctor.measure import _kept
knob = pathlib.Path({str(knob)!r})
with _kept(knob):
    knob.write_text("8192")
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    wait_until("the value does not come back", lambda: knob.read_text() == "128")


@pytest.mark.parametrize("mode", LOAD_MODES)
def test_a_file_is_read_in_every_mode(mode: str, tmp_path: Path) -> None:
    with temporary_file(tmp_path, 16 * MIB) as path:
        rate = read_speed(path, mode, 16 * MIB)  # type: ignore[arg-type]  # one of LOAD_MODES
        assert rate is None or rate > 0
    assert list(tmp_path.iterdir()) == []


def test_a_simulated_spark_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_SIM", str(tmp_path))
    with pytest.raises(HostNotReady, match="simulated"):
        list(measure(Home(tmp_path)))


def test_a_load_without_a_gpu_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firesteel.hosts.doctor.gpu_load", "1"], capture_output=True, check=False
    )
    assert done.returncode in (0, 1)
    assert done.stdout if done.returncode == 0 else done.stderr


def test_plan_uses_the_measured_speed_of_the_disk(tmp_path: Path) -> None:
    spark = firesteel.host("gb10")
    usual = firesteel.plan("gpt-oss-120b-llamacpp", host_name="gb10")[0].plan
    slow = replan(usual, replace(spark, disk_bytes_per_s=0.1e9))
    fast = replan(usual, replace(spark, disk_bytes_per_s=20e9))
    assert weights_s(fast) == weights_s(usual)
    assert weights_s(slow) == pytest.approx(usual.weights.total_bytes / 0.1e9, rel=0.05)
    assert slow.speed and slow.speed.start_up
    assert any("measured here" in phase.explanation for phase in slow.speed.start_up.phases)


def replan(known: Plan, host: Host) -> Plan:
    return plan(known.launch, known.shape, known.weights, host)


def weights_s(planned: Plan) -> float:
    assert planned.speed and planned.speed.start_up
    return next(phase.seconds.expected for phase in planned.speed.start_up.phases if phase.name == "weights")


def test_measured_speeds_are_part_of_the_host(tmp_path: Path) -> None:
    home = Home(tmp_path)
    add_measurements(home, [HostMeasurement("disk_read_bytes_per_s", 2e9, "B/s", "2026-11-16")])
    add_measurements(home, [HostMeasurement("load (mmap)", 1e9, "B/s", "2026-11-16")])
    host = local_host(home)
    assert (host.disk_bytes_per_s, host.mapped_bytes_per_s) == (2e9, 1e9)
