"""Figures are counts of the real model classes, and what publishers say.

`CLASSES`: transformers 5.22.2 with torch 2.15.0, 2026-11-15. `family_counts.json`: 5.19.0 with torch 2.13.0,
2026-11-16, by `scripts/record-family-counts`. The class that the
config names was built on the meta device; counted are all its parameters and the buffers that a checkpoint
keeps, without towers. Where transformers has no class of that name, the one with the same modules was built:
`deepseek_v3` for Kimi K2, `deepseek_v4` for `deepseek_ref`, `minimax_m3_vl` for `minimax_m3`, `qwen2` for
MiMo-7B, `minimax` for MiniMax-M1.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.facts.model.tensors import Role, role_of

from .test_config import CONFIGS, load_config, small
from .test_every_config import changed_config

CLASSES = {
    "MiniMaxAI--MiniMax-M2.5": 228_689_764_864,
    "MiniMaxAI--MiniMax-M2.7": 228_689_764_864,
    "MiniMaxAI--MiniMax-M3": 426_174_572_928,
    "Qwen--Qwen3-0.6B": 596_049_920,
    "Qwen--Qwen3-1.7B": 1_720_574_976,
    "Qwen--Qwen3-235B-A22B-FP8": 235_093_634_560,
    "Qwen--Qwen3-235B-A22B": 235_093_634_560,
    "Qwen--Qwen3-30B-A3B-FP8": 30_532_122_624,
    "Qwen--Qwen3-30B-A3B": 30_532_122_624,
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": 32_762_123_264,
    "Qwen--Qwen3-32B-FP8": 32_762_123_264,
    "Qwen--Qwen3-32B": 32_762_123_264,
    "Qwen--Qwen3-8B": 8_190_735_360,
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "Qwen--Qwen3-VL-235B-A22B-Instruct": 235_093_634_560,
    "Qwen--Qwen3-VL-2B-Instruct": 1_720_574_976,
    "Qwen--Qwen3-VL-30B-A3B-Instruct": 30_532_122_624,
    "Qwen--Qwen3-VL-32B-Instruct": 32_762_123_264,
    "Qwen--Qwen3-VL-32B-Thinking": 32_762_123_264,
    "Qwen--Qwen3-VL-4B-Instruct": 4_022_468_096,
    "Qwen--Qwen3-VL-8B-Instruct": 8_190_735_360,
    "Qwen--Qwen3.5-122B-A10B": 122_111_526_912,
    "Qwen--Qwen3.5-27B": 26_895_998_464,
    "Qwen--Qwen3.5-35B-A3B": 34_660_610_688,
    "Qwen--Qwen3.5-397B-A17B": 396_346_350_336,
    "XiaomiMiMo--MiMo-7B-Base": 7_622_619_136,
    "XiaomiMiMo--MiMo-V2-Flash": 308_778_780_864,
    "deepseek-ai--DeepSeek-R1": 671_026_419_200,
    "deepseek-ai--DeepSeek-V3.2": 671_877_944_064,
    "deepseek-ai--DeepSeek-V3": 671_026_419_200,
    "deepseek-ai--DeepSeek-V4-Flash": 284_334_567_511,
    "deepseek-ai--DeepSeek-V4-Pro": 1_572_999_528_803,
    "google--gemma-4-26B-A4B": 25_233_141_790,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "meta-llama--Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama--Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama--Meta-Llama-3.1-8B": 8_030_261_248,
    "mistralai--Mixtral-8x22B-v0.1": 140_620_634_112,
    "mistralai--Mixtral-8x7B-v0.1": 46_702_792_704,
    "moonshotai--Kimi-K2-Instruct": 1_026_408_232_448,
    "moonshotai--Kimi-K2.5": 1_026_408_232_448,
    "nvidia--DeepSeek-V3.1-NVFP4": 671_026_419_200,
    "nvidia--DeepSeek-V3.2-NVFP4": 671_877_944_064,
    "nvidia--DeepSeek-V4-Flash-NVFP4": 284_334_567_511,
    "nvidia--DeepSeek-V4-Pro-NVFP4": 1_572_999_528_803,
    "nvidia--GLM-5-NVFP4": 743_911_218_432,
    "nvidia--GLM-5.1-NVFP4": 743_911_218_432,
    "nvidia--GLM-5.2-NVFP4": 743_377_019_904,
    "nvidia--Gemma-4-26B-A4B-NVFP4": 25_233_141_790,
    "nvidia--Gemma-4-31B-IT-NVFP4": 30_697_345_340,
    "nvidia--Kimi-K2.5-NVFP4": 1_026_408_232_448,
    "nvidia--Kimi-K2.6-NVFP4": 1_026_408_232_448,
    "nvidia--Kimi-K2.7-Code-NVFP4": 1_026_408_232_448,
    "nvidia--Llama-3.1-70B-Instruct-FP8": 70_553_706_496,
    "nvidia--MiniMax-M2.5-NVFP4": 228_689_764_864,
    "nvidia--MiniMax-M2.7-NVFP4": 228_689_764_864,
    "nvidia--MiniMax-M3-NVFP4": 426_174_572_928,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_940_288,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 31_577_940_288,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120_668_707_840,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120_668_707_840,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_993_536,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": 549_308_993_536,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 549_308_993_536,
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 31_577_940_288,
    "nvidia--Nemotron-H-56B-Base-8K": 56_324_350_464,
    "nvidia--Qwen3-235B-A22B-NVFP4": 235_093_634_560,
    "nvidia--Qwen3.5-122B-A10B-NVFP4": 122_111_526_912,
    "nvidia--Qwen3.5-397B-A17B-NVFP4": 396_346_350_336,
    "nvidia--Qwen3.6-27B-NVFP4": 26_895_998_464,
    "nvidia--Qwen3.6-35B-A3B-NVFP4": 34_660_610_688,
    "openai--gpt-oss-120b": 116_829_156_672,
    "openai--gpt-oss-20b": 20_914_757_184,
    "sgl-project--DeepSeek-V4-Flash-FP8": 284_334_567_511,
    "sgl-project--DeepSeek-V4-Pro-FP8": 1_572_999_528_803,
    "zai-org--GLM-5-FP8": 743_911_218_432,
    "zai-org--GLM-5.1-FP8": 743_911_218_432,
    "zai-org--GLM-5.1": 743_911_218_432,
    "zai-org--GLM-5.2-FP8": 743_377_019_904,
    "zai-org--GLM-5.2": 743_377_019_904,
    "zai-org--GLM-5": 743_911_218_432,
}

"""Families that no config of the reference data has, at their class's own defaults or a published size."""

FAMILIES: dict[str, int] = json.loads((CONFIGS.parent / "family_counts.json").read_text())

TOWERS = {
    "families/qwen2_5_vl": 676_550_144,
    "Qwen--Qwen3-VL-235B-A22B-Instruct": 576_388_336,
    "Qwen--Qwen3-VL-2B-Instruct": 406_957_056,
    "Qwen--Qwen3-VL-30B-A3B-Instruct": 538_631_408,
    "Qwen--Qwen3-VL-32B-Instruct": 595_266_800,
    "Qwen--Qwen3-VL-32B-Thinking": 595_266_800,
    "Qwen--Qwen3-VL-4B-Instruct": 415_347_712,
    "Qwen--Qwen3-VL-8B-Instruct": 576_388_336,
    "Qwen--Qwen3.5-122B-A10B": 451_290_864,
    "Qwen--Qwen3.5-27B": 460_730_096,
    "Qwen--Qwen3.5-35B-A3B": 446_571_248,
    "Qwen--Qwen3.5-397B-A17B": 456_010_480,
    "google--gemma-4-26B-A4B": 572_794_416,
    "nvidia--Gemma-4-26B-A4B-NVFP4": 572_794_416,
    "nvidia--Gemma-4-31B-IT-NVFP4": 575_743_536,
    "nvidia--Qwen3.5-122B-A10B-NVFP4": 451_290_864,
    "nvidia--Qwen3.5-397B-A17B-NVFP4": 456_010_480,
    "nvidia--Qwen3.6-27B-NVFP4": 460_730_096,
    "nvidia--Qwen3.6-35B-A3B-NVFP4": 446_571_248,
}
"""The vision towers of those classes, with their projectors."""


def of(name: str) -> ParameterGroups:
    return parameters_of_config(load_config(name))


@pytest.mark.parametrize("name", CLASSES)
def test_totals_are_those_of_the_model_class(name: str) -> None:
    assert of(name).total == CLASSES[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_totals_of_other_families_are_those_of_their_class(name: str) -> None:
    assert parameters_of_config(load_config(f"families/{name}")).total == FAMILIES[name]


@pytest.mark.parametrize("name", TOWERS)
def test_towers_are_those_of_the_model_class(name: str) -> None:
    found = of(name)
    assert found.by_role[Role.TOWER] == TOWERS[name]
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("openai--gpt-oss-20b", 20.908, 3.607),
        ("openai--gpt-oss-120b", 116.789, 5.131),
        ("Qwen--Qwen3-30B-A3B", 30.532, 3.042),
        ("Qwen--Qwen3-235B-A22B", 235.093, 21.568),
        ("MiniMaxAI--MiniMax-M2.7", 228.689, 10.415),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 120.666, 12.231),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 31.577, 3.227),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", 34.659, 2.945),
        ("nvidia--Qwen3.6-27B-NVFP4", 26.893, 25.622),
        ("Qwen--Qwen3.5-122B-A10B", 122.109, 9.006),
        ("Qwen--Qwen3.5-397B-A17B", 396.343, 16.329),
        ("google--gemma-4-26B-A4B", 25.232, 3.822),
        ("nvidia--Gemma-4-31B-IT-NVFP4", 30.696, 30.696),
        ("meta-llama--Meta-Llama-3.1-8B", 8.03, 7.505),
        ("meta-llama--Meta-Llama-3.1-70B", 70.552, 69.502),
        ("Qwen--Qwen3-8B", 8.19, 7.568),
        ("Qwen--Qwen3-32B", 32.761, 31.984),
    ],
)
def test_totals_are_those_that_others_publish(name: str, total: float, active: float) -> None:
    """In billions, as the reference data has them from model cards and llama-bench."""
    found = of(name)
    assert found.total == pytest.approx(total * 1e9, rel=0.005)
    assert found.active == pytest.approx(active * 1e9, rel=0.005)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # https://huggingface.co/mmnga/Llama-3_3-Nemotron-Super-49B-v1-gguf, seen 2026-11-15
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", 49.9, None),
        # https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md, seen 2026-11-15
        ("deepseek-ai--DeepSeek-V3", 671, 36.6),
        # https://arxiv.org/abs/2507.20534 has 1.04T and 32B, rounded; seen 2026-11-15
        ("moonshotai--Kimi-K2-Instruct", None, 32),
        # https://huggingface.co/inclusionAI/Ling-2.6-flash-base: "~104B", seen 2026-11-16
        ("families/bailing_hybrid", 104, None),
        # https://huggingface.co/MiniMaxAI/MiniMax-M1-80k: 456B, 45.9B active, seen 2026-11-16
        ("families/minimax_m1", 456, None),
    ],
)
def test_totals_on_model_cards(name: str, total: float | None, active: float | None) -> None:
    found = of(name)
    if total:
        assert found.total == pytest.approx(total * 1e9, rel=0.005)
    if active:
        assert found.active == pytest.approx(active * 1e9, rel=0.01)


def test_kimi_k3_has_the_tensors_that_llama_cpp_loads() -> None:
    """`src/models/kimi-k3.cpp` as of 2026-08-22, which calls the model 2.8T.

    Beside each score of a residual block vLLM has a norm, which a GGUF holds inside the score.
    """
    hidden, inner, experts, latent = 7168, 96 * 128, 896, 3584
    kda = 5 * hidden * inner + hidden * 128 + 128 * inner + hidden * 96 + 3 * 4 * inner + 96 + inner + 128
    queries = hidden * 1536 + 1536 * 96 * 192 + 1536
    mla = queries + hidden * 576 + 512 + 512 * 96 * (128 + 128) + 2 * hidden * inner
    shared = 3 * hidden * 2 * 3072
    moe = hidden * experts + experts + 3 * experts * latent * 3072 + 2 * hidden * latent + latent + shared
    layers = 69 * kda + 24 * mla + 92 * moe + 3 * hidden * 33_792 + 93 * (2 + 4) * hidden
    found = of("moonshotai--Kimi-K3")
    assert found.total == layers + 2 * 163_840 * hidden + (1 + 2) * hidden
    assert found.total == pytest.approx(2.8e12, rel=0.01)


def test_a_drafter_counts_for_itself() -> None:
    """The checkpoint on the Hub is 685B: 671B and 14B of MTP, copies of embedding and head included."""
    found = of("deepseek-ai--DeepSeek-V3")
    tables = 2 * 129_280 * 7168
    assert found.drafter - tables == pytest.approx(11.5e9, rel=0.01)
    assert found.total + found.drafter == pytest.approx(684.5e9, rel=0.0005)
    assert found.by_role[Role.DRAFTER] == found.drafter


def test_parts_of_a_hybrid_with_experts() -> None:
    parts = of("nvidia--Qwen3.6-35B-A3B-NVFP4").by_part
    assert parts["routed_experts"] == 40 * 256 * 3 * 512 * 2048
    assert parts["shared_experts"] == 40 * (3 * 512 * 2048 + 2048)
    assert parts["router"] == 40 * 256 * 2048
    assert parts["embedding"] == parts["head"] == 248_320 * 2048
    assert parts["recurrence"] > parts["attention"]


def test_a_tied_head_is_not_counted_twice() -> None:
    found = of("Qwen--Qwen3-0.6B")
    assert found.tied_head
    assert Role.HEAD not in found.by_role
    assert found.active == found.total


def test_looking_up_a_row_for_each_layer_reads_no_table() -> None:
    found = parameters_of_config(json.loads((CONFIGS / "families" / "gemma4_e2b.json").read_text()))
    assert found.total - found.active == 262_144 * 35 * 256


def test_parts_that_the_config_does_not_size_are_listed() -> None:
    assert of("moonshotai--Kimi-K3").unknown == ("the size of the tower in `vision_config`",)
    assert of("MiniMaxAI--MiniMax-M3").unknown == ("the size of its MTP layers",)
    assert "attention_other_setting" in of("stepfun-ai--Step-3.7-Flash").unknown[0]
    assert of("Qwen--Qwen3-8B").unknown == ()


def test_a_tower_without_its_figures_is_unknown_and_the_rest_is_counted() -> None:
    figures = load_config("Qwen--Qwen3-VL-2B-Instruct")
    found = parameters_of_config(figures | {"vision_config": {"model_type": "qwen3_vl"}})
    assert found.unknown == ("the size of the tower in `vision_config`",)
    assert found.total == parameters_of_config(figures).total


def test_other_heads_of_sliding_layers_are_read_where_the_config_has_them() -> None:
    figures = load_config("stepfun-ai--Step-3.7-Flash")
    other = {"attention_other_setting": {"num_attention_heads": 96}}
    more = parameters_of_config(figures | other)
    # 32 heads more in 33 layers: queries, output and one gate a head
    assert more.total - parameters_of_config(figures).total == 33 * 32 * (2 * 128 + 1) * 4096
    assert more.unknown == ()


_LEAVES = ("bias", "sinks", "sink", "A_log", "tid2eid", "scale", "scalar", "_fn", "_base", "ape", "proj_bias")


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_roles_follow_from_names(name: str) -> None:
    """What is assumed before the download goes where the checkpoint's own names will put it."""
    layers = len(architecture_of_config(load_config(name)).layers)
    for group in of(name).groups:
        leaf = group.name if group.name.endswith(_LEAVES) else f"{group.name}.weight"
        assert role_of(leaf, layers) is group.role, leaf


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (small("gemma3n_text", layer_types=["full_attention"] * 6), "layers of `gemma3n_text`, but not how"),
        (small("llama"), "has no `intermediate_size`"),
        (small("qwen3_moe", num_experts=8, num_experts_per_tok=2), "has no `moe_intermediate_size`"),
        (small("bamba"), "does not know"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(figures: dict[str, object], line: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        parameters_of_config(figures)
    assert line in str(caught.value)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_changed_config_is_counted_or_refused(data: st.DataObject) -> None:
    figures = changed_config(data)
    try:
        assert parameters_of_config(figures).total > 0
    except UnknownArchitecture as error:
        assert "\n" not in str(error)
