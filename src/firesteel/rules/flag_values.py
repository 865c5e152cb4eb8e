"""Values that an engine's command line accepts and its server cannot use.

vLLM checks only at start whether the GPU supports a backend: those for latent attention need compute
capability 9 or 10, and FlashInfer's TRT-LLM experts 10; a GB10 has 12.1. Parsers are an open set that plugins
can extend; in a plain image an unregistered name fails at start. `--speculative-config` has conditions over
several keys. Values with a syntax of their own (JSON, `KEY=TYPE:VALUE`, `PATTERN=BUFFER`) are read as late;
vLLM's JSON flags have schemas, see `releases`. And people use the flags of one engine with another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from firesteel.catalog.image import is_upstream
from firesteel.engines.flags import name_set
from firesteel.engines.schema.releases import find_schema, known_versions, release_ranges
from firesteel.launch import EngineName
from firesteel.rules.context import Context, Match, as_number, is_final

# --- kernels, parsers, flags of others ---
#
# Checked against vLLM 0.13.0 to 0.32.0 (`v1/attention/backends/mla`, `fused_moe/oracle`) and the flag
# histories.

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

_PARSER_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
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
        if isinstance(name, str) and _PARSER_NAME.match(name) and plugin not in flags:
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


# --- speculation ---
#
# Since 0.24.0 vLLM can draft fewer tokens for larger batches: a list of `[first, last, tokens]`, batch sizes
# inclusive. It must begin at 1 and its ranges must not overlap, or the start fails
# (`v1/spec_decode/dynamic/utils.py`). DFlash and DSpark draft a block at once, which needs non-causal
# attention; FlashInfer computed that incorrectly on Blackwell until 0.26.0.

_BLOCK_DRAFTERS = ("dflash", "dspark")
_METHOD_NAME = re.compile(r"[a-z0-9_]+\Z")
_SCHEDULE = "num_speculative_tokens_per_batch_size"


def _config(context: Context) -> dict[str, object]:
    config = context.flags.get("speculative-config")
    return config if isinstance(config, dict) else {}


def method_is_unknown(context: Context) -> list[Match]:
    """A method that this release does not have; vLLM's list is closed."""
    method, version = _config(context).get("method"), context.launch.version
    if version not in known_versions("vllm") or not isinstance(method, str) or not _METHOD_NAME.match(method):
        return []
    known = find_schema("vllm", version)
    if known and method in known.configs["SpeculativeConfig"].keys["method"].values:
        return []
    shown = f'"method": "{method}" in --speculative-config'
    reason = availability("vllm", "SpeculativeConfig.method", method)
    return [Match("flag:speculative-config", shown, method, reason)]


def drafts_through_flashinfer(context: Context) -> list[Match]:
    """A block drafter whose attention uses FlashInfer: by its own key, or else by that of the model."""
    config = _config(context)
    own, model = config.get("attention_backend"), context.flags.get("attention-backend")
    chosen = own if isinstance(own, str) else model
    if config.get("method") not in _BLOCK_DRAFTERS or str(chosen).upper() != "FLASHINFER":
        return []
    if chosen is own:
        shown = '"attention_backend" in --speculative-config'
        return [Match("flag:speculative-config", shown, shown, str(config["method"]))]
    shown = f"--attention-backend {model}"
    return [Match("flag:attention-backend", shown, shown, str(config["method"]))]


def schedule_is_malformed(context: Context) -> list[Match]:
    """A schedule of draft tokens by batch size that vLLM refuses."""
    given = _config(context).get(_SCHEDULE)
    problem = _schedule_problem(given) if given is not None else None
    return [Match("flag:speculative-config", f'"{_SCHEDULE}"', _SCHEDULE, problem)] if problem else []


def _schedule_problem(given: object) -> str | None:
    """None when it is valid, or cannot be decided because of a placeholder."""
    if not isinstance(given, list):
        return None if isinstance(given, str) else "it is not a list"
    if not given:
        return "it is empty"
    ranges: list[tuple[int, int]] = []
    for entry in given:
        if not isinstance(entry, list) or len(entry) != 3:
            return "an entry is not [first, last, tokens]"
        first, last, tokens = entry
        if not (_is_whole(first) and _is_whole(last) and _is_whole(tokens)):
            return None
        if first <= 0 or first > last or tokens < 0:
            return f"[{first}, {last}, {tokens}] is not a range"
        ranges.append((first, last))
    ranges.sort()
    if ranges[0][0] != 1:
        return "the first range must begin at 1"
    overlap = any(second[0] <= first[1] for first, second in pairwise(ranges))
    return "two ranges overlap" if overlap else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def drafts_overflow_batch(context: Context) -> list[Match]:
    """More draft tokens per step than allowed: users x tokens > max-num-batched-tokens."""
    config = context.flags.get("speculative-config")
    drafted = as_number(config.get("num_speculative_tokens")) if isinstance(config, dict) else None
    users, batch = context.number("max-num-seqs"), context.number("max-num-batched-tokens")
    if drafted is None or users is None or batch is None or drafted * users <= batch:
        return []
    shown = f"{drafted:g} draft tokens x {users:g} users > --max-num-batched-tokens {batch:g}"
    return [Match("flag:max-num-batched-tokens", shown, "max-num-batched-tokens", f"{batch:g}")]


# --- a syntax of their own ---
#
# The parsers of llama.cpp and SGLang take any text and stop on a malformed one when the server starts.
# SGLang's: `server_args.py`, `disaggregation/kv_events.py` and `configs/load_config.py` of 2026-11, seen
# 2026-11-16.

_KV_OVERRIDE = re.compile(
    r"[^=,]{1,127}=(?:int:-?\d+|float:[-+.\deE]+|bool:(?:true|false)|str:.{0,127})", re.DOTALL
)
_PLACEHOLDER = re.compile(r"[$`<>]|\{\{|\.\.\.")


def _json_error(text: str) -> str:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return "this is not JSON; the shell takes its quotes away unless it is quoted as a whole"
    return "" if isinstance(parsed, dict) else "it takes a JSON object"


_GRAPH_KEYS = name_set(
    "backend max_bs bs tc_compiler full_prefill_max_req full_prefill_prefix_chunk_tokens max_context_size"
    " max_seq_len"
)
"""Of `--cuda-graph-config` in any release from 0.5.14 to 0.5.23."""


def _graph_config_error(text: str) -> str:
    """`{"decode": {"max_bs": 16}}`: the phase, then its settings; anything else is refused."""
    if error := _json_error(text):
        return error
    for phase, settings in json.loads(text).items():
        if phase not in ("decode", "prefill"):
            return f"`{phase}` is no phase: decode or prefill"
        if not isinstance(settings, dict):
            return f"`{phase}` takes a JSON object"
        if unknown := sorted(settings.keys() - _GRAPH_KEYS):
            return f"no release has the key `{unknown[0]}` of `{phase}`"
    return ""


def _json_or_file_error(text: str) -> str:
    return "" if text.startswith("@") else _json_error(text)


def _media_error(text: str) -> str:
    """`{"image": {"max_pixels": 1048576}}`: the settings of each kind of media are an object."""
    if error := _json_error(text):
        return error
    kinds = [
        kind for kind in ("image", "video", "audio") if not isinstance(json.loads(text).get(kind, {}), dict)
    ]
    return f"`{kinds[0]}` takes a JSON object" if kinds else ""


_EVENT_KEYS: dict[str, type] = {
    "publisher": str, "endpoint": str, "replay_endpoint": str, "buffer_steps": int, "hwm": int,
    "max_queue_size": int, "topic": str,
}  # fmt: skip


def _events_error(text: str) -> str:
    """Other keys are ignored, but these must be of their type."""
    if error := _json_error(text):
        return error
    for key, value in json.loads(text).items():
        if _EVENT_KEYS.get(key) is int and not re.fullmatch(r"-?\d+", str(value)):
            return f"`{key}` takes a whole number"
        if _EVENT_KEYS.get(key) is str and not isinstance(value, str) and value is not None:
            return f"`{key}` takes a text"
    return ""


def _kv_override_error(text: str) -> str:
    # A comma may separate overrides, or belong to the text of one.
    items = text.split(",") if ":str:" not in text and "=str:" not in text else [text]
    wrong = next((item for item in items if not _KV_OVERRIDE.fullmatch(item)), None)
    return (
        f"`{wrong}` is not KEY=TYPE:VALUE with a type of int, float, bool (true, false) or str"
        if wrong
        else ""
    )


def _tensor_override_error(text: str) -> str:
    wrong = next((item for item in text.split(",") if "=" not in item), None)
    return f"`{wrong}` is not PATTERN=BUFFER, such as `exps=CPU`" if wrong is not None else ""


_SYNTAX: dict[EngineName, dict[str, Callable[[str], str]]] = {
    "llamacpp": {
        "chat-template-kwargs": _json_error,
        "override-kv": _kv_override_error,
        "override-tensor": _tensor_override_error,
        "spec-draft-override-tensor": _tensor_override_error,
    },
    "sglang": {
        "cuda-graph-config": _graph_config_error,
        "json-model-override-args": _json_error,
        "preferred-sampling-params": _json_error,
        "default-chat-template-kwargs": _json_error,
        "limit-mm-data-per-request": _json_error,
        "extra-metric-labels": _json_error,
        "model-loader-extra-config": _json_error,
        "hisparse-config": _json_error,
        "modelexpress-config": _json_error,
        "hicache-storage-backend-extra-config": _json_or_file_error,
        "mm-process-config": _media_error,
        "kv-events-config": _events_error,
    },
    "vllm": {},
}


def malformed_values(context: Context) -> list[Match]:
    return list(_malformed(context)) if not context.is_own_build else []


def _malformed(context: Context) -> Iterator[Match]:
    syntax = _SYNTAX[context.launch.engine]
    for name, given in context.launch.flags.items():
        find_error = syntax.get(name)
        for item in given if isinstance(given, list) else [given]:
            text = json.dumps(item) if isinstance(item, dict) else item
            if find_error is None or not isinstance(text, str) or _PLACEHOLDER.search(text):
                continue
            if error := find_error(text):
                yield Match(f"flag:{name}", f"--{name} {text}"[:120], f"--{name}", error)


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "attention-without-kernel": attention_without_kernel,
    "experts-without-kernel": experts_without_kernel,
    "unregistered-parsers": unregistered_parsers,
    "another-engines-words": flags_of_another_engine,
    "method-is-unknown": method_is_unknown,
    "drafts-through-flashinfer": drafts_through_flashinfer,
    "schedule-is-malformed": schedule_is_malformed,
    "malformed-values": malformed_values,
    "drafts-overflow-batch": drafts_overflow_batch,
}
