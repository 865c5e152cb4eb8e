"""Launches of SGLang, AWQ and INT4 in public repositories about the Spark: taken in, or why not.

others.json   every such launch that `firesteel check` reads there, by `scripts/compare-registries others`
others.yaml   by model: the recipes that it became, or the reason
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml

from firesteel.launch import Launch
from registries.differences import FOLDER

Kind = Literal["SGLang", "AWQ", "INT4"]
_NO_MODEL = re.compile(r"|\$.*|<.*|[A-Z_]+")
_INT4 = re.compile(r"auto-?round|int4|w4a16|gptq", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OtherLaunch:
    repository: str
    path: str
    kind: Kind
    model: str
    sparks: int


def kind_of(launch: Launch) -> Kind | None:
    if launch.engine == "sglang":
        return "SGLang"
    if launch.engine != "vllm":
        return None
    if "awq" in launch.model.lower() or str(launch.flags.get("quantization")).startswith("awq"):
        return "AWQ"
    return "INT4" if _INT4.search(launch.model) else None


def others() -> tuple[OtherLaunch, ...]:
    return tuple(OtherLaunch(**row) for row in json.loads((FOLDER / "others.json").read_text()))


@cache
def reasons() -> list[dict[str, Any]]:
    return list(yaml.safe_load((FOLDER / "others.yaml").read_text()))


def reason_of(launch: OtherLaunch) -> dict[str, Any] | None:
    """The first row that speaks of it; the last row is for launches that name no model."""
    for row in reasons():
        is_meant = (
            row["model"] in launch.model if row["model"] else re.fullmatch(r"|\$.*|<.*|[A-Z_]+", launch.model)
        )
        if is_meant and row.get("kind", launch.kind) == launch.kind:
            return row
    return None
