"""Models: the shape of a checkpoint, its bytes by role, its files and its licence, known before download.

A model file contains the checkpoint's `config.json`, reduced to the keys that matter; layers and bytes are
derived from it. `quantization` is the `hf_quant_config.json`, where the config does not have it. For a
family whose config is not supported yet, the file lists layers and tensors, so that the bytes can be
checked by hand; where nobody has published the tensors, it gives bytes by role and the assumption behind
them. In each case it also gives a size published by somebody else, to compare ours with.

An id is a Hub name; one file of a GGUF repository is identified by its quantization, as llama.cpp writes
it: `unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL`.
"""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any

from msgspec import Meta, structs

from firesteel.catalog.model import Modality, Model, ModelFile, PublishedSize
from firesteel.errors import FiresteelError
from firesteel.facts.evidence import Evidence, Sources
from firesteel.facts.formats.ggml_types import GGML_TYPES
from firesteel.facts.formats.safetensors import DTYPE_BITS
from firesteel.facts.model.architecture import (
    Architecture,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    SlidingAttention,
)
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.facts.model.quantization import read_quantization, weights_of_config
from firesteel.facts.model.tensors import Provenance, Role, Tensor, Weights, sum_weights
from firesteel.values import NOT_EMPTY, Expand, FileValue, PositiveInt, YamlFile, replace

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


class ModelSchema(FileValue, kw_only=True):
    id: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+(:[\w.-]+)?$", max_length=1000)]
    title: str
    family: str
    license: str
    gated: bool
    modality: Annotated[tuple[Modality, ...], NOT_EMPTY]
    revision: str | None = None
    config: JsonText = None
    quantization: JsonText = None
    architecture: ArchitectureSchema | None = None
    weights: WeightsSchema | None = None
    assumes: str | None = None
    """The basis of `quantization`, where that of the checkpoint was not available."""
    besides: tuple[ExtraSchema, ...] = ()
    published: tuple[PublishedSize, ...] = ()
    files: tuple[ModelFile, ...] = ()
    sources: Sources
    safety: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if (self.config is None) == (self.architecture is None):
            raise ValueError("needs `config` or `architecture`, and not both")
        if self.config is None and self.weights is None:
            raise ValueError("needs `weights`: there is no `config` to derive them from")
        if self.weights is not None and (self.quantization is not None or self.besides or self.assumes):
            raise ValueError(
                "`quantization`, `assumes` and `besides` add to a `config`; `weights` needs none of them"
            )

    def shape(self) -> Architecture:
        if self.architecture is not None:
            return self.architecture.architecture()
        return architecture_of_config(self.config)

    def bytes_of(self, counted: ParameterGroups | None) -> Weights:
        if self.weights is not None:
            return self.weights.weights()
        assert counted is not None, "a file without weights has a config"
        config = self.quantization if self.quantization is not None else self.config
        source = "config.json" + ("" if self.quantization is None else " and hf_quant_config.json")
        weights = weights_of_config(counted, read_quantization(config), source)
        by_role, by_format = dict(weights.bytes_by_role), dict(weights.bytes_by_format)
        for extra in self.besides:
            by_role[extra.role] = by_role.get(extra.role, 0) + extra.bytes
            key = (extra.role, extra.what)
            by_format[key] = by_format.get(key, 0) + extra.bytes
        weights = replace(weights, bytes_by_role=by_role, bytes_by_format=by_format)
        return replace(weights, provenance="reported", source=self.assumes) if self.assumes else weights


def read_model(file: YamlFile) -> Model:
    """Parse a model file. Raise InvalidFile with the lines of its mistakes."""
    schema = file.convert(ModelSchema)
    try:
        counted = parameters_of_config(schema.config) if schema.config is not None else None
        architecture, weights = schema.shape(), schema.bytes_of(counted)
    except FiresteelError as error:
        where = "config" if schema.config is not None else "weights"
        raise file.mistake((where,), error.what) from None
    has_tower = any(extra.role is Role.TOWER for extra in schema.besides)
    is_counted = counted is not None and schema.weights is None and not has_tower
    known = structs.asdict(schema)
    values = {name: value for name, value in known.items() if name in Model.__struct_fields__}
    values |= {"architecture": architecture, "weights": weights}
    return Model(
        **values,
        parameters=counted.total if counted else None,
        active_parameters=counted.active if counted else None,
        unknown=counted.unknown if counted and is_counted else (),
    )
