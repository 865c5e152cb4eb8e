"""`/metrics` of the engines. llama.cpp's page and one of vLLM's were recorded; the others use real names."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.engines.metrics import Activity, activity
from firesteel.engines.prometheus import MAX_SAMPLES
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
