"""What a running engine really does: the kernels that its log names, and counters of its `/metrics`.

A kernel is spelled one way on the command line (`marlin`, `flashinfer`) and another in the log (`MARLIN`,
`AttentionBackendEnum.FLASHINFER`, `FlashInferCutlassNvFp4LinearKernel`); `is_same_kernel` knows both.
Log lines as in vLLM 0.12 to 0.32, read in its sources on 2026-11-15:
https://github.com/vllm-project/vllm/tree/v0.32.0/vllm/model_executor/layers/fused_moe/oracle
https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/platforms/cuda.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf, nan

from firesteel.engines.prometheus import PrometheusSample
from firesteel.launch import EngineName
from firesteel.values import Value

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
