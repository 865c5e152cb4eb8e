"""`/metrics` with each engine's own names, as of vLLM 0.11 to 0.32, SGLang 0.5.23, llama-server b11549.

https://docs.vllm.ai/en/latest/usage/metrics/ and the engines' own sources, seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firesteel.sim.engine.batch import Batch

_TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
)  # fmt: skip


def text(engine: str, served: str, batch: Batch) -> str:
    lines = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[engine]
    return "\n".join(lines(served, batch)) + "\n"


def _vllm(served: str, batch: Batch) -> Iterable[str]:
    labels, speed, counters = f'engine="0",model_name="{served}"', batch.speed, batch.counters
    yield "# firesteel's simulated Spark: nothing here was measured on a GPU"
    gauges = {
        "vllm:num_requests_running": len(batch.running),
        "vllm:num_requests_waiting": len(batch.waiting),
        "vllm:kv_cache_usage_perc": batch.pool_share,
    }
    yield from _metrics("gauge", labels, gauges)
    totals = {
        "vllm:prompt_tokens_total": counters.prompt_tokens,
        "vllm:prompt_tokens_cached_total": counters.cached_tokens,
        "vllm:generation_tokens_total": counters.generated,
        "vllm:prefix_cache_queries_total": counters.prompt_tokens,
        "vllm:prefix_cache_hits_total": counters.cached_tokens,
        "vllm:num_preemptions_total": 0,
    }
    yield from _metrics("counter", labels, totals)
    stopped = f'engine="0",finished_reason="stop",model_name="{served}"'
    yield from _metrics("counter", stopped, {"vllm:request_success_total": counters.finished})
    config = {
        "block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": str(speed.caches_prefixes),
        "engine": "0", "num_gpu_blocks": str(speed.pool_blocks),
        "kv_cache_size_tokens": str(speed.pool_tokens),
        "kv_cache_max_concurrency": f"{speed.concurrency:.6f}",
    }  # fmt: skip
    config_labels = ",".join(f'{name}="{value}"' for name, value in config.items())
    yield from _metrics("gauge", config_labels, {"vllm:cache_config_info": 1.0})
    yield from _histogram("vllm:time_to_first_token_seconds", labels, counters.first_token_s)
    if speed.drafts:
        drafts = {
            "vllm:spec_decode_num_drafts_total": counters.drafts,
            "vllm:spec_decode_num_draft_tokens_total": counters.drafted,
            "vllm:spec_decode_num_accepted_tokens_total": counters.accepted,
        }
        yield from _metrics("counter", labels, drafts)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        yield f"# TYPE {name} counter"
        for position, count in enumerate(counters.by_position):
            yield f'{name}{{{labels},position="{position}"}} {float(count)}'


def _sglang(served: str, batch: Batch) -> Iterable[str]:
    labels, counters = f'model_name="{served}"', batch.counters
    gauges = {
        "sglang:num_running_reqs": len(batch.running),
        "sglang:num_queue_reqs": len(batch.waiting),
        "sglang:token_usage": batch.pool_share,
        "sglang:cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
    }
    if batch.speed.drafts:
        gauges["sglang:spec_accept_length"] = 1 + counters.accepted / max(1, counters.drafts)
        gauges["sglang:spec_accept_rate"] = counters.accepted / max(1, counters.drafted)
    yield from _metrics("gauge", labels, gauges)
    yield from _metrics("counter", labels, {"sglang:prompt_tokens_total": counters.prompt_tokens})
    yield from _metrics("counter", labels, {"sglang:generation_tokens_total": counters.generated})


def _llamacpp(served: str, batch: Batch) -> Iterable[str]:
    counters = batch.counters
    totals = {
        "llamacpp:prompt_tokens_total": counters.prompt_tokens - counters.cached_tokens,
        "llamacpp:prompt_tokens_cached_total": counters.cached_tokens,
        "llamacpp:prompt_seconds_total": counters.prompt_s,
        "llamacpp:tokens_predicted_total": counters.generated,
        "llamacpp:tokens_predicted_seconds_total": counters.decode_s,
    }
    yield from _metrics("counter", "", totals)
    prompt_s, decode_s = counters.prompt_s or 1.0, counters.decode_s or 1.0
    gauges = {
        "llamacpp:prompt_tokens_seconds": (counters.prompt_tokens - counters.cached_tokens) / prompt_s,
        "llamacpp:predicted_tokens_seconds": counters.generated / decode_s,
        "llamacpp:requests_processing": len(batch.running),
        "llamacpp:requests_deferred": len(batch.waiting),
    }
    yield from _metrics("gauge", "", gauges)


def _metrics(kind: str, labels: str, values: Mapping[str, float]) -> Iterable[str]:
    for name, value in values.items():
        yield f"# TYPE {name} {kind}"
        yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"


def _histogram(name: str, labels: str, values: list[float]) -> Iterable[str]:
    yield f"# TYPE {name} histogram"
    for bound in _TTFT_BUCKETS_S:
        count = sum(1 for value in values if value <= bound)
        yield f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {float(len(values))}'
    yield f"{name}_sum{{{labels}}} {sum(values)}"
    yield f"{name}_count{{{labels}}} {float(len(values))}"
