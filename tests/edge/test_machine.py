from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.host.machine import bandwidth, local_host, measure_read_bandwidth
from firesteel.edge.host.memory import meminfo
from firesteel.units import GB


def test_this_machine_is_measured(tmp_path: Path) -> None:
    host = local_host(Home(tmp_path))
    assert host.memory_total_bytes == meminfo().total_bytes
    assert 0 < host.room_bytes < host.memory_available_bytes <= host.memory_total_bytes
    assert host.bandwidth_kind == ("reported" if host.hardware == "gb10" else "measured")


def test_read_bandwidth_is_in_the_range_of_real_memory() -> None:
    assert 0.5 * GB < measure_read_bandwidth(1, seconds=0.05) < 2000 * GB


def test_bandwidth_is_the_best_of_a_few_measurements(tmp_path: Path) -> None:
    home = Home(tmp_path)
    results = [bandwidth(home, 1) for _ in range(7)]
    assert results == sorted(results) and results[-1] == results[-2]
    saved = home.root / "bandwidth.json"
    saved.write_text("broken")
    assert bandwidth(home, 1) > 0
    assert "boot" in saved.read_text()
