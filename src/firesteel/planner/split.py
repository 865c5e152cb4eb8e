"""Over several Sparks: what each of them holds when a model is split tensor by tensor.

Matrices are cut, so every Spark has its part of them; norms and routers are whole on each, and so are MLA's
projections into its latents and a sparse layer's indexer. KV heads are shared out until there is one a Spark;
after that each keeps a copy. A latent cache (MLA) has no heads, and every Spark keeps all of it.
vLLM refuses what does not come out even: `verify_with_parallel_config` in its `config/model.py` (0.32, seen
2026-11-15) for queries, the attention layers of its models for keys, `MambaMixer2` for Mamba's heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from firesteel.errors import UsageError
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

    attention = weights.bytes_by_role.get(Role.ATTENTION, 0)
    kept = weights.replicated_bytes / attention if attention else 0.0

    def part(role: Role, size: int) -> int:
        if role in _WHOLE:
            return size
        whole = round(size * kept) if role is Role.ATTENTION else 0
        return whole - (whole - size) // sparks

    return replace(
        weights,
        bytes_by_role={role: part(role, size) for role, size in weights.bytes_by_role.items()},
        bytes_by_format={key: part(key[0], size) for key, size in weights.bytes_by_format.items()},
        source=f"{weights.source}; one of {sparks} parts",
    )


def insist_on_even_parts(shape: Architecture, sparks: int) -> None:
    """Raises when heads do not come out even, with the numbers of Sparks for which they do."""
    if _comes_out_even(shape, sparks):
        return
    works = [str(each) for each in (1, 2, 4, 8) if _comes_out_even(shape, each)]
    heads = sorted({f"{many} {what}" for what, many in _heads(shape)})
    raise UsageError(
        f"{' and '.join(heads)} heads cannot be shared out over {sparks} Sparks; {', '.join(works)} would do",
        next=f"--nodes {works[-1]}",
    )


def _comes_out_even(shape: Architecture, sparks: int) -> bool:
    """Keys may be fewer than Sparks, when each is copied to the same number of them."""
    return all(
        many % sparks == 0 or (what == "KV" and many < sparks and sparks % many == 0)
        for what, many in _heads(shape)
    )


def _heads(shape: Architecture) -> Iterator[tuple[str, int]]:
    if shape.attention_heads:
        yield "query", shape.attention_heads
    for layer in set(shape.layers):
        if isinstance(layer, FullAttention | SlidingAttention | ChunkedAttention | SparseAttention):
            yield "KV", layer.kv_heads
        elif isinstance(layer, Mamba2):
            yield "Mamba", layer.heads


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
