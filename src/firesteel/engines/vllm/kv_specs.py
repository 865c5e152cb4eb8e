"""One `Spec` for each layer's cache in vLLM: tokens a block, bytes a page, and blocks that a request takes.

A block is a row of a block table; a page is one layer's part of it. vLLM's own names: `FullAttentionSpec`,
`SlidingWindowSpec`, `ChunkedLocalAttentionSpec`, `MLAAttentionSpec`, `MambaSpec`, all in
`v1/kv_cache_interface.py`; the block size comes from `update_block_size_for_backend` in
`platforms/interface.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import ceil, lcm
from typing import Literal

from firesteel.engines.vllm.kv_settings import DRAFTS_IN_A_WINDOW, KvSettings, is_hybrid
from firesteel.errors import UsageError
from firesteel.facts import Architecture
from firesteel.facts.model.architecture import (
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
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

Kind = Literal["full", "mla", "sliding", "sliding_mla", "chunked", "mamba"]

_BLOCK = 16
_INDEX_BLOCK = 64
"""Tokens a block of DeepSeek's indexer, which takes no other."""
_SPARSE_BLOCK = 128
"""The same of MiniMax-M3's sparse attention and its indexer."""
_V4_BLOCK = 256
_V4_WINDOW_BLOCK = 64
_V4_PAGE = 576
"""Pages of DeepSeek-V4 are whole multiples of this."""
_V4_VECTOR = 584
"""448 FP8 values, 64 BF16 values of the rope, 8 bytes of scales."""
_DS_MLA = 656
"""`fp8_ds_mla`: 512 FP8 values, four float32 scales, 64 BF16 values of the rope."""
_MAMBA_CHUNKS = {"nemotron_h": 128, "granitemoehybrid": 256}
"""Tokens that the Mamba-2 kernel takes at once, as published configs have it (`chunk_size`)."""


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What vLLM knows of one layer's cache. Equal specs are one kind."""

    kind: Kind
    block: int
    """Tokens a block."""
    page: int
    """Bytes a block in this layer, padding included."""
    reach: int = 0
    """The window or the chunk."""
    content: tuple[int, ...] = ()
    """What else two layers may differ in, and so not be of one kind."""

    def blocks(self, settings: KvSettings, length: int) -> int:
        """Blocks that one request of `length` tokens may hold."""
        match self.kind:
            case "full" | "mla":
                return ceil(length / self.block)
            case "chunked":
                return ceil(min(self.reach + settings.in_flight, length) / self.block)
            case "sliding" | "sliding_mla":
                kept = self.reach - 1 + settings.retained + settings.in_flight
                return ceil(min(kept, length) / self.block) + 1
            case "mamba":
                return self._states(settings, length)

    def _states(self, settings: KvSettings, length: int) -> int:
        spec, release = settings.speculates, settings.release
        if release < (0, 15):
            return ceil(length / self.block)
        if settings.mode == "all":
            return ceil(length / self.block) + (spec if release >= (0, 22) else 0)
        if settings.mode == "align":
            checkpoint = release >= (0, 32) and self.content[0] == _MAMBA2
            return 2 + spec + checkpoint
        return 1 + spec


_MAMBA2 = 2
"""Marks the content of a Mamba-2 layer, which keeps a checkpoint that Gated DeltaNet does not."""


def layer_specs(settings: KvSettings, shape: Architecture, context: int) -> tuple[KvSpec, ...]:
    layers = [*_as_built(shape), *drafter_layers(settings, shape)]
    return tuple(_SpecBuilder(settings, shape, context).specs(layers))


def _as_built(shape: Architecture) -> tuple[Layer, ...]:
    """vLLM's gpt-oss slides on every other layer from the first, whatever its config lists."""
    slides = next((layer for layer in shape.layers if isinstance(layer, SlidingAttention)), None)
    if shape.model_type != "gpt_oss" or slides is None:
        return shape.layers
    full = FullAttention(slides.kv_heads, slides.key_dim, slides.value_dim)
    return tuple(full if number % 2 else slides for number in range(len(shape.layers)))


def drafter_layers(settings: KvSettings, shape: Architecture) -> tuple[Layer, ...]:
    """The layers of the drafter inside the checkpoint.

    A file may only count them, or not even that: Qwen3-Next's config has no word of the one it has. They
    are then taken to be as the widest layer that sees everything.
    """
    if not settings.drafts or shape.drafters:
        return shape.drafters if settings.drafts else ()
    if shape.model_type in DRAFTS_IN_A_WINDOW:
        return next(((layer,) for layer in shape.layers if isinstance(layer, SlidingAttention)), ())
    full = [layer for layer in shape.layers if isinstance(layer, FullAttention | LatentAttention)]
    widest = max(full, key=lambda layer: token_bytes(settings, layer), default=None)
    return (widest,) * max(1, shape.drafter_layers) if widest else ()


def token_bytes(settings: KvSettings, layer: Layer) -> float:
    """Growth a token in this layer, once windows are full."""
    match layer:
        case FullAttention() | SparseAttention():
            own = _values(layer) * settings.width
            return own + (layer.indexer.head_dim * 2 if isinstance(layer, SparseAttention) else 0)
        case LatentAttention():
            return _latent(settings, layer) + (_index(layer.indexer) if layer.indexer else 0)
        case CompressedAttention(ratio=ratio) if ratio:
            return (_V4_VECTOR + (_index(layer.indexer) if layer.indexer else 0)) / ratio
        case _:
            return 0


def state_bytes(settings: KvSettings, layer: LinearAttention | Mamba2) -> int:
    conv = layer.conv_channels * (layer.conv_kernel - 1 + settings.speculates)
    return conv * settings.conv_width + layer.state_elements * settings.state_width


class _SpecBuilder:
    def __init__(self, settings: KvSettings, shape: Architecture, context: int) -> None:
        self._settings = settings
        self._context = context
        self._model_type = shape.model_type
        self._block = settings.block or _first_block(shape)
        self._page: int | None = None
        if is_hybrid(shape):
            token = max(_attention_token(settings, layer) for layer in shape.layers)
            self._block = self._aligned(shape, token)
            self._page = self._block * token

    def specs(self, layers: list[Layer]) -> Iterator[KvSpec]:
        return chain.from_iterable(self._of(layer) for layer in layers)

    def _of(self, layer: Layer) -> list[KvSpec]:
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
                return self._latent(layer)
            case SparseAttention():
                index = KvSpec("mla", self._block, self._block * layer.indexer.head_dim * 2, content=(1,))
                return [self._attention("full", layer), index]
            case CompressedAttention():
                return list(_compressed(layer))

    def _attention(
        self,
        kind: Kind,
        layer: FullAttention | SlidingAttention | ChunkedAttention | SparseAttention,
        reach: int = 0,
    ) -> KvSpec:
        page = self._block * _values(layer) * self._settings.width
        return KvSpec(kind, self._block, page, reach, (layer.kv_heads, layer.key_dim, layer.value_dim))

    def _mamba(self, layer: LinearAttention | Mamba2) -> KvSpec:
        state = state_bytes(self._settings, layer)
        kind = _MAMBA2 if isinstance(layer, Mamba2) else 1
        caches = self._settings.mode != "none"
        block = self._block if caches else self._context
        return KvSpec("mamba", block, max(state, self._page or 0), content=(kind, state))

    def _latent(self, layer: LatentAttention) -> list[KvSpec]:
        page = self._block * _latent(self._settings, layer)
        own = KvSpec("mla", self._block, page, content=(layer.latent_dim,))
        index = layer.indexer
        return (
            [KvSpec("mla", self._block, self._block * _index(index), content=(0,)), own] if index else [own]
        )

    def _aligned(self, shape: Architecture, token: int) -> int:
        """The fewest tokens, in whole kernel blocks, whose page is no smaller than a state's."""
        settings, release = self._settings, self._settings.release
        state = max(
            state_bytes(settings, layer)
            for layer in shape.layers
            if isinstance(layer, LinearAttention | Mamba2)
        )
        latent = any(isinstance(layer, LatentAttention) for layer in shape.layers)
        step = self._block if release >= (0, 20) else 64 if latent else _BLOCK
        if latent and release >= (0, 27):
            step = max(step, 128)
        if settings.mode == "all":
            step = lcm(_MAMBA_CHUNKS.get(self._model_type, 1), step)
        return max(self._block, step * ceil(state / (step * token)))


def _first_block(shape: Architecture) -> int:
    """Tokens a block before states are thought of."""
    if any(isinstance(layer, SparseAttention) for layer in shape.layers):
        return _SPARSE_BLOCK
    if any(isinstance(layer, LatentAttention) and layer.attends for layer in shape.layers):
        return _INDEX_BLOCK
    return _BLOCK


def _attention_token(settings: KvSettings, layer: Layer) -> int:
    if isinstance(layer, LatentAttention):
        return _latent(settings, layer)
    if isinstance(layer, FullAttention | SlidingAttention | ChunkedAttention | SparseAttention):
        return _values(layer) * settings.width
    return 0


def _values(layer: FullAttention | SlidingAttention | ChunkedAttention | SparseAttention) -> int:
    return layer.kv_heads * (layer.key_dim + layer.value_dim)


def _latent(settings: KvSettings, layer: LatentAttention) -> int:
    """The sparse backend of a GB10 turns every dtype into `fp8_ds_mla`."""
    if layer.attends and (settings.release >= (0, 24) or settings.width == 1):
        return _DS_MLA
    return layer.latent_dim * settings.width


def _index(index: Indexer) -> int:
    """A key in FP8 and a float32 scale for every 128 of its values."""
    return index.head_dim + index.head_dim // 128 * 4


def _compressed(layer: CompressedAttention) -> Iterator[KvSpec]:
    """DeepSeek-V4: a window, the compressed past, the index of it, and what is not compressed yet."""
    yield _v4("sliding_mla", _V4_WINDOW_BLOCK, _V4_WINDOW_BLOCK * _V4_VECTOR, layer.window, 0)
    if not layer.ratio:
        return
    if layer.indexer:
        states = _V4_BLOCK // layer.ratio
        yield _v4("mla", _V4_BLOCK, states * _index(layer.indexer), 0, 1)
        yield _compressor(layer, layer.indexer.head_dim)
    yield _v4("mla", _V4_BLOCK, _V4_BLOCK // layer.ratio * _V4_VECTOR, 0, layer.ratio)
    yield _compressor(layer, layer.head_dim)


def _compressor(layer: CompressedAttention, dim: int) -> KvSpec:
    """Float32 values and scores of the tokens of one compressed vector; blocks of 4 overlap by one."""
    overlap = 2 if layer.ratio == 4 else 1
    block = 4 if layer.ratio == 4 else 8
    return _v4("sliding_mla", block, block * 2 * overlap * dim * 4, overlap * layer.ratio, dim)


def _v4(kind: Kind, block: int, used: int, reach: int, content: int) -> KvSpec:
    return KvSpec(kind, block, ceil(used / _V4_PAGE) * _V4_PAGE, reach, (content,))


def unsupported_model(what: str) -> UsageError:
    return UsageError(f"vLLM refuses this model: {what}", next="firesteel models")
