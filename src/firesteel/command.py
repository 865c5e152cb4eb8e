"""A command line: its arguments, the environment that it adds, and its text for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from firesteel.values import Value


class Command(Value):
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}

    def __str__(self) -> str:
        return shlex.join((*(f"{name}={value}" for name, value in self.env.items()), *self.argv))
