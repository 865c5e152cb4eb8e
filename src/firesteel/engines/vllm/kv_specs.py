"""One `KvSpec` for the cache of each layer in vLLM: tokens per block, bytes per page, blocks per request.

A block is an entry of a block table; a page is the part of one layer in it. vLLM's own names:
`FullAttentionSpec`, `SlidingWindowSpec`, `ChunkedLocalAttentionSpec`, `MLAAttentionSpec`, `MambaSpec`, all in
`v1/kv_cache_interface.py`; the block size comes from `update_block_size_for_backend` in
`platforms/interface.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import ceil, lcm
from typing import Literal

from firesteel.engines.vllm.kv_settings import SLIDING_DRAFTER_FAMILIES, KvSettings, is_hybrid
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
)
from firesteel.values import Value

Kind = Literal["full", "mla", "sliding", "sliding_mla", "chunked", "mamba"]

_BLOCK = 16
_INDEX_BLOCK = 64
"""Tokens per block of DeepSeek's indexer, which takes no other size."""
_SPARSE_BLOCK = 128
"""The same for MiniMax-M3's sparse attention and its indexer."""
_V4_BLOCK = 256
_V4_WINDOW_BLOCK = 64
_V4_PAGE = 576
"""Pages of DeepSeek-V4 are multiples of this many bytes."""
_V4_VECTOR = 584
"""448 FP8 values, 64 BF16 values of the rope, 8 bytes of scales."""
_DS_MLA = 656
"""`fp8_ds_mla`: 512 FP8 values, four float32 scales, 64 BF16 values of the rope."""
_MAMBA_CHUNKS = {"nemotron_h": 128, "granitemoehybrid": 256}
"""Tokens that the Mamba-2 kernel processes at once, as in published configs (`chunk_size`)."""


class KvSpec(Value):
    """The cache of one layer. Layers with equal specs are of one kind."""

    kind: Kind
    block_size: int
    """Tokens per block."""
    page_bytes: int
    """Bytes per block in this layer, padding included."""
    window: int = 0
    """The window or the chunk."""
    variant: tuple[int, ...] = ()
    """Whatever else makes two layers different kinds."""

    def blocks(self, settings: KvSettings, length: int) -> int:
        """Blocks that one request of `length` tokens may hold."""
        match self.kind:
            case "full" | "mla":
                return ceil(length / self.block_size)
            case "chunked":
                return ceil(min(self.window + settings.in_flight_tokens, length) / self.block_size)
            case "sliding" | "sliding_mla":
                kept = self.window - 1 + settings.retained_tokens + settings.in_flight_tokens
                return ceil(min(kept, length) / self.block_size) + 1
            case "mamba":
                return self._state_blocks(settings, length)

    def _state_blocks(self, settings: KvSettings, length: int) -> int:
        drafted, release = settings.draft_tokens, settings.release
        if release < (0, 15):
            return ceil(length / self.block_size)
        if settings.mamba_mode == "all":
            return ceil(length / self.block_size) + (drafted if release >= (0, 22) else 0)
        if settings.mamba_mode == "align":
            checkpoint = release >= (0, 32) and self.variant[0] == _MAMBA2
            return 2 + drafted + checkpoint
        return 1 + drafted


_MAMBA2 = 2
"""Marks a Mamba-2 layer, which keeps a checkpoint that Gated DeltaNet does not."""


def layer_specs(settings: KvSettings, architecture: Architecture, context: int) -> tuple[KvSpec, ...]:
    layers = [*_vllm_layers(architecture), *drafter_layers(settings, architecture)]
    return tuple(_SpecBuilder(settings, architecture, context).specs(layers))


def _vllm_layers(architecture: Architecture) -> tuple[Layer, ...]:
    """In vLLM every other layer of gpt-oss slides, beginning with the first, whatever its config lists."""
    slides = next((layer for layer in architecture.layer_counts if isinstance(layer, SlidingAttention)), None)
    if architecture.model_type != "gpt_oss" or slides is None:
        return architecture.layers
    full = FullAttention(slides.kv_heads, slides.key_dim, slides.value_dim)
    return tuple(full if number % 2 else slides for number in range(len(architecture.layers)))


def drafter_layers(settings: KvSettings, architecture: Architecture) -> tuple[Layer, ...]:
    """The layers of the drafter inside the checkpoint.

    A config may only count them, or omit them, like that of Qwen3-Next. They are then assumed
    to be like the widest full-attention layer.
    """
    if not settings.has_drafter or architecture.drafters:
        return architecture.drafters if settings.has_drafter else ()
    if architecture.model_type in SLIDING_DRAFTER_FAMILIES:
        return next(
            ((layer,) for layer in architecture.layer_counts if isinstance(layer, SlidingAttention)), ()
        )
    full = [
        layer for layer in architecture.layer_counts if isinstance(layer, FullAttention | LatentAttention)
    ]
    widest = max(full, key=lambda layer: token_bytes(settings, layer), default=None)
    return (widest,) * max(1, architecture.drafter_layers) if widest else ()


def token_bytes(settings: KvSettings, layer: Layer) -> float:
    """Growth per token in this layer, once windows are full."""
    match layer:
        case FullAttention() | SparseAttention():
            own = _value_count(layer) * settings.value_bytes
            return own + (layer.indexer.head_dim * 2 if isinstance(layer, SparseAttention) else 0)
        case LatentAttention():
            return _latent_bytes(settings, layer) + (_index_bytes(layer.indexer) if layer.indexer else 0)
        case CompressedAttention(ratio=ratio) if ratio:
            return (_V4_VECTOR + (_index_bytes(layer.indexer) if layer.indexer else 0)) / ratio
        case _:
            return 0


def state_bytes(settings: KvSettings, layer: LinearAttention | Mamba2) -> int:
    conv = layer.conv_channels * (layer.conv_kernel - 1 + settings.draft_tokens)
    return conv * settings.conv_value_bytes + layer.state_elements * settings.state_value_bytes


class _SpecBuilder:
    def __init__(self, settings: KvSettings, architecture: Architecture, context: int) -> None:
        self._settings = settings
        self._context = context
        self._model_type = architecture.model_type
        self._block = settings.block_size or _default_block_size(architecture)
        self._page: int | None = None
        if is_hybrid(architecture):
            token = max(_attention_token_bytes(settings, layer) for layer in architecture.layer_counts)
            self._block = self._aligned_block_size(architecture, token)
            self._page = self._block * token

    def specs(self, layers: list[Layer]) -> Iterator[KvSpec]:
        specs = {layer: self._layer_specs(layer) for layer in set(layers)}
        return chain.from_iterable(specs[layer] for layer in layers)

    def _layer_specs(self, layer: Layer) -> list[KvSpec]:
        match layer:
            case NoCache() | SharedKv():
                return []
            case FullAttention():
                return [self._attention("full", layer)]
            case SlidingAttention():
                return [self._attention("sliding", layer, layer.window)]
            case ChunkedAttention():
                return [self._attention("chunked", layer, layer.chunk)]
            case LinearAttention() | Mamba2():
                return [self._mamba(layer)]
            case LatentAttention():
                return self._latent_specs(layer)
            case SparseAttention():
                index = KvSpec("mla", self._block, self._block * layer.indexer.head_dim * 2, variant=(1,))
                return [self._attention("full", layer), index]
            case CompressedAttention():
                return list(_v4_specs(layer))

    def _attention(self, kind: Kind, layer: GroupedAttention, window: int = 0) -> KvSpec:
        page_bytes = self._block * _value_count(layer) * self._settings.value_bytes
        return KvSpec(kind, self._block, page_bytes, window, (layer.kv_heads, layer.key_dim, layer.value_dim))

    def _mamba(self, layer: LinearAttention | Mamba2) -> KvSpec:
        state = state_bytes(self._settings, layer)
        kind = _MAMBA2 if isinstance(layer, Mamba2) else 1
        caches = self._settings.mamba_mode != "none"
        block_size = self._block if caches else self._context
        return KvSpec("mamba", block_size, max(state, self._page or 0), variant=(kind, state))

    def _latent_specs(self, layer: LatentAttention) -> list[KvSpec]:
        page_bytes = self._block * _latent_bytes(self._settings, layer)
        own = KvSpec("mla", self._block, page_bytes, variant=(layer.latent_dim,))
        if layer.indexer is None:
            return [own]
        index_bytes = self._block * _index_bytes(layer.indexer)
        return [KvSpec("mla", self._block, index_bytes, variant=(0,)), own]

    def _aligned_block_size(self, architecture: Architecture, token: int) -> int:
        """The fewest tokens, in whole kernel blocks, whose page is at least as large as a state."""
        settings, release = self._settings, self._settings.release
        recurrent = (
            layer for layer in architecture.layer_counts if isinstance(layer, LinearAttention | Mamba2)
        )
        state = max(state_bytes(settings, layer) for layer in recurrent)
        latent = any(isinstance(layer, LatentAttention) for layer in architecture.layer_counts)
        step = self._block if release >= (0, 20) else 64 if latent else _BLOCK
        if latent and release >= (0, 27):
            step = max(step, 128)
        if settings.mamba_mode == "all":
            step = lcm(_MAMBA_CHUNKS.get(self._model_type, 1), step)
        return max(self._block, step * ceil(state / (step * token)))


def _default_block_size(architecture: Architecture) -> int:
    """Tokens per block, before states are considered."""
    if any(isinstance(layer, SparseAttention) for layer in architecture.layer_counts):
        return _SPARSE_BLOCK
    if any(isinstance(layer, LatentAttention) and layer.attends for layer in architecture.layer_counts):
        return _INDEX_BLOCK
    return _BLOCK


def _attention_token_bytes(settings: KvSettings, layer: Layer) -> int:
    if isinstance(layer, LatentAttention):
        return _latent_bytes(settings, layer)
    if isinstance(layer, GroupedAttention):
        return _value_count(layer) * settings.value_bytes
    return 0


def _value_count(layer: GroupedAttention) -> int:
    return layer.kv_heads * (layer.key_dim + layer.value_dim)


def _latent_bytes(settings: KvSettings, layer: LatentAttention) -> int:
    """The sparse backend of a GB10 stores every dtype as `fp8_ds_mla`."""
    if layer.attends and (settings.release >= (0, 24) or settings.value_bytes == 1):
        return _DS_MLA
    return layer.latent_dim * settings.value_bytes


def _index_bytes(index: Indexer) -> int:
    """A key in FP8, and a float32 scale for every 128 of its values."""
    return index.head_dim + index.head_dim // 128 * 4


def _v4_specs(layer: CompressedAttention) -> Iterator[KvSpec]:
    """DeepSeek-V4: a window, the compressed past, its index, and the tokens that are not compressed yet."""
    yield _v4_spec("sliding_mla", _V4_WINDOW_BLOCK, _V4_WINDOW_BLOCK * _V4_VECTOR, layer.window, 0)
    if not layer.ratio:
        return
    if layer.indexer:
        states = _V4_BLOCK // layer.ratio
        yield _v4_spec("mla", _V4_BLOCK, states * _index_bytes(layer.indexer), 0, 1)
        yield _compressor_spec(layer, layer.indexer.head_dim)
    yield _v4_spec("mla", _V4_BLOCK, _V4_BLOCK // layer.ratio * _V4_VECTOR, 0, layer.ratio)
    yield _compressor_spec(layer, layer.head_dim)


def _compressor_spec(layer: CompressedAttention, dim: int) -> KvSpec:
    """Float32 values and scores of the tokens of one compressed vector; blocks of 4 overlap by one."""
    overlap = 2 if layer.ratio == 4 else 1
    block_size = 4 if layer.ratio == 4 else 8
    return _v4_spec("sliding_mla", block_size, block_size * 2 * overlap * dim * 4, overlap * layer.ratio, dim)


def _v4_spec(kind: Kind, block_size: int, used: int, window: int, variant: int) -> KvSpec:
    return KvSpec(kind, block_size, ceil(used / _V4_PAGE) * _V4_PAGE, window, (variant,))


def unsupported_model(what: str) -> UsageError:
    return UsageError(f"vLLM refuses this model: {what}", next="firesteel models")
