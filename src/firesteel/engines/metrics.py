"""What a serving engine says of itself on `/metrics`: how much it has to do, and whether it gets on with it.

    activity(engine, text) -> Activity

The names differ by engine, and over time: vLLM renamed the use of its cache after 0.11.0. What an engine does
not tell is None. A page of another program gives an Activity that knows nothing.

Token counters lag. llama.cpp counts a request's tokens when it ends, SGLang likewise, vLLM a prompt's when
it is read to the end; so `pulse` takes together everything that moves while an engine works, calls to the
model and the use of its cache included. Two equal pulses: nothing was done in between, as far as it says.

    vLLM       https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/metrics/loggers.py      2026-11-15
    SGLang     https://github.com/sgl-project/sglang, python/sglang/srt/metrics/collector.py of 0.5.9;
               from 0.5.18 on srt/observability/metrics_collector.py                             2026-11-15
    llama.cpp  https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md, and build 11549
               asked while it worked: n_decode_total moved, the token counters did not           2026-11-15
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firesteel.launch import EngineName

MAX_CHARS = 4 * 2**20
"""A page of vLLM with all its histograms has about 100,000."""
_MAX_SERIES = 4096
_LINE = re.compile(
    r"^([A-Za-z_:][\w:]{0,99})(?:\{([^\n]{0,2000}?)\})? +([0-9.eE+-]{1,32}|\+?Inf|NaN)(?: +\d+)?$"
)
_RANKS = re.compile(r'(?:^|,)(?:tp_rank|pp_rank|moe_ep_rank|pid)="[^"]*"')
"""The same requests, told by each part of one engine."""
_SHARE = re.compile(r'(?:^|,)priority="[^"]+"')
"""SGLang with priorities tells each priority's share, and the whole with an empty one."""

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
        "corrupted": ("vllm:corrupted_requests_total",),
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
_HIGHEST = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""Shares, of which several engines behind one port do not make a sum."""


@dataclass(frozen=True, slots=True)
class Activity:
    running: int | None = None
    waiting: int | None = None
    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    kv_usage: float | None = None
    """0 to 1, of the engine that uses most of it."""
    preemptions: int | None = None
    """Requests that had to give their cache back and start again."""
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    corrupted: int | None = None
    """Answers with NaN in their logits; only vLLM counts them, and only when told to."""
    pulse: tuple[float, ...] = ()
    """Everything that moves while it works."""

    @property
    def requests(self) -> int | None:
        """What it has to do; None: it does not say."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0) + (self.waiting or 0)


def activity(engine: EngineName, text: str) -> Activity:
    series = _series(text, {*_PULSE[engine], *(name for names in _NAMES[engine].values() for name in names)})
    found = {
        field: next((series[name] for name in names if name in series), None)
        for field, names in _NAMES[engine].items()
    }
    counts = {
        name: None if value is None else int(value) for name, value in found.items() if name != "kv_usage"
    }
    pulse = tuple(series[name] for name in _PULSE[engine] if name in series)
    return Activity(**counts, kv_usage=found.get("kv_usage"), pulse=pulse)


def _series(text: str, wanted: set[str]) -> dict[str, float]:
    """Each wanted name with one number: the sum over engines behind this port, or the highest share."""
    by_labels: dict[tuple[str, str], float] = {}
    for line in text[:MAX_CHARS].splitlines():
        match = _LINE.match(line) if line.partition("{")[0].partition(" ")[0] in wanted else None
        value = _number(match[3]) if match else None
        if match is None or value is None or _SHARE.search(match[2] or ""):
            continue
        key = match[1], _RANKS.sub("", match[2] or "")
        if key in by_labels or len(by_labels) < _MAX_SERIES:
            by_labels[key] = max(value, by_labels.get(key, value))
    found: dict[str, float] = {}
    for (name, _), value in by_labels.items():
        found[name] = max(value, found.get(name, value)) if name in _HIGHEST else found.get(name, 0) + value
    return found


def _number(text: str) -> float | None:
    """None for what is not a plain number: NaN says that nobody knows."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None
