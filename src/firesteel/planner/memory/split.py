"""Over several Sparks: what each of them holds when a model is split tensor by tensor.

Matrices are cut, so every Spark has its part of them; norms and routers are whole on each, and so are MLA's
projections into its latents and a sparse layer's indexer. KV heads are shared out until there is one a Spark;
after that each keeps a copy. A latent cache (MLA) has no heads, and every Spark keeps all of it.
vLLM refuses what does not come out even: `verify_with_parallel_config` in its `config/model.py` (0.32, seen
2026-11-15) for queries, the attention layers of its models for keys, `MambaMixer2` for Mamba's heads.
FP8 with a scale for each block of 128 x 128 cannot be cut through a block: `validate_fp8_block_shape` and
`validate_fp8_block_shape_moe` in `quantization/utils/fp8_utils.py` of the same release.
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
_BLOCK = 128
"""Rows and columns for each scale, in every checkpoint of block FP8 that is known."""
_SCALE_BYTES = (2, 4)
_MANY = (1, 2, 4, 8)


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


def insist_on_even_parts(
    shape: Architecture, sparks: int, weights: Weights | None = None, has_whole_experts: bool = False
) -> None:
    """Raises when heads or blocks do not come out even, with the numbers of Sparks for which they do.

    `has_whole_experts`: they are dealt out one by one, and none of them is cut.
    """
    width = shape.feed_forward_size if weights and _has_blocks(shape, weights) else 0
    width = 0 if shape.is_moe and has_whole_experts else width
    uncut, heads_work = _cuts_no_block(width, sparks), _comes_out_even(shape, sparks)
    if uncut and heads_work:
        return
    works = [each for each in _MANY if _comes_out_even(shape, each) and _cuts_no_block(width, each)]
    do = ", ".join(map(str, works)) or "none"
    why = _heads_words(shape, sparks) if not heads_work else _block_words(shape, width, sparks)
    raise UsageError(f"{why}; {do} would do", next=f"--nodes {works[-1] if works else 1}")


def _heads_words(shape: Architecture, sparks: int) -> str:
    heads = sorted({f"{many} {what}" for what, many in _heads(shape)})
    return f"{' and '.join(heads)} heads cannot be shared out over {sparks} Sparks"


def _block_words(shape: Architecture, width: int, sparks: int) -> str:
    what = "experts" if shape.is_moe else "MLPs"
    return (
        f"{what} {width:,} wide are {width / sparks:g} wide on each of {sparks} Sparks, and the FP8 of this "
        f"checkpoint has one scale for {_BLOCK}"
    )


def _cuts_no_block(width: int, sparks: int) -> bool:
    """One Spark cuts nothing."""
    return sparks < 2 or width % (sparks * _BLOCK) == 0


def _has_blocks(shape: Architecture, weights: Weights) -> bool:
    """Whether the bytes are a whole number of matrices in FP8, each with a scale for every block.

    With scales for rows or tensors, or in 16 bits, they are not; a sum that is neither says nothing.
    """
    role = Role.ROUTED_EXPERTS if shape.is_moe else Role.DENSE_MLP
    size, wide, high = weights.bytes_by_role.get(role, 0), shape.feed_forward_size, shape.hidden_size
    if not size or not wide:
        return False
    blocks = -(-wide // _BLOCK) * -(-high // _BLOCK)
    return any(size % (wide * high + blocks * each) == 0 for each in _SCALE_BYTES)


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
