"""`/metrics` in each engine's own names. Names: vLLM 0.11 to 0.32, SGLang 0.5.23, llama-server b11549.

https://docs.vllm.ai/en/latest/usage/metrics/ and the engines' own sources, seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.sim.engine.batch import Batch

_TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)


def text(engine: str, served: str, batch: Batch) -> str:
    make = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[engine]
    return "\n".join(make(served, batch)) + "\n"


def _vllm(served: str, batch: Batch) -> Iterable[str]:
    told, pace = f'{{engine="0",model_name="{served}"}}', batch.pace
    counted = batch.counted
    yield "# firesteel's pretend Spark: nothing here was measured on a GPU"
    for name, value in {
        "vllm:num_requests_running": len(batch.running),
        "vllm:num_requests_waiting": len(batch.waiting),
        "vllm:kv_cache_usage_perc": batch.pool_share,
    }.items():
        yield from _one(name, "gauge", told, value)
    for name, value in {
        "vllm:prompt_tokens_total": counted.prompt_tokens,
        "vllm:prompt_tokens_cached_total": counted.cached_tokens,
        "vllm:generation_tokens_total": counted.generated,
        "vllm:prefix_cache_queries_total": counted.prompt_tokens,
        "vllm:prefix_cache_hits_total": counted.cached_tokens,
        "vllm:num_preemptions_total": 0,
    }.items():
        yield from _one(name, "counter", told, value)
    stopped = f'{{engine="0",finished_reason="stop",model_name="{served}"}}'
    yield from _one("vllm:request_success_total", "counter", stopped, counted.finished)
    labels = {
        "block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": str(pace.caches_prefixes),
        "engine": "0", "num_gpu_blocks": str(pace.pool_blocks), "kv_cache_size_tokens": str(pace.pool_tokens),
        "kv_cache_max_concurrency": f"{pace.concurrency:.6f}",
    }  # fmt: skip
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    yield from _one("vllm:cache_config_info", "gauge", f"{{{inside}}}", 1.0)
    yield from _histogram(
        "vllm:time_to_first_token_seconds", f'engine="0",model_name="{served}"', counted.first_token_s
    )
    if pace.drafts:
        for name, value in {
            "vllm:spec_decode_num_drafts_total": counted.drafts,
            "vllm:spec_decode_num_draft_tokens_total": counted.drafted,
            "vllm:spec_decode_num_accepted_tokens_total": counted.accepted,
        }.items():
            yield from _one(name, "counter", told, value)
        yield "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"
        for position, many in enumerate(counted.by_position):
            place = f'{{engine="0",model_name="{served}",position="{position}"}}'
            yield f"vllm:spec_decode_num_accepted_tokens_per_pos_total{place} {float(many)}"


def _sglang(served: str, batch: Batch) -> Iterable[str]:
    told, counted = f'{{model_name="{served}"}}', batch.counted
    gauges = {
        "sglang:num_running_reqs": len(batch.running),
        "sglang:num_queue_reqs": len(batch.waiting),
        "sglang:token_usage": batch.pool_share,
        "sglang:cache_hit_rate": counted.cached_tokens / max(1, counted.prompt_tokens),
    }
    if batch.pace.drafts:
        gauges["sglang:spec_accept_length"] = 1 + counted.accepted / max(1, counted.drafts)
        gauges["sglang:spec_accept_rate"] = counted.accepted / max(1, counted.drafted)
    for name, value in gauges.items():
        yield from _one(name, "gauge", told, value)
    yield from _one("sglang:prompt_tokens_total", "counter", told, counted.prompt_tokens)
    yield from _one("sglang:generation_tokens_total", "counter", told, counted.generated)


def _llamacpp(served: str, batch: Batch) -> Iterable[str]:
    counted = batch.counted
    for name, value in {
        "llamacpp:prompt_tokens_total": counted.prompt_tokens - counted.cached_tokens,
        "llamacpp:prompt_tokens_cached_total": counted.cached_tokens,
        "llamacpp:prompt_seconds_total": counted.prompt_s,
        "llamacpp:tokens_predicted_total": counted.generated,
        "llamacpp:tokens_predicted_seconds_total": counted.decode_s,
    }.items():
        yield from _one(name, "counter", "", value)
    read, wrote = counted.prompt_s or 1.0, counted.decode_s or 1.0
    for name, value in {
        "llamacpp:prompt_tokens_seconds": (counted.prompt_tokens - counted.cached_tokens) / read,
        "llamacpp:predicted_tokens_seconds": counted.generated / wrote,
        "llamacpp:requests_processing": len(batch.running),
        "llamacpp:requests_deferred": len(batch.waiting),
    }.items():
        yield from _one(name, "gauge", "", value)


def _one(name: str, kind: str, labels: str, value: float) -> Iterable[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{labels} {float(value)}"


def _histogram(name: str, labels: str, seen: list[float]) -> Iterable[str]:
    yield f"# TYPE {name} histogram"
    for edge in _TTFT_S:
        yield f'{name}_bucket{{{labels},le="{edge}"}} {float(sum(1 for each in seen if each <= edge))}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {float(len(seen))}'
    yield f"{name}_sum{{{labels}}} {sum(seen)}"
    yield f"{name}_count{{{labels}}} {float(len(seen))}"
