"""The last rung: what bandwidth allows, and a share of it that somebody has seen on such a machine."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from firesteel import yaml_schema
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName


class ShareSchema(yaml_schema.FileSchema):
    engine: EngineName
    low: float
    expected: float
    high: float
    why: str
    sources: Sources


class SharesSchema(yaml_schema.FileSchema):
    shares: tuple[ShareSchema, ...]


def share(engine: EngineName) -> ShareSchema:
    return next(row for row in _shares() if row.engine == engine)


@cache
def _shares() -> tuple[ShareSchema, ...]:
    name = "shares.yaml"
    text = (files("firesteel") / "data" / "speed" / name).read_text("utf-8")
    return yaml_schema.load(name, text, SharesSchema).shares
