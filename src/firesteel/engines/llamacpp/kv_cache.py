"""llama.cpp's cells: one a token, in every layer that attends, for each sequence or for all of them together.

A cache is cut into as many equal parts as there are sequences, or is one that all share (`--kv-unified`).
Its size is rounded up to 256 cells. Layers that slide have a smaller cache of their own: the window and one
micro-batch. Recurrent layers keep one float32 state a sequence. What cannot be taken back token by token,
windows and states, is also copied to host memory now and then, to be able to go back.
Seen in `src/llama-context.cpp`, `llama-kv-cache*.cpp`, `llama-memory-recurrent.cpp`, `llama-hparams.cpp` as
of 2026-08-22; checked against what build 11549 prints.

Beside the cache stand compute buffers, for one micro-batch. Two things in them are sums that can be made: the
mask, a value for every token of the micro-batch and every cell it may see, and without flash attention the
scores, the same again for every head. The rest is what happens to be alive at once in the largest layer;
the allocator packs it by its own rules, so it is an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from firesteel.engines.flags import positive_int
from firesteel.engines.kv_dtypes import LLAMACPP_DTYPES, bytes_per_value, text_flag
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
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
)
from firesteel.launch import FlagValue

_PAD = 256
_UBATCH = 512
MAX_SEQUENCES = 256
"""`LLAMA_MAX_SEQ` in `src/llama-cparams.h`: with more, making the context throws."""


@dataclass(frozen=True, slots=True)
class KvCells:
    """What all layers take, in bytes."""

    growing: Fraction
    """A cell, in all layers that see everything."""
    cells: int
    """Of those layers, in all streams."""
    windows: int
    """The layers that stop growing, in all streams."""
    states: int
    """Recurrent state of one sequence."""
    sequences: int
    streams: int

    @property
    def total(self) -> int:
        return int(self.growing * self.cells) + self.windows + self.states * self.sequences

    @property
    def checkpoint(self) -> int:
        """A copy of what cannot be rolled back, of one sequence."""
        return self.windows // self.streams + self.states


@dataclass(frozen=True, slots=True)
class ComputeBuffers:
    """Of one micro-batch, in bytes."""

    masks: int
    scores: int
    """0 with flash attention, which never has them all at once."""
    attention: int
    """What else is alive at once in attention, estimated from its heads."""
    elsewhere: int
    """The same in an MLP, in experts or in a recurrence."""
    is_told: bool
    """Whether the sizes behind these are all known; else they are what models usually have."""

    @property
    def band(self) -> tuple[int, int, int]:
        """Least, likely, most. A GPU has the masks twice: once where they are made."""
        low, high = (0.4, 2.0) if self.is_told else (0.25, 4.0)
        return self._at(low), self._at(1.0), self.masks + self._at(high)

    def _at(self, share: float) -> int:
        return self.masks + max(self.scores + int(share * self.attention), int(share * self.elsewhere))


def compute_buffers(
    flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int
) -> ComputeBuffers:
    unified = flags.get("kv-unified") is True
    counting = _LayerSizes(flags, context, users if unified else 1)
    tokens = min(counting.cells * (1 if unified else users), counting.ubatch)
    flash = flags.get("flash-attn") not in (False, "off", "0", "disabled")
    reaches = {counting.reach(layer) for layer in shape.layers} - {0}
    heads = shape.attention_heads or max(1, shape.hidden_size // 128)
    kinds = set(shape.layers)
    return ComputeBuffers(
        masks=sum(reaches) * tokens * (2 if flash else 4),
        scores=0 if flash else max(reaches, default=0) * tokens * heads * 4,
        attention=4 * tokens * max((_attending(layer, shape, heads) for layer in kinds), default=0),
        elsewhere=4 * tokens * max(_forward(shape), *(_recurring(layer) for layer in kinds)),
        is_told=bool(shape.attention_heads and shape.feed_forward_size),
    )


def _attending(layer: Layer, shape: Architecture, heads: int) -> int:
    """Values a token: what came in, queries before and after they are turned, keys and values."""
    match layer:
        case FullAttention() | SlidingAttention() | ChunkedAttention() | SparseAttention():
            return 2 * shape.hidden_size + (5 * heads + 3 * layer.kv_heads) * layer.key_dim // 2
        case LatentAttention():
            return 2 * shape.hidden_size + (5 * heads + 3) * layer.latent_dim // 2
        case CompressedAttention():
            return 2 * shape.hidden_size + (5 * heads + 3) * layer.head_dim // 2
        case _:
            return 0


def _forward(shape: Architecture) -> int:
    """What came in, and up, gate and their product; experts have all that for each that is picked."""
    hidden, width = shape.hidden_size, shape.feed_forward_size
    if shape.experts:
        return 5 * hidden + shape.experts_per_token * (hidden + 3 * (width or hidden // 2))
    return 5 * hidden + 3 * (width or 4 * hidden)


def _recurring(layer: Layer) -> int:
    match layer:
        case Mamba2():
            return 3 * (layer.inner_size + layer.conv_channels)
        case LinearAttention():
            return 6 * layer.conv_channels
        case _:
            return 0


def count_cells(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> KvCells:
    """`context` is one sequence's, or what all share."""
    if users > MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp serves {MAX_SEQUENCES} users at once at most, and {users} were asked for",
            next=f"--users {MAX_SEQUENCES}",
        )
    # DeepSeek-V4 keeps streams apart even where a shared cache is asked for.
    apart = any(isinstance(layer, CompressedAttention) for layer in shape.layers)
    unified = flags.get("kv-unified") is True and not apart
    counting = _LayerSizes(flags, context, users if unified else 1)
    streams = 1 if unified else users
    return KvCells(
        growing=sum((counting.a_cell(layer) for layer in shape.layers), Fraction()),
        cells=counting.cells * streams,
        windows=int(sum(counting.window(layer) for layer in shape.layers)) * streams,
        states=sum(counting.state(layer) for layer in shape.layers),
        sequences=users,
        streams=streams,
    )


class _LayerSizes:
    def __init__(self, flags: Mapping[str, FlagValue], context: int, sharing: int) -> None:
        self._keys = bytes_per_value(LLAMACPP_DTYPES, text_flag(flags, "cache-type-k", "f16"), "cache-type-k")
        self._values = bytes_per_value(
            LLAMACPP_DTYPES, text_flag(flags, "cache-type-v", "f16"), "cache-type-v"
        )
        self.ubatch = positive_int(flags.get("ubatch-size")) or _UBATCH
        self._swa_full = flags.get("swa-full") is True
        self._sharing = sharing
        self.cells = _padded(context)

    def a_cell(self, layer: Layer) -> Fraction:
        """Bytes a cell of a layer that sees everything; 0 for the others."""
        match layer:
            case FullAttention():
                return self._pair(layer)
            case SparseAttention():
                # the indexer is made like a cache of one head, and so keeps a value that nobody reads
                return (
                    self._pair(layer) + self._keys * layer.indexer.head_dim + self._values * layer.value_dim
                )
            case LatentAttention():
                return self._keys * (layer.latent_dim + (layer.indexer.head_dim if layer.indexer else 0))
            case SlidingAttention() | ChunkedAttention() if self._swa_full:
                return self._pair(layer)
            case _:
                return Fraction()

    def window(self, layer: Layer) -> Fraction:
        """Bytes that do not grow with the context once it is longer, or grow by a fraction of it."""
        match layer:
            case SlidingAttention(window=reach) | ChunkedAttention(chunk=reach) if not self._swa_full:
                return self._pair(layer) * self._window_cells(reach)
            case CompressedAttention():
                return self._compressed(layer)
            case _:
                return Fraction()

    def reach(self, layer: Layer) -> int:
        """Cells of one stream that a layer may look at; layers that reach as far share a mask."""
        match layer:
            case SlidingAttention(window=reach) | ChunkedAttention(chunk=reach) if not self._swa_full:
                # marked apart from full layers even where both reach as far: each cache has its own mask
                return self._window_cells(reach)
            case NoCache() | SharedKv() | LinearAttention() | Mamba2():
                return 0
            case _:
                return self.cells

    def state(self, layer: Layer) -> int:
        match layer:
            case LinearAttention() | Mamba2():
                return 4 * (layer.state_elements + layer.conv_channels * (layer.conv_kernel - 1))
            case CompressedAttention():
                return 4 * layer.state_elements
            case NoCache() | SharedKv() | _:
                return 0

    def _pair(self, layer: FullAttention | SlidingAttention | ChunkedAttention | SparseAttention) -> Fraction:
        return layer.kv_heads * (layer.key_dim * self._keys + layer.value_dim * self._values)

    def _window_cells(self, reach: int) -> int:
        return _padded(min(self.cells, reach * self._sharing + self.ubatch))

    def _compressed(self, layer: CompressedAttention) -> Fraction:
        """One vector is key and value; the compressed past has a cell for every `ratio` tokens."""
        window = self.cells if self._swa_full else self._window_cells(layer.window)
        kept = Fraction(window * layer.head_dim)
        if layer.ratio:
            index = layer.indexer.head_dim if layer.indexer else 0
            kept += _padded(ceil(self.cells / layer.ratio)) * (layer.head_dim + index)
        return kept * self._keys


def _padded(cells: int) -> int:
    return -(-cells // _PAD) * _PAD
