from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.quantization import (
    BNB_INT8,
    FP8,
    FP8_ROWS,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    NVFP4_WEIGHTS_ONLY,
    ModulePatterns,
    Quantization,
    UnknownQuantization,
    WeightFormat,
    fp8_block,
    read_quantization,
    unquantized,
    weights_of_config,
)
from firesteel.facts.model.tensors import Role, linear

from .test_config import CONFIGS, load_config
from .test_every_config import anything


def read(**section: object) -> Quantization:
    found = read_quantization({"quantization_config": section})
    assert found
    return found


def scheme(layout: str = "pack-quantized", activations: object = None, **weights: object) -> Quantization:
    group = {"targets": ["Linear"], "input_activations": activations, "weights": weights}
    return read(quant_method="compressed-tensors", format=layout, config_groups={"group_0": group})


@pytest.mark.parametrize(
    ("form", "size"),
    [
        (unquantized(16), 2 * 256 * 512),
        (NVFP4, 256 * 512 // 2 + 256 * 512 // 16 + 8),
        (NVFP4_WEIGHTS_ONLY, 256 * 512 // 2 + 256 * 512 // 16 + 4),
        (MXFP4, 256 * 512 // 2 + 256 * 512 // 32),
        (MXFP8, 256 * 512 + 256 * 512 // 32),
        (FP8, 256 * 512 + 8),
        (FP8_ROWS, 256 * 512 + 2 * 256),
        (fp8_block(128, 128), 256 * 512 + 4 * 2 * 4),
        (NF4, 256 * 512 // 2 + 256 * 512 // 64 + 4),
        (BNB_INT8, 256 * 512 + 4 * 256),
        (WeightFormat("int4", 4, 128, 16), 256 * 512 // 2 + 2 * 256 * 4),
        (WeightFormat("int4", 4, 128, 20, column_bytes=4), 256 * 512 // 2 + 256 * 4 * 20 // 8 + 4 * 512),
    ],
)
def test_bytes_of_a_matrix(form: WeightFormat, size: int) -> None:
    assert form.bytes_of((256, 512)) == size


def test_blocks_that_do_not_fill_the_matrix_count_whole() -> None:
    assert fp8_block(128, 128).bytes_of((576, 7168)) == 576 * 7168 + 5 * 56 * 4


@pytest.mark.parametrize(
    ("found", "form"),
    [
        (read(quant_method="fp8", weight_block_size=[128, 128]), fp8_block(128, 128)),
        (read(quant_method="fp8"), FP8),
        (read(quant_method="mxfp4"), MXFP4),
        (read(quant_method="modelopt", quant_algo="NVFP4"), NVFP4),
        (read(quant_method="modelopt_fp4", quant_algo="NVFP4"), NVFP4),
        (read(quant_algo="FP8"), FP8),
        (read(quant_method="gptq", bits=4, group_size=128), WeightFormat("int4", 4, 128, 20, column_bytes=4)),
        (read(quant_method="gptq", bits=8, group_size=32), WeightFormat("int8", 8, 32, 24, column_bytes=4)),
        (read(quant_method="awq", bits=4, group_size=128), WeightFormat("int4", 4, 128, 20)),
        (read(quant_method="awq", w_bit=4, q_group_size=64), WeightFormat("int4", 4, 64, 20)),
        (read(quant_method="bitsandbytes", load_in_4bit=True), NF4),
        (read(quant_method="bitsandbytes", load_in_8bit=True), BNB_INT8),
        (scheme(type="int", num_bits=4, group_size=32, strategy="group", symmetric=True),
            WeightFormat("int4", 4, 32, 16, tensor_bytes=16)),
        (scheme(type="int", num_bits=4, group_size=32, strategy="group", symmetric=False),
            WeightFormat("int4", 4, 32, 20, tensor_bytes=16)),
        (scheme("mxfp4-pack-quantized", type="float", num_bits=4, group_size=32, strategy="group"), MXFP4),
        (scheme("nvfp4-pack-quantized", {"num_bits": 4}, type="float", num_bits=4, group_size=16), NVFP4),
        (scheme("nvfp4-pack-quantized", type="float", num_bits=4, group_size=16), NVFP4_WEIGHTS_ONLY),
        (scheme("float-quantized", type="float", num_bits=8, strategy="channel"), FP8_ROWS),
        (scheme("float-quantized", type="float", num_bits=8, strategy="tensor"), FP8),
        (scheme("float-quantized", type="float", num_bits=8, strategy="block", block_structure=[128, 128]),
            fp8_block(128, 128)),
    ],
)  # fmt: skip
def test_formats(found: Quantization, form: WeightFormat) -> None:
    assert found.format == form
    assert (found.bits, found.group_size) == (form.bits, form.group_size)


def test_modelopt_keeps_its_own_file() -> None:
    """`hf_quant_config.json`, in repositories whose config.json says nothing."""
    own = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    found = read_quantization({"producer": {"name": "modelopt"}, "quantization": own})
    assert found
    assert (found.method, found.format, found.kv_cache_dtype) == ("modelopt", NVFP4, "fp8")
    assert found.ignored.match("lm_head")


def test_a_config_without_one_is_not_quantized() -> None:
    assert read_quantization(load_config("Qwen--Qwen3-8B")) is None


@pytest.mark.parametrize(
    ("name", "method", "bits", "kv_cache_dtype"),
    [
        ("deepseek-ai--DeepSeek-V3", "fp8", 8, None),
        ("moonshotai--Kimi-K2.5", "compressed-tensors", 4, None),
        ("moonshotai--Kimi-K3", "compressed-tensors", 4, None),
        ("nvidia--GLM-5.2-NVFP4", "modelopt", 4, "fp8"),
        ("nvidia--Qwen3.6-27B-NVFP4", "modelopt", 8, "fp8"),
        ("Qwen--Qwen3-32B-FP8-Static-PerTensor", "modelopt", 8, "fp8"),
        ("openai--gpt-oss-20b", "mxfp4", 4, None),
    ],
)
def test_what_real_configs_say(name: str, method: str, bits: int, kv_cache_dtype: str | None) -> None:
    found = read_quantization(load_config(name))
    assert found
    assert (found.method, found.bits, found.kv_cache_dtype) == (method, bits, kv_cache_dtype)


@pytest.mark.parametrize(
    ("entry", "name", "held"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "language_model.lm_head", True),
        ("gate", "model.layers.0.block_sparse_moe.gate", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1.mlp", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1.mlp", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1*", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1*", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1.self_attn*", "model.layers.1.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("*.mlp.shared_expert.*", "model.layers.7.mlp.shared_expert.up_proj", True),
        ("mtp*", "mtp.layers.0.mlp.experts.0.up_proj", True),
        ("re:model.layers.[0-9]+.mlp.gate$", "model.layers.17.mlp.gate", True),
        ("re:.*self_attn.*", "model.layers.7.self_attn.q_proj", True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj", True),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.1.mlp.experts.0.up_proj", False),
    ],
)
def test_names_of_modules(entry: str, name: str, held: bool) -> None:
    assert ModulePatterns.parse([entry]).match(name) is held


def size(name: str) -> dict[Role, int]:
    config = load_config(name)
    return dict(weights_of_config(parameters_of_config(config), read_quantization(config)).bytes_by_role)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # https://huggingface.co/openai/gpt-oss-120b/tree/main, its 15 shards without headers, seen 2026-11-15
        ("openai--gpt-oss-120b", 65_248_815_744),
        # `total_size` in its model.safetensors.index.json, seen 2026-11-15
        ("openai--gpt-oss-20b", 13_761_264_768),
    ],
)
def test_assumed_bytes_are_those_of_the_checkpoint(name: str, total: int) -> None:
    assert sum(size(name).values()) == total


def test_assumed_bytes_of_mixed_formats() -> None:
    """As the catalog has this checkpoint, tensor by tensor; `lm_head` also has an input scale of 4 bytes."""
    assert size("nvidia--Qwen3.6-35B-A3B-NVFP4") == {
        Role.EMBEDDINGS: 1_017_118_720,
        Role.HEAD: 286_064_648 - 4,
        Role.ROUTED_EXPERTS: 18_119_516_160,
        Role.SHARED_EXPERT: 70_943_200,
        Role.ROUTER: 41_943_040,
        Role.ATTENTION: 1_289_098_000,
        Role.NORMS: 349_696,
        Role.DRAFTER: 1_689_281_536,
        Role.TOWER: 893_142_496,
    }


def test_block_fp8_with_its_drafter_is_as_large_as_the_repository() -> None:
    """The Hub's 163 files have 688,586,727,753 bytes, seen 2026-11-15; headers of 91,991 tensors in that."""
    total = sum(size("deepseek-ai--DeepSeek-V3").values())
    assert 0 < 688_586_727_753 - total < 91_991 * 150


def test_experts_of_deepseek_v4_are_mxfp4_and_the_rest_block_fp8() -> None:
    found = size("deepseek-ai--DeepSeek-V4-Flash")
    experts = 43 * 256 * 3 * 2048 * 4096
    assert found[Role.ROUTED_EXPERTS] == experts // 2 + experts // 32
    assert size("sgl-project--DeepSeek-V4-Flash-FP8")[Role.ROUTED_EXPERTS] == experts + experts // 128**2 * 4


def test_ignored_modules_stay_as_they_are() -> None:
    found = size("nvidia--Gemma-4-26B-A4B-NVFP4")
    plainly = parameters_of_config(load_config("nvidia--Gemma-4-26B-A4B-NVFP4")).by_role
    assert found[Role.ATTENTION] == 2 * plainly[Role.ATTENTION]
    assert found[Role.DENSE_MLP] == 2 * plainly[Role.DENSE_MLP]
    assert found[Role.ROUTED_EXPERTS] == pytest.approx(plainly[Role.ROUTED_EXPERTS] * 9 / 16, rel=1e-4)


def test_auto_round_packs_like_others_and_keeps_modules_by_name_or_pattern() -> None:
    kept = {"mlp.gate": {"bits": 16}, ".*shared_expert.*": {"bits": 16, "data_type": "float"}}
    found = read(quant_method="auto-round", bits=4, group_size=128, extra_config=kept)
    gptq = read(quant_method="gptq", bits=4, group_size=128).format
    assert found.format == gptq and not found.converts_head
    groups = {
        group.name: found.format_of(group)
        for group in parameters_of_config(load_config("Qwen--Qwen3.5-35B-A3B")).groups
        if "language_model" in group.name and ".mlp." in group.name
    }
    is_kept = {name for name, form in groups.items() if form != gptq}
    assert is_kept and is_kept == {name for name in groups if "mlp.gate" in name or "shared_expert" in name}
    as_awq = read(quant_method="auto-round", bits=4, group_size=128, packing_format="auto_round:auto_awq")
    assert as_awq.format == read(quant_method="awq", bits=4, group_size=128).format


def test_the_head_stays_unless_it_is_named() -> None:
    group = linear("lm_head", 1000, 64, "head")
    assert read(quant_method="fp8").format_of(group) == unquantized(16)
    assert read(quant_method="gptq", bits=4, group_size=32).format_of(group) == unquantized(16)
    assert read(quant_method="gptq", bits=4, group_size=32, lm_head=True).format_of(group).bits == 4
    layers = {"lm_head": {"quant_algo": "NVFP4"}}
    mixed = read(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert mixed.format_of(group) == NVFP4


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"quant_method": "quark"}, "`quark` is a quant_method that firesteel does not know"),
        ({}, "`None` is a quant_method"),
        ({"quant_method": "modelopt", "quant_algo": "INT2"}, "`INT2` is a ModelOpt algorithm"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "needs `quantized_layers`"),
        ({"quant_method": "compressed-tensors"}, "needs `config_groups`"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, "a group that is not an object"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}}}, "a group without `weights`"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "blocks of [128]"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "has the `rows` 0"),
        ({"quant_method": "gptq", "bits": "4"}, "has the `bits` 4"),
        ({"quant_method": "gptq", "bits": 4}, "has the `q_group_size` None"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 64, "extra_config": {"a": {"bits": 8}}},
         "AutoRound has `a` of another width"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+b"]}, "that may run for ever"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:.*.*.*.*.*x"]}, "that may run for ever"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:["]}, "is not a regular expression"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["*a*"] * 300}, "600 patterns"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(section: dict[str, object], line: str) -> None:
    with pytest.raises(UnknownQuantization) as caught:
        read_quantization({"quantization_config": section})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


QUANTIZED = sorted(
    path.stem for path in CONFIGS.glob("*.json") if "quantization_config" in load_config(path.stem)
)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_changed_config_is_weighed_or_refused(data: st.DataObject) -> None:
    config = load_config(data.draw(st.sampled_from(QUANTIZED)))
    section = config["quantization_config"]
    assert isinstance(section, dict)
    for key in data.draw(st.lists(st.sampled_from(sorted(section)), max_size=3)):
        section[key] = data.draw(anything)
    try:
        assert weights_of_config(parameters_of_config(config), read_quantization(config)).total_bytes > 0
    except (UnknownQuantization, UnknownArchitecture) as error:
        assert "\n" not in str(error)
