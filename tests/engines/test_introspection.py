"""Kernels in the log and counters in /metrics: log lines as in vLLM's sources, and recorded pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.engines.introspection import (
    DraftCounters,
    draft_counters,
    is_same_kernel,
    kv_cache_tokens,
    late_compilations,
    logged_kernels,
    metric_total,
    slow_path_warnings,
)
from firesteel.engines.logs.memory import reported_memory
from firesteel.engines.prometheus import parse

LOGS = Path(__file__).parent / "logs"
LOG = """\
INFO 11-15 [cuda.py:507] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].
INFO 11-15 [nvfp4.py:242] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].
INFO 11-15 [linear.py:1240] Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM
WARNING [fused_moe.py] Using default MoE config. Performance might be sub-optimal! Config file
INFO [jit_monitor.py:85] Kernel JIT monitor activated; monitored JIT compilations during inference
WARNING [jit_monitor.py:137] Triton JIT compilation during inference: _fwd. This causes a latency spike;
"""


def test_kernels_are_read_by_flag() -> None:
    assert logged_kernels("vllm", LOG) == {
        "attention-backend": ("FLASHINFER",),
        "moe-backend": ("MARLIN",),
        "linear-backend": ("FlashInferCutlassNvFp4LinearKernel",),
    }
    assert slow_path_warnings(LOG) == ("no tuned MoE settings for this GPU",)
    assert late_compilations(LOG) == 1
    assert logged_kernels("llamacpp", "load_tensors: offloaded 30/49 layers to GPU") == {
        "n-gpu-layers": ("30/49",)
    }


@pytest.mark.parametrize(
    ("line", "flag", "name"),
    [
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "attention-backend", "TRITON_ATTN"),
        ("Using FlashInfer backend on V1 engine.", "attention-backend", "FlashInfer"),
        ("Using TRITON Fp8 MoE backend out of potential backends: [...]", "moe-backend", "TRITON"),
        ("Using FlashInfer CUTLASS Unquantized MoE backend out of ...", "moe-backend", "FlashInfer CUTLASS"),
        ("Using 'MARLIN' Mxfp4 MoE backend.", "moe-backend", "MARLIN"),
        (
            "Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM",
            "linear-backend",
            "FLASHINFER_CUTLASS",
        ),
        ("Using flashinfer-cutlass for NVFP4 GEMM", "linear-backend", "flashinfer-cutlass"),
    ],
)
def test_the_wording_of_each_release(line: str, flag: str, name: str) -> None:
    assert logged_kernels("vllm", line) == {flag: (name,)}


@pytest.mark.parametrize(
    ("asked", "logged", "same"),
    [
        ("marlin", "MARLIN", True),
        ("cutlass", "VLLM_CUTLASS", True),
        ("flashinfer", "FLASHINFER", True),
        ("TRITON_ATTN", "TRITON_ATTN", True),
        ("flashinfer_cutlass", "FlashInfer CUTLASS", True),
        ("flashinfer_cutlass", "FlashInferCutlassNvFp4LinearKernel", True),
        ("flashinfer_cutlass", "FLASHINFER_CUTLASS_MXFP4_BF16", True),
        ("deep_gemm", "DEEPGEMM", True),
        ("marlin", "TRITON", False),
        ("cutlass", "FLASHINFER_CUTLASS", False),
        ("flashinfer", "FLASH_ATTN", False),
        ("TRITON_ATTN", "FLASHINFER", False),
        ("all", "49/49", True),
        ("all", "30/49", False),
        ("30", "30/49", True),
        ("on", "enabled", True),
        ("on", "disabled", False),
    ],
)
def test_two_spellings_of_one_kernel(asked: str, logged: str, same: bool) -> None:
    assert is_same_kernel(asked, logged) is same


LLAMA = """\
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 40
llamacpp:spec_decode_num_accepted_tokens_total 10
llamacpp:spec_decode_num_drafts_total 8
llamacpp:prompt_tokens_seconds 71.2944
"""


def test_metrics_of_both_engines() -> None:
    samples = list(parse(LLAMA))
    assert draft_counters(samples) == DraftCounters(steps=8, drafted=40, accepted=10)
    assert DraftCounters(8, 40, 10).tokens_per_step == 2.25
    text = (
        'vllm:cache_config_info{block_size="16",dtype="fp8, \\"x\\"",num_gpu_blocks="2912",engine="0"} 1.0\n'
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 5.0\n'
        'vllm:corrupted_requests_total{engine="0"} 1.0\nvllm:corrupted_requests_total{engine="1"} 2.0\n'
    )
    samples = list(parse(text))
    assert kv_cache_tokens(samples) == 46_592
    assert draft_counters(samples) is None
    assert metric_total(samples, "vllm:corrupted_requests") == 3.0
    newer = text.replace('num_gpu_blocks="2912"', 'num_gpu_blocks="2912",kv_cache_size_tokens="46000"')
    assert kv_cache_tokens(parse(newer)) == 46_000
    assert kv_cache_tokens(parse(text.replace('"2912"', '"None"'))) is None


def test_a_real_vllm_on_a_cpu() -> None:
    """Its log and its /metrics agree on the size of the cache, and neither names kernels that it lacks."""
    samples = list(parse((LOGS / "vllm-0.32.0-cpu-metrics.txt").read_text("utf-8")))
    log = (LOGS / "vllm-0.32.0-cpu.log").read_text("utf-8")
    assert kv_cache_tokens(samples) == reported_memory("vllm", log).kv_tokens
    assert metric_total(samples, "vllm:generation_tokens") and draft_counters(samples) is None
    assert late_compilations(log) == 0 and "moe-backend" not in logged_kernels("vllm", log)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    samples = list(parse(text))
    assert draft_counters(samples) is None or samples
    logged_kernels("vllm", text)
