"""A model's shape, as far as memory and speed depend on it: one Layer value a layer, and a few counts."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.errors import FiresteelError
from firesteel.facts.source import one_line


class UnknownArchitecture(FiresteelError):
    """A model whose memory cannot be told: a guess would be off by the factor that wedges a host."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what), next="firesteel models")


@dataclass(frozen=True, slots=True)
class FullAttention:
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class SlidingAttention:
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated DeltaNet: a state of fixed size a sequence, whatever its length."""

    state_elements: int
    conv_channels: int
    conv_kernel: int


Layer = FullAttention | SlidingAttention | LinearAttention


@dataclass(frozen=True, slots=True)
class Architecture:
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

    @property
    def is_moe(self) -> bool:
        return self.experts > 0
