"""What stands behind a name: a kernel that this GPU has, a parser that the release registers, a flag that is
this engine's own.

vLLM takes any attention or MoE backend on its command line and finds out only at start whether the GPU has
it: the backends for latent attention ask for compute capability 9 or 10, and FlashInfer's TRT-LLM experts for
10; a GB10 is 12.1. Parsers are an open set, so that plugins can add to it; in a plain image a name that was
not registered stops the start. And people carry their words from one engine to the next.

Held against vLLM 0.13.0 to 0.32.0 (`v1/attention/backends/mla`, `fused_moe/oracle`) and the chronicles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from firesteel.engines.flags import name_set
from firesteel.engines.schema.history import version_key
from firesteel.engines.schema.releases import known_versions, release_ranges
from firesteel.launch import EngineName
from firesteel.rules.context import Context, Match, is_final

_ATTENTION: Mapping[str, str] = {
    "CUTLASS_MLA": "10.x",
    "FLASHINFER_MLA": "10.x",
    "FLASHMLA": "9.x and 10.x",
    "FLASHMLA_SPARSE": "9.x and 10.x",
    "FLASH_ATTN_MLA": "9.x",
    "FLASH_ATTN_MLA_SPARSE": "9.x",
    "TOKENSPEED_MLA": "10.x",
}
"""Attention backends that refuse compute capability 12.x, and what they ask for."""

_MIXTURE = re.compile(r"-a\d+(\.\d+)?b(?![a-z])", re.IGNORECASE)
_FORMATS = {
    "NVFP4": re.compile("nvfp4", re.IGNORECASE),
    "FP8": re.compile("(?<![a-z0-9])fp8(?![a-z])", re.IGNORECASE),
}
_EXPERTS = {
    "NVFP4": name_set("auto b12x cutlass emulation flashinfer_b12x flashinfer_cutlass humming marlin"),
    "FP8": name_set("aiter auto cutlass deep_gemm flashinfer_cutlass hpc humming marlin triton"),
}
"""What may run experts of a format on compute capability 12.x; vLLM stops at any other."""

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
"""Another engine's flag -> what this engine says instead. No release of this engine ever had them."""

PARSERS: Mapping[tuple[EngineName, str], Mapping[str, str]] = {
    ("sglang", "reasoning-parser"): {
        "deepseek_r1": "deepseek-r1",
        "deepseek_v3": "deepseek-v3",
        "minimax_m2": "minimax",
        "nemotron_v3": "nemotron_3",
        "openai_gptoss": "gpt-oss",
    },
    ("sglang", "tool-call-parser"): {
        "deepseek_v3": "deepseekv3",
        "deepseek_v31": "deepseekv31",
        "deepseek_v32": "deepseekv32",
        "llama3_json": "llama3",
        "minimax_m2": "minimax-m2",
        "openai": "gpt-oss",
        "qwen3_xml": "qwen3_coder",
    },
    ("vllm", "reasoning-parser"): {
        "deepseek-r1": "deepseek_r1",
        "deepseek-v3": "deepseek_v3",
        "gpt-oss": "openai_gptoss",
        "nemotron_3": "nemotron_v3",
    },
    ("vllm", "tool-call-parser"): {
        "deepseekv3": "deepseek_v3",
        "deepseekv31": "deepseek_v31",
        "deepseekv32": "deepseek_v32",
        "gpt-oss": "openai",
        "llama3": "llama3_json",
        "minimax-m2": "minimax_m2",
        "qwen25": "hermes",
    },
}
"""The same parser under another engine's name -> this engine's."""


def attention_without_kernel(scene: Context) -> list[Match]:
    """An attention backend for latent attention that no GPU of capability 12.x can run."""
    return [
        Match(key, saw, name.upper(), f"compute capability {_ATTENTION[name.upper()]}")
        for key, saw, name in _attention_choices(scene)
        if name.upper() in _ATTENTION
    ]


def _attention_choices(scene: Context) -> Iterator[tuple[str, str, str]]:
    yield from _choices(scene, "attention-backend")
    yield from _choices(scene, "attention-config", "backend")
    yield from _choices(scene, "speculative-config", "attention_backend")


def experts_without_kernel(scene: Context) -> list[Match]:
    """A MoE backend that cannot run this checkpoint's experts on capability 12.x, both by their names."""
    kind = _experts_format(scene.launch.model)
    if kind is None:
        return []
    chosen = [*_choices(scene, "moe-backend"), *_choices(scene, "kernel-config", "moe_backend")]
    return [
        Match(key, saw, name, kind)
        for key, saw, name in chosen
        if name not in _EXPERTS[kind] and release_ranges("vllm", "--moe-backend", name)
    ]


def _experts_format(model: str) -> str | None:
    if not _MIXTURE.search(model):
        return None
    return next((kind for kind, pattern in _FORMATS.items() if pattern.search(model)), None)


def _choices(scene: Context, flag: str, inside: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(key, as it reads, value) of a flag's text, or of one key of its JSON."""
    value: object = scene.flags.get(flag)
    if inside and isinstance(value, dict):
        value, shown = value.get(inside), f'"{inside}" in --{flag}'
    elif inside:
        return
    else:
        shown = f"--{flag} {value}"
    if isinstance(value, str):
        yield f"flag:{flag}", shown, value


def unregistered_parsers(scene: Context) -> list[Match]:
    """Parsers that this very release has not, and no plugin brings."""
    engine, version, asked = scene.launch.engine, scene.launch.version, list(_parsers(scene))
    if not asked or version is None or version not in known_versions(engine):
        return []
    return [
        Match(f"flag:{flag}", f"--{flag} {name}", name, _otherwise(engine, flag, name))
        for flag, name in asked
        if is_final(name)
        and release_ranges(engine, f"--{flag}")
        and not knows(engine, version, f"--{flag}", name)
    ]


def knows(engine: EngineName, version: str, symbol: str, value: str) -> bool:
    """Whether a release that was read takes this value of a flag or key."""
    now, spans = version_key(version), release_ranges(engine, symbol, value)
    return any(
        version_key(first) <= now and (last is None or now <= version_key(last)) for first, last in spans
    )


def age(engine: EngineName, symbol: str, value: str) -> str:
    spans = release_ranges(engine, symbol, value)
    if not spans:
        return "no release had it"
    return f"first in {spans[0][0]}" if spans[-1][1] is None else f"last in {spans[-1][1]}"


def _parsers(scene: Context) -> Iterator[tuple[str, str]]:
    """The parsers that are looked up at start. vLLM looks its tool parser up only when it is to be used."""
    flags = scene.launch.flags
    for flag, plugin in _PLUGINS.items():
        name = flags.get(flag)
        asleep = flag == "tool-call-parser" and scene.launch.engine == "vllm"
        if asleep and flags.get("enable-auto-tool-choice") is not True:
            continue
        if isinstance(name, str) and _WORD.match(name) and plugin not in flags:
            yield flag, name


def _otherwise(engine: EngineName, flag: str, name: str) -> str:
    same = PARSERS.get((engine, flag), {}).get(name)
    return f"its name here is `{same}`" if same else age(engine, f"--{flag}", name)


def another_engines_words(scene: Context) -> list[Match]:
    """Flags and parsers that are called otherwise here; no release of this engine had them."""
    engine, flags = scene.launch.engine, scene.launch.flags
    words = FLAGS[engine]
    found = [Match(f"flag:{name}", f"--{name}", f"--{name}", words[name]) for name in flags if name in words]
    for flag, name in _parsers(scene):
        if same := PARSERS.get((engine, flag), {}).get(name):
            found.append(Match(f"flag:{flag}", f"--{flag} {name}", f"--{flag} {name}", f"--{flag} {same}"))
    return found


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "attention-without-kernel": attention_without_kernel,
    "experts-without-kernel": experts_without_kernel,
    "unregistered-parsers": unregistered_parsers,
    "another-engines-words": another_engines_words,
}
