"""The kind of each layer of a config, as transformers calls it: `full_attention`, `mamba`, `moe`.

Newer configs list the kinds. Older ones rely on a pattern of their model class, or mark layers under a key of
their own; `families.py` has the patterns.
"""

from __future__ import annotations

import re
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


def layer_kinds(values: ConfigValues) -> list[str]:
    if values.family.pattern == "blocks":
        return _blocks(values)
    count = layer_count(values)
    if values.family.pattern == "parallel_mamba":
        return ["mamba", "full_attention"] * count  # two caches, so two entries
    listed = _listed(values, count)
    return listed[:count] if listed else [_kind(values, layer) for layer in range(count)]


def layer_count(values: ConfigValues) -> int:
    count = values.integer("num_hidden_layers")
    if count > MAX_LAYERS:
        raise values.unsupported(f"has {count:,} layers")
    return count


def drafter_count(values: ConfigValues) -> int:
    count = values.first_integer(_DRAFTER_LAYERS)
    if count > _MAX_DRAFTERS:
        raise values.unsupported(f"has {count:,} MTP layers")
    return count


def drafter_kinds(values: ConfigValues, count: int) -> list[str]:
    """The kinds of the drafter layers: as listed, or full attention."""
    if values.family.pattern == "blocks":
        return _drafter_blocks(values) * count if count else []
    if values.family.pattern == "block_configs":
        return []
    listed = _listed(values, layer_count(values))
    if listed and len(listed) > layer_count(values):
        return listed[-count:]
    return ["sparse_attention" if values.family.pattern == "marked_sparse" else "full_attention"] * count


def window(values: ConfigValues) -> int:
    """The window, 0 without one. Qwen's configs have a window that is only used with `use_sliding_window`."""
    switch = values.get("use_sliding_window")
    if switch is None:
        switch = values.family.pattern != "late_window"
    if switch is False or values.is_null("sliding_window") or values.get("sliding_window") is None:
        return 0
    return values.integer("sliding_window", least=0)


def _listed(values: ConfigValues, count: int) -> list[str] | None:
    """`layer_types`, where the family uses them. The MTP layers may be in that list too."""
    listed = values.get("layer_types") or _by_attention_numbers(values, count)
    if listed is None or values.family.pattern in ("marked_window", "marked_linear", "marked_sparse"):
        return None
    if not isinstance(listed, Sequence) or len(listed) not in (count, count + drafter_count(values)):
        raise values.unsupported(f"has {count} layers but not as many `layer_types`")
    return [str(kind) for kind in listed]


def _by_attention_numbers(values: ConfigValues, count: int) -> list[str] | None:
    """Older configs of LFM2 list the numbers of the layers with attention; the others are convolutions."""
    numbers = values.get("full_attn_idxs") if values.family.recurrence == "short_conv" else None
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        return None
    return ["full_attention" if number in numbers else "conv" for number in range(count)]


def _kind(values: ConfigValues, layer: int) -> str:
    match values.family.pattern:
        case "window":
            slides = bool(window(values))
        case "late_window":
            slides = bool(window(values)) and layer >= values.integer("max_window_layers", least=0)
        case "alternate_window":
            slides = bool(window(values)) and bool((layer + 1) % _every(values))
        case "grouped_linear" if layer >= layer_count(values) // _every(values) * _every(values):
            return "full_attention"
        case "alternate_linear" | "grouped_linear":
            return "linear_attention" if (layer + 1) % _every(values) else "full_attention"
        case "alternate_mamba":
            is_full = layer % _every(values) == values.integer("attn_layer_offset", least=0)
            return "full_attention" if is_full else "mamba"
        case "alternate_chunk":
            return "chunked_attention" if _is_chunked(values, layer) else "full_attention"
        case "marked_window":
            slides = _is_marked(values, "hybrid_layer_pattern", layer)
        case "marked_full":
            is_full = _is_marked(values, "attn_type_list", layer)
            return "full_attention" if is_full else "linear_attention"
        case "marked_linear":
            return _linear_or_full(values, layer)
        case "marked_sparse":
            return "sparse_attention" if _is_sparse(values, layer) else "full_attention"
        case "listed":
            raise values.unsupported("has no `layer_types`")
        case _:
            if window(values):
                raise values.unsupported("sets `sliding_window`, which its family does not use")
            slides = False
    return "sliding_attention" if slides else "full_attention"


def _every(values: ConfigValues) -> int:
    pattern = values.get(values.family.every_key)
    if isinstance(pattern, str) and re.fullmatch("L{1,99}G", pattern):  # EXAONE 4: `LLLG`
        return len(pattern)
    return values.integer_or(values.family.every_key, values.family.every)


def _is_chunked(values: ConfigValues, layer: int) -> bool:
    """Llama 4 has no positions in its full-attention layers; its list has a 0 for those."""
    if values.get("no_rope_layers"):
        return _is_marked(values, "no_rope_layers", layer)
    return bool((layer + 1) % _every(values))


def _is_sparse(values: ConfigValues, layer: int) -> bool:
    if values.get("sparse_attention_config") is None:
        return False
    sparse = values.nested("sparse_attention_config")
    if sparse.get("use_sparse_attention") is False:
        return False
    return _is_marked(sparse, "sparse_attention_freq", layer)


def _is_marked(values: ConfigValues, key: str, layer: int) -> bool:
    marks = values.get(key)
    if not isinstance(marks, Sequence) or layer >= len(marks) or marks[layer] not in (0, 1):
        raise values.unsupported(f"has no mark for each layer in `{key}`")
    return bool(marks[layer])


def _linear_or_full(values: ConfigValues, layer: int) -> str:
    marks = values.nested("linear_attn_config")
    for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
        listed = marks.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and layer + 1 in listed:
            return kind
    raise values.unsupported(f"does not list layer {layer + 1} in `linear_attn_config`")


def _blocks(values: ConfigValues) -> list[str]:
    keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    blocks = next((value for key in keys if (value := values.get(key))), None)
    if not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= MAX_LAYERS:
        raise values.unsupported("does not list its blocks")
    if values.integer_or("num_hidden_layers", len(blocks)) != len(blocks):
        raise values.unsupported(f"has {len(blocks)} blocks but not as many `num_hidden_layers`")
    return [_block(values, block) for block in blocks]


def _drafter_blocks(values: ConfigValues) -> list[str]:
    blocks = values.get("mtp_layers_block_type") or values.get("mtp_hybrid_override_pattern") or "*E"
    if not isinstance(blocks, Sequence) or len(blocks) > _MAX_DRAFTERS:
        raise values.unsupported("does not list the blocks of its MTP layers")
    return [_block(values, block) for block in blocks]


def _block(values: ConfigValues, block: object) -> str:
    if not isinstance(block, str) or block not in _BLOCKS:
        raise values.unsupported(f"has a block of the unknown type `{str(block)[:80]}`")
    return _BLOCKS[block]
