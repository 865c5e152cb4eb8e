"""A Hugging Face `config.json` -> Architecture.

Configs say the same things under many names, and leave out what their model class fills in. What each
family means is data, in `families.py`; this file reads the figures. Every figure comes from the config
or from that table: what neither has is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.facts.architecture import (
    Architecture,
    FullAttention,
    Layer,
    LinearAttention,
    SlidingAttention,
    UnknownArchitecture,
)
from firesteel.facts.families import FAMILIES, Family

Config = Mapping[str, object]

MAX_LAYERS = 4096
_MAX_FIGURE = 2**40

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_top_k")
_DRAFTER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# MiniMax-M2 declares `num_mtp_modules`, but its published checkpoints do not hold them.

_OTHER_CACHES = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "sparse_attention_config": "block-sparse attention",
    "hybrid_override_pattern": "Mamba layers",
    "num_kv_shared_layers": "layers that share a KV cache",
    "per_layer_config": "layers that differ one by one",
    "block_configs": "layers that differ one by one",
}
"""Keys that promise a cache we have no value for, in whatever family they turn up."""


def architecture(config: object) -> Architecture:
    """The shape of the language model that a config describes; towers beside it do not matter here."""
    if not isinstance(config, Mapping):
        raise UnknownArchitecture(f"config.json holds a {type(config).__name__}, not an object with keys")
    text = _text_config(config)
    model_type = text.get("model_type") or config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture("config.json has no `model_type`")
    _refuse_other_caches(model_type, text)
    if model_type not in FAMILIES:
        raise UnknownArchitecture(f"`{model_type:.80}` is a model_type that firesteel does not know")
    return _Reading(model_type, text, FAMILIES[model_type]).architecture(
        str(config.get("model_type") or model_type)
    )


def _text_config(config: Config) -> Config:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _refuse_other_caches(model_type: str, text: Config) -> None:
    for key, what in _OTHER_CACHES.items():
        if text.get(key):
            raise UnknownArchitecture(
                f"`{model_type:.80}` has {what} (`{key}`), which firesteel cannot plan yet"
            )
    if text.get("use_bidirectional_attention") in (True, "all"):
        raise UnknownArchitecture(f"`{model_type:.80}` attends in both directions; it generates no text")


class _Reading:
    """The figures of one config."""

    def __init__(self, model_type: str, text: Config, family: Family) -> None:
        self._model_type = model_type
        self._text = text
        self._family = family

    def architecture(self, name: str) -> Architecture:
        experts = 0 if self._text.get("enable_moe_block") is False else self._count(_EXPERTS)
        drafters = self._count(_DRAFTER_LAYERS)
        kinds = self._kinds(drafters)
        layer_of = {kind: self._layer(kind) for kind in sorted(set(kinds))}
        return Architecture(
            model_type=name,
            layers=tuple(layer_of[kind] for kind in kinds),
            hidden_size=self._figure("hidden_size"),
            vocab_size=self._figure("vocab_size"),
            max_context=self._figure("max_position_embeddings"),
            experts=experts,
            experts_per_token=self._experts_per_token(experts),
            drafter_layers=drafters,
        )

    def _kinds(self, drafters: int) -> list[str]:
        """One of transformers' layer types a layer."""
        count = self._figure("num_hidden_layers")
        if count > MAX_LAYERS:
            raise self._unknown(f"has {count:,} layers")
        listed = self._text.get("layer_types")
        if listed is None or self._family.pattern == "marked_window":
            return [self._kind(layer) for layer in range(count)]
        if not isinstance(listed, Sequence) or len(listed) not in (count, count + drafters):
            raise self._unknown(f"has {count} layers but not as many `layer_types`")
        return [str(kind) for kind in listed[:count]]

    def _kind(self, layer: int) -> str:
        match self._family.pattern:
            case "full":
                if self._window():
                    raise self._unknown("sets `sliding_window`, which its family does not use")
                slides = False
            case "window":
                slides = bool(self._window())
            case "late_window":
                slides = bool(self._window()) and layer >= self._figure("max_window_layers", least=0)
            case "alternate_window":
                slides = bool(self._window()) and bool((layer + 1) % self._every())
            case "alternate_linear":
                return "linear_attention" if (layer + 1) % self._every() else "full_attention"
            case "marked_window":
                slides = self._is_marked(layer)
            case "listed":
                raise self._unknown("has no `layer_types`")
        return "sliding_attention" if slides else "full_attention"

    def _every(self) -> int:
        key = self._family.every_key
        return self._figure(key) if self._text.get(key) is not None else self._family.every

    def _is_marked(self, layer: int) -> bool:
        marks = self._text.get("hybrid_layer_pattern")
        if not isinstance(marks, Sequence) or layer >= len(marks) or marks[layer] not in (0, 1):
            raise self._unknown("has no mark for each layer in `hybrid_layer_pattern`")
        return bool(marks[layer])

    def _layer(self, kind: str) -> Layer:
        if kind == "linear_attention" and self._family.pattern == "alternate_linear":
            return self._linear()
        if kind == "full_attention":
            return FullAttention(*self._heads(self._family.full_keys))
        if kind == "sliding_attention":
            heads = self._heads(self._family.window_keys)
            window = self._window()
            if window:
                return SlidingAttention(*heads, window)
            if self._text.get("use_sliding_window") is False:
                return FullAttention(*heads)
            raise self._unknown("has sliding layers and no `sliding_window`")
        raise self._unknown(f"has layers of the unknown type `{kind:.80}`")

    def _window(self) -> int:
        """The window, 0 without one. Qwen's configs carry a window that is only used if they say so."""
        switch = self._text.get("use_sliding_window", self._family.pattern != "late_window")
        is_null = "sliding_window" in self._text and self._text["sliding_window"] is None
        if switch is False or is_null or self._said("sliding_window") is None:
            return 0
        return self._figure("sliding_window", least=0)

    def _heads(self, keys: Mapping[str, str]) -> tuple[int, int, int]:
        """KV heads, and the dimensions of a key and of a value."""
        kv_heads = self._figure(self._key("num_key_value_heads", keys))
        key_dim = self._head_dim(self._key("head_dim", keys))
        value_key = self._key("v_head_dim", keys)
        value_dim = key_dim if self._said(value_key) is None else self._figure(value_key)
        return kv_heads, key_dim, value_dim

    def _key(self, key: str, other_keys: Mapping[str, str]) -> str:
        """Where the config keeps this figure for this kind of layer."""
        other = other_keys.get(key, key)
        # Gemma 4 has fewer global KV heads only where keys serve as values.
        if other == "num_global_key_value_heads" and self._text.get("attention_k_eq_v") is not True:
            return key
        if (
            self._said(other) is None
            and key == "num_key_value_heads"
            and "num_attention_groups" in self._text
        ):
            return "num_attention_groups"
        return key if self._said(other) is None else other

    def _head_dim(self, key: str) -> int:
        if self._said(key) is not None:
            return self._figure(key)
        hidden, heads = self._figure("hidden_size"), self._figure("num_attention_heads")
        if hidden % heads:
            raise self._unknown(f"has no `head_dim`, and {hidden} does not divide by {heads} heads")
        return hidden // heads

    def _linear(self) -> LinearAttention:
        key_heads, value_heads = self._figure("linear_num_key_heads"), self._figure("linear_num_value_heads")
        key_dim, value_dim = self._figure("linear_key_head_dim"), self._figure("linear_value_head_dim")
        return LinearAttention(
            state_elements=value_heads * key_dim * value_dim,
            conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
            conv_kernel=self._figure("linear_conv_kernel_dim"),
        )

    def _experts_per_token(self, experts: int) -> int:
        picked = self._count(_EXPERTS_PER_TOKEN) if experts else 0
        if experts and not 1 <= picked <= experts:
            raise self._unknown(f"has {experts} experts, of which it uses {picked} for a token")
        return picked

    def _count(self, keys: Sequence[str]) -> int:
        """The first of these keys that is set; 0 without any."""
        key = next((key for key in keys if self._text.get(key) is not None), None)
        return self._figure(key, least=0) if key else 0

    def _figure(self, key: str, least: int = 1) -> int:
        value = self._said(key)
        if value is None:
            raise self._unknown(f"has no `{key}` in its config.json")
        if type(value) is not int or not least <= value <= _MAX_FIGURE:
            raise self._unknown(f"has the `{key}` {_shown(value)} in its config.json")
        return value

    def _said(self, key: str) -> object:
        """What the config says, or what its model class fills in; None if neither."""
        value = self._text.get(key)
        if value is not None:
            return value
        default = self._family.defaults.get(key)
        return self._text.get(default) if isinstance(default, str) else default

    def _unknown(self, what: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self._model_type}` {what}")


def _shown(value: object) -> str:
    """A wrong figure in a message; lists and numbers may be too big to print."""
    if isinstance(value, int) and abs(value) > _MAX_FIGURE:
        return "of more digits than a model has"
    return f"{value!r:.40}" if isinstance(value, int | float | str) else f"of type {type(value).__name__}"
