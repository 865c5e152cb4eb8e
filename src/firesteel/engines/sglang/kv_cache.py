"""SGLang's pool: a fraction of the GPU, less what is loaded, divided by the bytes of one token.

`--mem-fraction-static` counts weights and pool together, so the pool is what is free after loading less the
part of what was free before that is to stay free. A model with windows has two pools, of which the windows'
has a fixed share of the other's tokens (`--swa-full-tokens-ratio`). A recurrent model first gives a share of
the rest to states, several for each running request while prefixes are cached.
Equal to what SGLang's own functions answer in 0.5.12 and 0.5.23 (`scripts/record-sglang-kv`; seen
2026-11-15), which differ: states got a slot that pads the pool, sparse MLA in FP8 got its scales counted,
layers that take over another's picks lost their indexer, and models with towers keep 100 MiB free. A release
between the two is sized by whichever takes more. Figures for one GPU. Not read: DeepSeek-V4's pools, what a
drafter adds, and pools sized after graph capture (`SGLANG_ENABLE_POST_CAPTURE_KV_SIZING`, off by default).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from firesteel.engines.flags import positive_int
from firesteel.engines.kv_dtypes import SGLANG_DTYPES, STATE_DTYPES, bytes_per_value, text_flag
from firesteel.engines.vllm.kv_settings import parse_release
from firesteel.errors import UsageError
from firesteel.facts import Architecture
from firesteel.facts.model.architecture import (
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

_WINDOW_SHARE = 0.8
_STATE_SHARE = 0.9
"""Memory of states for each byte of KV pool (`--mamba-full-memory-ratio`)."""
_STATES_PER_REQUEST = 3
"""While prefixes are cached; 1 without."""
_OLD, _NEW = (0, 5, 12), (0, 5, 23)
"""The releases that were asked."""
_TOWERS = 100 / 1024
"""GiB kept for a cache of images (`SGLANG_VLM_CACHE_SIZE_MB`)."""
_TWO_POOLS = frozenset({
    "gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "step3p5", "step3p7", "gemma4", "gemma4_text",
    "gemma4_unified", "gemma4_unified_text",
})  # fmt: skip
"""Families whose windows have a pool of their own; others keep every token in every layer."""


@dataclass(frozen=True, slots=True)
class SglangPool:
    cell_bytes: float
    """One token, in all layers; layers that slide count by their share."""
    page: int
    state_bytes: int
    """One recurrent state, in all layers."""
    states_per_request: int
    state_share: float
    spare_states: int = 1
    """Slots that pad the pool."""
    keeps_for_towers: bool = True

    def bytes_for(self, tokens: int) -> int:
        """The pool that holds so many tokens."""
        # SGLang divides by a float, which may fall short of the last token where a share is no whole number
        spare = 0 if self.cell_bytes == int(self.cell_bytes) else 1
        return ceil(ceil(tokens / self.page) * self.page * self.cell_bytes) + spare

    def state_bytes_for(self, requests: int) -> int:
        """States to run so many at once, and what pads the pool."""
        slots = self.states_per_request * requests + self.spare_states
        return slots * self.state_bytes if self.state_bytes else 0

    def rest_bytes(self, before: int, after: int, fraction: float, has_towers: bool = False) -> int:
        """What is left for states and tokens, of what is free before and after loading the weights."""
        kept = _TOWERS if has_towers and self.keeps_for_towers else 0.0
        return int((after / GIB - before / GIB * (1 - fraction) - kept) * GIB)  # in SGLang's own order

    def states(self, rest_bytes: int) -> int:
        """Slots for states, `max_mamba_cache_size`; 0 where there are none or no room for one."""
        if not self.state_bytes:
            return 0
        share = rest_bytes / GIB * self.state_share / (1 + self.state_share) * GIB
        return max(0, int((share - self.spare_states * self.state_bytes) // self.state_bytes))

    def tokens(self, rest_bytes: int) -> int:
        """`max_total_num_tokens`, 0 where SGLang refuses to start."""
        left = rest_bytes
        if self.state_bytes:
            slots = self.states(rest_bytes)
            if not slots:
                return 0
            left -= (slots + self.spare_states) * self.state_bytes
        return int(max(left, 0) // self.cell_bytes) // self.page * self.page if self.cell_bytes else 0


def sglang_pool(
    flags: Mapping[str, FlagValue], shape: Architecture, version: str | None = None
) -> SglangPool:
    dtype = text_flag(flags, "kv-cache-dtype", "auto")
    each = bytes_per_value(SGLANG_DTYPES, dtype, "kv-cache-dtype")
    release = parse_release(version)
    old = release is not None and release <= _OLD
    shape = shape if release is None or release >= _NEW else _all_indexed(shape)
    two = shape.model_type in _TWO_POOLS and flags.get("disable-hybrid-swa-memory") is not True
    share = _ratio(flags, "swa-full-tokens-ratio", _WINDOW_SHARE)
    full = sum(_token(layer, each, old) for layer in shape.layers if not _slides(layer))
    windows = sum(_token(layer, each, old) for layer in shape.layers if _slides(layer))
    # without a pool beside it, the windows' is the only one and has every token
    cell = full + windows * share if two and full else full + windows
    return SglangPool(
        cell_bytes=cell,
        page=positive_int(flags.get("page-size")) or 1,
        state_bytes=sum(_state(layer, shape) for layer in shape.layers),
        states_per_request=1 if flags.get("disable-radix-cache") is True else _STATES_PER_REQUEST,
        state_share=_ratio(flags, "mamba-full-memory-ratio", _STATE_SHARE),
        spare_states=0 if old else 1,
        keeps_for_towers=not old,
    )


def _all_indexed(shape: Architecture) -> Architecture:
    """Before 0.5.23 every layer of a sparse model has an index, also those that take over another's picks."""
    indexer = next((each.indexer for each in shape.layers if isinstance(each, LatentAttention)), None)
    layers = (
        replace(layer, indexer=layer.indexer or indexer)
        if isinstance(layer, LatentAttention) and layer.attends
        else layer
        for layer in shape.layers
    )
    return replace(shape, layers=tuple(layers))


def _slides(layer: Layer) -> bool:
    return isinstance(layer, SlidingAttention | ChunkedAttention)


def _token(layer: Layer, each: int, old: bool) -> int:
    match layer:
        case FullAttention() | SlidingAttention() | ChunkedAttention():
            return layer.kv_heads * (layer.key_dim + layer.value_dim) * each
        case LatentAttention(attends=attends):
            scaled = attends and each == 1 and not old
            own = _sparse_latent(layer) if scaled else layer.latent_dim * each
            return own + (layer.indexer.head_dim + layer.indexer.head_dim // 128 * 4 if layer.indexer else 0)
        case SparseAttention() | CompressedAttention():
            raise UsageError(
                f"how SGLang keeps {type(layer).__name__} layers is not known here", next="firesteel models"
            )
        case _:
            return 0


def _sparse_latent(layer: LatentAttention) -> int:
    """FP8 values, a float32 scale for every 128 of them, and the rope in BF16."""
    return layer.kv_lora_rank + layer.kv_lora_rank // 128 * 4 + layer.qk_rope_head_dim * 2


def _state(layer: Layer, shape: Architecture) -> int:
    """States are float32 unless the config says otherwise, convolutions BF16."""
    if not isinstance(layer, LinearAttention | Mamba2):
        return 0
    own = STATE_DTYPES.get(shape.state_dtype or "", 4)
    return layer.state_elements * own + layer.conv_channels * (layer.conv_kernel - 1) * 2


def _ratio(flags: Mapping[str, FlagValue], flag: str, default: float) -> float:
    value = flags.get(flag)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", value) and float(value) > 0:
        return float(value)
    raise UsageError(f"`--{flag}` is not a number above 0", next=f"--{flag} {default}")
