"""The files beside the weights: config.json, what is carried over from the source, and a README."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from firesteel import __version__
from firesteel.units import show_bytes
from firesteel.workshop.quantize.plan import COMPRESSED_TENSORS, QuantizationPlan
from firesteel.workshop.quantize.results import QuantizationResult

_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".index.json",
    ".part",
)
_REPLACED = ("config.json", "README.md", "hf_quant_config.json", "quantize_config.json", "firesteel.yaml")
_MAX_CARRIED_BYTES = 2**28
_WORST = 10


def carried_files(folder: Path) -> Iterator[Path]:
    """Tokenizer, templates, generation config, licence, code: what stands beside the weights."""
    for path in sorted(folder.iterdir()):
        is_wanted = path.is_file() and not path.name.startswith(".") and path.name not in _REPLACED
        if is_wanted and not path.name.endswith(_WEIGHTS) and path.stat().st_size <= _MAX_CARRIED_BYTES:
            yield path


def write_documents(plan: QuantizationPlan, folder: Path, result: QuantizationResult) -> None:
    for path in carried_files(plan.source.folder):
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(plan.config, indent=2) + "\n", "utf-8")
    (folder / "README.md").write_text(readme(plan, result), "utf-8")
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def readme(plan: QuantizationPlan, result: QuantizationResult) -> str:
    """Without times and dates: a run that was killed and went on writes the same."""
    name = f"{plan.source.name} in {plan.format.name}"
    command = " ".join(
        [
            "firesteel quantize",
            plan.source.origin,
            "--to",
            plan.format.name,
            *(f"--keep {k}" for k in plan.keep),
        ]
    )
    kept = Counter(tensor.why for tensor in plan.kept)
    lines = [
        *_front_matter(plan),
        f"# {name}",
        "",
        f"{plan.format.about}. Made from `{plan.source.origin}` by firesteel {__version__}, without data:",
        "",
        f"    {command}",
        "",
        f"{show_bytes(plan.source.bytes)} before, {show_bytes(plan.bytes)} after. The layout is that of "
        f"compressed-tensors {COMPRESSED_TENSORS}; vLLM and SGLang read it by themselves.",
        "",
        "## Kept as it was",
        "",
        "| tensors | why |",
        "|---|---|",
        *(f"| {count:,} | {why} |" for why, count in kept.most_common()),
        "",
        "## Error of the weights",
        "",
        "The norm of the difference, divided by the norm of the weights. It is no measure of the answers.",
        f"Mean of {len(result.errors):,} matrices: {result.mean_error:.2%}. The largest:",
        "",
        "| matrix | error |",
        "|---|---|",
        *(f"| `{error.module}` | {error.relative:.2%} |" for error in result.errors[:_WORST]),
        "",
    ]
    return "\n".join(lines)


def _front_matter(plan: QuantizationPlan) -> list[str]:
    """The licence of the source, as its own card states it."""
    try:
        text = (plan.source.folder / "README.md").read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    licence = [line for line in head.splitlines() if line.startswith("license")]
    is_hub_id = not plan.source.origin.startswith((".", "/", "~"))
    base = [f"base_model: {plan.source.origin}"] if is_hub_id else []
    return ["---", *licence, *base, "library_name: vllm", "tags: [compressed-tensors, firesteel]", "---", ""]
