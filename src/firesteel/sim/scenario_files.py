"""Scenarios: named simulated Sparks, in `data/sim/scenarios`."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.sim.host_files import host_faults
from firesteel.sim.spark import SimFault, SimGpuProcess, SimSpark, Text, TrueSpeed
from firesteel.units import parse_size
from firesteel.values import Expand, FileValue, replace

_TEXT = {"about", "source"}
_BYTES = {"memory_total", "memory_available", "disk_free"}
BAD_HOST = "bad-"
"""Followed by the name of a check of `doctor`: an idle Spark on which it finds something."""
Size = Annotated[int, Expand(parse_size)]


def _with_sizes(row: Any) -> Any:
    """Sizes such as `5GiB` in a row of a scenario, as bytes."""
    if isinstance(row, dict) and "bytes" in row:
        return {**row, "bytes": parse_size(row["bytes"])}
    return row


class ScenarioSchema(FileValue, kw_only=True):
    """Everything that differs from an idle Spark."""

    about: str
    source: str | None = None
    memory_total: Size | None = None
    memory_available: Size | None = None
    driver: str | None = None
    gpu_users: tuple[Annotated[SimGpuProcess, Expand(_with_sizes)], ...] | None = None
    disk_free: Size | None = None
    images: tuple[str, ...] | None = None
    pull_s: float | None = None
    truths: tuple[TrueSpeed, ...] | None = None
    acceptance: dict[Text, float] | None = None
    draft_cost: float | None = None
    jitter: float | None = None
    faster: float | None = None
    reads_faster: float = 10.0
    seed: int | None = None
    nodes: int | None = None
    faults: tuple[Annotated[SimFault, Expand(_with_sizes)], ...] = ()


@cache
def scenarios() -> dict[str, str]:
    """Name -> what happens in it."""
    return {name: _schema(name).about for name in _names()}


def scenario(name: str) -> SimSpark:
    fault = name.removeprefix(BAD_HOST)
    if fault != name and fault in host_faults().faults:
        return replace(scenario("idle"), host_fault=fault)
    if name not in _names():
        raise UsageError(
            f"there is no scenario `{name}`; there are {', '.join(_names())}, "
            f"and {BAD_HOST}CHECK for each check of `doctor`",
            next="firesteel --sim idle up gpt-oss-120b-llamacpp",
        )
    schema = msgspec.structs.asdict(_schema(name))
    values = {key: value for key, value in schema.items() if value is not None and key not in _TEXT}
    return SimSpark(**{f"{key}_bytes" if key in _BYTES else key: value for key, value in values.items()})


@cache
def _names() -> tuple[str, ...]:
    return tuple(PurePosixPath(path).stem for path in shipped_data.names("sim/scenarios"))


@cache
def _schema(name: str) -> ScenarioSchema:
    return shipped_data.load(f"sim/scenarios/{name}.yaml", ScenarioSchema)
