"""A command line: its arguments, the environment that it adds, and its text for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import field

from firesteel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shlex.join((*(f"{name}={value}" for name, value in self.env.items()), *self.argv))


def paste(lines: Iterable[Iterable[str]]) -> str:
    """Groups of arguments -> one shell command with one group per line, ready to paste."""
    return " \\\n  ".join(shlex.join(arguments) for arguments in lines)
