"""The weights of vision towers whose configs size them; quantizers leave towers as they are.

Seen in transformers 5.22.2, its classes built on the meta device, 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config_values import MAX_LAYERS, ConfigValues
from firesteel.facts.model.families import Family
from firesteel.facts.model.tensor_groups import TensorGroup

_QWEN = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision")


def vision_groups(said: object, hidden: int) -> tuple[TensorGroup, ...] | None:
    """The tower of a `vision_config`, for a language model of this hidden size; None: not known here."""
    kind = said.get("model_type") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(kind, str):
        return None
    figures = ConfigValues(kind, said, Family())
    try:
        if kind in _QWEN:
            return tuple(_qwen(figures))
        if kind == "gemma4_vision" and not figures.is_on("use_clipped_linears"):
            return tuple(_gemma4(figures, hidden))
    except UnknownArchitecture:
        # a tower that cannot be sized is no reason to refuse the language model beside it
        return None
    return None


def _qwen(figures: ConfigValues) -> Iterator[TensorGroup]:
    name, width, deep = "model.visual.", figures.figure("hidden_size"), figures.figure("intermediate_size")
    pixels = figures.figure("temporal_patch_size") * figures.figure("patch_size") ** 2
    blocks = _layers(figures, "depth")
    yield _tensor(f"{name}patch_embed", (width, figures.figure("in_channels") * pixels + 1))
    yield _tensor(f"{name}pos_embed", (figures.figure("num_position_embeddings"), width))
    yield _tensor(f"{name}blocks.0.attn.qkv", (3 * width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.attn.proj", (width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc1", (deep, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc2", (width, deep + 1), blocks)
    yield _tensor(f"{name}blocks.0.norm1", (width,), 4 * blocks)
    merged, out = width * figures.figure("spatial_merge_size") ** 2, figures.figure("out_hidden_size")
    mergers = 1 + _length(figures, "deepstack_visual_indexes")
    yield _tensor(f"{name}merger.linear_fc1", (merged, merged + 1), mergers)
    yield _tensor(f"{name}merger.linear_fc2", (out, merged + 1), mergers)
    yield _tensor(f"{name}merger.norm", (width,), 2)
    if mergers > 1:
        yield _tensor(f"{name}deepstack_merger_list.0.norm", (merged,), 2 * (mergers - 1))


def _gemma4(figures: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    name, width, deep = (
        "model.vision_tower.",
        figures.figure("hidden_size"),
        figures.figure("intermediate_size"),
    )
    heads, dim = figures.figure("num_attention_heads"), figures.figure("head_dim")
    keys, blocks = figures.figure("num_key_value_heads"), _layers(figures, "num_hidden_layers")
    own = f"{name}encoder.layers.0."
    positions = figures.figure("position_embedding_size")
    yield _tensor(f"{name}patch_embedder.position_embedding_table", (2, positions, width))
    yield _tensor(f"{name}patch_embedder.input_proj", (width, 3 * figures.figure("patch_size") ** 2))
    yield _tensor(f"{own}self_attn.q_proj", (heads * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.k_proj", (keys * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.q_norm", (dim,), 2 * blocks)
    yield _tensor(f"{own}mlp.up_proj", (deep, width), 3 * blocks)
    yield _tensor(f"{own}input_layernorm", (width,), 4 * blocks)
    yield _tensor("model.embed_vision.embedding_projection", (hidden, width))
    if figures.is_on("standardize"):
        yield _tensor(f"{name}std_bias", (width,), 2)


def _layers(figures: ConfigValues, key: str) -> int:
    return min(figures.figure(key), MAX_LAYERS)


def _length(figures: ConfigValues, key: str) -> int:
    said = figures.said(key)
    return len(said) if isinstance(said, Sequence) else 0


def _tensor(name: str, shape: tuple[int, ...], count: int = 1) -> TensorGroup:
    """A weight, and its bias as one more column where it has one."""
    return TensorGroup(name, "tower", shape, count)
