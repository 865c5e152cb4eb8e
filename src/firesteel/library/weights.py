"""Checkpoints: audited, repaired, quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.files.home import find_home

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.rules.checkpoint_checks import CheckpointCheck
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.quantize.plan import QuantizationPlan
    from firesteel.workshop.quantize.results import QuantizationResult
    from firesteel.workshop.repair import RepairOptions, RepairReport


def known_checks() -> Mapping[str, CheckpointCheck]:
    """The checks of `audit`, by name."""
    from firesteel.rules.checkpoint_checks import CHECKS

    return CHECKS


def audit(model: str, *, deep: bool = False) -> AuditReport:
    """What is wrong with a checkpoint: a folder, a GGUF file or a Hub id."""
    from firesteel.workshop import audit as workshop  # reads checkpoints, which most callers do not

    return workshop.audit(model, deep=deep)


def repair(model: str, options: RepairOptions) -> RepairReport:
    """A checkpoint mended as far as the options say; written only where they say so."""
    from firesteel.workshop import repair as workshop

    return workshop.repair(model, options)


def undo_repair(model: str) -> tuple[str, ...]:
    """Undo a repair in place; returns the files that are again as they were."""
    from firesteel.workshop import repair as workshop

    return workshop.undo_repair(model)


def plan_quantization(model: str, to: str, *, keep: Sequence[str] = ()) -> QuantizationPlan:
    """What quantizing a checkpoint would write, to the byte, from its headers."""
    from firesteel.workshop.quantize.plan import plan_quantization
    from firesteel.workshop.quantize.source import open_source

    return plan_quantization(open_source(model), to, keep)


def quantize(plan: QuantizationPlan, out: Path, *, threads: int | None = None) -> QuantizationResult:
    """Write a quantized checkpoint; a run that was killed goes on."""
    import os

    from firesteel.workshop.kernels.native import load_kernel
    from firesteel.workshop.quantize.run import run_quantization

    kernel = load_kernel(find_home().root / "kernels")
    return run_quantization(plan, out.absolute(), kernel, threads or len(os.sched_getaffinity(0)))
