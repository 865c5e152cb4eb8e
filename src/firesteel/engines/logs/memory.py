"""What an engine reports in its log: memory by part, tokens of cache, concurrent requests."""

from __future__ import annotations

import re

from firesteel.launch import EngineName
from firesteel.units import GIB, MIB
from firesteel.values import Value

_KV_GIB = (
    r"(?:Available KV cache memory: |reserved |(?:Explicitly|Auto) set \()"
    r"([\d.]+)(?: |/[\d.]+\) )GiB"  # on a CPU: (1.0/23.54) GiB
)


class ReportedMemory(Value):
    """As the engine itself reports it; None where it does not."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    """Requests of full context length that the cache holds at once."""
    host_weights_bytes: int = 0
    """The part of the weights that llama.cpp keeps in host memory beside a GPU."""


def reported_memory(engine: EngineName, text: str) -> ReportedMemory:
    return {"llamacpp": _llamacpp, "vllm": _vllm, "sglang": _sglang}[engine](text)


def _llamacpp(text: str) -> ReportedMemory:
    return ReportedMemory(
        _sum(r"load_tensors: .* model buffer size = +([\d.]+) MiB", text, MIB),
        _sum(r"llama_(?:kv_cache|memory_recurrent): .* (?:KV|RS) buffer size = +([\d.]+) MiB", text, MIB),
        _sum(r"sched_reserve: .* compute buffer size = +([\d.]+) MiB", text, MIB),
        host_weights_bytes=_sum(r"load_tensors: +CPU\S* model buffer size = +([\d.]+) MiB", text, MIB) or 0,
    )


def _vllm(text: str) -> ReportedMemory:
    """Up to 0.29 one or two lines, with `GPU` before the size; since 0.30 with the name of the device."""
    concurrency = _last_match(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", text)
    return ReportedMemory(
        _sum(r"Model loading took ([\d.]+) GiB", text, GIB),
        _sum(_KV_GIB, text, GIB),
        None,
        _last_count(r"KV cache size: ([\d,]+) tokens", text),
        float(concurrency) if concurrency else None,
    )


def _sglang(text: str) -> ReportedMemory:
    """It prints GB and divides by 2^30."""
    return ReportedMemory(
        _sum(r"Load weight end\..* mem usage=([\d.]+) GB", text, GIB),
        _sglang_kv(text),
        None,
        _last_count(r"max_total_num_tokens=(\d+)", text),
    )


def _sglang_kv(text: str) -> int | None:
    """Since 0.5.18 it may print an upper bound first; what it allocated comes after the graphs."""
    lines = [line for line in text.splitlines() if re.search(r"KV [Cc]ache (?:is )?allocated\.", line)]
    return _sum(r"\b(?:K|V|KV) size: ([\d.]+) GB", "\n".join(lines), GIB)


def _sum(pattern: str, text: str, unit: int) -> int | None:
    sizes = re.findall(pattern, text)
    return round(sum(map(float, sizes)) * unit) if sizes else None


def _last_match(pattern: str, text: str) -> str | None:
    matches = re.findall(pattern, text)
    return matches[-1] if matches else None


def _last_count(pattern: str, text: str) -> int | None:
    number = _last_match(pattern, text)
    return int(number.replace(",", "")) if number else None
