"""A model's architecture, as far as memory and speed depend on it, and the checkpoint it was read from.

It is one value per layer, and a few counts. A layer is named by what it caches. Most cache a key and a value
per token; the others something smaller: a window or a chunk, one compressed vector, a state of fixed size,
the cache of another layer, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from firesteel.errors import FiresteelError, printable
from firesteel.facts.formats.byte_source import MAX_ERROR_CHARS
from firesteel.facts.model.tensors import Weights
from firesteel.values import Value


class UnknownArchitecture(FiresteelError):
    """A model whose memory cannot be computed: a guess could be wrong enough to wedge a host."""

    def __init__(self, what: str, next: str = "firesteel models") -> None:
        super().__init__(printable(what, MAX_ERROR_CHARS), next=next)


class FullAttention(Value):
    kv_heads: int
    key_dim: int
    value_dim: int


class SlidingAttention(Value):
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int


class ChunkedAttention(Value):
    """Sees back to the start of its own chunk of tokens, never further (Llama 4)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    chunk: int


class Indexer(Value):
    """Scores the past to pick what a sparse layer attends to; caches a separate key per token."""

    heads: int
    head_dim: int


class LatentAttention(Value):
    """MLA: one vector per token, from which the key and value of every head are recomputed."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    indexer: Indexer | None = None
    """None in a sparse layer that reuses the picks of the layer before it."""
    attends: int = 0
    """Tokens that a sparse layer attends to; 0: all."""

    @property
    def latent_dim(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim


class SparseAttention(Value):
    """A key and a value per token as in FullAttention, but a step reads only what the indexer picks."""

    kv_heads: int
    key_dim: int
    value_dim: int
    indexer: Indexer
    attends: int


class CompressedAttention(Value):
    """DeepSeek-V4: the last `window` tokens, and one compressed vector for every `ratio` tokens before.

    A vector of `head_dim` is key and value in one. A ratio of 0 keeps the window only.
    """

    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    indexer: Indexer | None = None
    attends: int = 0
    """Compressed vectors that a layer with an indexer attends to; 0: all."""

    @property
    def state_elements(self) -> int:
        """The state of both compressors for tokens that are not compressed yet, in float32.

        A value and a score for each of the last `ratio` tokens; at a ratio of 4 the blocks overlap,
        which doubles the tokens and the width.
        """
        overlap = 2 if self.ratio == 4 else 1
        width = self.head_dim + (self.indexer.head_dim if self.indexer else 0)
        return overlap * self.ratio * 2 * overlap * width


class LinearAttention(Value):
    """Gated DeltaNet, KDA: a state of fixed size per sequence, whatever its length."""

    state_elements: int
    conv_channels: int
    conv_kernel: int


class Mamba2(Value):
    """A state of fixed size per sequence, and the last columns of a convolution, like LinearAttention."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_kernel: int

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return self.inner_size * self.state_size

    @property
    def conv_channels(self) -> int:
        return self.inner_size + 2 * self.groups * self.state_size


class SharedKv(Value):
    """Attends to the cache of an earlier layer and has no cache itself."""

    of: int
    """The number of that layer."""


class NoCache(Value):
    """A layer without a cache: in Nemotron-H MLP and MoE blocks are separate layers."""

    block: Literal["mlp", "moe", "none"]


class Speech(Value):
    """What a piece of sound of 30 seconds is to a model that writes down what is said."""

    encoder_positions: int
    """Vectors that its encoder computes."""
    prompt_tokens: int
    cached_tokens: int = 0
    """Vectors that each layer keeps for cross-attention; they cost as much as that many tokens."""


GroupedAttention = FullAttention | SlidingAttention | ChunkedAttention | SparseAttention
"""Layers with a key and a value for each KV head."""
Layer = (
    GroupedAttention | LatentAttention | CompressedAttention | LinearAttention | Mamba2 | SharedKv | NoCache
)


class Architecture(Value, dict=True):
    model_type: str
    """`model_type` of a config.json, or `general.architecture` of a GGUF."""
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    max_context: int
    experts: int = 0
    experts_per_token: int = 0
    drafter_layers: int = 0
    """MTP layers inside the checkpoint."""
    drafters: tuple[Layer, ...] = ()
    """The layers of the drafters, one by one; empty where the file does not list them. Nemotron-H has two
    each."""
    state_dtype: str | None = None
    """The dtype of recurrent states in the config; None: not given."""
    attention_heads: int = 0
    """Query heads, which are split over several Sparks; 0: not known."""
    generates: bool = True
    """False: its head classifies or scores texts, or it has none."""
    speech: Speech | None = None
    """None: it is not made to write down sound."""
    feed_forward_size: int = 0
    """The width of a dense MLP, or of one expert in an MoE model; 0: not known."""
    expert_input_size: int = 0
    """What experts read, where narrower than the hidden size (Nemotron-3's latent experts); 0: it is not."""

    @cached_property
    def layer_counts(self) -> Mapping[Layer, int]:
        """Every distinct layer, and how many there are: most layers of a model are equal."""
        return Counter(self.layers)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0


Format = Literal["gguf", "safetensors"]


class Checkpoint(Value):
    name: str
    model: str
    """What the engine gets: a path or a Hub id."""
    format: Format
    origin: str
    """Where it was read from, as a user would write it: the path or the Hub id."""
    architecture: Architecture
    weights: Weights
    unknown: tuple[str, ...] = ()
    """Parts of the checkpoint whose size is not known, described for the user."""
    kv_cache_dtype: str | None = None
    """The KV cache dtype that it is calibrated for; None: not given."""
    heavier: Weights | None = None
    """The weights in the layout that keeps more in 16 bits; None: the layout is known."""
    assumptions: tuple[str, ...] = ()
    """What was assumed because the files do not say it, described for the user."""
