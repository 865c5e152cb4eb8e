"""Files that are read, changed and written again: of several changes at once none is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firesteel.edge.home import EngineRelease, Home, ModelRelease, choose_release, chosen_release
from firesteel.edge.host.machine import add_measurements, all_measurements
from firesteel.edge.measured_memory import read_measured_memory, save_measured_memory
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.facts.host.memory import MeasuredMemory

COUNT = 24


def choose(home: Home, number: int) -> None:
    release = EngineRelease("vllm", "0.26.0", image="an/image:0.26.0")
    choose_release(home, ModelRelease(f"model-{number}", release, None, "2026-11-16"))


def remember(home: Home, number: int) -> None:
    save_measured_memory(home, MeasuredMemory(f"{number:032x}", "vllm", "0.26.0", 2**30, "2026-11-16"))


def measure(home: Home, number: int) -> None:
    add_measurements(home, [HostMeasurement(f"figure-{number}", 1.0, "B/s", "2026-11-16")])


CHANGES: dict[str, tuple[Callable[[Home, int], None], Callable[[Home], int]]] = {
    "releases": (
        choose,
        lambda home: sum(chosen_release(home, f"model-{n}") is not None for n in range(COUNT)),
    ),
    "memory": (remember, lambda home: len(read_measured_memory(home))),
    "figures": (measure, lambda home: len(all_measurements(home))),
}


@pytest.mark.parametrize("file", CHANGES)
def test_none_is_lost(tmp_path: Path, file: str) -> None:
    """The lock belongs to an open file, so that threads keep each other out as processes do."""
    change, count = CHANGES[file]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: change(Home(tmp_path), number), range(COUNT)))
    assert count(Home(tmp_path)) == COUNT
