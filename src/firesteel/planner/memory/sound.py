"""The cache of a model with cross-attention: for each request its text, and the vectors of its sound.

Whisper holds 1,500 vectors for 30 seconds. vLLM admits a request as if its sound took all tokens of a step,
and refuses to start with room for less than one such request: `CrossAttentionSpec` in
`v1/kv_cache_interface.py` of vLLM 0.32, seen 2026-11-16.
"""

from __future__ import annotations

from firesteel.engines.kv_cache import KvCache, reported_kv, size_kv_cache
from firesteel.engines.vllm.kv_cache import ReportedKv
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.values import replace

_STEP_TOKENS = 8192


def size_sound_cache(launch: Launch, shape: Architecture, sound: int, context: int, users: int) -> KvCache:
    """`sound`: the vectors of a request."""
    held = replace(size_kv_cache(launch, shape, context + sound, users), pool=None)
    if launch.engine != "vllm":
        return held
    admitted = size_kv_cache(launch, shape, context + _admitted(launch), 1)
    return replace(held, bytes=max(held.bytes, admitted.bytes))


def printed_sound_cache(
    launch: Launch, shape: Architecture, context: int, pool_bytes: int
) -> tuple[ReportedKv, ...]:
    """vLLM counts how many requests it would admit, and calls each as long as its text."""
    answers = reported_kv(launch, shape, context + _admitted(launch), pool_bytes)
    return tuple(
        replace(answer, tokens=int(answer.concurrency * context), context=context) for answer in answers
    )


def _admitted(launch: Launch) -> int:
    step = launch.flags.get("max-num-batched-tokens")
    return int(step) if isinstance(step, str) and step.isdigit() else _STEP_TOKENS
