"""What drafting gains, by kind of text.

A drafter guesses some tokens and the model verifies them in one step. The gain is the tokens accepted a
step over what the longer step costs, and how many are accepted hangs on the text: on one server prose
went at 50 tok/s and JSON at 202. So there is a range for each kind of text and no single number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from firesteel import yaml_schema
from firesteel.facts import Architecture
from firesteel.facts.evidence import Evidence, Sources
from firesteel.launch import Launch
from firesteel.planner.band import Band

Text = Literal["prose", "conversation", "code", "reasoning", "structured"]


@dataclass(frozen=True, slots=True)
class DraftedSpeed:
    """Decoding with the launch's own drafter, on one kind of text."""

    text: Text
    decode_tokens_per_s: Band
    why: str
    sources: tuple[str, ...]


class GainSchema(yaml_schema.FileSchema):
    method: str
    moe: bool | None = None
    low: float
    expected: float
    high: float
    why: str
    sources: Sources


class RangeSchema(yaml_schema.FileSchema):
    low: float
    expected: float
    high: float


class SpeculationSchema(yaml_schema.FileSchema):
    gains: tuple[GainSchema, ...]
    texts: dict[Text, RangeSchema]
    texts_source: Evidence


def method(launch: Launch) -> str | None:
    """How the launch drafts: `mtp`, `dflash`, another name, or None when it does not."""
    config = launch.flags.get("speculative-config")
    said = config.get("method") or "draft model" if isinstance(config, dict) else None
    said = said or launch.flags.get("speculative-algorithm")
    if not said and {"model-draft", "hf-repo-draft", "spec-type"} & launch.flags.keys():
        said = launch.flags.get("spec-type") or "draft model"
    if not isinstance(said, str):
        return None
    lower = said.lower()
    if "mtp" in lower or lower == "nextn":
        return "mtp"
    return "dflash" if "dflash" in lower else lower


def drafted(launch: Launch, shape: Architecture, plain: Band) -> tuple[DraftedSpeed, ...]:
    """Empty when the launch drafts nothing. `plain` is one user without drafting."""
    how = method(launch)
    if how is None:
        return ()
    sheet = _sheet()
    gain = next(
        each for each in sheet.gains if each.method in (how, "other") and each.moe in (None, shape.is_moe)
    )
    urls = tuple(dict.fromkeys((*(source.url for source in gain.sources), sheet.texts_source.url)))
    return tuple(
        DraftedSpeed(
            text,
            Band(
                plain.low * gain.low * of.low,
                plain.expected * gain.expected * of.expected,
                plain.high * gain.high * of.high,
            ),
            f"{how}: {gain.why}",
            urls,
        )
        for text, of in sheet.texts.items()
    )


@cache
def _sheet() -> SpeculationSchema:
    name = "speculation.yaml"
    text = (files("firesteel") / "data" / "speed" / name).read_text("utf-8")
    return yaml_schema.load(name, text, SpeculationSchema)
