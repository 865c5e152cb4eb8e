"""GGUF metadata -> Architecture, as llama.cpp reads it.

Keys are the same for all models behind the prefix that `general.architecture` gives. What differs is how
layers alternate: some files list it, others rely on the pattern that llama.cpp has built in for the
architecture, which the table here repeats.
Seen in llama.cpp's `src/models` and `src/llama-hparams.cpp` as of 2026-08-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from firesteel.facts.architecture import (
    Architecture,
    FullAttention,
    Layer,
    LinearAttention,
    SlidingAttention,
    UnknownArchitecture,
)
from firesteel.facts.config import MAX_LAYERS
from firesteel.facts.gguf import ArrayInfo, GgufHeader, Value, own_layers

_MAX_FIGURE = 2**40


@dataclass(frozen=True, slots=True)
class _Kind:
    pattern: Literal["full", "window", "listed_window", "linear"] = "full"
    """full: llama.cpp ignores a window even if the file names one. listed_window: the file marks layers."""
    every: int = 0
    """Every n-th layer sees everything, where the file does not say."""
    window: int | None = None
    """The window, where the file does not say; 0 is none, None that the file has to say."""


_FULL = _Kind()
_LINEAR = _Kind("linear", 4)

_KINDS: Mapping[str, _Kind] = {
    "llama": _FULL,
    "mistral3": _FULL,
    "qwen2": _FULL,
    "qwen2moe": _FULL,
    "qwen2vl": _FULL,
    "qwen3": _FULL,
    "qwen3moe": _FULL,
    "qwen3vl": _FULL,
    "qwen3vlmoe": _FULL,
    "qwen3next": _LINEAR,
    "qwen35": _LINEAR,
    "qwen35moe": _LINEAR,
    "gpt-oss": _Kind("window", 2),
    "gemma": _FULL,
    "gemma2": _Kind("window", 2, 4096),
    "gemma3": _Kind("window", 6, 0),
    "gemma4": _Kind("listed_window"),
    "phi3": _FULL,
    "smollm3": _FULL,
    "granite": _FULL,
    "granitemoe": _FULL,
    "olmo2": _Kind("window", 4, 0),
    "olmoe": _FULL,
    "cohere2": _Kind("window", 4),
    "seed_oss": _FULL,
    "glm4": _FULL,
    "glm4moe": _FULL,
    "minimax-m2": _FULL,
    "mimo2": _Kind("listed_window"),
    "step35": _Kind("listed_window"),
}

_OTHER_CACHES = {
    "attention.kv_lora_rank": "multi-head latent attention (MLA)",
    "attention.indexer.head_count": "sparse attention with an index cache",
    "attention.shared_kv_layers": "layers that share a KV cache",
}


def architecture_of(header: GgufHeader) -> Architecture:
    """The shape of a model from its GGUF header, the first part's for a checkpoint in parts."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise UnknownArchitecture(f"{header.name} has no `general.architecture`")
    reading = _Reading(name, header)
    reading.refuse_other_caches()
    if name not in _KINDS:
        raise UnknownArchitecture(f"`{name:.80}` is a GGUF architecture that firesteel does not know")
    return reading.architecture(_KINDS[name])


class _Reading:
    """The figures of one header."""

    def __init__(self, name: str, header: GgufHeader) -> None:
        self._name = name
        self._header = header
        self._metadata = header.metadata

    def refuse_other_caches(self) -> None:
        for key, what in _OTHER_CACHES.items():
            if self._get(key):
                raise self._unknown(f"has {what} (`{key}`), which firesteel cannot plan yet")

    def architecture(self, kind: _Kind) -> Architecture:
        count = own_layers(self._metadata)
        if count is None or count > MAX_LAYERS:
            raise self._unknown("has no plausible `block_count`")
        experts = self._figure("expert_count", least=0, default=0)
        return Architecture(
            model_type=self._name,
            layers=tuple(self._layer(kind, layer) for layer in range(count)),
            hidden_size=self._figure("embedding_length"),
            vocab_size=self._vocab_size(),
            max_context=self._figure("context_length"),
            experts=experts,
            experts_per_token=self._experts_per_token(experts),
            drafter_layers=self._figure("nextn_predict_layers", least=0, default=0),
        )

    def _layer(self, kind: _Kind, layer: int) -> Layer:
        if kind.pattern == "linear" and self._is_linear(kind, layer):
            return self._linear()
        has_own = self._get("attention.head_count_kv") is not None
        kv_heads = self._per_layer("attention.head_count_kv" if has_own else "attention.head_count", layer)
        window = self._window(kind)
        if not window or not self._slides(kind, layer):
            return FullAttention(kv_heads, self._head_dim("key"), self._head_dim("value"))
        return SlidingAttention(
            kv_heads, self._head_dim("key", "_swa"), self._head_dim("value", "_swa"), window
        )

    def _is_linear(self, kind: _Kind, layer: int) -> bool:
        if self._get("attention.recurrent_layers") is not None:
            return bool(self._per_layer("attention.recurrent_layers", layer, least=0))
        return bool((layer + 1) % self._figure("full_attention_interval", default=kind.every))

    def _window(self, kind: _Kind) -> int:
        if kind.pattern not in ("window", "listed_window"):
            return 0
        return self._figure("attention.sliding_window", least=0, default=kind.window)

    def _slides(self, kind: _Kind, layer: int) -> bool:
        pattern = self._get("attention.sliding_window_pattern")
        if kind.pattern == "listed_window":
            return bool(self._per_layer("attention.sliding_window_pattern", layer, least=0))
        # llama.cpp takes a number for these architectures and falls back to its own on a list.
        every = self._figure("attention.sliding_window_pattern") if type(pattern) is int else kind.every
        return bool((layer + 1) % every)

    def _linear(self) -> LinearAttention:
        """Inner size is value heads x value dimension, state size the key dimension, groups the key heads."""
        inner, state = self._figure("ssm.inner_size"), self._figure("ssm.state_size")
        return LinearAttention(
            state_elements=inner * state,
            conv_channels=inner + 2 * self._figure("ssm.group_count") * state,
            conv_kernel=self._figure("ssm.conv_kernel"),
        )

    def _head_dim(self, which: str, suffix: str = "") -> int:
        for key in (f"attention.{which}_length{suffix}", f"attention.{which}_length"):
            if self._get(key) is not None:
                return self._figure(key)
        return max(1, self._figure("embedding_length") // self._per_layer("attention.head_count", 0))

    def _vocab_size(self) -> int:
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, ArrayInfo | tuple):
            return tokens.length if isinstance(tokens, ArrayInfo) else len(tokens)
        return self._figure("vocab_size")

    def _experts_per_token(self, experts: int) -> int:
        picked = self._figure("expert_used_count", least=0, default=0) if experts else 0
        if experts and not 1 <= picked <= experts:
            raise self._unknown(f"has {experts} experts, of which it uses {picked} for a token")
        return picked

    def _per_layer(self, key: str, layer: int, least: int = 1) -> int:
        """A figure that is one number for all layers, or a list with one for each."""
        value = self._get(key)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else None
        return self._checked(key, value, least)

    def _figure(self, key: str, least: int = 1, default: int | None = None) -> int:
        value = self._get(key)
        return self._checked(key, default if value is None else value, least)

    def _checked(self, key: str, value: object, least: int) -> int:
        if value is None:
            raise self._unknown(f"has no `{key}` in its GGUF metadata")
        if not isinstance(value, int) or not least <= value <= _MAX_FIGURE:
            raise self._unknown(f"has the `{key}` {value!r:.40} in its GGUF metadata")
        return int(value)

    def _get(self, key: str) -> Value | None:
        return self._metadata.get(f"{self._name}.{key}")

    def _unknown(self, what: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self._name:.80}` {what}")
