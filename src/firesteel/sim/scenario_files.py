"""Scenarios: pretend Sparks with a name, in `data/sim/scenarios`."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import BeforeValidator, Field

from firesteel import yaml_schema
from firesteel.errors import UsageError
from firesteel.sim.spark import FaultKind, SimFault, SimGpuProcess, SimSpark, Text, TrueSpeed
from firesteel.units import parse_size

_FOLDER = files("firesteel") / "data" / "sim" / "scenarios"
Size = Annotated[int, BeforeValidator(parse_size)]


class FaultSchema(yaml_schema.FileSchema):
    kind: FaultKind
    at: str = ""
    after: float = 0.0
    seconds: float = 0.0
    bytes: Size = 0
    code: int = 1
    times: float = 1.0
    lines: tuple[str, ...] = ()


class GpuUserSchema(yaml_schema.FileSchema):
    pid: int
    name: str
    bytes: Size


class TruthSchema(yaml_schema.FileSchema):
    model: str = "*"
    when: dict[str, str] = Field(default_factory=dict)
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_times: float = 1.0
    prefill_times: float = 1.0


class ScenarioSchema(yaml_schema.FileSchema):
    """Everything that differs from a Spark at rest."""

    about: str
    source: str | None = None
    memory_total: Size | None = None
    memory_available: Size | None = None
    driver: str | None = None
    gpu_users: tuple[GpuUserSchema, ...] | None = None
    disk_free: Size | None = None
    images: tuple[str, ...] | None = None
    pull_s: float | None = None
    truths: tuple[TruthSchema, ...] | None = None
    acceptance: dict[Text, float] | None = None
    draft_cost: float | None = None
    jitter: float | None = None
    faster: float | None = None
    reads_faster: float = 10.0
    seed: int | None = None
    faults: tuple[FaultSchema, ...] = ()


_BYTES = {"memory_total", "memory_available", "disk_free"}


@cache
def scenarios() -> dict[str, str]:
    """Name -> what happens there."""
    return {name: _sheet(name).about for name in _names()}


def scenario(name: str) -> SimSpark:
    if name not in _names():
        raise UsageError(
            f"no pretend Spark is called `{name}`; there is {', '.join(_names())}",
            next="firesteel --sim idle up gpt-oss-120b-llamacpp",
        )
    return spark_of(_sheet(name))


def spark_of(sheet: ScenarioSchema) -> SimSpark:
    known = {field.name for field in fields(SimSpark)}
    given = {
        f"{key}_bytes" if key in _BYTES else key: value
        for key in ScenarioSchema.model_fields
        if (value := getattr(sheet, key)) is not None
    }
    given["faults"] = tuple(SimFault(**fault.model_dump()) for fault in sheet.faults)
    if sheet.gpu_users is not None:
        given["gpu_users"] = tuple(SimGpuProcess(**user.model_dump()) for user in sheet.gpu_users)
    if sheet.truths is not None:
        given["truths"] = tuple(TrueSpeed(**truth.model_dump()) for truth in sheet.truths)
    return SimSpark(**{key: value for key, value in given.items() if key in known})


@cache
def _names() -> tuple[str, ...]:
    found = (file.name for file in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


@cache
def _sheet(name: str) -> ScenarioSchema:
    path = f"{name}.yaml"
    return yaml_schema.load(path, (_FOLDER / path).read_text("utf-8"), ScenarioSchema)
