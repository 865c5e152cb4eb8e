"""`fallback:` of a model: who serves its requests when it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator

from firesteel.service_file.scalars import FileSchema


class FallbackEntry(FileSchema):
    """Models or aliases, by reason."""

    down: str | None = None
    """It does not answer, or cannot be loaded."""
    full: str | None = None
    """Too many requests wait, or there is no memory for it now."""
    too_long: str | None = None
    """The prompt is longer than its context."""


def _fallback(value: object) -> object:
    """`small` is short for `{down: small, full: small, too_long: small}`."""
    if isinstance(value, str):
        return dict.fromkeys(FallbackEntry.model_fields, value)
    if isinstance(value, dict) and value:
        return value
    raise ValueError("names a model; write it like `fallback: small` or `fallback: {too_long: big}`")


Fallback = Annotated[FallbackEntry, BeforeValidator(_fallback)]


def fallback_faults(
    name: str, entry: FallbackEntry | None, models: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """`models`: by name and alias."""
    for reason, other in entry.model_dump(exclude_none=True).items() if entry else ():
        here = ("models", name, "fallback", reason)
        if other not in models:
            yield here, f"`{name}`: `fallback`: `{other[:80]}` is not in `models`"
        elif models[other] == name:
            yield here, f"`{name}`: `fallback`: `{other}` is this model itself"
