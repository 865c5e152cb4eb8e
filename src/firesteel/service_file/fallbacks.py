"""`fallback:` of a model: who serves its requests when it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from firesteel.values import Expand, FileValue


class FallbackEntry(FileValue, kw_only=True):
    """Models or aliases, by reason."""

    down: str | None = None
    """It does not answer, or cannot be loaded."""
    full: str | None = None
    """Too many requests wait, or there is no memory for it now."""
    too_long: str | None = None
    """The prompt is longer than its context."""

    def by_reason(self) -> dict[str, str]:
        """Only the reasons that have one."""
        others = ((reason, getattr(self, reason)) for reason in self.__struct_fields__)
        return {reason: other for reason, other in others if other is not None}


def _fallback(value: object) -> object:
    """`small` is short for `{down: small, full: small, too_long: small}`."""
    if isinstance(value, str):
        return dict.fromkeys(FallbackEntry.__struct_fields__, value)
    if isinstance(value, dict) and value:
        return value
    raise ValueError("names a model; write it like `fallback: small` or `fallback: {too_long: big}`")


Fallback = Annotated[FallbackEntry, Expand(_fallback)]


def fallback_faults(
    name: str, entry: FallbackEntry | None, models: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """`models`: by name and alias."""
    for reason, other in entry.by_reason().items() if entry else ():
        here = ("models", name, "fallback", reason)
        if other not in models:
            yield here, f"`{name}`: `fallback`: `{other[:80]}` is not in `models`"
        elif models[other] == name:
            yield here, f"`{name}`: `fallback`: `{other}` is this model itself"
