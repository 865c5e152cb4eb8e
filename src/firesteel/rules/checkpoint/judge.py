"""All checks over one checkpoint; and its summary: format, what an engine loads, releases that read it."""

from __future__ import annotations

from collections import Counter

from firesteel.engines.schema.releases import release_ranges
from firesteel.facts.model.contents import CheckpointContents
from firesteel.facts.model.quantization import Quantization
from firesteel.facts.model.tensors import Role
from firesteel.launch import EngineName
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.config import check_config, check_gguf
from firesteel.rules.checkpoint.files import check_files, check_tokenizer
from firesteel.rules.checkpoint.quantization import check_quantization
from firesteel.rules.checkpoint.scales import check_scales, check_weights
from firesteel.rules.rule import SEVERITY
from firesteel.values import Value

_FOR_SAFETENSORS = (check_files, check_config, check_quantization, check_scales, check_tokenizer)
_FOR_GGUF = (check_files, check_gguf, check_weights)


def judge(checkpoint: CheckpointContents | AuditedCheckpoint) -> tuple[CheckpointFinding, ...]:
    """Every finding, the most severe first, then in the order of the checks."""
    if isinstance(checkpoint, CheckpointContents):
        checkpoint = AuditedCheckpoint(checkpoint)
    checks = _FOR_GGUF if checkpoint.contents.format == "gguf" else _FOR_SAFETENSORS
    findings = [found for check in checks for found in check(checkpoint)]
    return tuple(sorted(findings, key=lambda found: SEVERITY[found.level]))


_MODELOPT_NAMES = {"nvfp4": "modelopt_fp4", "mxfp8": "modelopt_mxfp8"}


class CheckpointSummary(Value):
    format: str
    """`safetensors, nvfp4 by compressed-tensors`"""
    model_type: str | None
    files: int
    tensors: int
    stored_bytes: int
    loaded_bytes: int
    """What vLLM puts into memory without speculation: without MTP layers, unused heads and unlisted files."""
    drafter_bytes: int
    """What MTP adds."""
    quantization: str | None
    """The value of vLLM's `--quantization` that the checkpoint corresponds to. vLLM finds it by itself."""
    vllm: str | None
    """The releases that know that value, such as `0.17.0 and later`; None: nothing special is needed."""
    sglang: str | None
    bytes_by_format: tuple[tuple[str, int], ...]


def summarize_checkpoint(checkpoint: CheckpointContents | AuditedCheckpoint) -> CheckpointSummary:
    """What a checkpoint is, in a few figures: its formats, its bytes, and which releases can load it."""
    if isinstance(checkpoint, CheckpointContents):
        checkpoint = AuditedCheckpoint(checkpoint)
    contents = checkpoint.contents
    formats: Counter[str] = Counter()
    if contents.format == "gguf":
        for tensor in checkpoint.tensors():
            formats[tensor.dtype] += tensor.bytes
    else:
        for module in checkpoint.modules.values():
            name = (
                _plain_name(module.weight.dtype)
                if module.weight and not module.is_quantized
                else module.format
            )
            formats[name] += sum(tensor.bytes for tensor in module.parts.values())
    sizes = checkpoint.bytes_by_role
    stored = sum(sizes.values())
    drafter = sizes.get(Role.DRAFTER, 0)
    is_tied = checkpoint.parameters is not None and checkpoint.parameters.tied_head
    declared = checkpoint.declared
    method = _method(declared) if declared else None
    # Embeddings and MTP layers stay in 16 bits; a cut or small model has more of these than of the rest.
    quantized = {module.format for module in checkpoint.modules.values() if module.is_quantized} - {"other"}
    main = next((name for name, _ in formats.most_common() if name in (quantized or formats)), "nothing")
    by = f" by {declared.method}" if declared and contents.format == "safetensors" else ""
    return CheckpointSummary(
        format=f"{contents.format}, {main}{by}",
        model_type=str(
            checkpoint.text_config.get("model_type") or contents.metadata.get("general.architecture") or ""
        )
        or None,
        files=sum(1 for file in contents.files if file.is_listed),
        tensors=sum(len(file.tensors) for file in contents.files if file.is_listed),
        stored_bytes=stored,
        loaded_bytes=stored - drafter - (sizes.get(Role.HEAD, 0) if is_tied else 0),
        drafter_bytes=drafter,
        quantization=method,
        vllm=_releases("vllm", method),
        sglang=_releases("sglang", method),
        bytes_by_format=tuple(formats.most_common()),
    )


def _plain_name(dtype: str) -> str:
    return "16 bits" if dtype in ("BF16", "F16") else dtype


def _method(declared: Quantization) -> str:
    if declared.method != "modelopt":
        return declared.method
    if declared.format is None:
        return "modelopt_mixed"
    return _MODELOPT_NAMES.get(declared.format.name, "modelopt")


def _releases(engine: EngineName, method: str | None) -> str | None:
    if method is None:
        return None
    ranges = release_ranges(engine, "--quantization", method)
    if not ranges:
        return "no release that is known here"
    first, last = ranges[-1]
    return f"{first} and later" if last is None else f"{first} to {last}"
