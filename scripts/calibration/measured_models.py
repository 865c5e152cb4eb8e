"""The models of the published runs in `data/measured`: shapes and bytes, as far as they are known.

Only the calibration counts bytes from these; a plan uses the facts of its own model.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.facts.evidence import Evidence
from firesteel.facts.model.architecture import (
    Architecture,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    NoCache,
    SlidingAttention,
)
from firesteel.facts.model.tensors import Role
from firesteel.planner.speed.decode import StoredBytes
from firesteel.values import FileValue, PositiveInt


class MeasuredLayersSchema(FileValue, kw_only=True):
    kind: Literal["full", "sliding", "latent", "recurrent", "moe", "mlp"]
    times: PositiveInt
    kv_heads: int = 0
    head_dim: int = 0
    window: int = 0
    latent_dim: int = 0
    state_elements: int = 0
    conv_channels: int = 0

    def layer(self) -> Layer:
        if self.kind == "full":
            return FullAttention(self.kv_heads, self.head_dim, self.head_dim)
        if self.kind == "sliding":
            return SlidingAttention(self.kv_heads, self.head_dim, self.head_dim, self.window)
        if self.kind == "latent":
            return LatentAttention(self.latent_dim, 0)
        if self.kind == "recurrent":
            return LinearAttention(self.state_elements, self.conv_channels, 4)
        return NoCache(self.kind)


class MeasuredModelSchema(FileValue, kw_only=True):
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    experts: int = 0
    experts_per_token: int = 0
    layers: tuple[MeasuredLayersSchema, ...]
    source: Evidence
    checkpoints: dict[str, dict[Role, dict[str, PositiveInt]]]

    def architecture(self, name: str) -> Architecture:
        layers = tuple(row.layer() for row in self.layers for _ in range(row.times))
        return Architecture(
            name, layers, self.hidden_size, self.vocab_size, 0, self.experts, self.experts_per_token
        )

    def stored(self, layout: str) -> StoredBytes:
        roles = self.checkpoints[layout]
        return {(role, dtype): size for role, formats in roles.items() for dtype, size in formats.items()}


class MeasuredModelsSchema(FileValue, kw_only=True):
    layouts: dict[str, str]
    shapes: dict[str, MeasuredModelSchema]


@cache
def models() -> MeasuredModelsSchema:
    return shipped_data.load("measured/models.yaml", MeasuredModelsSchema)
