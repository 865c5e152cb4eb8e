"""`doctor --measure` on this machine: real files, real sleeps; figures are plausible, not fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.files.home import Home
from firesteel.edge.files.host_measurements import all_measurements, latest
from firesteel.edge.host.disk_speed import MODES, read_speed, temporary_file
from firesteel.edge.host.machine import bandwidth
from firesteel.errors import HostNotReady
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.hosts.doctor.measure import measure
from firesteel.units import MIB


def test_figures_are_stored_and_nothing_is_left_over(tmp_path: Path) -> None:
    knobs = {path: path.read_text() for path in Path("/sys/block").glob("*/queue/read_ahead_kb")}
    home = Home(tmp_path)
    events = list(measure(home, size=16 * MIB))
    figures = {event.name: event for event in events if isinstance(event, HostMeasurement)}
    assert {"memory_read_bytes_per_s", "load (read)", "load (mmap)", "wake_up_us"} <= figures.keys()
    assert all(figure.value > 0 for figure in figures.values())
    assert latest(home) == figures
    assert not list(tmp_path.glob(".firesteel-speed-*"))
    assert {path: path.read_text() for path in knobs} == knobs, "the read-ahead is as it was"
    list(measure(home, size=16 * MIB))
    assert len(all_measurements(home)) == 2 * len(figures), "the history keeps both"


def test_plan_uses_the_best_bandwidth_since_boot(tmp_path: Path) -> None:
    home = Home(tmp_path)
    list(measure(home, size=16 * MIB))
    measured = latest(home)["memory_read_bytes_per_s"].value
    assert bandwidth(home, len(os.sched_getaffinity(0))) >= measured


@pytest.mark.parametrize("mode", MODES)
def test_a_file_is_read_in_every_mode(mode: str, tmp_path: Path) -> None:
    with temporary_file(tmp_path, 16 * MIB) as path:
        rate = read_speed(path, mode, 16 * MIB)  # type: ignore[arg-type]  # one of MODES
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
