"""The parts of a model file: layers, tensors and sizes as they are written there; see `model`."""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any

from msgspec import structs

from firesteel.facts.evidence import Evidence
from firesteel.facts.formats.gguf import GGML_TYPES
from firesteel.facts.formats.safetensors import DTYPE_BITS
from firesteel.facts.model.architecture import (
    Architecture,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    SlidingAttention,
)
from firesteel.facts.model.tensors import Provenance, Role, Tensor, Weights, sum_weights
from firesteel.values import NOT_EMPTY, Expand, FileValue, PositiveInt

DTYPES: dict[str, tuple[int, int]] = {
    **{name: (1, bits // 8) for name, bits in DTYPE_BITS.items() if bits % 8 == 0},
    **{name: (elements, size) for name, elements, size in GGML_TYPES.values()},
}
"""Elements per block, and bytes per block. Safetensors store FP4 as `U8`, two values per byte."""


class FullSchema(FileValue, kw_only=True, tag_field="kind", tag="full_attention"):
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt


class SlidingSchema(FileValue, kw_only=True, tag_field="kind", tag="sliding_attention"):
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt
    window: PositiveInt


class LinearSchema(FileValue, kw_only=True, tag_field="kind", tag="linear_attention"):
    times: PositiveInt = 1
    state_elements: PositiveInt
    conv_channels: PositiveInt
    conv_kernel: PositiveInt


class LatentSchema(FileValue, kw_only=True, tag_field="kind", tag="latent_attention"):
    times: PositiveInt = 1
    kv_lora_rank: PositiveInt
    qk_rope_head_dim: PositiveInt


LayerSchema = FullSchema | SlidingSchema | LinearSchema | LatentSchema
_LAYERS: dict[type[FileValue], type[Layer]] = {
    FullSchema: FullAttention, SlidingSchema: SlidingAttention,
    LinearSchema: LinearAttention, LatentSchema: LatentAttention,
}  # fmt: skip


def _layer(row: LayerSchema) -> Layer:
    values = structs.asdict(row)
    del values["times"]
    return _LAYERS[type(row)](**values)


class StackSchema(FileValue, kw_only=True):
    """The layers in `of`, in that order, each of them `times` in a row, all that `repeat` times."""

    repeat: PositiveInt
    of: Annotated[tuple[LayerSchema, ...], NOT_EMPTY]

    def layers(self) -> list[Layer]:
        return [layer for row in self.of for layer in [_layer(row)] * row.times] * self.repeat


class ArchitectureSchema(FileValue, kw_only=True):
    model_type: str
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    max_context: PositiveInt
    experts: int = 0
    experts_per_token: int = 0
    drafter_layers: int = 0
    layers: Annotated[tuple[StackSchema, ...], NOT_EMPTY]

    def architecture(self) -> Architecture:
        layers = tuple(layer for stack in self.layers for layer in stack.layers())
        return Architecture(**{**structs.asdict(self), "layers": layers})


class GroupSchema(FileValue, kw_only=True):
    """`count` tensors of the same shape."""

    role: Role
    what: str
    count: PositiveInt
    shape: Annotated[tuple[PositiveInt, ...], NOT_EMPTY]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(
                f"no size is known for dtype {self.dtype}; known are {', '.join(sorted(DTYPES))}"
            )
        if prod(self.shape) % DTYPES[self.dtype][0]:
            raise ValueError(f"{self.shape} does not fill whole {self.dtype} blocks")

    def tensor(self) -> Tensor:
        elements, size = DTYPES[self.dtype]
        total = self.count * prod(self.shape) // elements * size
        return Tensor(self.what, self.dtype, (self.count, *self.shape), total, self.role)


class WeightsSchema(FileValue, kw_only=True):
    provenance: Provenance
    source: str
    tensors: tuple[GroupSchema, ...] = ()
    bytes_by_role: dict[Role, PositiveInt] = {}

    def __post_init__(self) -> None:
        if bool(self.tensors) == bool(self.bytes_by_role):
            raise ValueError("needs `tensors` or `bytes_by_role`, and not both")

    def weights(self) -> Weights:
        if self.tensors:
            return sum_weights((group.tensor() for group in self.tensors), self.provenance, self.source)
        tied = Role.HEAD not in self.bytes_by_role
        return Weights(self.bytes_by_role, self.provenance, self.source, tied_head=tied)


class ExtraSchema(FileValue, kw_only=True):
    """Weights of the checkpoint whose size does not follow from its config."""

    role: Role
    bytes: PositiveInt
    what: str
    source: Evidence


def _json(text: Any) -> Any:
    """A JSON object in a YAML block of text."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError("should be a JSON object")
    return value


JsonText = Annotated[dict[str, Any] | None, Expand(_json)]
