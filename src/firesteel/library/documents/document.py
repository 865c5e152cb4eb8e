"""The base of the documents that `--json` prints, and the host as they show it.

A value that is printed as it is appears as itself: pydantic serializes dataclasses. Only commands that were
given `--json` import these modules.

The shapes are a promise to scripts: fields are added, never renamed, under one number of `document`. Bytes
are ints, rates end in `_tokens_per_s`, times in `_s` or `_ms`, and a band is {low, expected, high}.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, field_validator

from firesteel.facts.host.host import BandwidthKind, Gpu


class Document(BaseModel):
    """Can be made from any object that has attributes of the same names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        from_attributes=True,
        defer_build=True,  # a command prints one document, and its module declares several
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        """What it does not find in `others` are attributes of `values`; of the last that has the name."""
        names = cls.model_fields.keys() - others.keys()
        found = {name: getattr(value, name) for value in values for name in names if hasattr(value, name)}
        return cls.model_validate(found | others)


class HostJson(Document):
    name: str
    title: str
    hardware: str | None
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    room_bytes: int
    bandwidth_bytes_per_s: float | None
    bandwidth_kind: BandwidthKind
    gpus: tuple[str, ...]

    @field_validator("gpus", mode="before")
    @classmethod
    def _names(cls, gpus: tuple[Gpu | str, ...]) -> tuple[str, ...]:
        return tuple(gpu if isinstance(gpu, str) else gpu.name for gpu in gpus)
