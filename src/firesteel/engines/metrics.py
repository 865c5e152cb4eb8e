"""How busy a serving engine is, by its `/metrics`: requests, tokens, cache use, and whether work goes on.

    activity(engine, text) -> Activity

The names differ by engine, and over time: vLLM renamed the use of its cache after 0.11.0. A figure that an
engine does not report is None. A page of another program gives an Activity in which everything is None.

Token counters lag. llama.cpp and SGLang count the tokens of a request when it ends, vLLM those of a prompt
when it was read to the end. So `pulse` combines everything that changes while an engine works, calls to the
model and the use of its cache included. Two equal pulses mean that nothing was done in between, as far as the
engine reports it.

    vLLM       https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/metrics/loggers.py      2026-11-15
    SGLang     https://github.com/sgl-project/sglang, python/sglang/srt/metrics/collector.py of 0.5.9;
               from 0.5.18 on srt/observability/metrics_collector.py                             2026-11-15
    llama.cpp  https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md, and build 11549
               asked while it worked: n_decode_total moved, the token counters did not           2026-11-15
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from firesteel.engines import prometheus
from firesteel.launch import EngineName, FlagValue
from firesteel.values import Value

_RANK_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Samples that differ only in these report the same requests, once for each part of one engine."""

_NAMES: Mapping[EngineName, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "generated_tokens": ("vllm:generation_tokens_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": ("vllm:num_preemptions_total",),
        "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "generated_tokens": ("sglang:generation_tokens_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "kv_usage": ("sglang:token_usage",),
        "preemptions": ("sglang:num_retracted_reqs",),
    },
    "llamacpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "generated_tokens": ("llamacpp:tokens_predicted_total",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    },
}
_PULSE: Mapping[EngineName, tuple[str, ...]] = {
    "vllm": (
        "vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc", "vllm:num_preemptions_total",
    ),
    "sglang": (
        "sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:realtime_tokens_total",
        "sglang:num_used_tokens", "sglang:token_usage", "sglang:gen_throughput",
    ),
    "llamacpp": (
        "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total", "llamacpp:n_decode_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
}  # fmt: skip
METRICS_FLAGS: Mapping[EngineName, Mapping[str, FlagValue]] = {
    "vllm": {},
    "llamacpp": {"metrics": True},
    "sglang": {"enable-metrics": True},
}
"""Without these `/metrics` is not there, and `ps`, `top` and the supervisor see nothing of a busy engine."""
_SHARES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""Shares of a cache: of several engines behind one port the highest counts, not the sum."""

_TOKEN_GAPS = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""vLLM renamed it after 0.11.0; SGLang has the first."""
_LLAMACPP_RATE = "llamacpp:predicted_tokens_seconds"


class Activity(Value):
    running: int | None = None
    waiting: int | None = None
    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    kv_usage: float | None = None
    """0 to 1, of the engine with the fullest cache."""
    preemptions: int | None = None
    """Requests that lost their cache to others and started again."""
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    pulse: tuple[float, ...] = ()
    """Everything that changes while it works."""

    @property
    def requests(self) -> int | None:
        """Running and waiting; None: not reported."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0) + (self.waiting or 0)


def activity(engine: EngineName, text: str) -> Activity:
    values = totals(text, {*_PULSE[engine], *(name for names in _NAMES[engine].values() for name in names)})
    fields = {
        field: next((values[name] for name in names if name in values), None)
        for field, names in _NAMES[engine].items()
    }
    counts = {
        field: None if value is None else int(value) for field, value in fields.items() if field != "kv_usage"
    }
    pulse = tuple(values[name] for name in _PULSE[engine] if name in values)
    return Activity(**counts, kv_usage=fields.get("kv_usage"), pulse=pulse)


class Pace(Value):
    """Means over all requests since the engine started. None: not reported, or no request yet."""

    decode_tokens_per_s: float | None = None
    """Of one request."""
    first_token_ms: float | None = None


def pace(engine: EngineName, text: str) -> Pace:
    if engine == "llamacpp":
        rate = totals(text, {_LLAMACPP_RATE}).get(_LLAMACPP_RATE)
        return Pace(rate or None)
    names = (f"{engine}:time_to_first_token_seconds", *(f"{engine}:{name}" for name in _TOKEN_GAPS))
    found = totals(text, {f"{name}{end}" for name in names for end in ("_sum", "_count")})
    means = {
        name: found.get(f"{name}_sum", 0.0) / count for name in names if (count := found.get(f"{name}_count"))
    }
    gap = next((means[name] for name in names[1:] if means.get(name)), None)
    first = means.get(names[0])
    return Pace(1 / gap if gap else None, 1000 * first if first else None)


def totals(text: str, names: Collection[str]) -> dict[str, float]:
    """One number for each name: the sum over the engines behind this port, or the highest share."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for name, value, labels, _ in prometheus.parse(text, names):
        # SGLang with priorities reports each priority's part, and the whole with an empty one.
        # NaN and infinity mean that the engine does not know.
        if labels.get("priority") or not abs(value) < 1e18:
            continue
        key = name, frozenset(label for label in labels.items() if label[0] not in _RANK_LABELS)
        series[key] = max(value, series.get(key, value))
    values: dict[str, float] = {}
    for (name, _), value in series.items():
        values[name] = max(value, values.get(name, value)) if name in _SHARES else values.get(name, 0) + value
    return values
