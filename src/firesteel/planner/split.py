"""Over several Sparks: what each of them holds when a model is split tensor by tensor.

Matrices are cut, so every Spark has its part of them; norms and routers are whole on each. KV heads are
shared out until there is one a Spark; after that each keeps a copy. A latent cache (MLA) has no heads, and
every Spark keeps all of it.
"""

from __future__ import annotations

from dataclasses import replace

from firesteel.facts import (
    Architecture,
    ChunkedAttention,
    FullAttention,
    Layer,
    LinearAttention,
    Mamba2,
    Role,
    SlidingAttention,
    SparseAttention,
    Weights,
)

_WHOLE = (Role.NORMS, Role.ROUTER)


def split_weights(weights: Weights, sparks: int) -> Weights:
    """One Spark's part."""
    if sparks < 2:
        return weights

    def part(role: Role, size: int) -> int:
        return size if role in _WHOLE else -(-size // sparks)

    return replace(
        weights,
        bytes_by_role={role: part(role, size) for role, size in weights.bytes_by_role.items()},
        bytes_by_format={key: part(key[0], size) for key, size in weights.bytes_by_format.items()},
        source=f"{weights.source}; one of {sparks} parts",
    )


def split_shape(shape: Architecture, sparks: int) -> Architecture:
    """The layers as one Spark keeps their past."""
    if sparks < 2:
        return shape
    return replace(shape, layers=tuple(_layer(layer, sparks) for layer in shape.layers))


def _layer(layer: Layer, sparks: int) -> Layer:
    if isinstance(layer, FullAttention | SlidingAttention | ChunkedAttention | SparseAttention):
        return replace(layer, kv_heads=max(1, layer.kv_heads // sparks))
    if isinstance(layer, LinearAttention):
        return replace(
            layer, state_elements=layer.state_elements // sparks, conv_channels=layer.conv_channels // sparks
        )
    if isinstance(layer, Mamba2):
        return replace(layer, heads=max(1, layer.heads // sparks), groups=max(1, layer.groups // sparks))
    return layer
