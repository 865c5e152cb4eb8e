"""Values -> YAML with comments, byte for byte the same every time.

PyYAML writes no comments, and a reason belongs next to what it explains. Text that YAML could read as
anything else is put in double quotes, as in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from firesteel.launch import Launch
from firesteel.render.docker import container_arguments, container_of
from firesteel.render.launch_facts import LaunchFacts, comments, flag_comments
from firesteel.values import Value

_PLAIN = re.compile(r"(?:-{0,2}[A-Za-z_/]|~/|\./)[A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*\Z", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


class Explained(Value):
    """A value with the reason for it, which becomes a comment above."""

    value: object
    why: str


def explain(value: object, why: str | None) -> object:
    return Explained(value, why) if why else value


def argument_list(launch: Launch, facts: LaunchFacts, escape: Callable[[str], str]) -> list[object]:
    """The arguments after the image, with the reasons for the flags."""
    reasons = flag_comments(launch, facts)
    return [
        explain(escape(argument), reasons.get(argument) if index == 0 else None)
        for group in container_arguments(launch, container_of(launch))
        for index, argument in enumerate(group)
    ]


def document(value: Mapping[str, object], head: Iterable[str] = ()) -> str:
    return "\n".join([*comments(head), *_mapping(value, 0)]) + "\n"


def _mapping(value: Mapping[str, object], indent: int) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        inner, above = _bare(item)
        lines += comments(above, indent)
        lines += _entry(f"{' ' * indent}{scalar(key)}:", inner, indent)
    return lines


def _entry(start: str, value: object, indent: int) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [start, *_mapping(value, indent + 2)]
    if isinstance(value, list | tuple) and value:
        return [start, *sequence(value, indent + 2)]
    if isinstance(value, str) and _is_block(value):
        return [f"{start} |", *(f"{' ' * (indent + 2)}{line}" for line in value.splitlines())]
    return [f"{start} {scalar(value)}"]


def sequence(values: Sequence[object], indent: int) -> list[str]:
    lines: list[str] = []
    for value in values:
        inner, above = _bare(value)
        lines += comments(above, indent)
        lines += _item(inner, indent)
    return lines


def _item(value: object, indent: int) -> list[str]:
    """A mapping begins on the line of its dash; a comment on its first key comes above."""
    pad = " " * indent
    if not isinstance(value, Mapping) or not value:
        return [f"{pad}- {scalar(value)}"]
    lines = _mapping(value, indent + 2)
    first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
    return [*lines[:first], f"{pad}- {lines[first][indent + 2 :]}", *lines[first + 1 :]]


def _bare(item: object) -> tuple[object, list[str]]:
    return (item.value, [item.why]) if isinstance(item, Explained) else (item, [])


def _is_block(text: str) -> bool:
    """Several plain lines, none of which begins with a blank: YAML reads them back unchanged."""
    lines = text.splitlines()
    return (
        text.endswith("\n")
        and not text.endswith("\n\n")
        and len(lines) > 1
        and not lines[0].startswith(" ")
        and all(line and all(letter.isprintable() for letter in line) for line in lines)
    )


def scalar(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return value if _PLAIN.match(value) and value.lower() not in _WORDS else _quoted(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _quoted(text: str) -> str:
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in json.dumps(text, ensure_ascii=False)
    )
