"""`/metrics` of a serving engine: its samples, how busy it is, and what it really does.

The Prometheus text format 0.0.4: a `/metrics` page -> its samples.

    for sample in parse(text):
        sample.name, sample.value, sample.labels

`parse_raw_sample` leaves values and escapes as they were written, for a program that writes the line again.

Strict: a line that Prometheus itself would refuse is left out, never guessed at. Bounded: the page belongs to
another program, so its length, the number of samples and the length of names and labels have limits.
https://prometheus.io/docs/instrumenting/exposition_formats/, seen 2026-11-15; tested against the parser of
prometheus-client. That parser (0.26) is not used here: one bad line ends the whole page with a ValueError,
it reads every sample where a few names are wanted (25 times slower on a page of 2,000), and loading it takes
15 MB in a gateway and in each load job.

How busy a serving engine is, by its `/metrics`: requests, tokens, cache use, and whether it makes progress.

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

What a running engine really does: the kernels that its log names, and counters of its `/metrics`.

A kernel is spelled one way on the command line (`marlin`, `flashinfer`) and another in the log (`MARLIN`,
`AttentionBackendEnum.FLASHINFER`, `FlashInferCutlassNvFp4LinearKernel`); `is_same_kernel` knows both.
Log lines as in vLLM 0.12 to 0.32, read in its sources on 2026-11-15:
https://github.com/vllm-project/vllm/tree/v0.32.0/vllm/model_executor/layers/fused_moe/oracle
https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/platforms/cuda.py
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from math import inf, nan
from typing import NamedTuple

from firesteel.launch import EngineName, FlagValue
from firesteel.values import Value

MAX_CHARS = 4 * 2**20
"""Of one page. A page of vLLM with all its histograms has about 100,000."""
MAX_SAMPLES = 20_000

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}", re.ASCII)
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]{0,199})"
    r"(?:[ \t]*\{((?>(?:[^\"}\n]|\"(?>(?:[^\"\\\n]|\\.)*)\")*))\}[ \t]*|[ \t]+)"
    r"([^ \t{}\"]{1,40})(?:[ \t]+(-?[0-9]{1,15}))?[ \t]*",
    re.ASCII,
)
_LABEL = re.compile(
    r"([a-zA-Z_][a-zA-Z0-9_]{0,99})[ \t]*=[ \t]*\"((?:[^\"\\\n]|\\[\\\"n]){0,4096})\"[ \t]*(?:,[ \t]*|$)",
    re.ASCII,
)
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[iI][nN][fF])|[nN][aA][nN]", re.ASCII
)
_ESCAPE = re.compile(r"\\([\\\"n])")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class PrometheusSample(NamedTuple):
    """One line of `/metrics`."""

    name: str
    value: float
    labels: Mapping[str, str] = {}
    timestamp_ms: int | None = None


class RawSample(NamedTuple):
    """One line of `/metrics` that is valid, in its own spelling."""

    name: str
    value: str
    labels: Mapping[str, str]
    """The values are still escaped."""
    timestamp_ms: str | None


def parse(text: str, names: Collection[str] | None = None) -> Iterator[PrometheusSample]:
    """The samples of a page, in its order; with `names`, only samples of these names (much faster)."""
    lines = text[:MAX_CHARS].split("\n")  # not splitlines(): it sees line ends where Prometheus sees none
    if len(text) > MAX_CHARS:
        lines.pop()  # cut in the middle
    count = 0
    for line in lines:
        if names is not None and ((name := _NAME.match(line)) is None or name[0] not in names):
            continue
        sample = parse_sample(line.removesuffix("\r"))
        if sample:
            yield sample
            count += 1
            if count == MAX_SAMPLES:
                return


def parse_sample(line: str) -> PrometheusSample | None:
    """One line, without its end; None for a comment, an empty line, and a line that is not valid."""
    raw = parse_raw_sample(line)
    if raw is None:
        return None
    name, value, labels, timestamp_ms = raw
    if labels and "\\" in line:
        unescape = partial(_ESCAPE.sub, lambda escape: _UNESCAPED[escape[1]])
        labels = {label: unescape(text) for label, text in labels.items()}
    return PrometheusSample(name, float(value), labels, int(timestamp_ms) if timestamp_ms else None)


def parse_raw_sample(line: str) -> RawSample | None:
    """The same line in its own spelling: `1` stays `1`, and labels keep their escapes."""
    match = _SAMPLE.fullmatch(line)
    if match is None or not _NUMBER.fullmatch(match[3]):
        return None
    labels = _parse_labels(match[2]) if match[2] else {}
    return None if labels is None else RawSample(match[1], match[3], labels, match[4])


def is_metric_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _parse_labels(text: str) -> dict[str, str] | None:
    """None when the labels are not valid, or one is there twice."""
    labels: dict[str, str] = {}
    position, text = 0, text.strip(" \t")
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None or match[1] in labels or match[1].startswith("__"):
            return None
        labels[match[1]] = match[2]
        position = match.end()
    return labels


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
    for name, value, labels, _ in parse(text, names):
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


_KERNELS: dict[EngineName, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("attention-backend", r"Using (?:AttentionBackendEnum\.)?(\w+) attention backend"),
        ("attention-backend", r"Using AttentionBackendEnum\.(\w+) backend\."),
        ("attention-backend", r"Using (FlashInfer|Flash Attention|Triton) backend"),
        ("moe-backend", r"Using '?([\w ]+?)'? (?:NvFp4|Fp8|Mxfp4|MxFp8|WNA16|Unquantized|Int8|W4A8) "
                        r"(?:Int8 )?MoE backend"),
        ("linear-backend", r"Using (?:NvFp4LinearBackend\.)?([\w-]+) for (?:NVFP4|MXFP4|MXFP8) GEMM"),
    ),
    "llamacpp": (
        ("flash-attn", r"flash_attn\s+= (enabled|disabled|auto)"),
        ("n-gpu-layers", r"offloaded (\d+/\d+) layers to GPU"),
    ),
    "sglang": (),
}  # fmt: skip
_SLOW_PATHS = (
    (
        r"Emulation\w*(?:NvFp4|Experts|Kernel)|'?EMULATION'? \w+ MoE backend",
        "weights are emulated: right, and slow",
    ),
    (r"Using default MoE config\. Performance might be sub-optimal", "no tuned MoE settings for this GPU"),
    (
        r"Unknown vLLM environment variable detected: (\w+)",
        "an environment variable that this release ignores",
    ),
)
_LATE_JIT = re.compile(r" during inference: .*latency spike")
_SAME_KERNELS = {"on": ("enabled",), "off": ("disabled",), "auto": ("enabled", "disabled", "auto")}


class DraftCounters(Value):
    """Speculative decoding since the engine started."""

    steps: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """The share of drafted tokens that the model accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        return 1 + self.accepted / self.steps if self.steps else 1.0

    def since(self, before: DraftCounters) -> DraftCounters:
        return DraftCounters(
            self.steps - before.steps, self.drafted - before.drafted, self.accepted - before.accepted
        )


def logged_kernels(engine: EngineName, log: str) -> dict[str, tuple[str, ...]]:
    """By flag: the kernels that the log names, in the order of the log."""
    kernels: dict[str, dict[str, None]] = {}
    for flag, pattern in _KERNELS[engine]:
        for name in re.findall(pattern, log):
            kernels.setdefault(flag, {})[name] = None
    return {flag: tuple(names) for flag, names in kernels.items()}


def kernel_flags(engine: EngineName) -> frozenset[str]:
    """The flags that choose kernels which the log then names."""
    return frozenset(flag for flag, _ in _KERNELS[engine])


def is_same_kernel(asked: str, logged: str) -> bool:
    """Whether the log names what the flag asked for. A longer name in the log is a variant of the shorter."""
    if "/" in logged:  # llama.cpp's offloaded layers: all of them, or at least the number that was asked for
        offloaded, layers = logged.split("/")
        if asked in ("all", "auto", "999", "99", "-1"):
            return offloaded == layers
        return int(offloaded) >= int(asked or 0)
    wanted, named = _normalize(asked), _normalize(logged)
    return named.startswith(wanted) or named in _SAME_KERNELS.get(wanted, ())


def _normalize(kernel: str) -> str:
    letters = re.sub(r"[^a-z0-9]", "", kernel.lower())
    return re.sub(r"^(?:batched)?(?:vllm)?|attn(?:backend)?$|(?:nvfp4|mxfp\d)?linearkernel$", "", letters)


def slow_path_warnings(log: str) -> tuple[str, ...]:
    """The slow paths that the log admits, one sentence each."""
    return tuple(warning for pattern, warning in _SLOW_PATHS if re.search(pattern, log))


def late_compilations(log: str) -> int:
    """Kernels that were compiled while serving: vLLM 0.25 and later log them."""
    return sum(bool(_LATE_JIT.search(line)) for line in log.splitlines())


def draft_counters(samples: Iterable[PrometheusSample]) -> DraftCounters | None:
    """None where the engine does not count. vLLM and llama.cpp use the same names after their prefix."""
    sums: dict[str, float] = {}
    for sample in samples:
        name = sample.name.partition(":")[2].removesuffix("_total")
        if name.startswith("spec_decode_num_"):
            sums[name] = sums.get(name, 0.0) + sample.value
    names = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    counts = [round(sums[name]) for name in names if abs(sums.get(name, nan)) < inf]
    return DraftCounters(*counts) if len(counts) == 3 else None


def latest_acceptance(samples: Iterable[PrometheusSample]) -> tuple[float, float] | None:
    """SGLang counts no drafts: the share of the latest batch that was accepted, and its tokens a step.

    Both are 0 before the first draft, and for ever without a drafter (`metrics_collector.py` of 0.5.23)."""
    found = {sample.name: sample.value for sample in samples if sample.name.startswith("sglang:spec_accept_")}
    rate, length = found.get("sglang:spec_accept_rate", 0.0), found.get("sglang:spec_accept_length", 0.0)
    return (rate, length) if 0 <= rate <= 1 <= length < inf else None


def kv_cache_tokens(samples: Iterable[PrometheusSample]) -> int | None:
    """The size of vLLM's cache as it reports it. `kv_cache_size_tokens` is there from 0.25 on."""
    info = next((sample.labels for sample in samples if sample.name == "vllm:cache_config_info"), {})
    tokens, blocks, size = (
        int(text) if (text := info.get(name, "")).isdecimal() else 0
        for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    return tokens or blocks * size or None


def metric_total(samples: Iterable[PrometheusSample], name: str) -> float | None:
    """The sum over all labels, with or without the `_total` that Prometheus adds to counters."""
    values = [sample.value for sample in samples if sample.name.removesuffix("_total") == name]
    return sum(values) if values else None
