"""The weights of vision towers whose configs size them; quantizers do not touch towers.

Seen in transformers 5.22.2, its classes built on the meta device, 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config_values import MAX_LAYERS, ConfigValues
from firesteel.facts.model.families import Family
from firesteel.facts.model.tensor_groups import TensorGroup

_QWEN = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision")


def vision_groups(model: Mapping[str, object], hidden: int) -> tuple[TensorGroup, ...] | None:
    """The tower in `vision_config` of a model, whose language model has this hidden size; None: not
    supported."""
    config = model.get("vision_config")
    if not isinstance(config, Mapping):
        return None
    kind = config.get("model_type") or model.get("model_type")
    if not isinstance(kind, str):
        return None
    values = ConfigValues(kind, config, Family(defaults={"in_channels": "in_chans"}))
    try:
        if kind in _QWEN:
            return tuple(_qwen(values))
        if kind in ("qwen2_5_vl", "qwen2_5_vl_vision"):
            return tuple(_qwen2_5(values))
        if kind == "pixtral":
            return tuple(_pixtral(values, hidden))
        if kind == "gemma4_vision" and not values.is_true("use_clipped_linears"):
            return tuple(_gemma4(values, hidden))
    except UnknownArchitecture:
        # a tower that cannot be sized is no reason to refuse the language model
        return None
    return None


def _qwen(values: ConfigValues) -> Iterator[TensorGroup]:
    name, width, deep = "model.visual.", values.integer("hidden_size"), values.integer("intermediate_size")
    pixels = values.integer("temporal_patch_size") * values.integer("patch_size") ** 2
    blocks = _layers(values, "depth")
    yield _tensor(f"{name}patch_embed", (width, values.integer("in_channels") * pixels + 1))
    yield _tensor(f"{name}pos_embed", (values.integer("num_position_embeddings"), width))
    yield _tensor(f"{name}blocks.0.attn.qkv", (3 * width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.attn.proj", (width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc1", (deep, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc2", (width, deep + 1), blocks)
    yield _tensor(f"{name}blocks.0.norm1", (width,), 4 * blocks)
    merged, out = width * values.integer("spatial_merge_size") ** 2, values.integer("out_hidden_size")
    indexes = values.get("deepstack_visual_indexes")
    mergers = 1 + (len(indexes) if isinstance(indexes, Sequence) else 0)
    yield _tensor(f"{name}merger.linear_fc1", (merged, merged + 1), mergers)
    yield _tensor(f"{name}merger.linear_fc2", (out, merged + 1), mergers)
    yield _tensor(f"{name}merger.norm", (width,), 2)
    if mergers > 1:
        yield _tensor(f"{name}deepstack_merger_list.0.norm", (merged,), 2 * (mergers - 1))


def _qwen2_5(values: ConfigValues) -> Iterator[TensorGroup]:
    name, width, deep = "visual.", values.integer("hidden_size"), values.integer("intermediate_size")
    pixels = values.integer("temporal_patch_size") * values.integer("patch_size") ** 2
    blocks = _layers(values, "depth")
    yield _tensor(f"{name}patch_embed", (width, values.integer_or("in_channels", 3) * pixels))
    yield _tensor(f"{name}blocks.0.attn.qkv", (3 * width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.attn.proj", (width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.up_proj", (deep, width + 1), 2 * blocks)
    yield _tensor(f"{name}blocks.0.mlp.down_proj", (width, deep + 1), blocks)
    yield _tensor(f"{name}blocks.0.norm1", (width,), 2 * blocks + 1)
    merged, out = width * values.integer("spatial_merge_size") ** 2, values.integer("out_hidden_size")
    yield _tensor(f"{name}merger.mlp.0", (merged, merged + 1))
    yield _tensor(f"{name}merger.mlp.2", (out, merged + 1))


def _pixtral(values: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    """With Mistral's projector, which merges 2 x 2 patches."""
    name, width, deep = "vision_tower.", values.integer("hidden_size"), values.integer("intermediate_size")
    blocks = _layers(values, "num_hidden_layers")
    own = f"{name}transformer.layers.0."
    pixels = values.integer_or("num_channels", 3) * values.integer("patch_size") ** 2
    yield _tensor(f"{name}patch_conv", (width, pixels))
    yield _tensor(f"{own}attention.q_proj", (width, width), 4 * blocks)
    yield _tensor(f"{own}feed_forward.up_proj", (deep, width), 3 * blocks)
    yield _tensor(f"{own}attention_norm", (width,), 2 * blocks + 2)  # one before, one in the projector
    yield _tensor("multi_modal_projector.patch_merger.merging_layer", (width, 4 * width))
    yield _tensor("multi_modal_projector.linear_1", (hidden, width + hidden))


def _gemma4(values: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    name = "model.vision_tower."
    width, deep = values.integer("hidden_size"), values.integer("intermediate_size")
    heads, dim = values.integer("num_attention_heads"), values.integer("head_dim")
    keys, blocks = values.integer("num_key_value_heads"), _layers(values, "num_hidden_layers")
    own = f"{name}encoder.layers.0."
    positions = values.integer("position_embedding_size")
    yield _tensor(f"{name}patch_embedder.position_embedding_table", (2, positions, width))
    yield _tensor(f"{name}patch_embedder.input_proj", (width, 3 * values.integer("patch_size") ** 2))
    yield _tensor(f"{own}self_attn.q_proj", (heads * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.k_proj", (keys * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.q_norm", (dim,), 2 * blocks)
    yield _tensor(f"{own}mlp.up_proj", (deep, width), 3 * blocks)
    yield _tensor(f"{own}input_layernorm", (width,), 4 * blocks)
    yield _tensor("model.embed_vision.embedding_projection", (hidden, width))
    if values.is_true("standardize"):
        yield _tensor(f"{name}std_bias", (width,), 2)


def _layers(values: ConfigValues, key: str) -> int:
    return min(values.integer(key), MAX_LAYERS)


def _tensor(name: str, shape: tuple[int, ...], count: int = 1) -> TensorGroup:
    """A weight; its bias, if any, counts as one more column."""
    return TensorGroup(name, "tower", shape, count)
