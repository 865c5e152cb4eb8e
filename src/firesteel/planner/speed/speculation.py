"""What speculative decoding gains, by kind of text.

A drafter proposes some tokens and the model verifies them in one step. The gain is the number of accepted
tokens per step over the cost of the longer step, and acceptance depends on the text: on one server prose
went at 50 tok/s and JSON at 202. So there is a range for each kind of text and no single number. If no
acceptance by text is published for a method, there is one band for any text, from no gain to the best
published one. A model that denoises blocks of tokens (`--diffusion-config`) is planned the same way: how many
tokens a step settles depends on the text, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.facts.evidence import Evidence, Sources
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.units import Band, BandSchema
from firesteel.values import FileValue, Value

TextKind = Literal["prose", "conversation", "code", "reasoning", "structured", "any"]
"""any: no gain by kind of text is published."""

ANY_TEXT: TextKind = "any"


class DraftedSpeed(Value):
    """Decode speed with the drafter of the launch, on one kind of text."""

    text: TextKind
    decode_tokens_per_s: Band
    explanation: str
    sources: tuple[str, ...]


class GainSchema(BandSchema, kw_only=True):
    method: str
    moe: bool | None = None
    by_text: bool = True
    """Whether runs by kind of text are published for the method."""
    why: str
    sources: Sources


class SpeculationSchema(FileValue, kw_only=True):
    gains: tuple[GainSchema, ...]
    texts: Mapping[TextKind, BandSchema]
    texts_source: Evidence


@cache
def _schema() -> SpeculationSchema:
    return shipped_data.load("speed/speculation.yaml", SpeculationSchema)


def draft_method(launch: Launch) -> str | None:
    """How the launch drafts: `mtp`, `dflash`, another name, or None when it does not."""
    flags = launch.flags
    if "diffusion-config" in flags:
        return "diffusion"
    config = flags.get("speculative-config")
    method = config.get("method") or "draft model" if isinstance(config, dict) else None
    method = method or flags.get("speculative-algorithm")
    if not method and {"model-draft", "hf-repo-draft", "spec-type"} & flags.keys():
        method = flags.get("spec-type") or "draft model"
    if not isinstance(method, str):
        return None
    method = method.lower()
    if "mtp" in method or method == "nextn":
        return "mtp"
    return "dflash" if "dflash" in method else method


def drafted_speeds(launch: Launch, shape: Architecture, plain: Band) -> tuple[DraftedSpeed, ...]:
    """Empty when the launch does not draft. `plain` is the speed of one user without drafting."""
    method = draft_method(launch)
    if method is None:
        return ()
    known = _schema()
    gain = next(
        row for row in known.gains if row.method in (method, "other") and row.moe in (None, shape.is_moe)
    )
    texts = known.texts if gain.by_text else {ANY_TEXT: Band.exactly(1.0)}
    urls = [source.url for source in gain.sources] + ([known.texts_source.url] if gain.by_text else [])
    return tuple(
        DraftedSpeed(
            text,
            Band(
                plain.low * gain.low * factor.low,
                plain.expected * gain.expected * factor.expected,
                plain.high * gain.high * factor.high,
            ),
            f"{method}: {gain.why}",
            tuple(dict.fromkeys(urls)),
        )
        for text, factor in texts.items()
    )
