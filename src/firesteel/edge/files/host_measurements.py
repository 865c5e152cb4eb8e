"""What `doctor --measure` found on this host, run by run; the newest figure of each name counts."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.files.home import Home, exclusive
from firesteel.edge.files.state_file import read_state, write_state
from firesteel.facts.host.host_facts import HostMeasurement

_MAX_ROWS = 5000


def measurements_path(home: Home) -> Path:
    return home.root / "host_measurements.json"


def all_measurements(home: Home) -> list[HostMeasurement]:
    """The oldest first."""
    return read_state(measurements_path(home), list[HostMeasurement]) or []


def latest(home: Home) -> dict[str, HostMeasurement]:
    return {figure.name: figure for figure in all_measurements(home)}


def add_measurements(home: Home, figures: list[HostMeasurement]) -> None:
    with exclusive(measurements_path(home)):
        write_state(measurements_path(home), (all_measurements(home) + figures)[-_MAX_ROWS:])
