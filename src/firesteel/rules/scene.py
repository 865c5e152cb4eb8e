"""What a rule looks at: a launch, the machine it is meant for, and what is known of its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from firesteel import engines
from firesteel.catalog import Image
from firesteel.engines.symbols import Schema
from firesteel.launch import EngineName, FlagValue, Launch

NEWEST_KNOWN: dict[EngineName, str] = {"vllm": "0.32.0", "sglang": "0.5.23", "llamacpp": "11549"}
"""The newest releases that the rules were held against, November 2026. A moving tag counts as these."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One thing that a rule saw: its key among the places (`flag:NAME`), how it reads, and its parts."""

    key: str
    saw: str
    name: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    launch: Launch
    hardware: str | None
    image: Image | None
    flaws: frozenset[str] = frozenset()
    """What is broken in the text itself: see `reads.Reading`."""
    releases: Mapping[tuple[EngineName, str], Schema] = field(default_factory=dict)
    """Releases that the user's firesteel learned after it shipped."""

    @property
    def version(self) -> Version | None:
        """The version that rules are held against; None: not known."""
        text = self.launch.version
        if text is None and self.is_assumed:
            text = NEWEST_KNOWN[self.launch.engine]
        try:
            return Version(text) if text else None
        except InvalidVersion:
            return None

    @property
    def flags(self) -> Mapping[str, FlagValue]:
        """The launch's flags, with what their shortcuts stand for."""
        return engines.written_out(self.launch)

    @property
    def is_assumed(self) -> bool:
        """The image's tag moves: its version is taken to be the newest known."""
        return self.launch.version is None and self.image is not None and self.image.floating

    def number(self, flag: str) -> float | None:
        return as_number(self.flags.get(flag))


def as_number(value: object) -> float | None:
    """Text or a JSON number -> itself; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None


def as_text(value: FlagValue | object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
