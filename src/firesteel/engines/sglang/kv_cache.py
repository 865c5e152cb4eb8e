"""SGLang's pool: a fraction of the GPU, less what is loaded, divided by the bytes of one token.

`--mem-fraction-static` covers weights and pool together, so the pool is what is free after loading, less the
part of the memory free before loading that must stay free. A model with windows has two pools; that of the
windows has a fixed share of the tokens of the other (`--swa-full-tokens-ratio`). A recurrent model first
reserves a share for states, several for each running request while prefixes are cached. Equal to the results
of SGLang's own functions in 0.5.12 and 0.5.23 (`scripts/record-sglang-kv`; seen 2026-11-15). The two differ:
the newer has a slot of states that pads the pool, counts the scales of sparse MLA in FP8, has no indexer in
layers that reuse the picks of another, and keeps 100 MiB free for models with towers. A release between the
two is sized by whichever takes more. Figures for one GPU. Not covered: DeepSeek-V4's pools, the tokens of a
drafter's own layers, and pools sized after graph capture (`SGLANG_ENABLE_POST_CAPTURE_KV_SIZING`, off by
default).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from firesteel.engines.flags import positive_int
from firesteel.engines.kv_cache import SGLANG_DTYPES, STATE_DTYPES, bytes_per_value, text_flag
from firesteel.engines.vllm.kv_settings import parse_release, speculative_tokens
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    SlidingAttention,
    SparseAttention,
)
from firesteel.launch import FlagValue
from firesteel.units import GIB
from firesteel.values import Value, replace

_WINDOW_SHARE = 0.8
_STATE_SHARE = 0.9
"""Bytes of states for each byte of KV pool (`--mamba-full-memory-ratio`)."""
_STATES_PER_REQUEST = 3
"""While prefixes are cached; 1 without."""
_BUFFERED_STATES = 2
"""More where states are also tracked while decoding (`extra_buffer`), one less without overlap or with
`extra_buffer_lazy`; from 0.5.14 on `auto` chooses that for most models (`_calculate_mamba_ratio`)."""
_BUFFERED_RELEASE = (0, 5, 14)
_OLD_RELEASE, _NEW_RELEASE = (0, 5, 12), (0, 5, 23)
"""The releases whose functions were called."""
_TOWER_CACHE_GIB = 100 / 1024
"""GiB kept for a cache of images (`SGLANG_VLM_CACHE_SIZE_MB`)."""
_TWO_POOL_FAMILIES = frozenset({
    "gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "step3p5", "step3p7", "gemma4", "gemma4_text",
    "gemma4_unified", "gemma4_unified_text",
})  # fmt: skip
"""Families whose windows have their own pool; others keep every token in every layer."""


class SglangPool(Value):
    cell_bytes: float
    """One token, in all layers; sliding layers count by their share."""
    page_size: int
    state_bytes: int
    """One recurrent state, in all layers."""
    states_per_request: int
    state_share: float
    spare_states: int = 1
    """Slots that pad the pool."""
    requested_slots: int | None = None
    """`--max-mamba-cache-size`."""
    draft_tokens: int = 0
    """While a draft is verified, each of its tokens has a state besides."""
    keeps_for_towers: bool = True

    def bytes_for(self, tokens: int) -> int:
        """The pool that holds this many tokens."""
        # SGLang divides by a float, which may fall short of the last token if a share is not a whole number
        spare = 0 if self.cell_bytes == int(self.cell_bytes) else 1
        return ceil(ceil(tokens / self.page_size) * self.page_size * self.cell_bytes) + spare

    def state_slots(self, requests: int) -> int:
        """`max_mamba_cache_size` for this many concurrent requests; 0 where the model has no states."""
        return (self.requested_slots or self.states_per_request * requests) if self.state_bytes else 0

    def state_bytes_for(self, requests: int) -> int:
        """States for this many concurrent requests, their drafts, and the slot that pads each pool."""
        drafted = (requests + self.spare_states) * self.draft_tokens
        return (self.state_slots(requests) + self.spare_states + drafted) * self.state_bytes

    def rest_bytes(self, before: int, after: int, fraction: float, has_towers: bool = False) -> int:
        """What is left for states and tokens, from the memory free before and after loading the weights."""
        kept_gib = _TOWER_CACHE_GIB if has_towers and self.keeps_for_towers else 0.0
        return int(
            (after / GIB - before / GIB * (1 - fraction) - kept_gib) * GIB
        )  # rounded in SGLang's order

    def states(self, rest_bytes: int) -> int:
        """Slots for states, `max_mamba_cache_size`; 0 where the model has no states or none fits."""
        if not self.state_bytes:
            return 0
        window_share = rest_bytes / GIB * self.state_share / (1 + self.state_share) * GIB
        return max(0, int((window_share - self.spare_states * self.state_bytes) // self.state_bytes))

    def tokens(self, rest_bytes: int) -> int:
        """`max_total_num_tokens`, 0 where SGLang refuses to start."""
        left_bytes = rest_bytes
        if self.state_bytes:
            slots = self.states(rest_bytes)
            if not slots:
                return 0
            left_bytes -= (slots + self.spare_states) * self.state_bytes
        if not self.cell_bytes:
            return 0
        return int(max(left_bytes, 0) // self.cell_bytes) // self.page_size * self.page_size


def sglang_pool(
    flags: Mapping[str, FlagValue], architecture: Architecture, version: str | None = None
) -> SglangPool:
    """What SGLang's cache needs with these flags: the bytes of a token and of a recurrent state."""
    dtype = text_flag(flags, "kv-cache-dtype", "auto")
    value_bytes = bytes_per_value(SGLANG_DTYPES, dtype, "kv-cache-dtype")
    release = parse_release(version)
    is_old = release is not None and release <= _OLD_RELEASE
    if release is not None and release < _NEW_RELEASE:
        architecture = _index_every_layer(architecture)
    has_two_pools = (
        architecture.model_type in _TWO_POOL_FAMILIES and flags.get("disable-hybrid-swa-memory") is not True
    )
    window_share = _ratio(flags, "swa-full-tokens-ratio", _WINDOW_SHARE)
    full_bytes = window_bytes = 0
    drafted = speculative_tokens(flags)
    for layer in architecture.layers:
        token_bytes = _token_bytes(layer, value_bytes, is_old)
        if isinstance(layer, SlidingAttention | ChunkedAttention):
            window_bytes += token_bytes
        else:
            full_bytes += token_bytes
    # without full layers the pool of the windows is the only one, and holds every token
    cell_bytes = full_bytes + window_bytes * (window_share if has_two_pools and full_bytes else 1)
    return SglangPool(
        cell_bytes=cell_bytes,
        page_size=positive_int(flags.get("page-size")) or 1,
        state_bytes=sum(_state_bytes(flags, layer, architecture) for layer in architecture.layers),
        states_per_request=_states_per_request(flags, release),
        state_share=_ratio(flags, "mamba-full-memory-ratio", _STATE_SHARE),
        spare_states=0 if is_old else 1,
        keeps_for_towers=not is_old,
        requested_slots=positive_int(flags.get("max-mamba-cache-size")),
        draft_tokens=drafted + 1 if drafted else 0,
    )


def _states_per_request(flags: Mapping[str, FlagValue], release: tuple[int, ...] | None) -> int:
    if flags.get("disable-radix-cache") is True:
        return 1
    named = flags.get("mamba-radix-cache-strategy") or flags.get("mamba-scheduler-strategy") or "auto"
    if named == "auto":
        named = "no_buffer" if release is not None and release < _BUFFERED_RELEASE else "extra_buffer"
    if named == "no_buffer":
        return _STATES_PER_REQUEST
    is_single = named == "extra_buffer_lazy" or flags.get("disable-overlap-schedule") is True
    return _STATES_PER_REQUEST + (1 if is_single else _BUFFERED_STATES)


def _index_every_layer(architecture: Architecture) -> Architecture:
    """Before 0.5.23 every layer of a sparse model has an indexer, also layers that reuse the picks of
    another."""
    indexer = next(
        (layer.indexer for layer in architecture.layers if isinstance(layer, LatentAttention)), None
    )
    layers = (
        replace(layer, indexer=layer.indexer or indexer)
        if isinstance(layer, LatentAttention) and layer.attends
        else layer
        for layer in architecture.layers
    )
    return replace(architecture, layers=tuple(layers))


def _token_bytes(layer: Layer, value_bytes: int, is_old: bool) -> int:
    match layer:
        case FullAttention() | SlidingAttention() | ChunkedAttention():
            return layer.kv_heads * (layer.key_dim + layer.value_dim) * value_bytes
        case LatentAttention(attends=attends):
            scaled = attends and value_bytes == 1 and not is_old
            size = layer.latent_dim * value_bytes
            if scaled:  # FP8 values, a float32 scale for every 128 of them, and the rope part in BF16
                size = layer.kv_lora_rank + layer.kv_lora_rank // 128 * 4 + layer.qk_rope_head_dim * 2
            if layer.indexer:
                size += layer.indexer.head_dim + layer.indexer.head_dim // 128 * 4
            return size
        case SparseAttention() | CompressedAttention():
            raise UsageError(
                f"firesteel does not know how SGLang stores {type(layer).__name__} layers",
                next="firesteel models",
            )
        case _:
            return 0


def _state_bytes(flags: Mapping[str, FlagValue], layer: Layer, architecture: Architecture) -> int:
    """States are float32 unless the config or `--mamba-ssm-dtype` sets another type, convolutions BF16."""
    if not isinstance(layer, LinearAttention | Mamba2):
        return 0
    own_bytes = STATE_DTYPES.get(text_flag(flags, "mamba-ssm-dtype", architecture.state_dtype or ""), 4)
    return layer.state_elements * own_bytes + layer.conv_channels * (layer.conv_kernel - 1) * 2


def _ratio(flags: Mapping[str, FlagValue], flag: str, default: float) -> float:
    value = flags.get(flag)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", value) and float(value) > 0:
        return float(value)
    raise UsageError(f"`--{flag}` is not a number above 0", next=f"--{flag} {default}")
