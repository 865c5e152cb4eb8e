"""The command line of llama.cpp: `llama-server --model FILE.gguf --flag value`.

A model is a file (`--model`) or a Hub repository with a quantization (`--hf-repo org/repo:Q4_K_M`); one
file of a repository is chosen with the flag `hf-file`. There is no `--flag=value`: llama-server
refuses such an argument, so it is read as a positional one. `--ctx-size` is the whole KV cache: with
`--parallel N` it is split into N equal parts, unless `--kv-unified` lets all users share it.
Seen in `common/arg.cpp` and `tools/server/README.md` up to 2026-10; `--flag=value` refused: build 11191.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.engines.flags import Grammar, name_set, positive_int
from firesteel.launch import FlagValue, is_hub_model

PROGRAM: tuple[str, ...] = ("llama-server",)
DEFAULT_PORT = 8080
"""Upstream announced 9931 for a later build (ggml-org/llama.cpp#26508); firesteel always writes `--port`."""

_ALIASES = {
    "C": "cpu-mask", "Cb": "cpu-mask-batch", "Cbd": "cpu-mask-batch-draft", "Cd": "cpu-mask-draft",
    "Cr": "cpu-range", "Crb": "cpu-range-batch", "Crd": "cpu-range-draft", "a": "alias", "ag": "agent",
    "b": "batch-size", "bs": "backend-sampling", "c": "ctx-size", "cb": "cont-batching",
    "cd": "ctx-size-draft", "cl": "cache-list", "cmoe": "cpu-moe", "cmoed": "cpu-moe-draft",
    "cms": "checkpoint-min-step", "cpent": "checkpoint-every-n-tokens", "cram": "cache-ram",
    "ctk": "cache-type-k", "ctkd": "cache-type-k-draft", "ctv": "cache-type-v", "ctvd": "cache-type-v-draft",
    "ctxcp": "ctx-checkpoints", "dev": "device", "devd": "device-draft", "dio": "direct-io",
    "dkvc": "dump-kv-cache", "dr": "docker-repo", "draft": "draft-max", "draft-n": "draft-max",
    "draft-n-min": "draft-min", "dt": "defrag-thold", "e": "escape", "fa": "flash-attn", "fit": "fit",
    "fitc": "fit-ctx", "fitt": "fit-target", "gpu-layers": "n-gpu-layers", "h": "help", "hf": "hf-repo",
    "hfd": "hf-repo-draft", "hff": "hf-file", "hffv": "hf-file-v", "hfr": "hf-repo", "hfrd": "hf-repo-draft",
    "hfrv": "hf-repo-v", "hft": "hf-token", "hfv": "hf-repo-v", "j": "json-schema", "jf": "json-schema-file",
    "kvo": "kv-offload", "kvu": "kv-unified", "l": "logit-bias", "lcd": "lookup-cache-dynamic",
    "lcs": "lookup-cache-static", "lm": "load-mode", "log-verbose": "verbose", "log-verbosity": "verbosity",
    "lv": "verbosity", "lzm": "lazy-mode", "m": "model", "md": "model-draft", "mg": "main-gpu",
    "mm": "mmproj", "mmdev": "mmproj-device", "mmu": "mmproj-url", "mu": "model-url", "mv": "model-vocoder",
    "n": "predict", "n-predict": "predict", "ncffn": "n-cpu-ffn", "ncmoe": "n-cpu-moe",
    "ncmoed": "n-cpu-moe-draft", "ndio": "no-direct-io", "ngl": "n-gpu-layers", "ngld": "n-gpu-layers-draft",
    "nkvo": "no-kv-offload", "no-ag": "no-agent", "no-kvu": "no-kv-unified", "nocb": "no-cont-batching",
    "np": "parallel", "nr": "no-repack", "ot": "override-tensor", "otd": "override-tensor-draft",
    "r": "reverse-prompt", "rea": "reasoning", "s": "seed", "sm": "split-mode", "sp": "special",
    "spec-draft-model": "model-draft", "sps": "slot-prompt-similarity", "t": "threads", "tb": "threads-batch",
    "tbd": "threads-batch-draft", "td": "threads-draft", "to": "timeout", "ts": "tensor-split",
    "ub": "ubatch-size", "v": "verbose",
}  # fmt: skip
GRAMMAR = Grammar(
    model_flags=("model", "hf-repo"),
    name_flag="alias",
    allows_equals=False,
    no_flags=frozenset({"no-host"}),
    aliases=_ALIASES,
    switches=name_set(
        """
        agent backend-sampling cache-idle-slots cache-list cache-prompt check-tensors clear-idle
        completion-bash cont-batching context-shift cors-credentials cpu-moe cpu-moe-draft direct-io
        dump-kv-cache embd-gemma-default embedding embeddings escape fim-qwen-1.5b-default
        fim-qwen-14b-spec fim-qwen-30b-default fim-qwen-3b-default fim-qwen-7b-default
        fim-qwen-7b-spec gpt-oss-120b-default gpt-oss-20b-default help ignore-eos jinja kv-offload
        kv-unified license list-devices log-disable log-jsonl log-prefix log-timestamps
        lora-init-without-apply metrics mlock mmap mmproj-auto mmproj-offload models-autoload
        no-host offline op-offload perf prefill-assistant props reasoning-preserve repack rerank
        reranking reuse-port skip-chat-parsing slots spec-default spec-draft-backend-sampling
        spec-draft-cpu-moe special spm-infill swa-full tts-use-guide-tokens ui ui-mcp-proxy usage
        verbose verbose-prompt version vision-gemma-12b-default vision-gemma-4b-default warmup webui
        webui-mcp-proxy
        """
    ),
)


def model_arguments(model: str) -> tuple[str, ...]:
    return ("--hf-repo" if is_hub_model(model, with_label=True) else "--model", model)


def size_flags(context: int, users: int) -> dict[str, FlagValue]:
    return {"ctx-size": str(context * users), "parallel": str(users)}


def served_capacity(flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]:
    """With no `--parallel`, slots are automatic and share the cache: each may use all of it."""
    total, users = positive_int(flags.get("ctx-size")), positive_int(flags.get("parallel"))
    if total and users and flags.get("kv-unified") is not True:
        return total // users or None, users
    return total, users
