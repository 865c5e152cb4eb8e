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
from firesteel.hub_id import is_hub_model
from firesteel.launch import FlagValue

PROGRAM: tuple[str, ...] = ("llama-server",)
DEFAULT_PORT = 8080
"""Upstream announced 9931 for a later build (ggml-org/llama.cpp#26508); firesteel always writes `--port`."""

_ALIASES = {
    "C": "cpu-mask", "Cr": "cpu-range", "a": "alias", "b": "batch-size", "c": "ctx-size",
    "cb": "cont-batching", "cd": "ctx-size-draft", "cmoe": "cpu-moe", "cram": "cache-ram",
    "ctk": "cache-type-k", "ctkd": "cache-type-k-draft", "ctv": "cache-type-v",
    "ctvd": "cache-type-v-draft", "ctxcp": "ctx-checkpoints", "dev": "device", "devd": "device-draft",
    "draft": "draft-max", "draft-n": "draft-max", "draft-n-min": "draft-min", "dt": "defrag-thold",
    "e": "escape", "fa": "flash-attn", "fit": "fit", "fitc": "fit-ctx", "fitt": "fit-target",
    "gpu-layers": "n-gpu-layers", "hf": "hf-repo", "hfd": "hf-repo-draft", "hff": "hf-file",
    "hfr": "hf-repo", "hfrd": "hf-repo-draft", "hft": "hf-token", "j": "json-schema", "kvo": "kv-offload",
    "kvu": "kv-unified", "lcd": "lookup-cache-dynamic", "lcs": "lookup-cache-static", "lm": "load-mode",
    "log-verbosity": "verbosity", "lv": "verbosity", "m": "model", "md": "model-draft", "mg": "main-gpu",
    "mm": "mmproj", "mmu": "mmproj-url", "mu": "model-url", "n": "predict", "n-predict": "predict",
    "ncmoe": "n-cpu-moe", "ngl": "n-gpu-layers", "ngld": "n-gpu-layers-draft", "nkvo": "no-kv-offload",
    "no-kvu": "no-kv-unified", "nocb": "no-cont-batching", "np": "parallel", "nr": "no-repack",
    "ot": "override-tensor", "otd": "override-tensor-draft", "rea": "reasoning", "s": "seed",
    "sm": "split-mode", "sp": "special", "spec-draft-model": "model-draft", "sps": "slot-prompt-similarity",
    "t": "threads", "tb": "threads-batch", "td": "threads-draft", "to": "timeout", "ts": "tensor-split",
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
        agent cache-idle-slots cache-prompt check-tensors cont-batching context-shift cpu-moe cpu-moe-draft
        direct-io embedding embeddings escape ignore-eos jinja kv-offload kv-unified list-devices log-disable
        log-jsonl log-prefix log-timestamps lora-init-without-apply metrics mlock mmap mmproj-auto
        mmproj-offload models-autoload no-host offline op-offload perf prefill-assistant props repack rerank
        reranking reuse-port skip-chat-parsing slots special spec-default spm-infill swa-full ui verbose
        verbose-prompt warmup webui
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
