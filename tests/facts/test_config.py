from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
    UnknownArchitecture,
)
from firesteel.facts.model.config import architecture_of_config, as_llama

FULL, SLIDING = "full_attention", "sliding_attention"
CONFIGS = Path(__file__).parent / "configs"


def load_config(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


def of(name: str) -> Architecture:
    return architecture_of_config(load_config(name))


def small(model_type: str = "llama", **others: object) -> dict[str, object]:
    """A small config of any family; None takes a key away."""
    config: dict[str, object] = {
        "model_type": model_type,
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    return {key: value for key, value in (config | others).items() if value is not None}


LETTERS: Mapping[type, str] = {
    FullAttention: "F",
    SlidingAttention: "S",
    ChunkedAttention: "C",
    LatentAttention: "A",
    SparseAttention: "X",
    CompressedAttention: "D",
    LinearAttention: "L",
    Mamba2: "M",
    SharedKv: "H",
}


def letter(layer: Layer) -> str:
    """As Nemotron-H writes blocks: `E` for experts, `-` for an MLP; `I` for MLA with an indexer."""
    if isinstance(layer, NoCache):
        return {"moe": "E", "mlp": "-", "none": "0"}[layer.block]
    if isinstance(layer, LatentAttention) and layer.indexer:
        return "I"
    return LETTERS[type(layer)]


def kinds(found: Architecture) -> str:
    return "".join(letter(layer) for layer in found.layers)


def summary(layers: Sequence[Layer]) -> str:
    """`L30 F10`: how many of each kind, in the order they turn up."""
    return " ".join(f"{kind}{many}" for kind, many in Counter(letter(layer) for layer in layers).items())


def test_gated_delta_net_with_experts_and_mtp() -> None:
    found = of("nvidia--Qwen3.6-35B-A3B-NVFP4")
    assert kinds(found) == "LLLF" * 10
    assert found.layers[3] == FullAttention(kv_heads=2, key_dim=256, value_dim=256)
    assert found.layers[0] == LinearAttention(
        state_elements=32 * 128 * 128, conv_channels=8192, conv_kernel=4
    )
    assert (found.model_type, found.hidden_size, found.vocab_size) == ("qwen3_5_moe", 2048, 248_320)
    assert (found.max_context, found.experts, found.experts_per_token) == (262_144, 256, 8)
    assert found.drafter_layers == 1


def test_recurrent_state_is_the_published_figure() -> None:
    """The state in float32, and the last kernel - 1 columns of the convolution in bfloat16."""
    linear = [x for x in of("nvidia--Qwen3.6-35B-A3B-NVFP4").layers if isinstance(x, LinearAttention)]
    assert len(linear) == 30
    assert sum(x.state_elements * 4 + (x.conv_kernel - 1) * x.conv_channels * 2 for x in linear) == 64_389_120


def test_sliding_layers_with_experts() -> None:
    found = of("openai--gpt-oss-20b")
    assert kinds(found) == "SF" * 12
    assert found.layers[0] == SlidingAttention(kv_heads=8, key_dim=64, value_dim=64, window=128)
    assert (found.experts, found.experts_per_token, found.is_moe) == (32, 4, True)


def test_full_layers_may_have_other_heads() -> None:
    found = of("google--gemma-4-26B-A4B")
    assert kinds(found) == "SSSSSF" * 5
    assert found.layers[0] == SlidingAttention(kv_heads=8, key_dim=256, value_dim=256, window=1024)
    assert found.layers[5] == FullAttention(kv_heads=2, key_dim=512, value_dim=512)
    assert (found.experts, found.experts_per_token) == (128, 8)


def test_sliding_layers_may_have_other_heads() -> None:
    found = of("XiaomiMiMo--MiMo-V2-Flash")
    assert (kinds(found).count("F"), kinds(found).count("S")) == (9, 39)
    assert found.layers[0] == FullAttention(kv_heads=4, key_dim=192, value_dim=128)
    assert found.layers[1] == SlidingAttention(kv_heads=8, key_dim=192, value_dim=128, window=128)


def test_plain_attention() -> None:
    found = of("Qwen--Qwen3-8B")
    assert found.layers == (FullAttention(kv_heads=8, key_dim=128, value_dim=128),) * 36
    assert (found.experts, found.experts_per_token, found.drafter_layers, found.is_moe) == (0, 0, 0, False)


def test_head_dim_is_derived_where_the_config_leaves_it_out() -> None:
    found = of("mistralai--Mixtral-8x7B-v0.1")
    assert found.layers == (FullAttention(kv_heads=8, key_dim=128, value_dim=128),) * 32
    assert (found.experts, found.experts_per_token) == (8, 2)


def test_mtp_layers_are_counted_but_are_not_layers() -> None:
    found = of("stepfun-ai--Step-3.7-Flash")
    assert (len(found.layers), found.drafter_layers) == (45, 3)
    assert kinds(found).startswith("FSSSFSSS")


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (small("mistral", sliding_window=1024), "SSSSSS"),
        (small("mistral"), "FFFFFF"),
        (small("qwen2", sliding_window=1024, use_sliding_window=True, max_window_layers=4), "FFFFSS"),
        (small("qwen2", sliding_window=1024, use_sliding_window=False, max_window_layers=4), "FFFFFF"),
        (small("qwen2", sliding_window=1024, max_window_layers=4), "FFFFFF"),
        (small("gemma2"), "SFSFSF"),
        (small("gemma3_text"), "SSSSSF"),
        (small("gemma3_text", sliding_window_pattern=3), "SSFSSF"),
        (small("gemma3_text") | {"sliding_window": None}, "FFFFFF"),
        (small("gemma3_text", sliding_window_pattern=1), "FFFFFF"),
        (small("gpt_oss", sliding_window=128), "SFSFSF"),
        (small("cohere2", sliding_window=128), "SSSFSS"),
        (small("olmo3", sliding_window=128), "SSSFSS"),
        (small("step3p7", sliding_window=9, layer_types=[SLIDING, FULL] * 3), "SFSFSF"),
        (small("step3p7", layer_types=[FULL] * 8, num_nextn_predict_layers=2), "FFFFFF"),
        (small("qwen3", layer_types=[SLIDING] * 6, sliding_window=9, use_sliding_window=False), "FFFFFF"),
        (small("mimo", sliding_window=32768, use_sliding_window=False), "FFFFFF"),
    ],
)  # fmt: skip
def test_patterns(config: dict[str, object], layers: str) -> None:
    assert kinds(architecture_of_config(config)) == layers


LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(("others", "layers"), [({}, "LLLFLL"), ({"full_attention_interval": 2}, "LFLFLF")])
def test_delta_net_without_layer_types_goes_by_its_interval(others: dict[str, object], layers: str) -> None:
    found = architecture_of_config(small("qwen3_next", **LINEAR, **others))
    assert kinds(found) == layers
    assert found.layers[0] == LinearAttention(4 * 8 * 16, 2 * 2 * 8 + 4 * 16, 4)


def test_gemma_3_configs_leave_out_what_transformers_fills_in() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    found = architecture_of_config({"model_type": "gemma3", "text_config": text})
    assert (kinds(found).count("F"), kinds(found).count("S")) == (5, 29)
    assert found.layers[5] == FullAttention(kv_heads=4, key_dim=256, value_dim=256)
    assert (found.model_type, found.vocab_size, found.max_context) == ("gemma3", 262_208, 131_072)


def test_llama_without_kv_heads_has_as_many_as_heads() -> None:
    found = architecture_of_config(small(num_key_value_heads=None))
    assert found.layers[0] == FullAttention(kv_heads=8, key_dim=8, value_dim=8)


def test_gemma_4_keeps_its_kv_heads_where_keys_are_not_values() -> None:
    config = load_config("google--gemma-4-26B-A4B")
    text = config["text_config"]
    assert isinstance(text, dict)
    found = architecture_of_config(config | {"text_config": text | {"attention_k_eq_v": False}})
    assert found.layers[5] == FullAttention(kv_heads=8, key_dim=512, value_dim=512)


WINDOW = {"sliding_window": 9}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
DSA = {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
MAMBA = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "head_dim": 8,
}


def test_latent_attention_keeps_one_vector_per_token() -> None:
    found = of("deepseek-ai--DeepSeek-V3")
    assert found.layers == (LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64),) * 61
    assert found.drafters == found.layers[:1]
    assert LatentAttention(512, 64).latent_dim == 576


def test_sparse_latent_attention_has_an_indexer_in_every_layer() -> None:
    found = of("deepseek-ai--DeepSeek-V3.2")
    assert set(found.layers) == {LatentAttention(512, 64, Indexer(heads=64, head_dim=128), attends=2048)}


def test_an_indexer_may_pick_for_the_layers_after_it() -> None:
    found = of("zai-org--GLM-5.2")
    assert kinds(found).startswith("IIIAAAIAAAIAAA")
    assert found.layers[3] == LatentAttention(512, 64, None, attends=2048)
    assert found.drafters == (LatentAttention(512, 64, Indexer(32, 128), 2048),)


def test_the_rule_for_shared_indexers_gives_what_the_list_says() -> None:
    """transformers derives `indexer_types` from `index_topk_freq` and `index_skip_topk_offset`."""
    config = load_config("zai-org--GLM-5.2") | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    listed = architecture_of_config(config)
    assert architecture_of_config({**config, "indexer_types": None}) == listed


def test_compressed_attention() -> None:
    found = of("deepseek-ai--DeepSeek-V4-Flash")
    window = CompressedAttention(head_dim=512, rope_dim=64, window=128, ratio=0)
    assert found.layers[:2] == (window, window)
    assert found.layers[2] == CompressedAttention(512, 64, 128, 4, Indexer(64, 128), attends=512)
    assert found.layers[3] == CompressedAttention(512, 64, 128, 128)
    assert found.drafters == (window,)


@pytest.mark.parametrize(("number", "elements"), [(0, 0), (2, 8 * 2048 + 8 * 512), (3, 128 * 1024)])
def test_the_state_of_compressors_is_that_of_vllm(number: int, elements: int) -> None:
    """vLLM 0.32, `models/deepseek_v4/compressor.py`: `sliding_window` x `state_dim`, of both compressors."""
    layer = of("deepseek-ai--DeepSeek-V4-Flash").layers[number]
    assert isinstance(layer, CompressedAttention)
    assert layer.state_elements == elements


def test_kda_beside_latent_attention() -> None:
    found = of("moonshotai--Kimi-K3")
    assert kinds(found).startswith("LLLALLLA")
    assert kinds(found).endswith("LLLAA")
    assert found.layers[0] == LinearAttention(96 * 128 * 128, conv_channels=3 * 96 * 128, conv_kernel=4)
    assert (found.model_type, found.experts, found.experts_per_token) == ("kimi_k3", 896, 16)


def test_mamba_2_with_experts_as_layers() -> None:
    found = of("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    assert kinds(found).startswith("MEMEMFEMEMEMFE")
    assert found.layers[0] == Mamba2(heads=64, head_dim=64, state_size=128, groups=8, conv_kernel=4)
    assert (found.layers[1], found.state_dtype) == (NoCache("moe"), "float32")


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 49_082_368),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 170_229_760),
    ],
)
def test_mamba_state_is_the_published_figure(name: str, state_bytes: int) -> None:
    mamba = [layer for layer in of(name).layers if isinstance(layer, Mamba2)]
    assert sum(x.state_elements * 4 + (x.conv_kernel - 1) * x.conv_channels * 2 for x in mamba) == state_bytes


def test_drafters_of_blocks_have_more_than_one_layer() -> None:
    found = of("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")
    assert found.drafters == (FullAttention(2, 128, 128), NoCache("moe"))
    assert found.drafter_layers == 1


def test_drafters_are_what_the_list_says_behind_the_layers() -> None:
    config = small(
        "step3p7", layer_types=[FULL] * 6 + [SLIDING], num_nextn_predict_layers=1, sliding_window=9
    )
    assert architecture_of_config(config).drafters == (SlidingAttention(2, 8, 8, 9),)


def test_blocks_may_be_words_and_need_no_count() -> None:
    config = small("nemotron_h", **MAMBA, layers_block_type=["mamba", "attention", "mlp"])
    del config["num_hidden_layers"]
    assert kinds(architecture_of_config(config)) == "MF-"


def test_layers_that_differ_one_by_one() -> None:
    found = of("nvidia--Llama-3_3-Nemotron-Super-49B-v1")
    assert found.layers[0] == FullAttention(kv_heads=8, key_dim=128, value_dim=128)
    assert found.layers.count(NoCache("mlp")) == 31


def test_chunks() -> None:
    found = of("meta-llama--Llama-4-Scout-17B-16E-Instruct")
    assert kinds(found) == "CCCF" * 12
    assert found.layers[0] == ChunkedAttention(kv_heads=8, key_dim=128, value_dim=128, chunk=8192)
    marked = small("llama4_text", no_rope_layers=[1, 0, 1, 0, 1, 1])
    assert kinds(architecture_of_config(marked)) == "CFCFCC"


def test_block_sparse_attention() -> None:
    found = of("nvidia--MiniMax-M3-NVFP4")
    assert kinds(found) == "FFF" + "X" * 57
    assert found.layers[3] == SparseAttention(4, 128, 128, Indexer(heads=4, head_dim=128), attends=2048)
    dense = small("minimax_m3", sparse_attention_config={"use_sparse_attention": False})
    assert kinds(architecture_of_config(dense)) == "FFFFFF"


def test_shared_kv_is_that_of_the_last_layer_of_its_kind() -> None:
    types = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL]
    found = architecture_of_config(
        small("gemma4_text", layer_types=types, sliding_window=9, num_kv_shared_layers=3)
    )
    assert found.layers[3:] == (SharedKv(1), SharedKv(1), SharedKv(2))


def test_granite_hybrids() -> None:
    keys = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    config = small("granitemoehybrid", layer_types=["mamba"] * 5 + ["attention"])
    found = architecture_of_config(config | dict(zip(keys, (4, 8, 16, 1, 4), strict=True)))
    assert kinds(found) == "MMMMMF"
    assert found.layers[0] == Mamba2(4, 8, 16, 1, 4)


@pytest.mark.parametrize(
    ("name", "generates"),
    [("Qwen3ForCausalLM", True), ("Qwen3ForSequenceClassification", False), ("Qwen3Model", False)],
)
def test_a_head_that_generates(name: str, generates: bool) -> None:
    config = {
        "model_type": "qwen3", "architectures": [name], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 100, "max_position_embeddings": 512,
    }  # fmt: skip
    assert architecture_of_config(config).generates is generates


def test_an_unknown_family_is_taken_for_llama_or_refused_by_its_own_name() -> None:
    unknown = small("brand_new", intermediate_size=128)
    assert architecture_of_config(as_llama(unknown)).layers == (FullAttention(2, 8, 8),) * 6
    with pytest.raises(UnknownArchitecture, match="`brand_new` has multi-head latent attention"):
        as_llama(unknown | {"kv_lora_rank": 512})
    with pytest.raises(
        UnknownArchitecture, match="`brand_new` has layers of the unknown type `linear_attention`"
    ):
        as_llama(unknown | {"layer_types": ["linear_attention"] * 6})
    for known in (small("llama"), small(), {}, {"model_type": ["llama"]}, 7):
        assert as_llama(known) is known
