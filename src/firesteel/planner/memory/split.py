"""Tensor parallelism over several Sparks: what each of them holds.

Matrices are split, so every Spark has a part of them; norms and routers are replicated, and so are MLA's
projections into its latents and a sparse layer's indexer. KV heads are distributed until there is one per
Spark; after that they are copied. A latent cache (MLA) has no heads, and every Spark holds all of it. vLLM
refuses what does not divide evenly: `verify_with_parallel_config` in its `config/model.py` (0.32, seen
2026-11-15) for queries, the attention layers of its models for keys, `MambaMixer2` for Mamba's heads. FP8
with a scale for each block of 128 x 128 cannot be split inside a block: `validate_fp8_block_shape` and
`validate_fp8_block_shape_moe` in `quantization/utils/fp8_utils.py` of the same release.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture, GroupedAttention, Layer, LinearAttention, Mamba2
from firesteel.facts.model.tensors import Role, Weights
from firesteel.values import replace

_REPLICATED = (Role.NORMS, Role.ROUTER)
_BLOCK = 128
"""Rows and columns per scale, in every known checkpoint of block FP8."""
_SCALE_BYTES = (2, 4)
_SPARK_COUNTS = (1, 2, 4, 8)


def split_weights(weights: Weights, sparks: int) -> Weights:
    """The share of one Spark."""
    if sparks < 2:
        return weights

    attention = weights.bytes_by_role.get(Role.ATTENTION, 0)
    replicated = weights.replicated_bytes / attention if attention else 0.0

    def part(role: Role, size: int) -> int:
        if role in _REPLICATED:
            return size
        whole = round(size * replicated) if role is Role.ATTENTION else 0
        return whole - (whole - size) // sparks

    return replace(
        weights,
        bytes_by_role={role: part(role, size) for role, size in weights.bytes_by_role.items()},
        bytes_by_format={key: part(key[0], size) for key, size in weights.bytes_by_format.items()},
        source=f"{weights.source}; the part of one Spark of {sparks}",
    )


def check_even_split(
    shape: Architecture, sparks: int, weights: Weights | None = None, has_whole_experts: bool = False
) -> None:
    """Raise when heads or blocks do not divide evenly, and name the numbers of Sparks for which they do.

    `has_whole_experts`: expert parallelism, which distributes whole experts and splits none.
    """
    width = shape.feed_forward_size if weights and _has_blocks(shape, weights) else 0
    width = 0 if shape.is_moe and has_whole_experts else width
    if not _heads_divide(shape, sparks):
        heads = sorted({f"{count} {kind}" for kind, count in _heads(shape)})
        reason = f"{' and '.join(heads)} heads cannot be divided over {sparks} Sparks"
    elif not _blocks_divide(width, sparks):
        what = "experts" if shape.is_moe else "MLPs"
        reason = (
            f"{what} {width:,} wide are {width / sparks:g} wide on each of {sparks} Sparks, and the FP8 of "
            f"this checkpoint has one scale for {_BLOCK}"
        )
    else:
        return
    possible = [
        count for count in _SPARK_COUNTS if _heads_divide(shape, count) and _blocks_divide(width, count)
    ]
    choices = ", ".join(map(str, possible)) or "no number"
    raise UsageError(f"{reason}; {choices} would work", next=f"--nodes {possible[-1] if possible else 1}")


def _blocks_divide(width: int, sparks: int) -> bool:
    return sparks < 2 or width % (sparks * _BLOCK) == 0


def _has_blocks(shape: Architecture, weights: Weights) -> bool:
    """Whether the bytes are a whole number of FP8 matrices, each with a scale for every block.

    With scales per row or tensor, or in 16 bits, they are not.
    """
    role = Role.ROUTED_EXPERTS if shape.is_moe else Role.DENSE_MLP
    size, width, height = weights.bytes_by_role.get(role, 0), shape.feed_forward_size, shape.hidden_size
    if not size or not width:
        return False
    blocks = -(-width // _BLOCK) * -(-height // _BLOCK)
    return any(size % (width * height + blocks * scale) == 0 for scale in _SCALE_BYTES)


def _heads_divide(shape: Architecture, sparks: int) -> bool:
    """There may be fewer KV heads than Sparks if each is copied to the same number of Sparks."""
    return all(
        count % sparks == 0 or (kind == "KV" and count < sparks and sparks % count == 0)
        for kind, count in _heads(shape)
    )


def _heads(shape: Architecture) -> Iterator[tuple[str, int]]:
    if shape.attention_heads:
        yield "query", shape.attention_heads
    for layer in set(shape.layers):
        if isinstance(layer, GroupedAttention):
            yield "KV", layer.kv_heads
        elif isinstance(layer, Mamba2):
            yield "Mamba", layer.heads


def split_layers(weights: Weights, sparks: int) -> Weights:
    """The share of one host where whole layers are split, as llama.cpp does over RPC."""
    return replace(
        weights,
        bytes_by_role={role: -(-size // sparks) for role, size in weights.bytes_by_role.items()},
        bytes_by_format={key: -(-size // sparks) for key, size in weights.bytes_by_format.items()},
        source=f"{weights.source}; the layers of one host of {sparks}",
    )


def split_shape(shape: Architecture, sparks: int, by_layers: bool = False) -> Architecture:
    """The layers with the KV heads and states that one Spark holds; `by_layers`: some layers, whole."""
    if sparks < 2:
        return shape
    if by_layers:
        return replace(shape, layers=shape.layers[::sparks])
    return replace(shape, layers=tuple(_split_layer(layer, sparks) for layer in shape.layers))


def _split_layer(layer: Layer, sparks: int) -> Layer:
    if isinstance(layer, GroupedAttention):
        return replace(layer, kv_heads=max(1, layer.kv_heads // sparks))
    if isinstance(layer, LinearAttention):
        return replace(
            layer, state_elements=layer.state_elements // sparks, conv_channels=layer.conv_channels // sparks
        )
    if isinstance(layer, Mamba2):
        return replace(layer, heads=max(1, layer.heads // sparks), groups=max(1, layer.groups // sparks))
    return layer
