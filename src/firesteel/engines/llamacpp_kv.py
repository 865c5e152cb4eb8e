"""llama.cpp's cells: one a token, in every layer that attends, for each sequence or for all of them together.

A cache is cut into as many equal parts as there are sequences, or is one that all share (`--kv-unified`).
Its size is rounded up to 256 cells. Layers that slide have a smaller cache of their own: the window and one
micro-batch. Recurrent layers keep one float32 state a sequence. What cannot be taken back token by token,
windows and states, is also copied to host memory now and then, to be able to go back.
Seen in `src/llama-context.cpp`, `llama-kv-cache*.cpp`, `llama-memory-recurrent.cpp`, `llama-hparams.cpp` as
of 2026-08-22; checked against what build 11549 prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from firesteel.engines.flags import count
from firesteel.engines.kv_dtypes import LLAMACPP, said, width
from firesteel.errors import UsageError
from firesteel.facts import Architecture
from firesteel.facts.architecture import (
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
class Cells:
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


def cells(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cells:
    """`context` is one sequence's, or what all share."""
    if users > MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp serves {MAX_SEQUENCES} users at once at most, and {users} were asked for",
            next=f"--users {MAX_SEQUENCES}",
        )
    # DeepSeek-V4 keeps streams apart even where a shared cache is asked for.
    apart = any(isinstance(layer, CompressedAttention) for layer in shape.layers)
    unified = flags.get("kv-unified") is True and not apart
    counting = _Counting(flags, context, users if unified else 1)
    streams = 1 if unified else users
    return Cells(
        growing=sum((counting.a_cell(layer) for layer in shape.layers), Fraction()),
        cells=counting.cells * streams,
        windows=int(sum(counting.window(layer) for layer in shape.layers)) * streams,
        states=sum(counting.state(layer) for layer in shape.layers),
        sequences=users,
        streams=streams,
    )


class _Counting:
    def __init__(self, flags: Mapping[str, FlagValue], context: int, sharing: int) -> None:
        self._keys = width(LLAMACPP, said(flags, "cache-type-k", "f16"), "cache-type-k")
        self._values = width(LLAMACPP, said(flags, "cache-type-v", "f16"), "cache-type-v")
        self._ubatch = count(flags.get("ubatch-size")) or _UBATCH
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
        return _padded(min(self.cells, reach * self._sharing + self._ubatch))

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
