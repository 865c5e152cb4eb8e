"""What a pretend engine says while it starts, when, and how much memory it takes by then.

The words are data (`data/sim/boot.yaml`): lines of real logs with names in braces for what a launch decides.
A stage lasts as long as the planner says, divided by how much faster this Spark is played.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.version import InvalidVersion, Version

from firesteel import yaml_schema
from firesteel.engines import speculative_tokens
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Launch
from firesteel.planner import Plan
from firesteel.sim.spark import SimSpark
from firesteel.units import GB, GIB, MIB

_NAME = re.compile(r"\{(\w+)\}")
_KERNELS = (
    re.compile(r"for \w+ GEMM"),
    re.compile(r"MoE backend"),
    re.compile(r"attention backend|AttentionBackendEnum"),
)


class LineSchema(yaml_schema.FileSchema):
    line: str
    since: str | None = None
    """The first release that says it so."""
    until: str | None = None
    """The first that does not."""
    when: str | None = None
    """A trait of the launch; `not X` for its absence."""


class StageSchema(yaml_schema.FileSchema):
    name: str
    phase: str | None = None
    """The planner's phase that lasts as long; none: no time passes."""
    holds: tuple[str, ...] = ()
    """Parts of the plan's memory that are taken by its end."""
    lines: tuple[LineSchema | str, ...] = ()
    bar: str | None = None
    """A progress line, said several times while the stage lasts, with {percent}, {done} and {all}."""
    end: tuple[LineSchema | str, ...] = ()


class BootStagesSchema(yaml_schema.FileSchema):
    stages: tuple[StageSchema, ...]
    sources: tuple[Evidence, ...]


class BootSchema(yaml_schema.FileSchema):
    engines: dict[EngineName, BootStagesSchema]


def stages(planned: Plan, world: SimSpark) -> list[dict[str, Any]]:
    sheet = _sheet().engines[planned.launch.engine]
    parts = {part.name: round(part.bytes.expected) for part in planned.memory.parts}
    named = {name for stage in sheet.stages for name in stage.holds}
    said, traits = _said(planned, parts), _traits(planned)
    held, found = 0, []
    for stage in sheet.stages:
        held += sum(parts.get(name, 0) for name in stage.holds)
        if stage is sheet.stages[-1]:
            held += sum(size for name, size in parts.items() if name not in named)
        found.append(
            {
                "name": stage.name,
                "seconds": _seconds(planned, stage, world),
                "bytes": held,
                "lines": _kernels(_lines(stage.lines, planned.launch, said, traits), world),
                "bar": _fill(stage.bar, said) if stage.bar else None,
                "end": _lines(stage.end, planned.launch, said, traits),
            }
        )
    return found


def _seconds(planned: Plan, stage: StageSchema, world: SimSpark) -> float:
    start = planned.speed.start_up if planned.speed else None
    planned_s = (
        sum(phase.seconds.expected for phase in start.phases if phase.name == stage.phase) if start else 0.0
    )
    slow = world.fault("slow-start")
    times = slow.times if slow and slow.at in ("", stage.name) else 1.0
    return planned_s * times / world.faster


def _kernels(lines: list[str], world: SimSpark) -> list[str]:
    """A line that names a kernel gives way to the wrong one of its kind."""
    wrong = world.fault("wrong-kernel")
    for line in wrong.lines if wrong else ():
        kind = next((each for each in _KERNELS if each.search(line)), None)
        lines = [
            f"{said.partition('Using')[0]}{line}" if kind and kind.search(said) else said for said in lines
        ]
    return lines


def _lines(
    lines: tuple[LineSchema | str, ...], launch: Launch, said: Mapping[str, str], traits: frozenset[str]
) -> list[str]:
    found = []
    for each in lines:
        row = LineSchema(line=each) if isinstance(each, str) else each
        if _is_said(row, launch.version) and (row.when is None or _holds(row.when, traits)):
            found.append(_fill(row.line, said))
    return found


def _is_said(row: LineSchema, version: str | None) -> bool:
    """A release that is not known speaks as the newest."""
    try:
        at = Version(version) if version else Version("999")
    except InvalidVersion:
        at = Version("999")
    return (row.since is None or at >= Version(row.since)) and (row.until is None or at < Version(row.until))


def _holds(trait: str, traits: frozenset[str]) -> bool:
    return all(
        each.removeprefix("not ") not in traits if each.startswith("not ") else each in traits
        for each in trait.split(" and ")
    )


def _fill(line: str, said: Mapping[str, str]) -> str:
    """Names that are not known stay: the time of day is filled in when the line is said."""
    return _NAME.sub(lambda match: said.get(match[1], match[0]), line)


def _traits(planned: Plan) -> frozenset[str]:
    launch = planned.launch
    formats = {form.lower() for _, form in planned.weights.bytes_by_format} | {launch.model.lower()}
    found = {name for name in ("nvfp4", "mxfp4", "fp8") if any(name in form for form in formats)}
    found |= {"moe"} if planned.shape.is_moe else {"dense"}
    found |= {"drafts"} if speculative_tokens(launch.flags) else set()
    found |= {"attention"} if "attention-backend" in launch.flags else set()
    found |= {"eager"} if launch.flags.get("enforce-eager") is True else set()
    found |= {"fast"} if launch.flags.get("load-format") == "fastsafetensors" else set()
    return frozenset(found)


def _said(planned: Plan, parts: Mapping[str, int]) -> dict[str, str]:
    launch = planned.launch
    weights, kv = parts.get("weights", 0) + parts.get("expert padding", 0), parts.get("KV cache", 0)
    printed = planned.printed[0] if planned.printed else None
    start = (
        {phase.name: phase.seconds.expected for phase in planned.speed.start_up.phases}
        if planned.speed and planned.speed.start_up
        else {}
    )
    flags = launch.flags
    return {
        "version": launch.version or "unknown",
        "model": launch.model,
        "name": launch.name,
        "port": str(launch.port),
        "context": str(planned.cache.context),
        "users": str(planned.cache.users),
        "cells": str(planned.cache.context * planned.cache.users),
        "batched": str(flags.get("max-num-batched-tokens", flags.get("batch-size", "8192"))),
        "ubatch": str(flags.get("ubatch-size", "512")),
        "attention": str(flags.get("attention-backend", "FLASH_ATTN")).upper(),
        "moe": str(flags.get("moe-backend", "FLASHINFER_CUTLASS")).upper(),
        "linear": _linear(str(flags.get("linear-backend", "flashinfer_cutlass"))),
        "load_mode": str(flags.get("load-mode", "mmap")),
        "weights_gib": f"{weights / GIB:.2f}",
        "weights_mib": f"{weights / MIB:.2f}",
        "weights_gb": f"{weights / GB:.2f}",
        "kv_gib": f"{kv / GIB:.2f}",
        "kv_mib": f"{kv / MIB:.2f}",
        "kv_half_mib": f"{kv / 2 / MIB:.2f}",
        "kv_half_gb": f"{kv / 2 / GB:.2f}",
        "compute_mib": f"{parts.get('compute buffers', 0) / MIB:.2f}",
        "tokens": f"{printed.tokens:,}" if printed else f"{planned.cache.context * planned.cache.users:,}",
        "concurrency": printed.concurrency_text if printed else "1.00",
        "context_text": f"{planned.cache.context:,}",
        "load_s": f"{start.get('weights', 0):.2f}",
        "compile_s": f"{start.get('compile', 0):.2f}",
        "graphs_s": f"{start.get('CUDA graphs', 0):.0f}",
        "all_s": f"{sum(start.values()):.2f}",
        "layers": str(len(planned.shape.layers)),
        "layers_all": str(len(planned.shape.layers) + 1),
        "total_mib": str(planned.host.memory_total_bytes // MIB),
    }


def _linear(name: str) -> str:
    """`flashinfer_cutlass` -> FlashInferCutlass, as kernel classes are called."""
    return "".join(
        {"flashinfer": "FlashInfer", "b12x": "B12x"}.get(part, part.capitalize()) for part in name.split("_")
    )


@cache
def _sheet() -> BootSchema:
    name = "boot.yaml"
    text = (files("firesteel") / "data" / "sim" / name).read_text("utf-8")
    return yaml_schema.load(name, text, BootSchema)
