"""vLLM's KV figures against its own answers, release by release; `kv_cases/README.md` says how they came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from firesteel.engines.kv_cache import reported_kv
from firesteel.engines.vllm.kv_cache import VllmPool, vllm_pool
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.launch import FlagValue, Launch
from firesteel.units import GIB

CASES = Path(__file__).parent / "kv_cases"
ASKED: dict[str, dict[str, Any]] = {
    case["name"]: case for case in json.loads((CASES / "cases.json").read_text())
}
CONFIGS: dict[str, Any] = json.loads((CASES / "configs.json").read_text())
NOT_YET: dict[str, str] = {}
"""Cases that our figures do not equal, with the reason."""
MOST_RESIDENT = 64
"""Where the recording stops counting."""
KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "MambaSpec": "mamba",
}


def answers() -> Iterator[Any]:
    for path in sorted(CASES.glob("[0-9]*.json")):
        release = json.loads(path.read_text())
        for case in release["cases"]:
            if case["name"] in ASKED:
                yield pytest.param(release["version"], case, id=f"{release['version']}-{case['name']}")


def typed(value: object) -> FlagValue:
    return value if isinstance(value, bool | dict) else str(value)


def asked(name: str, version: str) -> tuple[Launch, Architecture]:
    case = ASKED[name]
    flags = {flag: typed(value) for flag, value in case["flags"].items()}
    return Launch("x", "x", "vllm", version, flags, case.get("env", {})), architecture_of_config(
        CONFIGS[case["model"]]
    )


def shared_out(pool: VllmPool) -> list[list[object]]:
    """The groups in the shape of the recorded ones, but for the name of a mixed group's kind."""
    rows = [
        (
            "mixed" if g.is_mixed else g.kind,
            g.layers,
            g.block_size,
            g.page_bytes,
            g.blocks(pool.settings, pool.context),
        )
        for g in pool.groups
    ]
    return [[len(list(same)), *row] for row, same in groupby(rows)]


def recorded(case: Any) -> list[list[object]]:
    return [[many, KINDS.get(kind, "mixed"), *rest] for many, kind, *rest in case["groups"]]


@pytest.mark.parametrize(("version", "case"), list(answers()))
def test_figures_equal_those_of_vllm(version: str, case: Any) -> None:
    if why := NOT_YET.get(case["name"]):
        pytest.xfail(why)
    launch, architecture = asked(case["name"], version)
    pool = vllm_pool(launch, architecture, case["resolved"]["max_model_len"])
    assert not pool.unsure
    assert shared_out(pool) == recorded(case)
    assert pool.block_bytes == case["block_bytes"]
    assert pool.request_bytes == case["request_bytes"]
    flags = ASKED[case["name"]]["flags"]
    if "least_bytes" in case and "num-gpu-blocks-override" not in flags:
        assert pool.least_bytes == case["least_bytes"]
    report = pool.reported(flags["kv-cache-memory-bytes"], auto=flags.get("max-model-len") == -1)
    if refused := case.get("refused"):
        assert report.refused is not None
        assert report.refused.needed_gib == refused["needed_gib"]
        assert report.refused.largest_context == refused.get("estimated_max_model_len", 0)
        return
    assert report.refused is None
    assert (report.num_blocks, report.tokens) == (case["num_blocks"], case["tokens"])
    assert report.concurrency_text == case["concurrency"]
    assert report.context == case.get("auto_max_model_len", case["resolved"]["max_model_len"])


def config_of(model: str) -> Any:
    return MORE.get(model) or CONFIGS[model]


MORE: dict[str, Any] = {
    "kimi-linear": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "hidden_size": 2304,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 163840,
        "max_position_embeddings": 1048576,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "granite-4-h": {
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "num_hidden_layers": 40,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "vocab_size": 100352,
        "max_position_embeddings": 131072,
    },
}
Asked = tuple[str, int, int, dict[str, FlagValue]]
KIMI: Asked = ("kimi-linear", 131072, 8, {})
GRANITE: Asked = ("granite-4-h", 65536, 8, {})
GRANITE_CACHING: Asked = ("granite-4-h", 65536, 8, {"enable-prefix-caching": True})
GPT_OSS_NGRAM: Asked = (
    "openai/gpt-oss-20b",
    65536,
    8,
    {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}},
)
QWEN_NGRAM: Asked = ("nvidia/Qwen3.6-35B-A3B-NVFP4", 65536, 8, GPT_OSS_NGRAM[3])
MTP: dict[str, FlagValue] = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}
V4: Asked = ("deepseek-ai/DeepSeek-V4-Flash", 131072, 40, {"kv-cache-dtype": "fp8"})
V4_MTP: Asked = ("deepseek-ai/DeepSeek-V4-Flash", 131072, 40, {"kv-cache-dtype": "fp8", **MTP})
GLM_MTP: Asked = ("zai-org/GLM-5.2", 131072, 40, MTP)


@pytest.mark.parametrize(
    ("asked", "version", "block_bytes", "request_bytes", "tokens", "concurrency"),
    [
        (KIMI, "0.19.1", 15482880, 1114767360, 264960, "7.69"),
        (KIMI, "0.26.0", 15224832, 1111412736, 1012665, "7.73"),
        (KIMI, "0.28.0", 15482880, 1161216000, 968185, "7.39"),
        (KIMI, "0.32.0", 15482880, 1161216000, 968185, "7.39"),
        (GRANITE, "0.19.1", 3276800, 566886400, 104800, "15.15"),
        (GRANITE, "0.26.0", 3276800, 566886400, 992889, "15.15"),
        (GRANITE, "0.28.0", 3276800, 596377600, 943790, "14.40"),
        (GRANITE, "0.32.0", 3276800, 625868800, 899318, "13.72"),
        (GRANITE_CACHING, "0.19.1", 4194304, 5368709120, 104448, "1.60"),
        (GRANITE_CACHING, "0.26.0", 4194304, 5368709120, 104857, "1.60"),
        (GRANITE_CACHING, "0.28.0", 3276800, 596377600, 943790, "14.40"),
        (GRANITE_CACHING, "0.32.0", 3276800, 625868800, 899318, "13.72"),
        (GPT_OSS_NGRAM, "0.19.1", 393216, 1815478272, 174752, "4.73"),
        (GPT_OSS_NGRAM, "0.32.0", 393216, 1815478272, 310078, "4.73"),
        (QWEN_NGRAM, "0.19.1", 21954560, 1624637440, 103984, "5.28"),
        (QWEN_NGRAM, "0.26.0", 21954560, 1624637440, 346278, "5.28"),
        (QWEN_NGRAM, "0.32.0", 21954560, 1690501120, 332786, "5.08"),
        (V4, "0.26.0", 1039680, 7566476544, 842212, "6.43"),
        (V4, "0.28.0", 1002240, 7566476544, 780765, "5.96"),
        (V4, "0.30.0", 1002240, 7210114560, 780765, "5.96"),
        (V4, "0.32.0", 1002240, 7210114560, 780765, "5.96"),
        (V4_MTP, "0.26.0", 1039680, 7566476544, 840904, "6.42"),
        (V4_MTP, "0.28.0", 1002240, 7566476544, 780765, "5.96"),
        (V4_MTP, "0.32.0", 1002240, 7210114560, 780765, "5.96"),
        (GLM_MTP, "0.32.0", 3502592, 7173308416, 784768, "5.99"),
    ],
)
def test_more_figures_of_vllm(
    asked: Asked,
    version: str,
    block_bytes: int,
    request_bytes: int,
    tokens: int,
    concurrency: str,
) -> None:
    """Asked with `scripts/record-kv` on 2026-11-15; for DeepSeek-V4 from 0.30 with CuTe kernels as names."""
    model, context, gib, flags = asked
    pool = vllm_pool(
        Launch("x", "x", "vllm", version, flags), architecture_of_config(config_of(model)), context
    )
    assert (pool.block_bytes, pool.request_bytes) == (block_bytes, request_bytes)
    report = pool.reported(gib * GIB)
    assert (report.tokens, report.concurrency_text) == (tokens, concurrency)


@pytest.mark.parametrize(
    ("model", "flags", "context", "gib", "block_size", "tokens", "concurrency"),
    [
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", {}, 131072, 47.55, 1056, 623_040, "18.44"),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
            {
                "kv-cache-dtype": "fp8",
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
            },
            131072,
            36.25,
            8432,
            1_399_712,
            "27.81",
        ),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", {"kv-cache-dtype": "fp8"}, 131072, None, 2096, None, None),
        ("nvidia/Qwen3.6-27B-NVFP4", {"kv-cache-dtype": "fp8"}, 131072, None, 1568, None, None),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
            {"kv-cache-dtype": "fp8"},
            131072,
            None,
            4176,
            None,
            None,
        ),
    ],
)
def test_boot_logs_of_a_gb10(
    model: str,
    flags: dict[str, FlagValue],
    context: int,
    gib: float | None,
    block_size: int,
    tokens: int | None,
    concurrency: str | None,
) -> None:
    """vLLM 0.19.2rc1 on a DGX Spark; the log gives the pool in GiB with two digits."""
    launch = Launch("x", "x", "vllm", "0.19.2rc1", flags)
    pool = vllm_pool(launch, architecture_of_config(CONFIGS[model]), context)
    assert {group.block_size for group in pool.groups if group.kind == "full"} == {block_size}
    if gib:
        report = pool.reported(int(gib * GIB))
        assert (report.tokens, report.concurrency_text) == (tokens, concurrency)


QWEN = architecture_of_config(CONFIGS["nvidia/Qwen3.6-35B-A3B-NVFP4"])


def vllm_launch(version: str | None, **flags: FlagValue) -> Launch:
    return Launch("x", "x", "vllm", version, {name.replace("_", "-"): value for name, value in flags.items()})


def test_a_known_release_has_one_answer() -> None:
    (report,) = reported_kv(vllm_launch("0.26.0"), QWEN, 131072, int(47.55 * GIB))
    assert report.tokens == 2_416_640


def test_an_unknown_release_has_a_band() -> None:
    few, many = reported_kv(vllm_launch(None), QWEN, 131072, int(47.55 * GIB))
    assert (few.tokens, many.tokens) == (623_040, 2_416_640)
    assert reported_kv(vllm_launch("nightly"), QWEN, 131072, int(47.55 * GIB)) == (few, many)


@pytest.mark.parametrize(("version", "like"), [("0.33.0", "0.32.0"), ("1.0", "0.32.0"), ("0.10.2", "0.11.0")])
def test_a_release_beyond_those_read_is_like_the_nearest(version: str, like: str) -> None:
    assert reported_kv(vllm_launch(version), QWEN, 131072, 8 * GIB) == reported_kv(
        vllm_launch(like), QWEN, 131072, 8 * GIB
    )
    assert "not one of the releases" in vllm_pool(vllm_launch(version), QWEN, 131072).unsure


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        (vllm_launch(None), "not known"),
        (vllm_launch("0.32.0", tensor_parallel_size="2"), "--tensor-parallel-size"),
        (
            vllm_launch("0.32.0", speculative_config={"model": "a/b", "num_speculative_tokens": 3}),
            "another checkpoint",
        ),
        (vllm_launch("0.32.0", attention_backend="cutlass_mla"), "CUTLASS_MLA"),
        (vllm_launch("0.32.0", kv_transfer_config={"kv_connector": "x"}), "connector"),
    ],
)
def test_reasons_to_doubt_the_figures(launch: Launch, why: str) -> None:
    assert why in vllm_pool(launch, QWEN, 4096).unsure


def test_backends_are_named_in_any_case() -> None:
    assert not vllm_pool(vllm_launch("0.32.0", attention_backend="flashinfer"), QWEN, 4096).unsure


def test_shortcuts_of_flags_count() -> None:
    whole = vllm_launch("0.32.0", speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    short = vllm_launch("0.32.0", spec_method="mtp", spec_tokens="2")
    assert vllm_pool(short, QWEN, 4096).groups == vllm_pool(whole, QWEN, 4096).groups


def test_max_model_len_auto_finds_the_length() -> None:
    (report,) = reported_kv(vllm_launch("0.32.0", max_model_len="-1"), QWEN, 262144, 3 * GIB)
    assert (report.context, report.tokens, report.concurrency_text) == (148_896, 149_908, "1.01")


@pytest.mark.parametrize(
    ("version", "pages"),
    [
        ("0.26.0", [1002240, 823680, 786240, 967680, 748800]),
        ("0.28.0", [1002240, 823680, 786240, 870912, 656640]),
    ],
)
def test_deepseek_v4_pads_its_windows_up_to_0_26(version: str, pages: list[int]) -> None:
    launch = vllm_launch(version, kv_cache_dtype="fp8")
    pool = vllm_pool(launch, architecture_of_config(CONFIGS["deepseek-ai/DeepSeek-V4-Flash"]), 131072)
    assert [group.page_bytes for group in pool.groups] == pages


@pytest.mark.parametrize(("version", "case"), [param for param in answers() if "resident" in param.values[1]])
def test_as_many_requests_are_resident_as_vllms_own_manager_admits(version: str, case: Any) -> None:
    """Equal, or one fewer where a window happens to begin with a block."""
    launch, architecture = asked(case["name"], version)
    length = case.get("auto_max_model_len", case["resolved"]["max_model_len"])
    pool = vllm_pool(launch, architecture, length)
    ours = min(MOST_RESIDENT, pool.resident(ASKED[case["name"]]["flags"]["kv-cache-memory-bytes"]))
    assert case["resident"] - 1 <= ours <= case["resident"]
