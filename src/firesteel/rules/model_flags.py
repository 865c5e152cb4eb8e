"""Flags against the model: its name, published context, quantization, family and draft, and its memory.

Names are evidence only where they are clear. A checkpoint called `...-AWQ` is not FP8; a parser named after
one family reads nothing of another. What a name leaves open is not reported. Checked against vLLM 0.24.0 to
0.32.0: `config/model.py`, `tool_parsers`, `reasoning`. Memory is checked twice: by the flags alone, since a
fraction of all memory and the size of `/dev/shm` come out of one pool; and, where the model's weights are
known, vLLM refuses to start when its share of memory cannot hold them and one request of full length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from firesteel.catalog.catalog import shipped
from firesteel.engines.engine import served_capacity
from firesteel.engines.kv_cache import size_kv_cache
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Host, hardware, idle_host
from firesteel.launch import is_valid_hub_id
from firesteel.rules.context import Context, Match, is_final
from firesteel.units import GIB, show_bytes
from firesteel.values import replace

_OTHER_CONTEXT = {"hf-overrides", "rope-scaling", "hf-config-path", "config", "json-model-override-args"}
"""Flags that may give the model another context than its config."""
_NAMED = (
    ("awq", re.compile(r"(?<![a-z])awq(?![a-z])", re.IGNORECASE)),
    ("gptq", re.compile(r"(?<![a-z])gptq(?![a-z])", re.IGNORECASE)),
    ("nvfp4", re.compile(r"nvfp4", re.IGNORECASE)),
    ("fp8", re.compile(r"(?<![a-z0-9])fp8(?![a-z0-9])", re.IGNORECASE)),
)
"""The quantization in a model's name, the most specific first."""
_OTHER_QUANTIZATION: Mapping[str, re.Pattern[str]] = {
    "awq": re.compile(r"fp8|gptq.*|modelopt.*|mxfp4|bitsandbytes|fbgemm_fp8"),
    "gptq": re.compile(r"fp8|awq.*|modelopt.*|mxfp4|bitsandbytes|fbgemm_fp8"),
    "nvfp4": re.compile(r"fp8|awq.*|gptq.*|mxfp4|bitsandbytes|fbgemm_fp8"),
    "fp8": re.compile(r"awq.*|gptq.*|modelopt_fp4|mxfp4|bitsandbytes"),
}
"""What `--quantization` must not be for it."""
_FAMILIES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "deepseek": r"deepseek", "gemma": r"gemma", "glm": r"(?<![a-z])glm", "gpt-oss": r"gpt-oss",
        "granite": r"granite", "kimi": r"kimi", "llama": r"(?<![a-z])llama-?[34]", "minimax": r"minimax",
        "mistral": r"mistral|mixtral|magistral|devstral|ministral|codestral", "nemotron": r"nemotron",
        "phi": r"(?<![a-z])phi-?\d", "qwen": r"qwen|qwq", "step": r"(?<![a-z])step-?\d", "ernie": r"ernie",
        "hunyuan": r"hunyuan|(?<![a-z])hy\d", "jamba": r"jamba", "seed": r"seed-oss", "lfm": r"(?<![a-z])lfm",
        "olmo": r"olmo", "cohere": r"command-", "internlm": r"intern", "mimo": r"mimo",
    }.items()
}  # fmt: skip
_PARSER_FAMILIES: Mapping[str, str] = {
    "deepseek": "deepseek", "gemma4": "gemma", "functiongemma": "gemma", "glm": "glm", "openai": "gpt-oss",
    "gpt-oss": "gpt-oss", "granite": "granite", "kimi": "kimi", "llama": "llama", "minimax": "minimax",
    "mistral": "mistral", "phi4": "phi", "step3": "step", "ernie45": "ernie", "hunyuan": "hunyuan",
    "jamba": "jamba", "seed_oss": "seed", "lfm2": "lfm", "olmo3": "olmo", "cohere": "cohere",
    "internlm": "internlm",
}  # fmt: skip
"""The beginning of a parser's name -> the only family that it reads. `hermes`, `qwen3_coder`, `pythonic`,
`xlam` and `deepseek_r1` read models of several families."""
CALL_FORMATS: Mapping[str, re.Pattern[str]] = {
    "qwen-xml": re.compile(r"qwen3-coder|qwen3\.[56]|nemotron-3", re.IGNORECASE),
    "hermes-json": re.compile(r"qwen2\.5|qwq|qwen3-(?:next|vl|\d)", re.IGNORECASE),
}
"""How models write a tool call, by their chat templates: families alone do not tell these two apart."""
PARSER_FORMATS: Mapping[str, str] = {
    "qwen3_coder": "qwen-xml", "qwen3_xml": "qwen-xml", "hermes": "hermes-json", "qwen25": "hermes-json",
    "llama3_json": "llama3-json",
}  # fmt: skip
"""What each parser reads: run on all formats, `tests/engines/parsers`."""
THOUGHT_NOTATIONS: Mapping[str, str] = {
    "qwen": "think", "glm": "think", "nemotron": "think", "gemma": "gemma", "mistral": "mistral",
}  # fmt: skip
"""How families mark their thoughts: `<think>`, `<|channel>`, `[THINK]`."""
THOUGHT_PARSERS: Mapping[str, str] = {
    "qwen3": "think", "glm45": "think", "nemotron_v3": "think", "nemotron_3": "think", "poolside_v1": "think",
    "deepseek_r1": "think", "deepseek-r1": "think", "gemma4": "gemma", "mistral": "mistral",
}  # fmt: skip
"""The notation that each reasoning parser reads: run on all, `tests/engines/parsers`."""
_MANY_FAMILIES = ("deepseek_r1", "deepseek-r1", "llama3_json", "llama4_pythonic", "llama3")


def context_beyond_model(context: Context) -> list[Match]:
    """More tokens than the model's config has; engines refuse it without a variable that allows it."""
    flag = "max-model-len" if context.launch.engine == "vllm" else "context-length"
    model = shipped().models.get(context.launch.model)
    asked = served_capacity(context.launch).context
    if model is None or asked is None or context.launch.engine == "llamacpp" or flag not in context.flags:
        return []
    if _OTHER_CONTEXT & context.flags.keys() or any("ALLOW_" in name for name in context.launch.env):
        return []
    most = model.architecture.max_context
    return [Match(f"flag:{flag}", f"--{flag} {asked}", flag, f"{most:,}")] if asked > most else []


def other_quantization(context: Context) -> list[Match]:
    """`--quantization` names another format than the checkpoint's name does."""
    given = context.flags.get("quantization")
    name = context.launch.model.rpartition("/")[2]
    stored = next((format for format, pattern in _NAMED if pattern.search(name)), None)
    if stored is None or not isinstance(given, str):
        return []
    if not _OTHER_QUANTIZATION[stored].fullmatch(given.lower()):
        return []
    return [Match("flag:quantization", f"--quantization {given}", given, stored.upper())]


def family_of(model: str) -> str | None:
    """The family that a model's name mentions; None for none, or for several (a distillation)."""
    named = [family for family, pattern in _FAMILIES.items() if pattern.search(model)]
    return named[0] if len(named) == 1 else None


def parser_of_another_model(context: Context) -> list[Match]:
    family = family_of(context.launch.model)
    found = []
    written = next((form for form, names in CALL_FORMATS.items() if names.search(context.launch.model)), None)
    tools = context.flags.get("tool-call-parser")
    reads = PARSER_FORMATS.get(tools) if isinstance(tools, str) else None
    if written and reads and written != reads:
        found.append(Match("flag:tool-call-parser", f"--tool-call-parser {tools}", str(tools), reads))
    for flag in ("tool-call-parser", "reasoning-parser"):
        parser = context.flags.get(flag)
        if family is None or not isinstance(parser, str):
            continue
        if flag == "reasoning-parser" and family in THOUGHT_NOTATIONS and parser in THOUGHT_PARSERS:
            notation = THOUGHT_PARSERS[parser]
            is_other, meant = notation != THOUGHT_NOTATIONS[family], notation.replace("think", "<think>")
        else:
            meant = next((of for start, of in _PARSER_FAMILIES.items() if parser.startswith(start)), family)
            is_other = meant != family and parser not in _MANY_FAMILIES
        if is_other:
            found.append(Match(f"flag:{flag}", f"--{flag} {parser}", parser, meant))
    return found


def draft_of_another_family(context: Context) -> list[Match]:
    """A draft whose name is of another family than its target's: their vocabularies differ."""
    config = context.flags.get("speculative-config")
    draft: object = config.get("model") if isinstance(config, dict) else None
    name, key = draft, "flag:speculative-config"
    if context.launch.engine == "sglang":
        name, key = context.flags.get("speculative-draft-model-path"), "flag:speculative-draft-model-path"
    target = family_of(context.launch.model)
    drafted = family_of(name) if isinstance(name, str) else None
    if not isinstance(name, str) or target is None or drafted is None or target == drafted:
        return []
    return [Match(key, name, name, drafted)]


def no_model_of_a_hub(context: Context) -> list[Match]:
    """`qwen3:8b` is a name of Ollama; a Hub id has one slash and no colon."""
    model = context.launch.model
    is_path = model.startswith(("/", ".", "~")) or "://" in model or model.lower().endswith(".gguf")
    is_name = is_final(model) and re.fullmatch(r"[\w./:-]+", model)
    if is_path or not is_name or context.launch.engine == "llamacpp":
        return []
    name, _, label = model.partition(":")
    is_labelled = bool(label) and "/" in name  # vLLM's `ORG/NAME:Q4_K_M`
    is_legacy = "/" not in model and not label  # `gpt2`
    if is_labelled or is_legacy or is_valid_hub_id(model) or model.count("/") > 1:
        return []
    return [Match("model", model, "model", model)]


# --- memory ---

_DEFAULT_FRACTION = 0.92
_OTHER_WEIGHTS = {"quantization", "cpu-offload-gb", "hf-overrides", "load-format", "config"}
"""Flags after which the weights in memory are not those of the checkpoint."""
_PARALLEL_FLAGS = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes", "tp", "tp-size",
)  # fmt: skip
"""Flags that split the weights over several GPUs or Sparks."""
_USUAL_SHM = 32 * GIB
"""Tools set limits up to this size for NCCL, and little of it is ever used."""


def promised_twice(context: Context) -> list[Match]:
    """The fraction and `/dev/shm` together are more than the memory."""
    container = context.launch.container
    fraction = context.number("gpu-memory-utilization")
    if context.hardware is None or container is None or not container.shm_bytes or fraction is None:
        return []
    total = hardware(context.hardware).memory_bytes
    wanted = round(fraction * total) + container.shm_bytes
    if wanted <= total or container.ipc == "host" or container.shm_bytes <= _USUAL_SHM:
        return []
    shown = f"{fraction:g} of {show_bytes(total)} and {show_bytes(container.shm_bytes)} of /dev/shm"
    return [Match("option:shm-size", shown, show_bytes(wanted), show_bytes(total))]


def too_large(context: Context) -> list[Match]:
    """Weights and one request exceed the engine's share, even with no other overhead counted."""
    model, launch = shipped().models.get(context.launch.model), context.launch
    if model is None or model.weights.provenance not in ("counted", "derived"):
        return []
    if context.hardware is None or not _is_decidable(context):
        return []
    if launch.engine == "vllm" and served_capacity(launch).users:  # one request at a time
        launch = replace(launch, flags={**launch.flags, "max-num-seqs": "1"})
    capacity = served_capacity(launch)
    tokens = capacity.context or model.architecture.max_context
    try:
        host = idle_host(hardware(context.hardware))
        cache = size_kv_cache(launch, model.architecture, tokens, capacity.users or 1)
    except FiresteelError:
        return []
    share, explanation = _share(context, host)
    needed = model.weights.total_bytes + (cache.pool.least_bytes if cache.pool else cache.bytes)
    if needed <= share:
        return []
    shown = f"{launch.model}: {show_bytes(needed)} for weights and one request, {explanation}"
    return [Match("model", shown, show_bytes(needed), explanation)]


def _is_decidable(context: Context) -> bool:
    """All inputs are known: the release, one Spark, and weights as in the checkpoint."""
    launch = context.launch
    if launch.engine == "sglang" or (launch.engine == "vllm" and launch.version is None):
        return False
    is_split = any((context.number(name) or 1) > 1 for name in _PARALLEL_FLAGS)
    return launch.sparks == 1 and not _OTHER_WEIGHTS & context.flags.keys() and not is_split


def _share(context: Context, host: Host) -> tuple[int, str]:
    if context.launch.engine != "vllm" or "kv-cache-memory-bytes" in context.flags:
        return host.room_bytes, f"{show_bytes(host.room_bytes)} are available"
    fraction = context.number("gpu-memory-utilization")
    if fraction is None:
        fraction = _DEFAULT_FRACTION
    share = round(min(fraction, 1.0) * host.memory_total_bytes)
    return share, f"{fraction:g} of all memory is {show_bytes(share)}"


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "context-beyond-model": context_beyond_model,
    "other-quantization": other_quantization,
    "parser-of-another-model": parser_of_another_model,
    "draft-of-another-family": draft_of_another_family,
    "no-model-of-a-hub": no_model_of_a_hub,
    "promised-twice": promised_twice,
    "too-large": too_large,
}
