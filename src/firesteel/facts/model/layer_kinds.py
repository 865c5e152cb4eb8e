"""Which kind each layer of a config is, in transformers' own words: `full_attention`, `mamba`, `moe`.

Newer configs list it. Older ones rely on a pattern that their model class has built in, or mark layers
under a name of their own; `families.py` says which.
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.facts.model.config_values import MAX_LAYERS, ConfigValues

_DRAFTER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# MiniMax-M2 declares `num_mtp_modules`, but its published checkpoints do not hold them.
_MAX_DRAFTERS = 64

_BLOCKS = {
    "M": "mamba", "*": "full_attention", "E": "moe", "-": "mlp",
    "mamba": "mamba", "attention": "full_attention", "moe": "moe", "mlp": "mlp",
    "linear_attention": "mamba", "full_attention": "full_attention",
}  # fmt: skip


def layer_kinds(figures: ConfigValues) -> list[str]:
    if figures.family.pattern == "blocks":
        return _blocks(figures)
    count = layer_count(figures)
    listed = _listed(figures, count)
    return listed[:count] if listed else [_kind(figures, layer) for layer in range(count)]


def layer_count(figures: ConfigValues) -> int:
    count = figures.figure("num_hidden_layers")
    if count > MAX_LAYERS:
        raise figures.unknown(f"has {count:,} layers")
    return count


def drafter_count(figures: ConfigValues) -> int:
    count = figures.count(_DRAFTER_LAYERS)
    if count > _MAX_DRAFTERS:
        raise figures.unknown(f"has {count:,} MTP layers")
    return count


def drafter_kinds(figures: ConfigValues, count: int) -> list[str]:
    """What the layers of the drafters are: said, or as the layers that see everything."""
    if figures.family.pattern == "blocks":
        return _drafter_blocks(figures) * count if count else []
    if figures.family.pattern == "block_configs":
        return []
    listed = _listed(figures, layer_count(figures))
    if listed and len(listed) > layer_count(figures):
        return listed[-count:]
    return ["sparse_attention" if figures.family.pattern == "marked_sparse" else "full_attention"] * count


def window(figures: ConfigValues) -> int:
    """The window, 0 without one. Qwen's configs carry a window that is only used if they say so."""
    switch = figures.said("use_sliding_window")
    if switch is None:
        switch = figures.family.pattern != "late_window"
    if switch is False or figures.is_null("sliding_window") or figures.said("sliding_window") is None:
        return 0
    return figures.figure("sliding_window", least=0)


def _listed(figures: ConfigValues, count: int) -> list[str] | None:
    """`layer_types`, where the family goes by them. The MTP layers may be in that list too."""
    listed = figures.said("layer_types")
    if listed is None or figures.family.pattern in ("marked_window", "marked_linear", "marked_sparse"):
        return None
    if not isinstance(listed, Sequence) or len(listed) not in (count, count + drafter_count(figures)):
        raise figures.unknown(f"has {count} layers but not as many `layer_types`")
    return [str(kind) for kind in listed]


def _kind(figures: ConfigValues, layer: int) -> str:
    match figures.family.pattern:
        case "window":
            slides = bool(window(figures))
        case "late_window":
            slides = bool(window(figures)) and layer >= figures.figure("max_window_layers", least=0)
        case "alternate_window":
            slides = bool(window(figures)) and bool((layer + 1) % _every(figures))
        case "alternate_linear":
            return "linear_attention" if (layer + 1) % _every(figures) else "full_attention"
        case "alternate_chunk":
            return "chunked_attention" if _is_chunked(figures, layer) else "full_attention"
        case "marked_window":
            slides = _is_marked(figures, "hybrid_layer_pattern", layer)
        case "marked_linear":
            return _linear_or_full(figures, layer)
        case "marked_sparse":
            return "sparse_attention" if _is_sparse(figures, layer) else "full_attention"
        case "listed":
            raise figures.unknown("has no `layer_types`")
        case _:
            if window(figures):
                raise figures.unknown("sets `sliding_window`, which its family does not use")
            slides = False
    return "sliding_attention" if slides else "full_attention"


def _every(figures: ConfigValues) -> int:
    return figures.figure_or(figures.family.every_key, figures.family.every)


def _is_chunked(figures: ConfigValues, layer: int) -> bool:
    """Llama 4 gives no positions to the layers that see everything; its list has a 0 for those."""
    if figures.said("no_rope_layers"):
        return _is_marked(figures, "no_rope_layers", layer)
    return bool((layer + 1) % _every(figures))


def _is_sparse(figures: ConfigValues, layer: int) -> bool:
    if figures.said("sparse_attention_config") is None:
        return False
    sparse = figures.inside("sparse_attention_config")
    if sparse.said("use_sparse_attention") is False:
        return False
    return _is_marked(sparse, "sparse_attention_freq", layer)


def _is_marked(figures: ConfigValues, key: str, layer: int) -> bool:
    marks = figures.said(key)
    if not isinstance(marks, Sequence) or layer >= len(marks) or marks[layer] not in (0, 1):
        raise figures.unknown(f"has no mark for each layer in `{key}`")
    return bool(marks[layer])


def _linear_or_full(figures: ConfigValues, layer: int) -> str:
    marks = figures.inside("linear_attn_config")
    for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
        listed = marks.said(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and layer + 1 in listed:
            return kind
    raise figures.unknown(f"does not say in `linear_attn_config` what layer {layer + 1} is")


def _blocks(figures: ConfigValues) -> list[str]:
    said = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    blocks = next((found for key in said if (found := figures.said(key))), None)
    if not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= MAX_LAYERS:
        raise figures.unknown("does not say what its blocks are")
    if figures.figure_or("num_hidden_layers", len(blocks)) != len(blocks):
        raise figures.unknown(f"has {len(blocks)} blocks but not as many `num_hidden_layers`")
    return [_block(figures, block) for block in blocks]


def _drafter_blocks(figures: ConfigValues) -> list[str]:
    blocks = figures.said("mtp_layers_block_type") or figures.said("mtp_hybrid_override_pattern") or "*E"
    if not isinstance(blocks, Sequence) or len(blocks) > _MAX_DRAFTERS:
        raise figures.unknown("does not say what the blocks of its MTP layers are")
    return [_block(figures, block) for block in blocks]


def _block(figures: ConfigValues, block: object) -> str:
    if not isinstance(block, str) or block not in _BLOCKS:
        raise figures.unknown(f"has a block of the unknown type `{str(block)[:80]}`")
    return _BLOCKS[block]
