"""Figures as characters: the memory bar, and curves as sparklines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from firesteel.gateway.state import MemoryStatus, ModelStatus
from firesteel.values import Value


class Glyphs(Value):
    """Of a terminal that has them, or ASCII."""

    fills: str = "█▓▒"
    """By model, in turn: a neighbour never has the same, so that colour is not needed to tell them apart."""
    other: str = "▚"
    free: str = "·"
    limit: str = "│"
    levels: str = "▁▂▃▄▅▆▇█"
    cursor: str = "▸"


UNICODE = Glyphs()
ASCII = Glyphs("#%=", "~", ".", "|", "_.-=+*%#", ">")
COLOURS = ("cyan", "green", "magenta", "yellow", "blue")


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs = UNICODE) -> str:
    """The last values, the highest of each group where there are more than fit; a space: not known."""
    if not values or width <= 0:
        return ""
    groups = _groups(values, width)
    top = max((value for value in groups if value is not None), default=0.0)
    return "".join(_level(value, top, glyphs) for value in groups).rjust(width)


def _groups(values: Sequence[float | None], width: int) -> list[float | None]:
    """Groups of one size, counted from the end: the newest value is always the last character."""
    size = -(-len(values) // width)
    ends = range(len(values), 0, -size)
    return [
        max((value for value in values[max(0, end - size) : end] if value is not None), default=None)
        for end in reversed(ends)
    ]


def _level(value: float | None, top: float, glyphs: Glyphs) -> str:
    if value is None:
        return " "
    if top <= 0 or value <= 0:
        return glyphs.levels[0]
    highest = len(glyphs.levels) - 1
    return glyphs.levels[max(1, min(highest, round(value / top * highest)))]


class BarPart(Value):
    name: str
    bytes: int
    fill: str
    style: str


def memory_parts(
    memory: MemoryStatus, models: Sequence[ModelStatus], glyphs: Glyphs = UNICODE
) -> list[BarPart]:
    """What holds the machine's memory: its models, everything else, and what is free."""
    held = [model for model in models if model.is_held and model.bytes]
    parts = [
        BarPart(
            model.name,
            model.bytes,
            glyphs.fills[index % len(glyphs.fills)],
            COLOURS[index % len(COLOURS)] if model.phase == "ready" else "dim",
        )
        for index, model in enumerate(held)
    ]
    if memory.total_bytes is None or memory.available_bytes is None:
        return parts
    used = memory.total_bytes - memory.available_bytes
    other = max(0, used - sum(part.bytes for part in parts))
    free = max(0, memory.total_bytes - other - sum(part.bytes for part in parts))
    return [
        *parts,
        BarPart("other", other, glyphs.other, "bright_black"),
        BarPart("free", free, glyphs.free, "bright_black"),
    ]


def memory_bar(
    memory: MemoryStatus, models: Sequence[ModelStatus], width: int, glyphs: Glyphs = UNICODE
) -> Text:
    """One bar; a line stands where the guard stops an engine."""
    parts = memory_parts(memory, models, glyphs)
    total = memory.total_bytes or sum(part.bytes for part in parts)
    bar = Text()
    if total <= 0 or width <= 0:
        return bar
    done = 0
    for part in parts:
        done += part.bytes
        cells = min(width, round(done / total * width)) - len(bar)
        bar.append(part.fill * max(0, cells), part.style)
    bar.append(glyphs.free * max(0, width - len(bar)), "bright_black")
    if memory.floor_bytes:
        at = max(0, min(width - 1, width - 1 - round(memory.floor_bytes / total * width)))
        bar = bar[:at] + Text(glyphs.limit, "bold red") + bar[at + 1 :]
    return bar
