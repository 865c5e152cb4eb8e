"""Configs in the form that transformers 5.19.0 gives them when it saves them again, recorded 2026-11-16."""

from __future__ import annotations

import pytest

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config

from .test_config import load_config

RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def text_of(config: dict[str, object]) -> dict[str, object]:
    text = config.get("text_config", config)
    assert isinstance(text, dict)
    return text


def gemma4(config: dict[str, object]) -> None:
    text = text_of(config)
    kinds = text["layer_types"]
    assert isinstance(kinds, list)
    own = {
        "head_dim": text.pop("global_head_dim"),
        "num_key_value_heads": text.pop("num_global_key_value_heads"),
    }
    text["per_layer_config"] = {f"{i:02}": own for i, kind in enumerate(kinds) if kind == "full_attention"}


def deepseek_v4(config: dict[str, object]) -> None:
    ratios, hashed = config.pop("compress_ratios"), config.pop("num_hash_layers")
    assert isinstance(ratios, list)
    assert isinstance(hashed, int)
    names = {0: "sliding_attention"} | {ratio: name for name, ratio in RATES.items()}
    layers = config["num_hidden_layers"]
    assert isinstance(layers, int)
    config["layer_types"] = [names[ratio] for ratio in ratios[:layers]]
    config["mlp_layer_types"] = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)
    config["compress_rates"] = RATES


def minimax_m3(config: dict[str, object]) -> None:
    text = text_of(config)
    sparse, experts = text.pop("sparse_attention_config"), text.pop("moe_layer_freq")
    assert isinstance(sparse, dict)
    assert isinstance(experts, list)
    marks = sparse["sparse_attention_freq"]
    text |= {
        "model_type": "minimax_m3_vl_text",
        "layer_types": ["minimax_m3_sparse" if mark else "full_attention" for mark in marks],
        "mlp_layer_types": ["sparse" if each else "dense" for each in experts],
        "index_head_dim": sparse["sparse_index_dim"],
        "index_n_heads": sparse["sparse_num_index_heads"],
        "index_topk_blocks": sparse["sparse_topk_blocks"],
        "index_block_size": sparse["sparse_block_size"],
    }


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("google--gemma-4-26B-A4B", gemma4),
        ("nvidia--Gemma-4-31B-IT-NVFP4", gemma4),
        ("deepseek-ai--DeepSeek-V4-Flash", deepseek_v4),
        ("nvidia--MiniMax-M3-NVFP4", minimax_m3),
    ],
)
def test_a_saved_config_is_the_published_one(name: str, save: object) -> None:
    saved = load_config(name)
    assert callable(save)
    save(saved)
    assert architecture_of_config(saved).layers == architecture_of_config(load_config(name)).layers
    assert parameters_of_config(saved).total == parameters_of_config(load_config(name)).total


def test_an_empty_override_is_none() -> None:
    plain = load_config("Qwen--Qwen3-8B")
    assert architecture_of_config(plain | {"per_layer_config": {}}) == architecture_of_config(plain)


@pytest.mark.parametrize(
    "overrides",
    [{"05": {"head_dim": 512}}, {"a": {}}, {"05": 7}, [1], {"05": {"intermediate_size": 9}}],
)
def test_other_overrides_are_refused_by_name(overrides: object) -> None:
    config = load_config("google--gemma-4-26B-A4B")
    text_of(config)["per_layer_config"] = overrides
    with pytest.raises(UnknownArchitecture, match="per_layer_config"):
        architecture_of_config(config)
