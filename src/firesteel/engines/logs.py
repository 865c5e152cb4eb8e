"""What engines print while they start: how far they are, and what they really took.

Only lines that matter to somebody waiting or to a plan being checked. Patterns are version-proof where
upstream reworded: the part of the line that stayed is matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from firesteel.launch import EngineName
from firesteel.units import GIB, MIB

_PHASES: dict[EngineName, tuple[tuple[str, str], ...]] = {
    "llamacpp": (
        (r"srv.*load_model: loading model|loading model '", "reading the model file"),
        (r"load_tensors: loading model tensors", "loading weights"),
        (r"llama_kv_cache: .*KV buffer size", "setting up the KV cache"),
        (r"warming up the model", "warming up"),
        (r"listening on http", "listening"),
    ),
    "vllm": (
        (r"Initializing a V1 LLM engine", "starting the engine"),
        (r"Starting to load model", "loading weights"),
        (r"Model loading took", "weights loaded"),
        (r"Dynamo bytecode transform time", "compiling"),
        (r"Available KV cache memory|memory for KV Cache", "setting up the KV cache"),
        (r"Capturing CUDA graphs", "capturing CUDA graphs"),
        (r"Application startup complete", "listening"),
    ),
    "sglang": (
        (r"Load weight begin", "loading weights"),
        (r"Load weight end", "weights loaded"),
        (r"KV Cache is allocated", "setting up the KV cache"),
        (r"Capture .*graph begin", "capturing CUDA graphs"),
        (r"The server is fired up", "listening"),
    ),
}
_FATAL = (
    r"Free memory on device .* is less than desired GPU memory utilization",
    r"Error in memory profiling",
    r"unrecognized arguments: .*",
    r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError.*",
    r"failed to (?:load model|open GGUF file|allocate).*",
    r"error loading model.*",
    r"couldn't bind HTTP server socket.*",
    r"embedded engine: (?!serving).*",
    r"no space left on device.*",
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory as the engine itself reports it; None where it did not say."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None
    kv_tokens: int | None = None


def phase(engine: EngineName, line: str) -> str | None:
    """What the engine is doing, if this line tells."""
    return next((words for pattern, words in _PHASES[engine] if re.search(pattern, line)), None)


def complaint(lines: Iterable[str]) -> str | None:
    """The line that says why an engine did not start: a known one, else the last that speaks of an error."""
    last = None
    for line in lines:
        for pattern in _FATAL:
            if match := re.search(pattern, line, re.I):
                return match[0].strip()
        if re.search(r"\berror\b|exception:|\bE (?:srv|cmn|llama)", line, re.I):
            last = line.strip()
    return last


def taken(engine: EngineName, text: str) -> Taken:
    if engine == "llamacpp":
        return Taken(
            _sum(r"load_tensors: .* model buffer size = +([\d.]+) MiB", text, MIB),
            _sum(r"llama_(?:kv_cache|memory_recurrent): .* (?:KV|RS) buffer size = +([\d.]+) MiB", text, MIB),
            _sum(r"sched_reserve: .* compute buffer size = +([\d.]+) MiB", text, MIB),
        )
    if engine == "vllm":
        tokens = re.search(r"KV cache size: ([\d,]+) tokens", text)
        return Taken(
            _sum(r"Model loading took ([\d.]+) GiB", text, GIB),
            _sum(r"(?:Available KV cache memory:|reserved) ([\d.]+) GiB", text, GIB),
            None,
            int(tokens[1].replace(",", "")) if tokens else None,
        )
    return Taken()


def _sum(pattern: str, text: str, unit: int) -> int | None:
    found = re.findall(pattern, text)
    return round(sum(float(each) for each in found) * unit) if found else None
