"""A command: the words, the environment it adds, and how people would paste it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shlex.join((*(f"{name}={value}" for name, value in self.env.items()), *self.argv))


def paste(lines: Iterable[Iterable[str]]) -> str:
    """Groups of words -> one shell command, a group a line, ready to paste."""
    return " \\\n  ".join(shlex.join(words) for words in lines)
