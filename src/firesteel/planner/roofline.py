"""The last rung: what bandwidth allows, and a share of it that somebody has seen on such a machine."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from firesteel import sheets
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName


class ShareSheet(sheets.Sheet):
    engine: EngineName
    low: float
    expected: float
    high: float
    why: str
    sources: Sources


class SharesSheet(sheets.Sheet):
    shares: tuple[ShareSheet, ...]


def share(engine: EngineName) -> ShareSheet:
    return next(row for row in _shares() if row.engine == engine)


@cache
def _shares() -> tuple[ShareSheet, ...]:
    name = "shares.yaml"
    text = (files("firesteel") / "data" / "speed" / name).read_text("utf-8")
    return sheets.load(name, text, SharesSheet).shares
