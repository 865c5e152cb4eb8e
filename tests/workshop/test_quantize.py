"""`quantize` of made checkpoints: the same bits as llm-compressor, and what stands beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

import firesteel
from firesteel.edge.checkpoints import open_path
from firesteel.errors import FiresteelError
from firesteel.facts.model.quantization import read_quantization
from firesteel.facts.model.tensors import Role, scale_groups
from firesteel.workshop.audit import audit
from firesteel.workshop.kernels import dequantize, reference
from firesteel.workshop.kernels.native import Kernel, NumpyKernel, load_kernel
from firesteel.workshop.quantize import worker
from firesteel.workshop.quantize.formats import FORMATS
from firesteel.workshop.quantize.plan import QuantizationPlan, plan_quantization
from firesteel.workshop.quantize.run import run_quantization
from firesteel.workshop.quantize.source import open_source
from tests.workshop import made_checkpoints as made
from tests.workshop import made_weights
from tests.workshop.stored import digests, raw_tensors
from tests.workshop.test_kernels_oracle import CASES, MODELS, ORACLE

CONFIGS: dict[str, Any] = {
    "llama": made.LLAMA,
    "llama-f32": made.LLAMA | {"torch_dtype": "float32"},
    "qwen3_moe": made.QWEN3_MOE,
}


@pytest.fixture(scope="session")
def c_kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return load_kernel(tmp_path_factory.mktemp("kernels"))


def quantize(source: Path, out: Path, to: str, kernel: Kernel, **options: Any) -> QuantizationPlan:
    plan = plan_quantization(open_source(str(source)), to, **options)
    run_quantization(plan, out, kernel, threads=2)
    return plan


@pytest.mark.parametrize("kernel_name", ["C", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_that_of_llm_compressor(
    case: str, kernel_name: str, tmp_path: Path, c_kernel: Kernel
) -> None:
    model, to = case.split()
    source = made.write_checkpoint(tmp_path / "source", CONFIGS[model], MODELS[model](), shards=2)
    quantize(source, tmp_path / "out", to, c_kernel if kernel_name == "C" else NumpyKernel())
    assert digests(tmp_path / "out") == ORACLE[case]["tensors"]
    ours = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    theirs = ORACLE[case]["config"]
    assert ours["format"] == theirs["format"]
    (own,), (oracle,) = ours["config_groups"].values(), theirs["config_groups"].values()
    assert own == oracle


def test_what_stands_beside_the_weights(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# a model\n")
    (source / "pytorch_model.bin").write_text("weights again")
    quantize(source, tmp_path / "out", "nvfp4", c_kernel)
    names = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert names == {
        "LICENSE", "README.md", "chat_template.jinja", "config.json", "generation_config.json",
        "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    readme = (tmp_path / "out/README.md").read_text()
    assert "license: apache-2.0" in readme
    assert "--to nvfp4" in readme
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}, "nothing is left behind"


def test_the_plan_is_exact(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    for to in FORMATS:
        plan = quantize(source, tmp_path / to, to, c_kernel)
        files = {path.name: path.stat().st_size for path in (tmp_path / to).glob("*.safetensors")}
        assert files == {file.name: file.bytes for file in plan.files}
        planned = {tensor.name: (tensor.dtype, list(tensor.shape), tensor.bytes) for tensor in plan.tensors}
        stored = raw_tensors(tmp_path / to)
        assert planned == {name: (dtype, shape, len(data)) for name, (dtype, shape, data) in stored.items()}


def test_our_own_readers_read_the_result(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.QWEN3_MOE, made.qwen3_moe())
    for to in FORMATS:
        plan = quantize(source, tmp_path / to, to, c_kernel)
        checkpoint = open_path(str(tmp_path / to))
        assert checkpoint.weights.total_bytes == sum(tensor.bytes for tensor in plan.tensors)
        quantization = read_quantization(plan.config)
        assert quantization is not None
        for matrix in plan.matrices:
            assert not quantization.ignored.match(matrix.module)
        for kept in plan.kept:
            if kept.source.role in (Role.ROUTER, Role.HEAD):
                assert quantization.ignored.match(kept.source.name.removesuffix(".weight")), kept.source.name


def test_the_audit_names_the_format_though_most_stays_in_16_bits(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    quantize(source, tmp_path / "out", "nvfp4", c_kernel, keep=["mlp"])
    summary = audit(str(tmp_path / "out")).summary
    assert summary.bytes_by_format[0][0] == "16 bits"
    assert summary.format == "safetensors, nvfp4 by compressed-tensors"


@pytest.mark.parametrize("limit", [("MAX_SHARD_BYTES", 100_000), ("MAX_SHARD_TENSORS", 8)])
def test_many_files_have_an_index(
    limit: tuple[str, int], tmp_path: Path, c_kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"firesteel.workshop.quantize.plan.{limit[0]}", limit[1])
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    plan = quantize(source, tmp_path / "out", "fp8-dynamic", c_kernel)
    assert len(plan.files) > 3
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    stored = raw_tensors(tmp_path / "out")
    assert set(index["weight_map"]) == set(stored)
    assert index["metadata"]["total_size"] == sum(len(data) for *_, data in stored.values())
    assert digests(tmp_path / "out") == ORACLE["llama fp8-dynamic"]["tensors"]
    open_path(str(tmp_path / "out"))


# --- experts ---


@pytest.mark.parametrize("to", ["fp8-dynamic", "fp8-block", "nvfp4", "nvfp4-spark", "nvfp4-w4a4", "mxfp4"])
@pytest.mark.parametrize("layout", ["fused", "transposed"])
def test_fused_experts_give_the_same_as_separate_ones(
    layout: str, to: str, tmp_path: Path, c_kernel: Kernel
) -> None:
    config = (
        {**made.QWEN3_MOE, "model_type": "qwen3_vl_moe_text"} if layout == "transposed" else made.QWEN3_MOE
    )
    separate = made.qwen3_moe()
    one = made.write_checkpoint(tmp_path / "separate", config, separate)
    three = made.write_checkpoint(tmp_path / "fused", config, made.fused(separate, 4, layout == "transposed"))
    quantize(one, tmp_path / "out-separate", to, c_kernel)
    quantize(three, tmp_path / "out-fused", to, c_kernel)
    assert raw_tensors(tmp_path / "out-fused") == raw_tensors(tmp_path / "out-separate")


@pytest.mark.parametrize("layout", ["fused", "transposed"])
def test_fused_experts_that_are_kept_are_in_the_ignore_list(
    layout: str, tmp_path: Path, c_kernel: Kernel
) -> None:
    """vLLM asks for one module of each expert; it also loads these one by one, except transposed ones."""
    kind = {"model_type": "qwen3_vl_moe_text"} if layout == "transposed" else {}
    config, separate = made.QWEN3_MOE | kind, made.qwen3_moe()
    for name, tensors in (
        ("separate", separate),
        ("fused", made.fused(separate, 4, layout == "transposed")),
    ):
        source = made.write_checkpoint(tmp_path / name, config, tensors)
        quantize(source, tmp_path / f"out-{name}", "nvfp4", c_kernel, keep=["model.layers.0.mlp.experts"])
    ignored = [
        set(json.loads((tmp_path / out / "config.json").read_text())["quantization_config"]["ignore"])
        for out in ("out-separate", "out-fused")
    ]
    assert ignored[0] == ignored[1] and "model.layers.0.mlp.experts.0.gate_proj" in ignored[1]
    if layout == "fused":
        assert raw_tensors(tmp_path / "out-fused") == raw_tensors(tmp_path / "out-separate")


def test_the_gate_and_the_up_of_an_expert_share_a_scale(tmp_path: Path, c_kernel: Kernel) -> None:
    """Although their weights differ by a factor of 8: vLLM uses the scale of the gate for both."""
    source = made.write_checkpoint(tmp_path / "source", made.QWEN3_MOE, made.qwen3_moe())
    quantize(source, tmp_path / "out", "nvfp4", c_kernel)
    stored = raw_tensors(tmp_path / "out")
    scales = {name: data for name, (_, _, data) in stored.items() if name.endswith("weight_global_scale")}
    groups = scale_groups(name.removesuffix(".weight_global_scale") for name in scales)
    assert sum(len(group) > 1 for group in groups) == 2 * (1 + 4)
    for group in groups:
        assert len({scales[f"{name}.weight_global_scale"] for name in group}) == 1
    for name, source_weight in made.qwen3_moe().items():
        module = name.removesuffix(".weight")
        if f"{module}.weight_packed" in stored:
            packed, scale, divisor = (
                np.frombuffer(stored[f"{module}.{leaf}"][2], kind)
                for leaf, kind in (
                    ("weight_packed", "u1"),
                    ("weight_scale", "u1"),
                    ("weight_global_scale", "f4"),
                )
            )
            rows = source_weight.shape[0]
            read = dequantize.nvfp4(packed.reshape(rows, -1), scale.reshape(rows, -1), 1 / divisor.item())
            weight = reference.as_f32(source_weight)
            assert np.linalg.norm(read - weight) < 0.12 * np.linalg.norm(weight), name


def test_w4a4_has_a_pinned_input_scale(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    plan = quantize(source, tmp_path / "out", "nvfp4-w4a4", c_kernel)
    stored = raw_tensors(tmp_path / "out")
    inputs = [data for name, (*_, data) in stored.items() if name.endswith("input_global_scale")]
    assert len(inputs) == len(list(plan.matrices))
    assert set(inputs) == {np.float32(1).tobytes()}
    (group,) = plan.config["quantization_config"]["config_groups"].values()
    assert group["input_activations"]["dynamic"] == "local"


def test_spark_has_fp8_attention_and_an_nvfp4_head(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.QWEN3_MOE, made.qwen3_moe())
    plan = quantize(source, tmp_path / "out", "nvfp4-spark", c_kernel)
    schemes = {matrix.module.rpartition(".")[2]: matrix.scheme for matrix in plan.matrices}
    assert schemes == {
        "q_proj": "fp8-rows", "k_proj": "fp8-rows", "v_proj": "fp8-rows", "o_proj": "fp8-rows",
        "gate_proj": "nvfp4", "up_proj": "nvfp4", "down_proj": "nvfp4", "lm_head": "nvfp4",
    }  # fmt: skip
    section = plan.config["quantization_config"]
    assert section["format"] == "mixed-precision"
    targets = {group["format"]: group["targets"] for group in section["config_groups"].values()}
    assert targets == {
        "float-quantized": [r"re:.*\.self_attn\..*"],
        "nvfp4-pack-quantized": ["re:.*lm_head$", r"re:.*\.mlp\..*"],
    }
    assert section["ignore"] == [r"re:.*\d+\.mlp\.gate$"]


# --- FP8 in blocks ---


def fp8_block_checkpoint(folder: Path) -> tuple[Path, dict[str, NDArray[Any]]]:
    """As DeepSeek publishes them, and the same weights in BF16."""
    plain = made.llama()
    stored: dict[str, NDArray[Any]] = {}
    dtypes = {}
    for name, weight in plain.items():
        if weight.ndim < 2 or not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        values = reference.as_f32(weight)
        result = reference.fp8_block(values)
        stored[name], dtypes[name] = result.values, "F8_E4M3"
        stored[f"{name}_scale_inv"] = result.scales
        plain[name] = reference.f32_to_bf16(dequantize.fp8_block(result.values, result.scales))
    config = made.LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    return made.write_checkpoint(folder, config, stored, dtypes=dtypes), plain


@pytest.mark.parametrize("to", ["fp8-dynamic", "nvfp4", "mxfp4"])
def test_fp8_in_blocks_is_dequantized_first(to: str, tmp_path: Path, c_kernel: Kernel) -> None:
    source, plain = fp8_block_checkpoint(tmp_path / "fp8")
    same = made.write_checkpoint(tmp_path / "bf16", made.LLAMA, plain)
    keep = ["model.layers.1.self_attn"]
    plan = quantize(source, tmp_path / "out-fp8", to, c_kernel, keep=keep)
    quantize(same, tmp_path / "out-bf16", to, c_kernel, keep=keep)
    assert raw_tensors(tmp_path / "out-fp8") == raw_tensors(tmp_path / "out-bf16")
    assert plan.config["quantization_config"]["quant_method"] == "compressed-tensors"


def plain_fp8(code: int) -> float:
    """E4M3 by its definition: a sign, four bits of exponent with bias 7, three of fraction."""
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * fraction / 8 * 2.0**-6
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


PLAIN_FP8 = [0.0 if code & 127 == 127 else plain_fp8(code) for code in range(256)]


def in_blocks(
    folder: Path, block: tuple[int, int], scale_dtype: str = "F32"
) -> tuple[Path, dict[str, NDArray[Any]]]:
    """FP8 in blocks of a size, with random codes and scales; and the same weights in BF16, each computed by
    itself. No size of a matrix is a multiple of a block's."""
    sizes = {"hidden_size": 144, "head_dim": 36, "intermediate_size": 272, "num_hidden_layers": 1}
    config = made.LLAMA | sizes
    plain, dtypes = made.llama(config=config), {}
    stored: dict[str, NDArray[Any]] = dict(plain)
    rng, (height, width) = np.random.default_rng(7), block
    for name, weight in plain.items():
        if not name.endswith("_proj.weight"):
            continue
        rows, columns = weight.shape
        codes = rng.integers(0, 127, (rows, columns)).astype(np.uint8)
        codes += rng.integers(0, 2, (rows, columns)).astype(np.uint8) * 128
        powers = rng.integers(115, 120, (-(-rows // height), -(-columns // width)))
        scales = np.exp2(powers - 127.0).astype(np.float32)
        if scale_dtype == "F32":
            scales *= rng.uniform(1, 2, scales.shape).astype(np.float32)
        code_rows, scale_rows = codes.tolist(), scales.tolist()
        values = [
            [PLAIN_FP8[code] * scale_rows[i // height][j // width] for j, code in enumerate(row)]
            for i, row in enumerate(code_rows)
        ]
        plain[name] = reference.f32_to_bf16(np.array(values, np.float32))
        stored[name], dtypes[name] = codes, "F8_E4M3"
        stored[f"{name}_scale_inv"] = scales if scale_dtype == "F32" else powers.astype(np.uint8)
        if scale_dtype != "F32":
            dtypes[f"{name}_scale_inv"] = scale_dtype
    quantized = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    made.write_checkpoint(folder / "bf16", config, plain)
    return made.write_checkpoint(folder / "fp8", quantized, stored, dtypes=dtypes), plain


@pytest.mark.parametrize(
    "block", [(64, 128), (256, 256), (128, 64), (1, 128), (32, 32), (96, 48), (128, 128), (1000, 1)]
)
@pytest.mark.parametrize("scale_dtype", ["F32", "F8_E8M0"])
def test_fp8_in_blocks_of_any_size(
    block: tuple[int, int],
    scale_dtype: str,
    tmp_path: Path,
    c_kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In units of 128 rows, which begin within larger blocks."""
    monkeypatch.setattr(worker, "UNIT_ELEMENTS", 2**12)
    source, _ = in_blocks(tmp_path, block, scale_dtype)
    keep = ["model.layers.0.self_attn"]  # is dequantized and kept
    quantize(source, tmp_path / "out-fp8", "nvfp4", c_kernel, keep=keep)
    quantize(tmp_path / "bf16", tmp_path / "out-bf16", "nvfp4", c_kernel, keep=keep)
    assert raw_tensors(tmp_path / "out-fp8") == raw_tensors(tmp_path / "out-bf16")


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ([128, 64], "in blocks of 128 x 64 has"),
        ([64], "its weight_block_size is [64]"),
        ([0, 128], "its weight_block_size is [0, 128]"),
        (["128", 128], "its weight_block_size is"),
        (128, "its weight_block_size is 128"),
    ],
)
def test_scales_that_do_not_fit_their_weights_are_refused(declared: Any, says: str, tmp_path: Path) -> None:
    source, _ = in_blocks(tmp_path, (128, 128))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = declared
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(FiresteelError) as raised:
        plan_quantization(open_source(str(source)), "nvfp4")
    assert says in raised.value.what


# --- refusals ---


def refused(
    tmp_path: Path, config: dict[str, Any], tensors: made.Tensors, to: str = "nvfp4", **more: Any
) -> FiresteelError:
    source = made.write_checkpoint(tmp_path / "source", config, tensors)
    with pytest.raises(FiresteelError) as raised:
        plan_quantization(open_source(str(source)), to, **more)
    return raised.value


def test_experts_in_an_unknown_layout_stop_the_run(tmp_path: Path) -> None:
    tensors = made.fused(made.qwen3_moe(), 4)
    config = made.QWEN3_MOE | {"model_type": "minimax_m2"}
    large = {name: np.repeat(array, 8, 0) if array.ndim == 3 else array for name, array in tensors.items()}
    error = refused(tmp_path, config, large)
    assert error.exit_code == 3
    assert "experts.gate_up_proj" in error.what
    assert "--keep" in error.next


def test_experts_along_the_wrong_axis_stop_the_run(tmp_path: Path) -> None:
    """A transposed tensor under a family that does not transpose."""
    error = refused(tmp_path, made.QWEN3_MOE, made.fused(made.qwen3_moe(), 4, transposed=True))
    assert error.exit_code == 3
    assert "another shape" in error.what


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, made.LLAMA, made.llama(), keep=["lm_head", "dwn_proj"])
    assert error.what.startswith("--keep dwn_proj matches no module")
    assert error.next == "--keep down_proj"


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(FiresteelError, match="is a LoRA adapter") as raised:
        open_source(str(tmp_path))
    assert "--adapter" in raised.value.next


def test_the_card_keeps_what_the_card_of_the_source_says(tmp_path: Path, c_kernel: Kernel) -> None:
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    (source / "README.md").write_text(
        "---\nlicense: other\nlicense_name: some-license\nlanguage:\n- en\n- de\nbase_model: org/original\n"
        "tags: [chat, conversational]\nwidget:\n- text: hello\n---\n# a model\n"
    )
    quantize(source, tmp_path / "out", "nvfp4", c_kernel)
    head = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---")[1])
    assert head == {
        "license": "other", "license_name": "some-license", "language": ["en", "de"],
        "base_model": "org/original", "base_model_relation": "quantized", "library_name": "vllm",
        "tags": ["chat", "conversational", "compressed-tensors", "firesteel"],
    }  # fmt: skip


def test_gpt_oss_is_refused_by_name(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt_oss", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 160, "num_local_experts": 4,
        "num_experts_per_tok": 2, "intermediate_size": 96, "sliding_window": 128,
        "max_position_embeddings": 512,
    }  # fmt: skip
    error = refused(tmp_path, config, made.fused(made.qwen3_moe(), 4, transposed=True))
    assert "gpt_oss" in error.what


def test_columns_that_do_not_fit_the_format_stop_the_run(tmp_path: Path) -> None:
    config = made.LLAMA | {"intermediate_size": 376}
    error = refused(tmp_path, config, made.llama(config=config))
    assert error.exit_code == 3
    assert "`model.layers.0.mlp.down_proj.weight`" in error.what
    plan = plan_quantization(open_source(str(tmp_path / "source")), "nvfp4", ["down_proj"])
    assert {kept.why for kept in plan.kept if "down_proj" in kept.source.name} == {"--keep"}
    plan_quantization(open_source(str(tmp_path / "source")), "fp8-dynamic")


def test_a_large_tensor_of_unknown_role_stops_the_run(tmp_path: Path) -> None:
    tensors = {**made.llama(), "model.mystery.weight": made_weights.bf16_bits("mystery", (1024, 512))}
    assert "mystery" in refused(tmp_path, made.LLAMA, tensors).what


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    section = {"quant_method": "gptq", "bits": 4}
    error = refused(tmp_path, made.LLAMA | {"quantization_config": section}, made.llama())
    assert "gptq" in error.what


def test_half_of_what_engines_join_cannot_be_kept(tmp_path: Path) -> None:
    assert "load them as one" in refused(tmp_path, made.LLAMA, made.llama(), keep=["k_proj"]).what


def test_infinite_weights_are_named(tmp_path: Path, c_kernel: Kernel) -> None:
    tensors = made.llama()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 7] = 0x7F80
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, tensors)
    for to in FORMATS:
        with pytest.raises(FiresteelError, match=r"layers\.1\.mlp\.up_proj"):
            quantize(source, tmp_path / to, to, c_kernel)
        assert not (tmp_path / to).exists()


@pytest.mark.parametrize("to", FORMATS)
def test_audit_finds_nothing_wrong_with_what_we_write(to: str, tmp_path: Path, c_kernel: Kernel) -> None:
    for name, config, tensors in (
        ("llama", made.LLAMA, made.llama()),
        ("moe", made.QWEN3_MOE, made.fused(made.qwen3_moe(), 4)),
    ):
        source = made.write_checkpoint(tmp_path / name, config, tensors)
        quantize(source, tmp_path / f"{name}-out", to, c_kernel)
        found = audit(str(tmp_path / f"{name}-out")).findings
        # Made weights are uniform, so that the largest of many groups is the largest of all.
        wrong = [f for f in found if f.level != "note" and f.check != "scale-saturated"]
        assert wrong == []


def test_as_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    source = made.write_checkpoint(tmp_path / "source", made.LLAMA, made.llama())
    plan = firesteel.plan_quantization(str(source), "nvfp4")
    quantized = firesteel.quantize(plan, tmp_path / "out")
    assert quantized.result.bytes == plan.bytes
    assert quantized.audit.model == str(tmp_path / "out") and quantized.can_be_published
    assert digests(tmp_path / "out") == ORACLE["llama nvfp4"]["tensors"]
