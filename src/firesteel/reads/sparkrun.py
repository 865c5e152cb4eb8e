"""Recipes of sparkrun (v1, v2) and of eugr's spark-vllm-docker (v1) -> the container that they start.

`command` is a template: `{name}` is filled from `defaults` and from `model`, and where the author doubles
braces (`'{{"method": "mtp"}}'`) each pair means one. It runs in a shell in `container`, with the image's own
entrypoint cleared. Without a command sparkrun makes one of those defaults that it has a flag for.
Seen in sparkrun 0.4.2 (`core/recipe.py`, `utils/text.py`, `runtimes`) and in `run-recipe.py`, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from firesteel.engines.flags import name_set
from firesteel.reads import programs, variables
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import Passage
from firesteel.reads.template import FilledTemplate, Filler, Values, implied
from firesteel.reads.yaml_values import is_true, place

_HOLE = re.compile(r"\{([^{}\n]*)\}")
_HOLE_OR_BRACE = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}")
_OPTIONS = {
    "gpus": "gpus", "ipc": "ipc", "shm_size": "shm-size", "network": "network", "restart_policy": "restart",
    "user": "user", "entrypoint": "entrypoint", "volumes": "volume", "devices": "device",
    "cap_add": "cap-add", "ulimit": "ulimit", "security_opt": "security-opt", "memory_limit": "memory",
}  # fmt: skip
_SIZE = re.compile(r"[0-9]{1,3}\Z")
_HEAD = "{head_ip}"
"""The first node, which is known where it runs."""
_HUB = "~/.cache/huggingface"
_USER = "root"
"""Whom its containers run as."""
_EUGR = (
    ("gpus", "all"), ("network", "host"), ("entrypoint", ""), ("ipc", "host"), ("privileged", None),
    ("volume", f"{_HUB}:/{_USER}/.cache/huggingface"),
)  # fmt: skip
"""How eugr's `launch-cluster.sh` starts a container."""
_SPARKRUN = (
    ("gpus", "all"), ("network", "host"), ("entrypoint", ""), ("shm-size", "32gb"),
    ("volume", f"{_HUB}:/cache/huggingface"), ("env", "HF_HOME=/cache/huggingface"),
    ("device", "/dev/infiniband"),
)  # fmt: skip
"""How sparkrun does, where `executor_config` does not say."""
_ADDED = ("volume", "env", "device")
"""Options that add to those of the recipe."""
_ONE_OF = {"shm-size": "ipc"}
"""An option that is left out where the recipe gives another in its place."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    """How sparkrun makes a command of `defaults`: the flags that it knows, and how it spells them."""

    program: tuple[str, ...]
    plain: frozenset[str]
    """Flags that are spelled as the key."""
    switches: frozenset[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    negated: frozenset[str] = frozenset()
    """Switches whose `false` is said too."""


_VLLM = _Runtime(
    ("vllm", "serve"),
    name_set(
        "port host gpu_memory_utilization max_model_len max_num_batched_tokens max_num_seqs served_model_name"
        " dtype quantization kv_cache_dtype otlp_traces_endpoint api_key attention_backend load_format"
        " reasoning_parser tool_call_parser chat_template speculative_config tokenizer_mode block_size seed"
        " mm_encoder_tp_mode generation_config hf_overrides compilation_config attention_config"
        " model_loader_extra_config default_chat_template_kwargs limit_mm_per_prompt mm_processor_cache_gb"
        " kv_cache_memory_bytes max_cudagraph_capture_size long_prefill_token_threshold mamba_cache_mode"
        " mamba_cache_dtype mamba_ssm_cache_dtype reasoning_parser_plugin media_io_kwargs video_pruning_rate"
        " allowed_local_media_path prefix_match_unit safetensors_load_strategy moe_backend linear_backend"
        " gdn_prefill_backend gdn_decode_kernel kda_prefill_backend mamba_backend recurrent_checkpoint_policy"
        " prefix_cache_retention_interval engram_config dcp_comm_backend prefill_policy prefill_compute_share"
        " prefill_compute_half_life prefill_schedule_interval max_parallel_prefills decode_refill_target"
        " jit_monitor_mode"
    ),
    name_set(
        "async_scheduling disable_custom_all_reduce enable_auto_tool_choice enable_chunked_prefill"
        " enable_flashinfer_autotune enable_force_include_usage enable_mamba_shared_prefix_checkpoint"
        " enable_prefix_caching enable_prompt_tokens_details enable_request_id_headers enforce_eager"
        " scheduler_reserve_full_isl trust_remote_code"
    ),
    {
        "tensor_parallel": "-tp",
        "pipeline_parallel": "-pp",
        "data_parallel": "--data-parallel-size",
    },
    name_set(
        "async_scheduling enable_chunked_prefill enable_flashinfer_autotune enable_prefix_caching"
        " scheduler_reserve_full_isl"
    ),
)
_SGLANG = _Runtime(
    ("sglang", "serve"),
    name_set(
        "port host served_model_name dtype quantization kv_cache_dtype tokenizer_path api_key"
        " attention_backend load_format revision model_type max_total_tokens random_seed reasoning_parser"
        " tool_call_parser mm_feature_transport speculative_algorithm speculative_draft_model_path"
        " speculative_draft_model_revision speculative_num_steps speculative_eagle_topk"
        " speculative_num_draft_tokens speculative_dspark_block_size cuda_graph_bs cuda_graph_max_bs"
        " cuda_graph_max_bs_decode torch_compile_max_bs num_continuous_decode_steps fp8_gemm_backend"
        " fp4_gemm_backend moe_runner_backend mamba_ssm_dtype mamba_full_memory_ratio"
    ),
    name_set(
        "disable_prefill_cuda_graph disable_radix_cache enable_decoder_swa_bounded_replay"
        " enable_dp_attention enable_torch_compile trust_remote_code"
    ),
    {
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "expert_parallel": "--ep-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "chunked_prefill": "--chunked-prefill-size",
    },
)
_LLAMACPP = _Runtime(
    ("llama-server",),
    name_set(
        "port host ctx_size n_gpu_layers parallel threads chat_template reasoning_format split_mode api_key"
        " top_p top_k min_p presence_penalty flash_attn"
    ),
    name_set("cont_batching no_webui jinja"),
    {"served_model_name": "--alias", "temperature": "--temp", "max_model_len": "--ctx-size"},
)
_RUNTIMES = {
    "vllm": _VLLM, "vllm-ray": _VLLM, "vllm-distributed": _VLLM, "eugr-vllm": _VLLM,
    "sglang": _SGLANG, "llama-cpp": _LLAMACPP,
}  # fmt: skip


def starts(document: Node) -> Iterable[EngineStart] | None:
    keys = {name for name, _ in document.items()}
    is_recipe = "recipe_version" in keys or {"model", "container"} <= keys
    if not is_recipe or not keys & {"defaults", "command", "runtime"}:
        return None
    line = _command(document) or _made(document)
    return [_start(document, line)] if line else []


def _start(document: Node, line: ShellCommand) -> EngineStart:
    name = document.get("name")
    container = document.get("container")
    image = container.word if container else None
    said = name.text or "" if name else ""
    if image is None or programs.find(line.texts) == ("container", 0):
        return EngineStart(line.words, env={**_own_environment(document), **line.env}, name=said)
    given = (*_options(document, image), *_environment(document), *_as_options(line.env))
    return EngineStart((*line.words, *_nodes(document, line, image)), image, given, name=said)


def _nodes(document: Node, line: ShellCommand, near: Word) -> Iterator[Word]:
    """Both tools take one Spark for each rank, and tell the engine so where Ray does not."""
    ranks = _size(document, "tensor_parallel") * _size(document, "pipeline_parallel")
    program = programs.engine_at(line.texts)
    engine = program.engine if program else "llamacpp"
    if ranks > 1 and engine != "llamacpp" and not {"--nnodes", "ray"} & set(line.texts):
        head = ("--master-addr", _HEAD) if engine == "vllm" else ("--dist-init-addr", f"{_HEAD}:25000")
        words = ("--nnodes", str(ranks), "--node-rank", "0", *head)
        yield from (implied(word, near) for word in words)


def _size(document: Node, name: str) -> int:
    size = document.get("defaults", name)
    text = size.text if size else None
    return int(text) if text and _SIZE.match(text) else 1


def _command(document: Node) -> ShellCommand | None:
    """The line of the command that starts something, and what was exported before it."""
    template = document.get("command")
    if template is None or template.text is None:
        return None
    lines = _rendered(document, template).lines(document.page)
    known = variables.values(lines)
    exported: dict[str, Word] = {}
    for line in (variables.expand(line, known, document.page) for line in lines):
        exported |= _exports(line)
        what = programs.find(line.texts)
        if what:
            return ShellCommand(line.words[what[1] :], {**exported, **line.env})
    return None


def _exports(line: ShellCommand) -> dict[str, Word]:
    if not line.words or line.words[0].text != "export":
        return {}
    pairs = ((word.text.partition("="), word) for word in line.words[1:])
    return {name: word.after(len(name) + 1) for (name, equals, _), word in pairs if equals}


def _rendered(document: Node, template: Node) -> FilledTemplate:
    filler = Filler(document.page)
    values = Values(_values(document), _HOLE, filler)
    passage = template.passage
    is_doubled = "{{" in passage.text

    def value(found: re.Match[str]) -> Passage | None:
        if found[0] in ("{{", "}}"):
            return passage.part(found.start() + 1, found.end())
        return values.get(found[1])

    return filler.fill(passage, _HOLE_OR_BRACE if is_doubled else _HOLE, value)


def _values(document: Node) -> dict[str, Passage]:
    model, defaults = document.get("model"), document.get("defaults")
    known = {"model": model.passage, "resolved_model_path": model.passage} if model and model.text else {}
    pairs = defaults.items() if defaults else ()
    return known | {name: node.passage for name, node in pairs if node.text is not None}


def _made(document: Node) -> ShellCommand | None:
    """The command that sparkrun makes where the recipe has none."""
    runtime, model = document.get("runtime"), document.get("model")
    how = _RUNTIMES.get(runtime.text or "") if runtime else _VLLM
    named = model.word if model else None
    if how is None or named is None or document.get("command"):
        return None
    program = [implied(word, named) for word in how.program]
    defaults = document.get("defaults")
    settings = defaults.entries().values() if defaults else ()
    flags = (word for key, node in settings for word in _flag(how, key, node))
    return ShellCommand((*program, *_model_words(how, named), *flags))


def _model_words(how: _Runtime, model: Word) -> tuple[Word, ...]:
    if how is _VLLM:
        return (model,)
    if how is _SGLANG:
        return implied("--model-path", model), model
    is_file = model.text.lower().endswith(".gguf") or "/" not in model.text
    return implied("-m" if is_file else "-hf", model), model


def _flag(how: _Runtime, key: Word, node: Node) -> Iterator[Word]:
    flag = how.renamed.get(key.text) or f"--{key.text.replace('_', '-')}"
    value = node.word
    if value is None:
        return
    if key.text in how.switches:
        if is_true(node):
            yield implied(flag, key)
        elif key.text in how.negated:
            yield implied(f"--no-{flag[2:]}", key)
    elif key.text in how.plain or key.text in how.renamed:
        yield implied(flag, key)
        yield value


def _options(document: Node, image: Word) -> Iterator[DockerOption]:
    """What the tool says of the container, then what `executor_config` says."""
    config = document.get("executor_config")
    said = {_OPTIONS.get(name, name) for name, _ in config.items()} if config else set()
    own = _SPARKRUN if document.get("runtime") or config else _EUGR
    for name, value in own:
        if name in _ADDED or not said & {name, _ONE_OF.get(name, name)}:
            yield DockerOption(name, value, image)
    for key, node in config.entries().values() if config else ():
        option = _OPTIONS.get(key.text)
        for each in node.each() if node.is_list else (node,):
            if option and each.text is not None:
                yield DockerOption(option, each.text, key, each.word)
        if key.text == "privileged" and is_true(node):
            yield DockerOption("privileged", None, key)
    listed = document.get("volumes")
    yield from (DockerOption("volume", word.text, word) for word in (listed.words() if listed else ()))


def _environment(document: Node) -> Iterator[DockerOption]:
    env = document.get("env")
    for key, node in env.entries().values() if env else ():
        yield DockerOption("env", f"{key.text}={node.text or ''}", key, place(node))


def _own_environment(document: Node) -> dict[str, Word]:
    env = document.get("env")
    return {name: word for name, node in env.items() if (word := node.word)} if env else {}


def _as_options(env: Mapping[str, Word]) -> Iterator[DockerOption]:
    yield from (DockerOption("env", f"{name}={word.text}", word) for name, word in env.items())
