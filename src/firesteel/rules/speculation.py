"""Checks of `--speculative-config` that need more than a single key.

Since 0.24.0 vLLM can draft fewer tokens for larger batches: a list of `[first, last, tokens]`, batch sizes
inclusive. It must begin at 1 and its ranges must not overlap, or the start fails
(`v1/spec_decode/dynamic/utils.py`). DFlash and DSpark draft a block at once, which needs non-causal
attention; FlashInfer computed that incorrectly on Blackwell until 0.26.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.rules.context import Context, Match
from firesteel.rules.kernels import availability

_BLOCK_DRAFTERS = ("dflash", "dspark")
_WORD = re.compile(r"[a-z0-9_]+\Z")
_SCHEDULE = "num_speculative_tokens_per_batch_size"


def _config(context: Context) -> dict[str, object]:
    config = context.flags.get("speculative-config")
    return config if isinstance(config, dict) else {}


def method_is_unknown(context: Context) -> list[Match]:
    """A method that this release does not have; vLLM's list is closed."""
    method, version = _config(context).get("method"), context.launch.version
    if version not in known_versions("vllm") or not isinstance(method, str) or not _WORD.match(method):
        return []
    known = find_schema("vllm", version)
    if known and method in known.configs["SpeculativeConfig"].keys["method"].values:
        return []
    shown = f'"method": "{method}" in --speculative-config'
    return [
        Match(
            "flag:speculative-config", shown, method, availability("vllm", "SpeculativeConfig.method", method)
        )
    ]


def drafts_through_flashinfer(context: Context) -> list[Match]:
    """A block drafter whose attention uses FlashInfer: by its own key, or else by that of the model."""
    config = _config(context)
    own, model = config.get("attention_backend"), context.flags.get("attention-backend")
    chosen = own if isinstance(own, str) else model
    if config.get("method") not in _BLOCK_DRAFTERS or str(chosen).upper() != "FLASHINFER":
        return []
    if chosen is own:
        shown = '"attention_backend" in --speculative-config'
        return [Match("flag:speculative-config", shown, shown, str(config["method"]))]
    shown = f"--attention-backend {model}"
    return [Match("flag:attention-backend", shown, shown, str(config["method"]))]


def schedule_is_malformed(context: Context) -> list[Match]:
    """A schedule of draft tokens by batch size that vLLM refuses."""
    given = _config(context).get(_SCHEDULE)
    problem = _schedule_problem(given) if given is not None else None
    return [Match("flag:speculative-config", f'"{_SCHEDULE}"', _SCHEDULE, problem)] if problem else []


def _schedule_problem(given: object) -> str | None:
    """None when it is valid, or cannot be decided because of a placeholder."""
    if not isinstance(given, list):
        return None if isinstance(given, str) else "it is not a list"
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
            return f"[{first}, {last}, {tokens}] is not a range"
        ranges.append((first, last))
    ranges.sort()
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
