"""`/metrics` of the engines. llama.cpp's page and one of vLLM's were recorded; the others use real names.

The parser of `/metrics`, held against prometheus-client's own.

Kernels in the log and counters in /metrics: log lines as in vLLM's sources, and recorded pages.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firesteel.engines import metrics
from firesteel.engines.logs import reported_memory
from firesteel.engines.metrics import (
    MAX_SAMPLES,
    Activity,
    DraftCounters,
    PrometheusSample,
    activity,
    draft_counters,
    is_same_kernel,
    kv_cache_tokens,
    late_compilations,
    logged_kernels,
    metric_total,
    parse,
    parse_sample,
    slow_path_warnings,
)
from firesteel.launch import EngineName

LLAMACPP = (Path(__file__).parent / "metrics" / "llamacpp-11549.txt").read_text()
REAL_VLLM = (Path(__file__).parent / "logs" / "vllm-0.32.0-cpu-metrics.txt").read_text()
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model, with {words}"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a model, with {words}"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.42
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.234e+06
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.78e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 5678.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:corrupted_requests_total{engine="0",model_name="m"} 0.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 240.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 12.0
"""
SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m"} 3.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:generation_tokens_total{model_name="m"} 50.0
sglang:realtime_tokens_total{mode="decode",model_name="m",tp_rank="0"} 70.0
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m",tp_rank="0"} 90.0
sglang:num_retracted_reqs{model_name="m"} 0.0
"""
PRIORITIES = """\
sglang:num_running_reqs{pp_rank="0",priority="",tp_rank="0"} 14.0
sglang:num_running_reqs{pp_rank="0",priority="-1",tp_rank="0"} 4.0
sglang:num_running_reqs{pp_rank="0",priority="0",tp_rank="0"} 10.0
"""


@pytest.mark.parametrize(
    ("engine", "text", "seen"),
    [
        ("vllm", VLLM, Activity(3, 2, 5678, 1234000, 0.42, 1, 300, 240, (5678, 1234000, 0.42, 1))),
        ("vllm", REAL_VLLM, Activity(0, 0, 40, 222, 0.0, 0, pulse=(40, 222, 0, 0))),
        ("sglang", SGLANG, Activity(4, 3, 50, 100, 0.25, 0, pulse=(50, 100, 160, 0.25))),
        ("sglang", PRIORITIES, Activity(14)),
        ("llamacpp", LLAMACPP, Activity(0, 0, 205, 2502, None, None, 0, 0, pulse=(205, 2502, 206, 0))),
        ("vllm", 'vllm:gpu_cache_usage_perc{engine="0"} 0.1\n', Activity(kv_usage=0.1, pulse=(0.1,))),
        ("vllm", "", Activity()),
        ("llamacpp", '{"error":{"code":501,"message":"This server does not support metrics"}}', Activity()),
        ("vllm", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n", Activity()),
        ("vllm", "vllm:num_requests_running 2 1760000000000\n", Activity(2)),
        ("vllm", "vllm:num_requests_running{x\nvllm:num_requests_running 1e999\n", Activity()),
    ],
)
def test_the_activity_on_a_page(engine: EngineName, text: str, seen: Activity) -> None:
    assert activity(engine, text) == seen


def test_several_engines_behind_one_port_are_added_up() -> None:
    text = VLLM + VLLM.replace('engine="0"', 'engine="1"').replace(" 0.42", " 0.9")
    seen = activity("vllm", text)
    assert (seen.running, seen.generated_tokens, seen.kv_usage) == (6, 2 * 5678, 0.9)


@pytest.mark.parametrize(
    ("running", "waiting", "requests"), [(None, None, None), (2, None, 2), (None, 3, 3), (1, 2, 3)]
)
def test_all_requests(running: int | None, waiting: int | None, requests: int | None) -> None:
    assert Activity(running, waiting).requests == requests


@given(
    st.sampled_from(["vllm", "sglang", "llamacpp"]),
    st.lists(
        st.one_of(
            st.text(string.printable, max_size=80),
            st.sampled_from((VLLM + SGLANG + LLAMACPP).splitlines()),
            st.text(string.printable, max_size=30).map(lambda text: f"vllm:num_requests_running{{{text}}} 1"),
        )
    ),
)
def test_any_page_gives_an_answer(engine: EngineName, lines: list[str]) -> None:
    activity(engine, "\n".join(lines))


def test_a_page_without_end_is_cut() -> None:
    endless = "".join(f'vllm:num_requests_running{{engine="{number}"}} 1\n' for number in range(30_000))
    assert activity("vllm", endless).running == MAX_SAMPLES
    activity("vllm", "vllm:num_requests_running{" + "a" * 10_000_000)


def test_the_page_of_a_real_sglang() -> None:
    page = (Path(__file__).parent / "logs" / "gpu" / "sglang-0.5.16-metrics.txt").read_text()
    found = activity("sglang", page)
    assert (found.running, found.waiting, found.preemptions, found.kv_usage) == (0, 0, 0, 0.0)
    assert (found.prompt_tokens, found.generated_tokens) == (43, 20)


HERE = Path(__file__).parent
PAGES = (HERE / "metrics" / "llamacpp-11549.txt", HERE / "logs" / "vllm-0.32.0-cpu-metrics.txt")


def reference(text: str) -> list[PrometheusSample]:
    """What prometheus-client reads. Without types, by which it would rename counters and sort samples."""
    text = "".join(f"{line}\n" for line in text.split("\n") if not line.startswith("#"))
    return [
        PrometheusSample(sample.name, sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def comparable(samples: Iterable[PrometheusSample]) -> list[tuple[str, str, dict[str, str]]]:
    """NaN equals nothing, so values are compared by their text."""
    return [(sample.name, repr(float(sample.value)), dict(sample.labels)) for sample in samples]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recorded_pages_are_read_as_prometheus_client_reads_them(page: Path) -> None:
    text = page.read_text("utf-8")
    assert comparable(parse(text)) == comparable(reference(text))
    assert list(parse(text))


label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(label_values, label_values, st.floats()), max_size=8))
def test_a_page_of_prometheus_client_is_read_back(rows: list[tuple[str, str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:gauge", "Help with \\ and \n", ["model_name", "reason"], registry=registry)
    histogram = Histogram("latency_seconds", "Help", ["model_name"], registry=registry)
    for model, reason, value in rows:
        gauge.labels(model, reason).set(value)
        histogram.labels(model).observe(value if math.isfinite(value) else 1)
    text = generate_latest(registry).decode()
    assert comparable(parse(text)) == comparable(reference(text))


SYNTAX = [
    *'{}",=\\ \t#.:+-e_',
    "n",
    "a",
    "le",
    "x",
    "0",
    "1",
    "Inf",
    "NaN",
    'a="b"',
    "metric",
    "metric{",
    '"} ',
]


@given(st.lists(st.sampled_from(SYNTAX), max_size=14).map("".join))
def test_what_is_accepted_prometheus_client_accepts_too(line: str) -> None:
    sample = parse_sample(line)
    if sample is not None:
        assert comparable([sample]) == comparable(reference(f"{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# TYPE a gauge",
        "a",
        "a0",
        "a{ 1",
        "a{b} 1",
        'a{b="c} 1',
        'a{b="c"d="e"} 1',
        'a{b="c",b="d"} 1',
        'a{__name__="b"} 1',
        'a{b="\\x"} 1',
        "a one",
        "a 1_000",
        "a 1 2 3",
        "1a 1",
        "a 0x10",
        "á 1",
    ],
)
def test_an_invalid_line_is_left_out(line: str) -> None:
    assert parse_sample(line) is None


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("a 1", PrometheusSample("a", 1.0)),
        ("a\t1", PrometheusSample("a", 1.0)),
        ("a{} 1", PrometheusSample("a", 1.0)),
        ('a{b="c",} 1', PrometheusSample("a", 1.0, {"b": "c"})),
        ('a { b = "c" , d = "" } 1', PrometheusSample("a", 1.0, {"b": "c", "d": ""})),
        ('a{b="{\\"c\\"},\\n\\\\"} 1', PrometheusSample("a", 1.0, {"b": '{"c"},\n\\'})),
        ("a -1.5e-3 1760000000000", PrometheusSample("a", -0.0015, {}, 1760000000000)),
        ("a +Inf", PrometheusSample("a", math.inf)),
    ],
)
def test_a_valid_line(line: str, sample: PrometheusSample) -> None:
    assert parse_sample(line) == sample
    assert list(parse(f"{line}\r\n")) == [sample]


@given(st.text(string.printable, max_size=200), st.sets(st.sampled_from(["a", "b", "vllm:x"])))
def test_names_only_select(text: str, names: set[str]) -> None:
    text += '\na 1\nb{c="d"} 2\nvllm:x\t3\n'
    assert list(parse(text, names)) == [sample for sample in parse(text) if sample.name in names]


def test_a_page_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    many = "".join(f'a{{b="{number}"}} 1\n' for number in range(metrics.MAX_SAMPLES + 10))
    assert len(list(parse(many))) == metrics.MAX_SAMPLES
    assert parse_sample("a{" + "b" * 10_000_000) is None
    monkeypatch.setattr(metrics, "MAX_CHARS", len("a 1\nb 22"))
    assert [sample.name for sample in parse("a 1\nb 2222\n")] == ["a"], "a line that was cut is not read"


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
