"""Configs that a newer transformers has written again, as most quantizers do, in the keys of the publisher.

Seen in what transformers 5.19.0 writes for the published configs, 2026-11-16. Only families whose keys it
renames are here; anything that does not have the expected form is returned as it is, and refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.facts.model.families import FAMILIES
from firesteel.facts.model.speech import as_language_model


def as_published(model_type: str, text: Mapping[str, object]) -> Mapping[str, object]:
    if model_type == "whisper":
        return as_language_model(text)
    kinds = text.get("layer_types")
    listed = [str(kind) for kind in kinds] if isinstance(kinds, Sequence) else []
    if "per_layer_config" in text:
        return _without_overrides(model_type, text, listed)
    if model_type == "deepseek_v4" and "compress_ratios" not in text:
        return _with_ratios(text, listed)
    if "minimax_m3_sparse" in listed:
        return _with_sparse_config(text, listed)
    return text


def _without_overrides(
    model_type: str, text: Mapping[str, object], kinds: Sequence[str]
) -> Mapping[str, object]:
    """Overrides of single layers are Gemma 4's values for full attention, if they are the same in each."""
    overrides = text["per_layer_config"]
    rest = {key: value for key, value in text.items() if key != "per_layer_config"}
    if not overrides:
        return rest
    family = FAMILIES.get(model_type)
    full = {number for number, kind in enumerate(kinds) if kind == "full_attention"}
    if not family or not isinstance(overrides, Mapping) or not all(str(key).isdecimal() for key in overrides):
        return text
    values = list(overrides.values())
    same = all(isinstance(value, Mapping) and value == values[0] for value in values)
    if not same or {int(key) for key in overrides} != full or set(values[0]) - set(family.full_keys):
        return text
    return rest | {family.full_keys[key]: value for key, value in values[0].items()}


def _with_ratios(text: Mapping[str, object], kinds: Sequence[str]) -> Mapping[str, object]:
    rates, feed_forwards = text.get("compress_rates"), text.get("mlp_layer_types")
    if not isinstance(rates, Mapping) or not isinstance(feed_forwards, Sequence) or not kinds:
        return text
    rest = {key: value for key, value in text.items() if key not in ("layer_types", "mlp_layer_types")}
    return rest | {
        "compress_ratios": [rates.get(kind, 0) for kind in kinds],
        "num_hash_layers": list(feed_forwards).count("hash_moe"),
    }


def _with_sparse_config(text: Mapping[str, object], kinds: Sequence[str]) -> Mapping[str, object]:
    return dict(text) | {
        "sparse_attention_config": {
            "sparse_index_dim": text.get("index_head_dim"),
            "sparse_num_index_heads": text.get("index_n_heads"),
            "sparse_topk_blocks": text.get("index_topk_blocks"),
            "sparse_block_size": text.get("index_block_size"),
            "sparse_attention_freq": [int(kind == "minimax_m3_sparse") for kind in kinds],
        }
    }
