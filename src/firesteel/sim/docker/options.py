"""What all pretend docker commands share: their options, what they print, and how they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

from firesteel.sim.docker.template import UnknownAction, render

FAILED = 125
"""docker's own exit code when docker itself fails."""


class DockerError(Exception):
    """What docker says, and its exit code."""

    def __init__(self, says: str, code: int = 1) -> None:
        super().__init__(says)
        self.code = code


def read_options(
    words: list[str],
    *,
    values: Collection[str] = (),
    switches: Collection[str] = (),
    many: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """`--name value`, `--name=value`, `-n value`; what is not in the lists is refused by name."""
    found: dict[str, Any] = {}
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            names.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name in switches:
            found[name] = True
            continue
        if name not in values:
            raise DockerError(
                f"unknown flag: {word.partition('=')[0]} (the pretend docker does not know it)", FAILED
            )
        value = value if equals else next(rest, "")
        if name in many:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found, names


def show(options: dict[str, Any], about: dict[str, Any], plain: str) -> None:
    template = options.get("format") or (None if "filter" in options else options.get("f"))
    if not isinstance(template, str):
        out(plain)
        return
    try:
        out(json.dumps(about) if template == "json" else render(template, about))
    except UnknownAction as error:
        raise DockerError(f"template parsing error: the pretend docker does not know `{error}`", 64) from None


def out(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def err(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
