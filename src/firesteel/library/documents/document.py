"""The base of the documents that `--json` prints, the host as they show it, and the one of a failure.

A document is a value with keys that scripts rely on; a value that is printed as it is appears
as itself in it. Only commands that were given `--json` import these modules.

The shapes are a promise to scripts: fields are added, never renamed, under one number of `document`. Bytes
are ints, rates end in `_tokens_per_s`, times in `_s` or `_ms`, and a band is {low, expected, high}.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Self, Union, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import field

from firesteel.facts.host.hardware import BandwidthKind
from firesteel.values import Value


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Document(Value, forbid_unknown_fields=True):
    """Can be made from any object that has attributes of the same names."""

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        """What it does not find in `others` are attributes of `values`; of the last that has the name."""
        found = {}
        for key in msgspec.structs.fields(cls):
            holders = [value for value in values if hasattr(value, key.name)]
            if key.name in others:
                found[key.encode_name] = _shown(key.type, others[key.name])
            elif holders:
                found[key.encode_name] = _shown(key.type, getattr(holders[-1], key.name))
        return msgspec.convert(found, cls, from_attributes=True)


def _shown(kind: Any, value: Any) -> Any:
    """A value where its document belongs, alone or in a list or a map -> the document."""
    arguments = get_args(kind)
    if isinstance(value, Iterator):
        value = tuple(value)
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, Document):
        return value
    if isinstance(kind, type) and issubclass(kind, Document):
        if isinstance(value, tuple):  # its parts, in the order of the keys
            value = dict(zip(kind.__struct_fields__, value, strict=True))
        return kind.of(**value) if isinstance(value, Mapping) else kind.of(value)
    if get_origin(kind) in (Union, types.UnionType):
        documents = [each for each in arguments if isinstance(each, type) and issubclass(each, Document)]
        return _shown(documents[0], value) if len(documents) == 1 else value
    if get_origin(kind) is tuple and isinstance(value, (tuple, list)):
        return tuple(_shown(arguments[0], item) for item in value) if ... in arguments else value
    if isinstance(value, Mapping) and len(arguments) == 2:
        return {key: _shown(arguments[1], item) for key, item in value.items()}
    return value


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

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        gpus = tuple(gpu.name for value in values for gpu in getattr(value, "gpus", ()))
        return super().of(*values, **{"gpus": gpus, **others})


class ErrorJson(Document, tag_field="document", tag="firesteel.error/1"):
    """Any command that failed, with its exit code"""

    kind: str
    message: str
    next: str
    exit_code: int
