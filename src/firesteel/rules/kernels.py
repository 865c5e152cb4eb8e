"""Names that the engine accepts and cannot use: kernels that the GPU lacks, unregistered parsers, flags of
others.

vLLM accepts any attention or MoE backend on its command line and checks only at start whether the GPU
supports it: the backends for latent attention need compute capability 9 or 10, and FlashInfer's TRT-LLM
experts 10; a GB10 has 12.1. Parsers are an open set that plugins can extend; in a plain image an
unregistered name fails at start. And people use the flags of one engine with another.

Checked against vLLM 0.13.0 to 0.32.0 (`v1/attention/backends/mla`, `fused_moe/oracle`) and the flag
histories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from firesteel.catalog.image import is_upstream
from firesteel.engines.flags import name_set
from firesteel.engines.schema.releases import find_schema, known_versions, release_ranges
from firesteel.launch import EngineName
from firesteel.rules.context import Context, Match, is_final

_ATTENTION: Mapping[str, str] = {
    **dict.fromkeys(("CUTLASS_MLA", "FLASHINFER_MLA", "TOKENSPEED_MLA"), "10.x"),
    **dict.fromkeys(("FLASHMLA", "FLASHMLA_SPARSE"), "9.x and 10.x"),
    **dict.fromkeys(("FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE"), "9.x"),
}
"""Attention backends that refuse compute capability 12.x, and what they need."""

_MIXTURE = re.compile(r"-a\d+(\.\d+)?b(?![a-z])", re.IGNORECASE)
_FORMATS = {
    "NVFP4": re.compile("nvfp4", re.IGNORECASE),
    "FP8": re.compile("(?<![a-z0-9])fp8(?![a-z])", re.IGNORECASE),
}
_EXPERTS = {
    "NVFP4": name_set("auto b12x cutlass emulation flashinfer_b12x flashinfer_cutlass humming marlin"),
    "FP8": name_set("aiter auto cutlass deep_gemm flashinfer_cutlass hpc humming marlin triton"),
}
"""Backends that can run experts of a format on compute capability 12.x; vLLM fails with any other."""

_WORD = re.compile(r"[A-Za-z0-9_.-]+\Z")
_PLUGINS = {"reasoning-parser": "reasoning-parser-plugin", "tool-call-parser": "tool-parser-plugin"}

FLAGS: Mapping[EngineName, Mapping[str, str]] = {
    "sglang": {
        "compilation-config": "--cuda-graph-config",
        "enable-auto-tool-choice": "nothing: --tool-call-parser is enough",
        "enable-expert-parallel": "--ep-size",
        "enable-prefix-caching": "nothing: it is on unless --disable-radix-cache",
        "enforce-eager": "--disable-cuda-graph",
        "gpu-memory-utilization": "--mem-fraction-static, a fraction of what is free at the start",
        "kv-cache-memory-bytes": "--max-total-tokens",
        "linear-backend": "--fp4-gemm-backend or --fp8-gemm-backend",
        "max-model-len": "--context-length",
        "max-num-batched-tokens": "--chunked-prefill-size",
        "max-num-seqs": "--max-running-requests",
        "moe-backend": "--moe-runner-backend",
        "speculative-config": "--speculative-algorithm and its --speculative-* flags; MTP is NEXTN",
    },
    "vllm": {
        "chunked-prefill-size": "--max-num-batched-tokens",
        "context-length": "--max-model-len",
        "ctx-size": "--max-model-len",
        "cuda-graph-max-bs": "--max-cudagraph-capture-size",
        "disable-cuda-graph": "--enforce-eager",
        "disable-radix-cache": "--no-enable-prefix-caching",
        "enable-metrics": "nothing: /metrics is always there",
        "fp4-gemm-backend": "--linear-backend",
        "fp8-gemm-backend": "--linear-backend",
        "max-running-requests": "--max-num-seqs",
        "mem-fraction-static": "--gpu-memory-utilization",
        "moe-runner-backend": "--moe-backend",
        "n-gpu-layers": "nothing: every layer is on the GPU",
        "speculative-algorithm": "--speculative-config with its method",
        "tp-size": "--tensor-parallel-size",
    },
    "llamacpp": {
        "context-length": "--ctx-size",
        "gpu-memory-utilization": "--fit-target, what to leave free",
        "kv-cache-dtype": "--cache-type-k and --cache-type-v",
        "max-model-len": "--ctx-size, for all users together",
        "max-num-seqs": "--parallel",
        "mem-fraction-static": "--fit-target, what to leave free",
        "served-model-name": "--alias",
        "tool-call-parser": "nothing: the model's own template is read",
    },
}
"""Another engine's flag -> what to use with this engine. No release of this engine ever had them."""

PARSERS: Mapping[tuple[EngineName, str], Mapping[str, str]] = {
    ("sglang", "reasoning-parser"): {
        "deepseek_r1": "deepseek-r1", "deepseek_v3": "deepseek-v3", "minimax_m2": "minimax",
        "nemotron_v3": "nemotron_3", "openai_gptoss": "gpt-oss",
    },
    ("sglang", "tool-call-parser"): {
        "deepseek_v3": "deepseekv3", "deepseek_v31": "deepseekv31", "deepseek_v32": "deepseekv32",
        "llama3_json": "llama3", "minimax_m2": "minimax-m2", "openai": "gpt-oss", "qwen3_xml": "qwen3_coder",
    },
    ("vllm", "reasoning-parser"): {
        "deepseek-r1": "deepseek_r1", "deepseek-v3": "deepseek_v3", "gpt-oss": "openai_gptoss",
        "nemotron_3": "nemotron_v3",
    },
    ("vllm", "tool-call-parser"): {
        "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "deepseekv32": "deepseek_v32",
        "gpt-oss": "openai", "llama3": "llama3_json", "minimax-m2": "minimax_m2", "qwen25": "hermes",
    },
}  # fmt: skip
"""A parser's name in another engine -> its name in this one."""


def attention_without_kernel(context: Context) -> list[Match]:
    """An attention backend for latent attention that no GPU of capability 12.x can run."""
    return [
        Match(key, shown, name.upper(), f"compute capability {_ATTENTION[name.upper()]}")
        for key, shown, name in (
            *_choices(context, "attention-backend"),
            *_choices(context, "attention-config", "backend"),
            *_choices(context, "speculative-config", "attention_backend"),
        )
        if name.upper() in _ATTENTION
    ]


def experts_without_kernel(context: Context) -> list[Match]:
    """A MoE backend that cannot run the experts of this checkpoint on capability 12.x, judged by names."""
    model = context.launch.model
    kind = next((kind for kind, pattern in _FORMATS.items() if pattern.search(model)), None)
    if kind is None or not _MIXTURE.search(model):
        return []
    chosen = [*_choices(context, "moe-backend"), *_choices(context, "kernel-config", "moe_backend")]
    return [
        Match(key, shown, name, kind)
        for key, shown, name in chosen
        if name not in _EXPERTS[kind] and release_ranges("vllm", "--moe-backend", name)
    ]


def _choices(context: Context, flag: str, inside: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(key, shown, value) of a flag's text, or of one key of its JSON."""
    value: object = context.flags.get(flag)
    if inside and isinstance(value, dict):
        value, shown = value.get(inside), f'"{inside}" in --{flag}'
    elif inside:
        return
    else:
        shown = f"--{flag} {value}"
    if isinstance(value, str):
        yield f"flag:{flag}", shown, value


def unregistered_parsers(context: Context) -> list[Match]:
    """Parsers that this release does not register, without a plugin that adds them."""
    engine, version, parsers = context.launch.engine, context.launch.version, list(_parsers(context))
    known = find_schema(engine, version) if parsers and version in known_versions(engine) else None
    container = context.launch.container
    if known is None or (container and not is_upstream(container.image)):  # a fork may have others
        return []
    return [
        Match(f"flag:{flag}", f"--{flag} {name}", name, _alternative(engine, flag, name))
        for flag, name in parsers
        if is_final(name) and name not in known.names(flag) and release_ranges(engine, f"--{flag}")
    ]


def availability(engine: EngineName, symbol: str, value: str) -> str:
    spans = release_ranges(engine, symbol, value)
    return first_or_last(spans) if spans else f"no release since {known_versions(engine)[0]} had it"


def first_or_last(spans: Sequence[tuple[str, str | None]]) -> str:
    return f"first in {spans[0][0]}" if spans[-1][1] is None else f"last in {spans[-1][1]}"


def _parsers(context: Context) -> Iterator[tuple[str, str]]:
    """The parsers that are looked up at start. vLLM looks up its tool parser only when it is enabled."""
    flags = context.launch.flags
    for flag, plugin in _PLUGINS.items():
        name = flags.get(flag)
        is_optional = flag == "tool-call-parser" and context.launch.engine == "vllm"
        if is_optional and flags.get("enable-auto-tool-choice") is not True:
            continue
        if isinstance(name, str) and _WORD.match(name) and plugin not in flags:
            yield flag, name


def _alternative(engine: EngineName, flag: str, name: str) -> str:
    same = PARSERS.get((engine, flag), {}).get(name)
    return f"its name here is `{same}`" if same else availability(engine, f"--{flag}", name)


def flags_of_another_engine(context: Context) -> list[Match]:
    """Flags and parsers that have another name here; no release of this engine had them."""
    engine, flags = context.launch.engine, context.launch.flags
    renamed = FLAGS[engine]
    matches = [
        Match(f"flag:{name}", f"--{name}", f"--{name}", renamed[name]) for name in flags if name in renamed
    ]
    for flag, name in _parsers(context):
        if same := PARSERS.get((engine, flag), {}).get(name):
            matches.append(Match(f"flag:{flag}", f"--{flag} {name}", f"--{flag} {name}", f"--{flag} {same}"))
    return matches


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "attention-without-kernel": attention_without_kernel,
    "experts-without-kernel": experts_without_kernel,
    "unregistered-parsers": unregistered_parsers,
    "another-engines-words": flags_of_another_engine,
}
