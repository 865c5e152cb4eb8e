"""Before a run: does the result fit, how fast is it before and after, how long will it take?"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firesteel.facts.host.hardware import Host
from firesteel.facts.model.architecture import Checkpoint
from firesteel.facts.model.tensors import Tensor, Weights, sum_weights
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal, propose_checkpoint
from firesteel.units import Band
from firesteel.values import Value
from firesteel.workshop.kernels.native import Kernel
from firesteel.workshop.kernels.reference import global_scale
from firesteel.workshop.quantize.formats import Scheme
from firesteel.workshop.quantize.plan import QuantizationPlan
from firesteel.workspace import Workspace

_SAMPLE_SHAPE = (1024, 2048)
_REPETITIONS = 3
_RATED_THREADS = 0.8
"""The share of perfect scaling that two threads reached in `benchmarks/quantize.py`, 2026-11-16."""


class ServedForecast(Value):
    """A checkpoint as it would be served."""

    weights_bytes: int
    fits: bool
    decode_tokens_per_s: Band | None


class QuantizationForecast(Value):
    host: str
    before: ServedForecast
    after: ServedForecast
    seconds: float
    """At the speed of the kernel, which is measured now; a disk may be slower."""
    kernel_bytes_per_s: float
    """Of one thread."""


def forecast(
    plan: QuantizationPlan, workspace: Workspace, host: Host, kernel: Kernel, threads: int
) -> QuantizationForecast:
    source = plan.source
    before = [Tensor(t.name, t.dtype, t.shape, t.bytes, t.role) for t in source.tensors]
    speed = kernel_speed(kernel, plan)
    workers = 1 + (threads - 1) * _RATED_THREADS
    return QuantizationForecast(
        host.title,
        _served(plan, sum_weights(before, "counted", source.origin), workspace, host),
        _served(plan, sum_weights(plan.tensors, "derived", plan.format.name), workspace, host),
        source.bytes / (speed * workers),
        speed,
    )


def _served(plan: QuantizationPlan, weights: Weights, workspace: Workspace, host: Host) -> ServedForecast:
    source = plan.source
    checkpoint = Checkpoint(
        source.name, str(source.folder), "safetensors", source.origin, source.architecture, weights
    )
    proposal: Proposal = propose_checkpoint(checkpoint, workspace.catalog.images, host, Ask())
    speed = proposal.plan.speed
    return ServedForecast(
        weights.total_bytes, proposal.plan.fits, speed.decode_tokens_per_s if speed else None
    )


def kernel_speed(kernel: Kernel, plan: QuantizationPlan) -> float:
    """Bytes of BF16 a second, in one thread."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal(_SAMPLE_SHAPE).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return weight.nbytes / min(_seconds(kernel, plan.format.scheme, weight) for _ in range(_REPETITIONS))


def _seconds(kernel: Kernel, scheme: Scheme, weight: NDArray[Any]) -> float:
    started = time.perf_counter()
    match scheme:
        case "fp8-rows":
            kernel.fp8_rows(weight)
        case "fp8-block":
            kernel.fp8_block(weight)
        case "mxfp4":
            kernel.mxfp4(weight)
        case _:
            kernel.nvfp4(weight, global_scale(kernel.amax(weight), True))
    return time.perf_counter() - started
