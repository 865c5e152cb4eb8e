"""What all commands of the simulated docker share: reading options, printing, and refusing."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

from firesteel.sim.docker.template import UnknownAction, render

FAILED = 125
"""docker's own exit code when docker itself fails."""
DAEMON = "docker: Error response from daemon: "
NO_GPU = f'{DAEMON}could not select device driver "" with capabilities: [[gpu]].'


class DockerError(Exception):
    """docker's error message and exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def read_options(
    arguments: list[str],
    *,
    values: Collection[str] = (),
    switches: Collection[str] = (),
    many: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Reads `--name value`, `--name=value`, `-n value`; options that are not listed are refused by name."""
    options: dict[str, Any] = {}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            positional.append(argument)
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        if name in switches:
            options[name] = True
            continue
        if name not in values:
            raise DockerError(
                f"unknown flag: {argument.partition('=')[0]} (the simulated docker does not know it)", FAILED
            )
        value = value if equals else next(rest, "")
        if name in many:
            options.setdefault(name, []).append(value)
        else:
            options[name] = value
    return options, positional


def show(options: dict[str, Any], document: dict[str, Any], plain: str) -> None:
    """Prints the document as `--format` asks, or the plain text."""
    template = options.get("format") or (None if "filter" in options else options.get("f"))
    if not isinstance(template, str):
        out(plain)
        return
    try:
        out(json.dumps(document) if template == "json" else render(template, document))
    except UnknownAction as error:
        raise DockerError(
            f"template parsing error: the simulated docker does not know `{error}`", 64
        ) from None


def out(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def err(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
