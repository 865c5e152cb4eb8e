"""llama.cpp's KV cells: one per token, in every attention layer, for each sequence or for all of them
together.

A cache is split into as many equal parts as there are sequences, or is shared by all (`--kv-unified`). Its
size is rounded up to 256 cells. Sliding layers have a smaller, separate cache: the window and one
micro-batch. Recurrent layers keep one float32 state per sequence. What cannot be rolled back token by token,
windows and states, is also copied to host memory now and then. Seen in `src/llama-context.cpp`,
`llama-kv-cache*.cpp`, `llama-memory-recurrent.cpp`, `llama-hparams.cpp` as of 2026-08-22; checked against
what build 11549 prints.

Besides the cache there are compute buffers for one micro-batch. Two parts of them can be computed: the mask,
a value for every token of the micro-batch and every cell that it may see, and without flash attention the
scores, the same for every head. The rest is whatever is alive at once in the largest layer; the allocator
packs it by its own rules, so it is an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from firesteel.engines.flags import positive_int
from firesteel.engines.kv_cache import LLAMACPP_DTYPES, bytes_per_value, text_flag
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GroupedAttention,
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
from firesteel.values import Value

_PADDING = 256
_DEFAULT_UBATCH = 512
MAX_SEQUENCES = 256
"""`LLAMA_MAX_SEQ` in `src/llama-cparams.h`: llama.cpp refuses more."""


class KvCells(Value):
    """The cache of all layers."""

    bytes_per_cell: Fraction
    """Bytes of one cell in all layers that see every token."""
    cells: int
    """Cells of those layers, in all streams."""
    window_bytes: int
    """Bytes of the layers that stop growing, in all streams."""
    state_bytes: int
    """Recurrent state of one sequence."""
    sequences: int
    streams: int

    @property
    def total_bytes(self) -> int:
        return int(self.bytes_per_cell * self.cells) + self.window_bytes + self.state_bytes * self.sequences

    @property
    def checkpoint_bytes(self) -> int:
        """A copy of what cannot be rolled back, for one sequence."""
        return self.window_bytes // self.streams + self.state_bytes


class ComputeBuffers(Value):
    """The compute buffers for one micro-batch."""

    mask_bytes: int
    score_bytes: int
    """0 with flash attention, which never holds all scores at once."""
    attention_bytes: int
    """What else is alive at once in attention, estimated from its heads."""
    other_bytes: int
    """The same in an MLP, in experts or in a recurrent layer."""
    is_sized: bool
    """Whether the model's heads and MLP size are known; else typical ones are assumed."""

    @property
    def band(self) -> tuple[int, int, int]:
        """Least, likely, most. A GPU has the masks twice: also where they are filled in."""
        low, high = (0.4, 2.0) if self.is_sized else (0.25, 4.0)
        return self._scaled(low), self._scaled(1.0), self.mask_bytes + self._scaled(high)

    def _scaled(self, share: float) -> int:
        attention = self.score_bytes + int(share * self.attention_bytes)
        return self.mask_bytes + max(attention, int(share * self.other_bytes))


def compute_buffers(
    flags: Mapping[str, FlagValue], architecture: Architecture, context: int, users: int
) -> ComputeBuffers:
    unified = flags.get("kv-unified") is True
    sizes = _LayerSizes(flags, context, users if unified else 1)
    tokens = min(sizes.cells * (1 if unified else users), sizes.ubatch)
    flash = flags.get("flash-attn") not in (False, "off", "0", "disabled")
    # Layers that see equally many cells share a mask.
    visible = {sizes.visible_cells(layer) for layer in architecture.layers} - {0}
    heads = architecture.attention_heads or max(1, architecture.hidden_size // 128)
    layers = set(architecture.layers)
    return ComputeBuffers(
        mask_bytes=sum(visible) * tokens * (2 if flash else 4),
        score_bytes=0 if flash else max(visible, default=0) * tokens * heads * 4,
        attention_bytes=4
        * tokens
        * max((_attention_values(layer, architecture, heads) for layer in layers), default=0),
        other_bytes=4
        * tokens
        * max(_feed_forward_values(architecture), *(_recurrent_values(layer) for layer in layers)),
        is_sized=bool(architecture.attention_heads and architecture.feed_forward_size),
    )


def _attention_values(layer: Layer, architecture: Architecture, heads: int) -> int:
    """Values per token: the input, queries before and after their rotation, keys and values."""
    match layer:
        case FullAttention() | SlidingAttention() | ChunkedAttention() | SparseAttention():
            return 2 * architecture.hidden_size + (5 * heads + 3 * layer.kv_heads) * layer.key_dim // 2
        case LatentAttention(latent_dim=dim) | CompressedAttention(head_dim=dim):
            return 2 * architecture.hidden_size + (5 * heads + 3) * dim // 2
        case _:
            return 0


def _feed_forward_values(architecture: Architecture) -> int:
    """The input, and up, gate and their product; for experts all that for each that is picked."""
    hidden, width = architecture.hidden_size, architecture.feed_forward_size
    if architecture.experts:
        return 5 * hidden + architecture.experts_per_token * (hidden + 3 * (width or hidden // 2))
    return 5 * hidden + 3 * (width or 4 * hidden)


def _recurrent_values(layer: Layer) -> int:
    match layer:
        case Mamba2():
            return 3 * (layer.inner_size + layer.conv_channels)
        case LinearAttention():
            return 6 * layer.conv_channels
        case _:
            return 0


def count_cells(
    flags: Mapping[str, FlagValue], architecture: Architecture, context: int, users: int
) -> KvCells:
    """`context` is that of one sequence, or what all share."""
    if users > MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp serves at most {MAX_SEQUENCES} users at once, and {users} were requested",
            next=f"--users {MAX_SEQUENCES}",
        )
    # DeepSeek-V4 keeps streams apart even if a shared cache is requested.
    separate = any(isinstance(layer, CompressedAttention) for layer in architecture.layers)
    unified = flags.get("kv-unified") is True and not separate
    sizes = _LayerSizes(flags, context, users if unified else 1)
    streams = 1 if unified else users
    return KvCells(
        bytes_per_cell=sum((sizes.cell_bytes(layer) for layer in architecture.layers), Fraction()),
        cells=sizes.cells * streams,
        window_bytes=int(sum(sizes.window_bytes(layer) for layer in architecture.layers)) * streams,
        state_bytes=sum(sizes.state_bytes(layer) for layer in architecture.layers),
        sequences=users,
        streams=streams,
    )


class _LayerSizes:
    """What one layer stores, by its kind."""

    def __init__(self, flags: Mapping[str, FlagValue], context: int, sharing: int) -> None:
        key_type, value_type = (text_flag(flags, flag, "f16") for flag in ("cache-type-k", "cache-type-v"))
        self._per_key_value = bytes_per_value(LLAMACPP_DTYPES, key_type, "cache-type-k")
        self._per_value = bytes_per_value(LLAMACPP_DTYPES, value_type, "cache-type-v")
        self.ubatch = positive_int(flags.get("ubatch-size")) or _DEFAULT_UBATCH
        self._swa_full = flags.get("swa-full") is True
        self._sharing = sharing
        self.cells = _padded(context)

    def cell_bytes(self, layer: Layer) -> Fraction:
        """Bytes per cell of a layer that sees every token; 0 for other layers."""
        match layer:
            case FullAttention():
                return self._pair_bytes(layer)
            case SparseAttention():
                # the indexer is built like a cache of one head, and so stores a value that is never read
                index = self._per_key_value * layer.indexer.head_dim + self._per_value * layer.value_dim
                return self._pair_bytes(layer) + index
            case LatentAttention():
                index_dim = layer.indexer.head_dim if layer.indexer else 0
                return self._per_key_value * (layer.latent_dim + index_dim)
            case SlidingAttention() | ChunkedAttention() if self._swa_full:
                return self._pair_bytes(layer)
            case _:
                return Fraction()

    def window_bytes(self, layer: Layer) -> Fraction:
        """Bytes that stop growing once the context is longer, or grow by a fraction of it."""
        match layer:
            case SlidingAttention(window=width) | ChunkedAttention(chunk=width) if not self._swa_full:
                return self._pair_bytes(layer) * self._window_cells(width)
            case CompressedAttention():
                # One vector is key and value; the compressed past has a cell for every `ratio` tokens.
                window = self.cells if self._swa_full else self._window_cells(layer.window)
                values = window * layer.head_dim
                if layer.ratio:
                    index_dim = layer.indexer.head_dim if layer.indexer else 0
                    values += _padded(ceil(self.cells / layer.ratio)) * (layer.head_dim + index_dim)
                return values * self._per_key_value
            case _:
                return Fraction()

    def visible_cells(self, layer: Layer) -> int:
        """The cells of one stream that a layer may see."""
        match layer:
            case SlidingAttention(window=width) | ChunkedAttention(chunk=width) if not self._swa_full:
                return self._window_cells(width)
            case NoCache() | SharedKv() | LinearAttention() | Mamba2():
                return 0
            case _:
                return self.cells

    def state_bytes(self, layer: Layer) -> int:
        match layer:
            case LinearAttention() | Mamba2():
                return 4 * (layer.state_elements + layer.conv_channels * (layer.conv_kernel - 1))
            case CompressedAttention():
                return 4 * layer.state_elements
            case _:
                return 0

    def _pair_bytes(self, layer: GroupedAttention) -> Fraction:
        """One key and one value, of all heads."""
        return layer.kv_heads * (layer.key_dim * self._per_key_value + layer.value_dim * self._per_value)

    def _window_cells(self, width: int) -> int:
        return _padded(min(self.cells, width * self._sharing + self.ubatch))


def _padded(cells: int) -> int:
    return ceil(cells / _PADDING) * _PADDING
