"""Recipes of sparkrun (v1, v2) and of eugr's spark-vllm-docker (v1) -> the container that they start.

`command` is a template: `{name}` is filled from `defaults` and from `model`, and doubled braces
(`'{{"method": "mtp"}}'`) are one brace each. It runs in a shell in `container`, with the entrypoint of the
image cleared. Without a command, sparkrun generates one from the defaults that it has a flag for.
Seen in sparkrun 0.4.2 (`core/recipe.py`, `utils/text.py`, `runtimes`) and in `run-recipe.py`, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from firesteel.engines.flags import name_set
from firesteel.reads import programs, variables
from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import SourceText
from firesteel.reads.template import FilledTemplate, TemplateFiller, TemplateValues, implied_word
from firesteel.reads.yaml_nodes import Node, is_true, node_word
from firesteel.values import Value

_PLACEHOLDER = re.compile(r"\{([^{}\n]*)\}")
_PLACEHOLDER_OR_BRACE = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}")
_OPTIONS = {
    "gpus": "gpus", "ipc": "ipc", "shm_size": "shm-size", "network": "network", "restart_policy": "restart",
    "user": "user", "entrypoint": "entrypoint", "volumes": "volume", "devices": "device",
    "cap_add": "cap-add", "ulimit": "ulimit", "security_opt": "security-opt", "memory_limit": "memory",
}  # fmt: skip
_SIZE = re.compile(r"[0-9]{1,3}\Z")
_HEAD = "{head_ip}"
"""The address of the first node, which is known only at run time."""
_HUB = "~/.cache/huggingface"
_USER = "root"
"""The user of its containers."""
_NO_RAY_MONITOR = "RAY_memory_monitor_refresh_ms=0"
"""Both tools set it in every container: `run-cluster-node.sh` and sparkrun's `orchestration/executor.py`."""
_EUGR_OPTIONS = (
    ("gpus", "all"), ("network", "host"), ("entrypoint", ""), ("ipc", "host"), ("privileged", None),
    ("volume", f"{_HUB}:/{_USER}/.cache/huggingface"), ("env", _NO_RAY_MONITOR),
)  # fmt: skip
"""How eugr's `launch-cluster.sh` starts a container."""
_SPARKRUN_OPTIONS = (
    ("gpus", "all"), ("network", "host"), ("entrypoint", ""), ("shm-size", "32gb"),
    ("volume", f"{_HUB}:/cache/huggingface"), ("env", "HF_HOME=/cache/huggingface"),
    ("env", _NO_RAY_MONITOR), ("device", "/dev/infiniband"),
)  # fmt: skip
"""How sparkrun does, where `executor_config` does not override it."""
_REPEATABLE = ("volume", "env", "device")
"""Options that are added to those of the recipe."""
_REPLACED_BY = {"shm-size": "ipc"}
"""A default that is left out where the recipe sets the other option."""


class _Runtime(Value):
    """How sparkrun generates a command from `defaults`: the flags it knows, and their spelling."""

    program: tuple[str, ...]
    plain: frozenset[str]
    """Flags that are spelled like the key."""
    switches: frozenset[str]
    renamed: Mapping[str, str] = {}
    negated: frozenset[str] = frozenset()
    """Switches with a `--no-` form for `false`."""


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
    command = _template_command(document) or _generated_command(document)
    return [_start(document, command)] if command else []


def _start(document: Node, command: ShellCommand) -> EngineStart:
    image, name = document.word_at("container"), document.text_at("name") or ""
    if image is None or programs.find(command.texts) == ("container", 0):
        process_env = {key: word for key, node in document.items("env") if (word := node.word)}
        return EngineStart(command.words, env={**process_env, **command.env}, name=name)
    options = [*_options(document, image)]
    for key, node in document.entries("env").values():
        options.append(DockerOption("env", f"{key.text}={node.text or ''}", key, node_word(node)))
    options += [DockerOption("env", f"{key}={word.text}", word) for key, word in command.env.items()]
    arguments = (*command.words, *_node_flags(document, command, image))
    return EngineStart(arguments, image, tuple(options), name=name)


def _node_flags(document: Node, command: ShellCommand, near: Word) -> Iterator[Word]:
    """Both tools use one Spark for each rank, and set the engine's flags for it where Ray does not."""
    ranks = _size(document, "tensor_parallel") * _size(document, "pipeline_parallel")
    program = programs.engine_at(command.texts)
    engine = program.engine if program else "llamacpp"
    if ranks > 1 and engine != "llamacpp" and not {"--nnodes", "ray"} & set(command.texts):
        head = ("--master-addr", _HEAD) if engine == "vllm" else ("--dist-init-addr", f"{_HEAD}:25000")
        words = ("--nnodes", str(ranks), "--node-rank", "0", *head)
        yield from (implied_word(word, near) for word in words)


def _size(document: Node, name: str) -> int:
    text = document.text_at("defaults", name)
    return int(text) if text and _SIZE.match(text) else 1


def _template_command(document: Node) -> ShellCommand | None:
    """The command of the script that starts something, with the variables exported before it."""
    template = document.get("command")
    if template is None or template.text is None:
        return None
    commands = _fill(document, template).commands(document.file)
    known = variables.find_values(commands)
    exported: dict[str, Word] = {}
    for command in (variables.expand(command, known, document.file) for command in commands):
        if command.texts[:1] == ("export",):
            exported |= variables.assigned(command.words[1:])
        program = programs.find(command.texts)
        if program:
            return ShellCommand(command.words[program[1] :], {**exported, **command.env})
    return None


def _fill(document: Node, template: Node) -> FilledTemplate:
    filler = TemplateFiller(document.file)
    model = document.get("model")
    known = {"model": model.content, "resolved_model_path": model.content} if model and model.text else {}
    known |= {name: node.content for name, node in document.items("defaults") if node.text is not None}
    values = TemplateValues(known, _PLACEHOLDER, filler)
    source = template.content
    has_doubled_braces = "{{" in source.text

    def lookup(match: re.Match[str]) -> SourceText | None:
        if match[0] in ("{{", "}}"):
            return source.part(match.start() + 1, match.end())
        return values.get(match[1])

    return filler.fill(source, _PLACEHOLDER_OR_BRACE if has_doubled_braces else _PLACEHOLDER, lookup)


def _generated_command(document: Node) -> ShellCommand | None:
    """The command that sparkrun generates where the recipe has none."""
    runtime = _RUNTIMES.get(document.text_at("runtime") or "") if document.get("runtime") else _VLLM
    model = document.word_at("model")
    if runtime is None or model is None or document.get("command"):
        return None
    program = [implied_word(word, model) for word in runtime.program]
    settings = document.entries("defaults").values()
    flags = (word for key, node in settings for word in _flag(runtime, key, node))
    return ShellCommand((*program, *_model_argument(runtime, model), *flags))


def _model_argument(runtime: _Runtime, model: Word) -> tuple[Word, ...]:
    if runtime is _VLLM:
        return (model,)
    if runtime is _SGLANG:
        return implied_word("--model-path", model), model
    is_file = model.text.lower().endswith(".gguf") or "/" not in model.text
    return implied_word("-m" if is_file else "-hf", model), model


def _flag(runtime: _Runtime, key: Word, node: Node) -> Iterator[Word]:
    flag = runtime.renamed.get(key.text) or f"--{key.text.replace('_', '-')}"
    value = node.word
    if value is None:
        return
    if key.text in runtime.switches:
        if is_true(node):
            yield implied_word(flag, key)
        elif key.text in runtime.negated:
            yield implied_word(f"--no-{flag[2:]}", key)
    elif key.text in runtime.plain or key.text in runtime.renamed:
        yield implied_word(flag, key)
        yield value


def _options(document: Node, image: Word) -> Iterator[DockerOption]:
    """The options that the tool sets, then those of `executor_config`."""
    config = document.entries("executor_config")
    overridden = {_OPTIONS.get(name, name) for name in config}
    defaults = (
        _SPARKRUN_OPTIONS if document.get("runtime") or document.get("executor_config") else _EUGR_OPTIONS
    )
    for name, value in defaults:
        if name in _REPEATABLE or not overridden & {name, _REPLACED_BY.get(name, name)}:
            yield DockerOption(name, value, image)
    for key, node in config.values():
        option = _OPTIONS.get(key.text)
        for item in node.list_items() if node.is_list else (node,):
            if option and item.text is not None:
                yield DockerOption(option, item.text, key, item.word)
        if key.text == "privileged" and is_true(node):
            yield DockerOption("privileged", None, key)
    yield from (DockerOption("volume", word.text, word) for word in document.words("volumes"))
