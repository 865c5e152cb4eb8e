"""What `quantize` and `audit --undo` print with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.library.documents.document import Document
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.workshop.quantize.forecast import QuantizationForecast
from firesteel.workshop.quantize.results import MatrixError

if TYPE_CHECKING:
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.quantize.plan import QuantizationPlan
    from firesteel.workshop.quantize.results import QuantizationResult


class RepairUndoJson(Document, tag_field="document", tag="firesteel.repair-undo/1"):
    """`firesteel audit MODEL --undo --json`"""

    model: str
    restored: tuple[str, ...]


class WrittenTensorJson(Document):
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class KeptTensorJson(Document):
    name: str
    why: str
    bytes: int


class QuantizePlanJson(Document, tag_field="document", tag="firesteel.quantize-plan/1"):
    """`firesteel quantize --dry-run --json`: what would be written, to the byte"""

    model: str
    format: str
    out: str
    source_bytes: int
    bytes: int
    matrices: int
    files: tuple[str, ...]
    tensors: tuple[WrittenTensorJson, ...]
    kept: tuple[KeptTensorJson, ...]
    ignore: tuple[str, ...]
    forecast: QuantizationForecast | None


class QuantizeJson(Document, tag_field="document", tag="firesteel.quantize/1"):
    """`firesteel quantize --json`"""

    model: str
    format: str
    out: str
    source_bytes: int
    bytes: int
    resumed_bytes: int
    seconds: float
    kernel: str
    threads: int
    mean_error: float
    errors: tuple[MatrixError, ...]
    """The relative error of every matrix, the largest first."""
    findings: tuple[CheckpointFinding, ...]
    """Of `audit`, which reads the result."""


class QuantizeGgufJson(Document, tag_field="document", tag="firesteel.quantize-gguf/1"):
    """`firesteel quantize --to q4_k_m --json`: by llama.cpp's own quantizer"""

    model: str
    format: str
    out: str
    source_bytes: int
    planned_bytes: int | None
    """Of the tensors."""
    bytes: int | None
    """Of the file; None with --dry-run."""


def quantize_plan_json(
    plan: QuantizationPlan, out: Path, forecast: QuantizationForecast | None
) -> QuantizePlanJson:
    return QuantizePlanJson.of(
        plan,
        model=plan.source.origin,
        format=plan.format.name,
        out=out,
        source_bytes=plan.source.bytes,
        matrices=sum(1 for _ in plan.matrices),
        files=tuple(file.name for file in plan.files),
        kept=tuple(KeptTensorJson.of(kept, name=kept.source.name) for kept in plan.kept),
        forecast=forecast,
    )


def quantize_json(
    plan: QuantizationPlan, out: Path, result: QuantizationResult, audited: AuditReport
) -> QuantizeJson:
    return QuantizeJson.of(
        result,
        model=plan.source.origin,
        format=plan.format.name,
        out=out,
        source_bytes=plan.source.bytes,
        findings=audited.findings,
    )
