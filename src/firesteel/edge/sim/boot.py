"""What a simulated engine prints while it starts, when, and how much memory it has taken by then.

The text is data (`data/sim/boot.yaml`): lines of real logs with names in braces for what a launch decides.
A stage lasts as long as the planner says, divided by how much faster this Spark starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from firesteel import shipped_data
from firesteel.edge.sim.spark import SimSpark
from firesteel.engines.vllm.kv_settings import speculative_tokens
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Launch
from firesteel.planner.plan import Plan
from firesteel.units import GIB, MIB
from firesteel.values import FileValue

_NAME = re.compile(r"\{(\w+)\}")
_KERNELS = (
    re.compile(r"for \w+ GEMM"),
    re.compile(r"MoE backend"),
    re.compile(r"attention backend|AttentionBackendEnum"),
)


class LineSchema(FileValue, kw_only=True):
    line: str
    since: str | None = None
    """The first release that prints it like this."""
    until: str | None = None
    """The first release that does not."""
    when: str | None = None
    """A trait of the launch; `not X` for its absence."""


class StageSchema(FileValue, kw_only=True):
    name: str
    phase: str | None = None
    """The phase of the planner that lasts as long; None: no time passes."""
    holds: tuple[str, ...] = ()
    """Parts of the planned memory that are taken by its end."""
    lines: tuple[LineSchema | str, ...] = ()
    bar: str | None = None
    """A progress line, printed several times during the stage, with {percent}, {done} and {all}."""
    end: tuple[LineSchema | str, ...] = ()


class BootStagesSchema(FileValue, kw_only=True):
    stages: tuple[StageSchema, ...]
    sources: tuple[Evidence, ...]


class BootSchema(FileValue, kw_only=True):
    engines: dict[EngineName, BootStagesSchema]


def stages(planned: Plan, spark: SimSpark) -> list[dict[str, Any]]:
    """The stages of a start: name, seconds, bytes held at its end, and the lines to print."""
    boot = _schema().engines[planned.launch.engine]
    parts = {part.name: round(part.bytes.expected) for part in planned.memory.parts}
    named = {name for stage in boot.stages for name in stage.holds}
    values, traits = _values(planned, parts), _traits(planned)
    held_bytes, result = 0, []
    for stage in boot.stages:
        held_bytes += sum(parts.get(name, 0) for name in stage.holds)
        if stage is boot.stages[-1]:
            held_bytes += sum(size for name, size in parts.items() if name not in named)
        result.append(
            {
                "name": stage.name,
                "seconds": _seconds(planned, stage, spark),
                "bytes": held_bytes,
                "lines": _with_wrong_kernels(_lines(stage.lines, planned.launch, values, traits), spark),
                "bar": _fill(stage.bar, values) if stage.bar else None,
                "end": _lines(stage.end, planned.launch, values, traits),
            }
        )
    return result


def _seconds(planned: Plan, stage: StageSchema, spark: SimSpark) -> float:
    start = planned.speed.start_up if planned.speed else None
    phases = start.phases if start else ()
    planned_s = sum(phase.seconds.expected for phase in phases if phase.name == stage.phase)
    slow = spark.fault("slow-start")
    times = slow.times if slow and slow.at in ("", stage.name) else 1.0
    return planned_s * times / spark.faster


def _with_wrong_kernels(lines: list[str], spark: SimSpark) -> list[str]:
    """Replaces lines that name a kernel by the wrong one of the same kind, for the fault `wrong-kernel`."""
    fault = spark.fault("wrong-kernel")
    for wrong in fault.lines if fault else ():
        kind = next((pattern for pattern in _KERNELS if pattern.search(wrong)), None)
        lines = [
            f"{line.partition('Using')[0]}{wrong}" if kind and kind.search(line) else line for line in lines
        ]
    return lines


def _lines(
    lines: tuple[LineSchema | str, ...], launch: Launch, values: Mapping[str, str], traits: frozenset[str]
) -> list[str]:
    rows = (LineSchema(line=line) if isinstance(line, str) else line for line in lines)
    return [
        _fill(row.line, values)
        for row in rows
        if _is_printed_by(row, launch.version) and (row.when is None or _is_true(row.when, traits))
    ]


def _is_printed_by(row: LineSchema, release: str | None) -> bool:
    """An unknown release counts as the newest."""
    try:
        version = Version(release) if release else Version("999")
    except InvalidVersion:
        version = Version("999")
    return (row.since is None or version >= Version(row.since)) and (
        row.until is None or version < Version(row.until)
    )


def _is_true(condition: str, traits: frozenset[str]) -> bool:
    return all(
        trait.removeprefix("not ") not in traits if trait.startswith("not ") else trait in traits
        for trait in condition.split(" and ")
    )


def _fill(line: str, values: Mapping[str, str]) -> str:
    """Unknown names stay: the time of day is filled in when the line is printed."""
    return _NAME.sub(lambda match: values.get(match[1], match[0]), line)


def _traits(planned: Plan) -> frozenset[str]:
    launch = planned.launch
    formats = {format.lower() for _, format in planned.weights.bytes_by_format} | {launch.model.lower()}
    traits = {name for name in ("nvfp4", "mxfp4", "fp8") if any(name in format for format in formats)}
    conditions = {
        "moe": planned.shape.is_moe,
        "dense": not planned.shape.is_moe,
        "drafts": bool(speculative_tokens(launch.flags)),
        "attention": "attention-backend" in launch.flags,
        "eager": launch.flags.get("enforce-eager") is True,
        "fast": launch.flags.get("load-format") == "fastsafetensors",
        "nodes": launch.sparks > 1,
        "rdma": "NCCL_IB_HCA" in launch.env,
    }
    return frozenset(traits | {name for name, is_true in conditions.items() if is_true})


def _values(planned: Plan, parts: Mapping[str, int]) -> dict[str, str]:
    """The names in braces that a plan decides."""
    launch = planned.launch
    weights, kv = parts.get("weights", 0) + parts.get("expert padding", 0), parts.get("KV cache", 0)
    printed = planned.printed[0] if planned.printed else None
    start_up = planned.speed.start_up if planned.speed else None
    start = {phase.name: phase.seconds.expected for phase in (start_up.phases if start_up else ())}
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
        "linear": _kernel_class(str(flags.get("linear-backend", "flashinfer_cutlass"))),
        "load_mode": str(flags.get("load-mode", "mmap")),
        "weights_gib": f"{weights / GIB:.2f}",
        "weights_mib": f"{weights / MIB:.2f}",
        "kv_gib": f"{kv / GIB:.2f}",
        "kv_mib": f"{kv / MIB:.2f}",
        "kv_half_mib": f"{kv / 2 / MIB:.2f}",
        "kv_half_gib": f"{kv / 2 / GIB:.2f}",
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
        "nodes": str(launch.sparks),
        "rank": str(flags.get("node-rank", "0")),
        "head": str(flags.get("master-addr", "")),
        "hcas": " ".join(
            f"[{index}]{hca}:1/RoCE" for index, hca in enumerate(launch.env.get("NCCL_IB_HCA", "").split(","))
        ),
        "interface": launch.env.get("NCCL_SOCKET_IFNAME", "eth0"),
        "total_mib": str(planned.host.memory_total_bytes // MIB),
    }


def _kernel_class(name: str) -> str:
    """`flashinfer_cutlass` -> `FlashInferCutlass`, the name of the kernel's class."""
    return "".join(
        {"flashinfer": "FlashInfer", "b12x": "B12x"}.get(part, part.capitalize()) for part in name.split("_")
    )


@cache
def _schema() -> BootSchema:
    return shipped_data.load("sim/boot.yaml", BootSchema)
