"""What the speculative config says beyond its single keys.

vLLM 0.24.0 can draft fewer tokens the more users there are: a list of `[first, last, tokens]`, batch sizes
inclusive. It must begin at 1 and its ranges may not overlap, or the start fails
(`v1/spec_decode/dynamic/utils.py`). DFlash and DSpark draft a block at once, which needs attention that is
not causal; FlashInfer got that wrong on Blackwell until 0.26.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from firesteel.engines.schema.releases import known_versions
from firesteel.rules.context import Context, Match
from firesteel.rules.kernels import age, knows

_BLOCK_DRAFTERS = ("dflash", "dspark")
_METHOD = "SpeculativeConfig.method"
_WORD = re.compile(r"[a-z0-9_]+\Z")
_SCHEDULE = "num_speculative_tokens_per_batch_size"


def _config(scene: Context) -> dict[str, object]:
    config = scene.flags.get("speculative-config")
    return config if isinstance(config, dict) else {}


def method_is_unknown(scene: Context) -> list[Match]:
    """A method that this very release has not; vLLM's list of them is closed."""
    method, version = _config(scene).get("method"), scene.launch.version
    if version not in known_versions("vllm") or not isinstance(method, str) or not _WORD.match(method):
        return []
    if knows("vllm", version, _METHOD, method):
        return []
    saw = f'"method": "{method}" in --speculative-config'
    return [Match("flag:speculative-config", saw, method, age("vllm", _METHOD, method))]


def drafts_through_flashinfer(scene: Context) -> list[Match]:
    """A block drafter whose attention runs on FlashInfer: by its own key, or else as the model's does."""
    config = _config(scene)
    own, model = config.get("attention_backend"), scene.flags.get("attention-backend")
    chosen = own if isinstance(own, str) else model
    if config.get("method") not in _BLOCK_DRAFTERS or str(chosen).upper() != "FLASHINFER":
        return []
    if chosen is own:
        saw = '"attention_backend" in --speculative-config'
        return [Match("flag:speculative-config", saw, saw, str(config["method"]))]
    saw = f"--attention-backend {model}"
    return [Match("flag:attention-backend", saw, saw, str(config["method"]))]


def schedule_is_malformed(scene: Context) -> list[Match]:
    """Draft tokens by batch size that the release refuses."""
    given = _config(scene).get(_SCHEDULE)
    why = _why_malformed(given) if given is not None else None
    return [Match("flag:speculative-config", f'"{_SCHEDULE}"', _SCHEDULE, why)] if why else []


def _why_malformed(given: object) -> str | None:
    """What is wrong; None when all is well or cannot be told, as with what a shell has yet to fill in."""
    if not isinstance(given, list):
        return None if isinstance(given, str) else "it is no list"
    if not given:
        return "it is empty"
    ranges: list[tuple[int, int]] = []
    for entry in given:
        if not isinstance(entry, list) or len(entry) != 3:
            return "an entry is not [first, last, tokens]"
        first, last, tokens = entry
        if not (_is_whole(first) and _is_whole(last) and _is_whole(tokens)):
            return None
        if first <= 0 or first > last or tokens < 0:
            return f"[{first}, {last}, {tokens}] is no range"
        ranges.append((first, last))
    return _why_not_a_row(sorted(ranges))


def _why_not_a_row(ranges: list[tuple[int, int]]) -> str | None:
    if ranges[0][0] != 1:
        return "the first range must begin at 1"
    overlap = any(second[0] <= first[1] for first, second in pairwise(ranges))
    return "two ranges overlap" if overlap else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "method-is-unknown": method_is_unknown,
    "drafts-through-flashinfer": drafts_through_flashinfer,
    "schedule-is-malformed": schedule_is_malformed,
}
