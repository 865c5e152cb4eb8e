"""What fits in 128 GB: the size of well-known models in each format, published in it or not.

A table in circulation gives a 405B in INT4 about 100 GB. Parameters times bits make it 203 GB before a
single scale is counted, and a format is more than its bits: groups have scales, and embeddings, head,
norms and routers stay as they are. So the bytes are computed from the config and the format's layout,
tensor by tensor; `config` alone decides, whatever format the checkpoint itself is stored in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from firesteel.catalog.catalog import Catalog
from firesteel.catalog.model import Model
from firesteel.errors import UsageError
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.quantization import (
    NVFP4,
    Method,
    Quantization,
    WeightFormat,
    fp8_block,
    weights_of_config,
)
from firesteel.values import replace

_FORMATS: Mapping[str, tuple[Method, WeightFormat] | None] = {
    "BF16": None,
    "FP8": ("fp8", fp8_block(128, 128)),
    "INT4": ("gptq", WeightFormat("int4", 4, 128, 16 + 4, column_bytes=4)),
    "NVFP4": ("modelopt", NVFP4),
}
FORMATS = tuple(_FORMATS)
"""FP8 with one scale per block of 128 x 128; INT4 as in GPTQ, in groups of 128; NVFP4 in groups of 16."""

WELL_KNOWN = (
    "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    "unsloth/Qwen3-Coder-Next-FP8-Dynamic",
    "openai/gpt-oss-120b",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
    "meta-llama/Llama-3.1-405B-Instruct",
)
"""The models that such tables list."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    model: str
    family: str
    parameters: int
    active_parameters: int
    bytes: Mapping[str, int]
    """By format, without towers and drafter: every linear layer but the head in it, the rest in BF16."""
    published_bytes: int
    """Of the catalog's own checkpoint, which may mix formats."""


def size_table(
    catalog: Catalog, models: Iterable[str] = WELL_KNOWN, formats: Iterable[str] = FORMATS
) -> tuple[SizeRow, ...]:
    """One row per model. Whether it fits depends on what else needs memory, so the reader decides."""
    columns = tuple(formats)
    return tuple(_row(catalog.models[model], columns) for model in models)


def _row(model: Model, formats: Iterable[str]) -> SizeRow:
    if model.parameters is None or model.active_parameters is None:
        raise UsageError(
            f"`{model.id}` has no `config` in its file, so its weights are known in one format only",
            next="firesteel models",
        )
    sizes = {format: weight_bytes(model, format) for format in formats}
    return SizeRow(
        model.id, model.family, model.parameters, model.active_parameters, sizes, model.weights.total_bytes
    )


def weight_bytes(model: Model, format: str) -> int:
    """The language model's weights in `format`, without towers and drafter."""
    if format not in _FORMATS:
        raise UsageError(f"`{format}` is not one of {', '.join(FORMATS)}", next=f"use {FORMATS[0]}")
    counted = parameters_of_config(model.config)
    own = replace(counted, groups=tuple(group for group in counted.groups if group.is_of_model))
    layout = _FORMATS[format]
    stored = Quantization(*layout, converts_head=False) if layout else None
    return weights_of_config(own, stored).total_bytes
