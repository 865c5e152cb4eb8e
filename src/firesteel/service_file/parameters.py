"""`parameters:` of a model, and `aliases:` with parameters of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta

from firesteel.service_file.scalars import shaped
from firesteel.units import parse_count
from firesteel.values import Expand, FileValue, as_json

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
_MAX_VALUE_BYTES = 4096
_MAX_NAMES = 64
MAX_ALIASES = 32
_OURS = frozenset(
    ("model", "messages", "prompt", "input", "stream", "stream_options", "timings_per_token", "tools")
)
"""What a request is about, and what the gateway itself reads and writes."""


def _count(value: object) -> object:
    """`16k`"""
    return parse_count(value) if isinstance(value, str) else value


Count = Annotated[int, Meta(gt=0, le=100_000_000), Expand(_count)]
Settings = Annotated[
    dict[str, Annotated[Any, Expand(as_json)]],
    Meta(max_length=_MAX_NAMES),
    shaped(dict, "is a map", "defaults: {temperature: 0.6}"),
]


class LimitEntry(FileValue, kw_only=True):
    max_tokens: Count | None = None
    """Of an answer. A request that asks for more, or does not say, gets this."""
    context: Count | None = None
    """Of a prompt, estimated from its length: 4 bytes are a token. A longer one is refused."""


class ParameterEntry(FileValue, kw_only=True):
    """What is added to requests, changed in them and taken out of them."""

    defaults: Settings = {}
    """Where the client gives none; `null` takes away a default of the recipe."""
    fixed: Settings = {}
    """Whatever the client gives."""
    strip: Annotated[
        tuple[str, ...], Meta(max_length=_MAX_NAMES), shaped(list, "is a list", "strip: [user, logit_bias]")
    ] = ()
    """Taken out: fields that an engine rejects, or that clients should not use."""
    limits: Annotated[LimitEntry, shaped(dict, "has keys of its own", "limits: {max_tokens: 4096}")] = (
        LimitEntry()
    )


def _aliases(value: object) -> object:
    """`[a, b]` is short for `{a: {}, b: {}}`."""
    if isinstance(value, list):
        if not all(isinstance(alias, str) for alias in value):
            raise ValueError('is a list of names; write it like `aliases: ["gpt-oss:20b"]`')
        if len(set(value)) < len(value):
            raise ValueError("has a name twice")
        return {alias: {} for alias in value}
    if isinstance(value, dict):
        return {alias: {} if each is None else each for alias, each in value.items()}
    raise ValueError('is a list; write it like `aliases: ["gpt-oss:20b"]`')


Aliases = Annotated[
    dict[str, Annotated[ParameterEntry, shaped(dict, "has parameters", "aliases: {fast: {defaults: {}}}")]],
    Meta(max_length=MAX_ALIASES),
    Expand(_aliases),
]

Place = tuple[str | int, ...]


def parameter_faults(where: Place, name: str, entry: ParameterEntry) -> Iterator[tuple[Place, str]]:
    for group, settings in (("defaults", entry.defaults), ("fixed", entry.fixed)):
        yield from _settings_faults((*where, group), f"`{name}`: `{group}`", settings)
    for at, field in enumerate(entry.strip):
        if wrong := _wrong_name(field):
            yield (*where, "strip", at), f"`{name}`: `strip`: {wrong}"
        elif field in entry.fixed or field in entry.defaults:
            yield (*where, "strip", at), f"`{name}`: `{field}` is stripped and set; `fixed` alone sets it"


def _settings_faults(where: Place, what: str, settings: Mapping[str, object]) -> Iterator[tuple[Place, str]]:
    for field, value in settings.items():
        if wrong := _wrong_name(field):
            yield (*where, field), f"{what}: {wrong}"
            continue
        text = _json(value)
        if text is None:
            yield (*where, field), f"{what}: the value of `{field}` is nothing that JSON has"
            continue
        if len(text) > _MAX_VALUE_BYTES:
            yield (*where, field), f"{what}: the value of `{field}` is longer than {_MAX_VALUE_BYTES} bytes"


def _json(value: object) -> str | None:
    """None: a date, a number that is none, or a map whose keys are no text."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if json.loads(text) == value else None


def _wrong_name(field: object) -> str | None:
    if not isinstance(field, str) or not _NAME.match(field):
        return f"`{str(field)[:60]}` is no field of a request; write it like `temperature`"
    return f"`{field}` is the client's and the gateway's own" if field in _OURS else None
