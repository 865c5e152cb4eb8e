"""What a running engine tells of itself: the kernels it took, from its log; counters, from `/metrics`.

Names of kernels are spelled one way on the command line (`marlin`, `flashinfer`), another in the log
(`MARLIN`, `AttentionBackendEnum.FLASHINFER`, `FlashInferCutlassNvFp4LinearKernel`); `same_kernel` knows both.
Log lines as in vLLM 0.12 to 0.32, read in its sources on 2026-11-15:
https://github.com/vllm-project/vllm/tree/v0.32.0/vllm/model_executor/layers/fused_moe/oracle
https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/platforms/cuda.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from firesteel.launch import EngineName

MAX_METRICS_LINES = 100_000
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
_ALARMS = (
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
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class PrometheusSample:
    """One line of `/metrics`."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftCounters:
    """What speculation came to since the engine started."""

    steps: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Of the drafted tokens, those that the model would have written itself."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        return 1 + self.accepted / self.steps if self.steps else 1.0

    def since(self, before: DraftCounters) -> DraftCounters:
        return DraftCounters(
            self.steps - before.steps, self.drafted - before.drafted, self.accepted - before.accepted
        )


def logged_kernels(engine: EngineName, log: str) -> dict[str, tuple[str, ...]]:
    """By flag: the kernels that the log names, in the order in which they came."""
    found: dict[str, dict[str, None]] = {}
    for flag, pattern in _KERNELS[engine]:
        for name in re.findall(pattern, log):
            found.setdefault(flag, {})[name] = None
    return {flag: tuple(names) for flag, names in found.items()}


def kernel_flags(engine: EngineName) -> frozenset[str]:
    """The flags that choose kernels which the log then names."""
    return frozenset(flag for flag, _ in _KERNELS[engine])


def is_same_kernel(asked: str, logged: str) -> bool:
    """Is what the log names what the flag asked for? Longer names in the log are kinds of the shorter."""
    ours, theirs = _plain(asked), _plain(logged)
    if "/" in logged:  # llama.cpp's layers: all of them, or the number that was asked for
        there, all_ = logged.split("/")
        return there == all_ if asked in ("all", "auto", "999", "99", "-1") else int(there) >= int(asked or 0)
    return ours == theirs or theirs.startswith(ours) or theirs in _ALSO.get(ours, ())


_ALSO = {"on": ("enabled",), "off": ("disabled",), "auto": ("enabled", "disabled", "auto")}


def _plain(name: str) -> str:
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(?:batched)?(?:vllm)?|attn(?:backend)?$|(?:nvfp4|mxfp\d)?linearkernel$", "", bare)


def slow_path_warnings(log: str) -> tuple[str, ...]:
    """Slow paths that the log admits, in words."""
    return tuple(words for pattern, words in _ALARMS if re.search(pattern, log))


def late_compilations(log: str) -> int:
    """Kernels that were compiled while serving: vLLM 0.25 and later count them."""
    return sum(bool(_LATE_JIT.search(line)) for line in log.splitlines())


def read_metrics(text: str) -> tuple[PrometheusSample, ...]:
    """Prometheus' text format; lines that are not it are left out."""
    found = []
    for line in text.splitlines()[:MAX_METRICS_LINES]:
        match = _SAMPLE.match(line) if line and line[0] != "#" else None
        value = _number(match[3]) if match else None
        if match and value is not None:
            found.append(PrometheusSample(match[1], value, dict(_LABEL.findall(match[2] or ""))))
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def draft_counters(samples: tuple[PrometheusSample, ...]) -> DraftCounters | None:
    """Since the start; None where the engine does not count. vLLM's and llama.cpp's names differ in front."""
    sums: dict[str, float] = {}
    for sample in samples:
        name = sample.name.partition(":")[2].removesuffix("_total")
        if name.startswith("spec_decode_num_"):
            sums[name] = sums.get(name, 0.0) + sample.value
    counts = [sums.get(f"spec_decode_num_{what}") for what in ("drafts", "draft_tokens", "accepted_tokens")]
    known = [round(count) for count in counts if count is not None and count == count]
    return DraftCounters(*known) if len(known) == 3 else None


def kv_cache_tokens(samples: tuple[PrometheusSample, ...]) -> int | None:
    """What vLLM's cache holds, by its own account. `kv_cache_size_tokens` is there from 0.25 on."""
    for sample in samples:
        if sample.name != "vllm:cache_config_info":
            continue
        labels = {name: _number(text) for name, text in sample.labels.items()}
        told, blocks, size = (
            labels.get(name) for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
        )
        if told:
            return round(told)
        return round(blocks * size) if blocks and size else None
    return None


def metric_total(samples: tuple[PrometheusSample, ...], name: str) -> float | None:
    """The sum over all labels, with or without the `_total` that Prometheus adds to counters."""
    found = [sample.value for sample in samples if sample.name.removesuffix("_total") == name]
    return sum(found) if found else None
