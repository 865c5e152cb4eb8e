"""What `quantize` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.facts.documents import Document
from firesteel.workshop.quantize.forecast import QuantizationForecast
from firesteel.workshop.quantize.plan import QuantizationPlan
from firesteel.workshop.quantize.results import MatrixError, QuantizationResult


class WrittenTensorJson(Document):
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class KeptTensorJson(Document):
    name: str
    why: str
    bytes: int


class QuantizePlanJson(Document):
    """`firesteel quantize --dry-run --json`: what would be written, to the byte"""

    document: Literal["firesteel.quantize-plan/1"] = "firesteel.quantize-plan/1"
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


class QuantizeJson(Document):
    """`firesteel quantize --json`"""

    document: Literal["firesteel.quantize/1"] = "firesteel.quantize/1"
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


class QuantizeGgufJson(Document):
    """`firesteel quantize --to q4_k_m --json`: by llama.cpp's own quantizer"""

    document: Literal["firesteel.quantize-gguf/1"] = "firesteel.quantize-gguf/1"
    model: str
    format: str
    out: str
    source_bytes: int
    planned_bytes: int | None
    """Of the tensors."""
    bytes: int | None
    """Of the file; None with --dry-run."""


def quantize_plan_json(
    plan: QuantizationPlan, out: str, forecast: QuantizationForecast | None
) -> QuantizePlanJson:
    return QuantizePlanJson(
        model=plan.source.origin,
        format=plan.format.name,
        out=out,
        source_bytes=plan.source.bytes,
        bytes=plan.bytes,
        matrices=sum(1 for _ in plan.matrices),
        files=tuple(file.name for file in plan.files),
        tensors=tuple(WrittenTensorJson.model_validate(tensor) for tensor in plan.tensors),
        kept=tuple(
            KeptTensorJson(name=kept.source.name, why=kept.why, bytes=kept.bytes) for kept in plan.kept
        ),
        ignore=plan.ignore,
        forecast=forecast,
    )


def quantize_json(plan: QuantizationPlan, out: str, result: QuantizationResult) -> QuantizeJson:
    return QuantizeJson(
        model=plan.source.origin,
        format=plan.format.name,
        out=out,
        source_bytes=plan.source.bytes,
        bytes=result.bytes,
        resumed_bytes=result.resumed_bytes,
        seconds=result.seconds,
        kernel=result.kernel,
        threads=result.threads,
        mean_error=result.mean_error,
        errors=result.errors,
    )
