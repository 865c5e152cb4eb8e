"""GGUF metadata -> Architecture, as llama.cpp reads it.

Keys are the same for all models after a prefix, the value of `general.architecture`. What differs is how
layers alternate: some files list it, others rely on the pattern that llama.cpp has built in for the
architecture, which the table here repeats. Seen in llama.cpp's `src/models` and `src/llama-hparams.cpp` as of
2026-08-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.facts.formats.gguf import ArrayInfo, GgufHeader, MetadataValue, model_layer_count
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
    UnknownArchitecture,
)
from firesteel.facts.model.families import MAX_LAYERS
from firesteel.values import Value

_MAX_VALUE = 2**40


Pattern = Literal[
    "full",  # llama.cpp ignores a window even if the file has one
    "window",  # every n-th layer has full attention
    "listed_window",  # the file marks the layers that slide
    "linear",  # Gated DeltaNet, but for every n-th layer
    "latent",  # MLA, or all heads in files from before llama.cpp supported it
    "latent_linear",  # layers without KV heads are Kimi Delta Attention, the others MLA
    "blocks",  # layers without KV heads are MLPs, or Mamba-2 if they have no MLP either
    "mamba_window",  # layers without KV heads are Mamba-2
    "mamba",
    "chunk",
    "sparse",
    "compressed",
    "pruned",  # layers without KV heads have no attention
]


class _GgufFamily(Value):
    pattern: Pattern = "full"
    every: int = 0
    """Every n-th layer has full attention, where the file does not set it."""
    window: int | None = None
    """The window, where the file does not set it; 0: none; None: the file must have it."""
    known_caches: frozenset[str] = frozenset()
    """Keys for other kinds of cache that llama.cpp is known to use for this architecture."""
    layers_with_kv: int | None = None
    """Layers from here on share the cache of an earlier layer, where the file does not set it."""


_FULL_ATTENTION = (
    "llama", "mistral3", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe",
    "gemma", "phi3", "smollm3", "granite", "granitemoe", "olmoe", "seed_oss", "glm4", "glm4moe", "minimax-m2",
)  # fmt: skip
_RANK, _INDEXER = "attention.kv_lora_rank", "attention.indexer.head_count"
_SHARED = "attention.shared_kv_layers"

GGUF_FAMILIES: Mapping[str, _GgufFamily] = {
    **dict.fromkeys(_FULL_ATTENTION, _GgufFamily()),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _GgufFamily("linear", 4)),
    "gpt-oss": _GgufFamily("window", 2),
    "gemma2": _GgufFamily("window", 2, 4096),
    "gemma3": _GgufFamily("window", 6, 0),
    "gemma3n": _GgufFamily("window", 5, known_caches=frozenset({_SHARED}), layers_with_kv=20),
    "gemma4": _GgufFamily("listed_window", known_caches=frozenset({_SHARED})),
    "llama4": _GgufFamily("chunk", 4),
    "deepseek2": _GgufFamily("latent", known_caches=frozenset({_RANK})),
    **dict.fromkeys(
        ("deepseek32", "glm-dsa"), _GgufFamily("latent", known_caches=frozenset({_RANK, _INDEXER}))
    ),
    "deepseek4": _GgufFamily("compressed", known_caches=frozenset({_INDEXER})),
    **dict.fromkeys(
        ("kimi-linear", "kimi-k3"), _GgufFamily("latent_linear", known_caches=frozenset({_RANK}))
    ),
    "minimax-m3": _GgufFamily("sparse", known_caches=frozenset({_INDEXER})),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _GgufFamily("blocks")),
    "granitehybrid": _GgufFamily("mamba_window"),
    "mamba2": _GgufFamily("mamba"),
    "deci": _GgufFamily("pruned"),
    "olmo2": _GgufFamily("window", 4, 0),
    "cohere2": _GgufFamily("window", 4),
    **dict.fromkeys(("mimo2", "step35"), _GgufFamily("listed_window")),
}

_OTHER_CACHES = {
    _RANK: "multi-head latent attention (MLA)",
    _INDEXER: "sparse attention with an index cache",
    _SHARED: "layers that share a KV cache",
}
_CHUNK = 8192
"""llama.cpp's chunk for Llama 4, whatever the file has."""


def architecture_of_gguf(header: GgufHeader) -> Architecture:
    """The architecture of a model from its GGUF header, that of the first part for a split checkpoint."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise UnknownArchitecture(f"{header.name} has no `general.architecture`")
    reader = _MetadataReader(name, header)
    reader.refuse_other_caches(GGUF_FAMILIES[name].known_caches if name in GGUF_FAMILIES else frozenset())
    if name not in GGUF_FAMILIES:
        raise UnknownArchitecture(f"`{name:.80}` is a GGUF architecture that firesteel does not know")
    return reader.architecture(GGUF_FAMILIES[name])


class _MetadataReader:
    """Reads the metadata of one header."""

    def __init__(self, name: str, header: GgufHeader) -> None:
        self._name = name
        self._metadata = header.metadata

    def refuse_other_caches(self, known: frozenset[str]) -> None:
        for key, reason in _OTHER_CACHES.items():
            if self._value(key) and key not in known:
                raise self._unsupported(
                    f"has {reason} (`{key}`), which firesteel does not know for this family"
                )

    def architecture(self, family: _GgufFamily) -> Architecture:
        count = model_layer_count(self._metadata)
        if count is None or count > MAX_LAYERS:
            raise self._unsupported("has no plausible `block_count`")
        experts = self._integer("expert_count", least=0, default=0)
        picked = self._integer("expert_used_count", least=0, default=0) if experts else 0
        if experts and not 1 <= picked <= experts:
            raise self._unsupported(f"has {experts} experts, of which it uses {picked} for a token")
        drafters = self._integer("nextn_predict_layers", least=0, default=0)
        return Architecture(
            model_type=self._name,
            layers=self._share_caches(family, tuple(self._layer(family, layer) for layer in range(count))),
            hidden_size=self._integer("embedding_length"),
            vocab_size=self._vocab_size(),
            max_context=self._integer("context_length"),
            experts=experts,
            experts_per_token=picked,
            drafter_layers=drafters,
            attention_heads=self._largest("attention.head_count"),
            feed_forward_size=self._largest(
                "expert_feed_forward_length" if experts else "feed_forward_length"
            ),
        )

    def _largest(self, key: str) -> int:
        """The largest over all layers; 0 where the file has none."""
        value = self._value(key)
        many = value if isinstance(value, list | tuple) else [value]
        return max((value for value in many if type(value) is int and 0 < value < 2**31), default=0)

    def _layer(self, family: _GgufFamily, layer: int) -> Layer:
        match family.pattern:
            case "linear" if self._is_linear(family, layer):
                return self._delta_net()
            case "latent":
                return self._latent(layer)
            case "latent_linear" if self._kv_heads(layer):
                return self._latent(layer)
            case "latent_linear":
                heads, dim = self._per_layer("attention.head_count", 0), self._integer("kda.head_dim")
                return LinearAttention(heads * dim * dim, 3 * heads * dim, self._integer("ssm.conv_kernel"))
            case "blocks":
                return self._block(layer)
            case "mamba_window" if not self._kv_heads(layer):
                return self._mamba()
            case "mamba":
                return self._mamba()
            case "pruned" if not self._kv_heads(layer):
                return NoCache("mlp" if self._per_layer("feed_forward_length", layer, 0) else "none")
            case "sparse" if layer >= self._integer("leading_dense_block_count", least=0, default=0):
                return self._sparse(layer)
            case "compressed":
                return self._compressed(layer)
        return self._attention(family, layer)

    def _attention(self, family: _GgufFamily, layer: int) -> Layer:
        kv_heads = self._kv_heads(layer, least=1)
        has_chunks = family.pattern == "chunk" and self._value("attention.sliding_window") != 0
        if has_chunks and self._slides(family, layer):
            return ChunkedAttention(kv_heads, self._head_dim("key"), self._head_dim("value"), _CHUNK)
        has_window = family.pattern in ("window", "listed_window")
        window = has_window and self._integer("attention.sliding_window", least=0, default=family.window)
        if not window or not self._slides(family, layer):
            return FullAttention(kv_heads, self._head_dim("key"), self._head_dim("value"))
        return SlidingAttention(
            kv_heads, self._head_dim("key", "_swa"), self._head_dim("value", "_swa"), window
        )

    def _kv_heads(self, layer: int, least: int = 0) -> int:
        has_own = self._value("attention.head_count_kv") is not None
        return self._per_layer("attention.head_count_kv" if has_own else "attention.head_count", layer, least)

    def _latent(self, layer: int) -> Layer:
        """Keys and values in one: llama.cpp caches no values where the file has lengths for MLA."""
        if self._value("attention.key_length_mla") is None:
            heads = self._kv_heads(layer, least=1)
            return FullAttention(heads, self._head_dim("key"), self._head_dim("value"))
        rank, key = self._integer(_RANK), self._integer("attention.key_length")
        if key <= rank:
            raise self._unsupported(f"has keys of {key} with a `{_RANK}` of {rank}")
        attends = self._integer("attention.indexer.top_k") if self._value(_INDEXER) else 0
        indexer = self._indexer() if attends and self._has_indexer(layer) else None
        return LatentAttention(rank, key - rank, indexer, attends)

    def _indexer(self) -> Indexer:
        return Indexer(self._integer(_INDEXER), self._integer("attention.indexer.key_length"))

    def _has_indexer(self, layer: int) -> bool:
        """GLM-5.2 has one for every four layers; older files do not list it and are recognized by their
        context."""
        if self._name != "glm-dsa":
            return True
        if self._value("attention.indexer.types") is not None:
            return bool(self._per_layer("attention.indexer.types", layer, least=0))
        return self._integer("context_length") < 2**20 or max(layer - 2, 0) % 4 == 0

    def _sparse(self, layer: int) -> SparseAttention:
        picked = self._integer("attention.indexer.top_k") * self._integer("attention.indexer.block_size")
        return SparseAttention(
            self._kv_heads(layer, least=1),
            self._head_dim("key"),
            self._head_dim("value"),
            self._indexer(),
            picked,
        )

    def _compressed(self, layer: int) -> CompressedAttention:
        ratio = self._per_layer("attention.compress_ratios", layer, least=0)
        if ratio not in (0, 4, 128):
            raise self._unsupported(f"compresses {ratio} tokens into one, not 4 or 128")
        return CompressedAttention(
            head_dim=self._head_dim("key"),
            rope_dim=self._integer("rope.dimension_count"),
            window=self._integer("attention.sliding_window"),
            ratio=ratio,
            indexer=self._indexer() if ratio == 4 else None,
            attends=self._integer("attention.indexer.top_k") if ratio == 4 else 0,
        )

    def _block(self, layer: int) -> Layer:
        if heads := self._kv_heads(layer):
            return FullAttention(heads, self._head_dim("key"), self._head_dim("value"))
        if not self._per_layer("feed_forward_length", layer, least=0):
            return self._mamba()
        return NoCache("moe" if self._value("expert_count") else "mlp")

    def _mamba(self) -> Mamba2:
        """`time_step_rank` is the number of heads of Mamba-2."""
        inner, heads = self._integer("ssm.inner_size"), self._integer("ssm.time_step_rank")
        if inner % heads:
            raise self._unsupported(f"has an `ssm.inner_size` of {inner}, which {heads} heads do not divide")
        return Mamba2(
            heads,
            inner // heads,
            self._integer("ssm.state_size"),
            self._integer("ssm.group_count"),
            self._integer("ssm.conv_kernel"),
        )

    def _share_caches(self, family: _GgufFamily, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        """The last layers share the cache of the last two that have one: one that slides, one that does
        not."""
        first = family.layers_with_kv
        if self._value(_SHARED) is not None:
            first = len(layers) - self._integer(_SHARED, least=0)
        if first is None or first >= len(layers):
            return layers
        if first < 2:
            raise self._unsupported(f"has {len(layers)} layers, of which {first} have a KV cache to share")
        others = (
            SharedKv(first - 2 if isinstance(layer, SlidingAttention) else first - 1)
            for layer in layers[first:]
        )
        return (*layers[:first], *others)

    def _is_linear(self, family: _GgufFamily, layer: int) -> bool:
        if self._value("attention.recurrent_layers") is not None:
            return bool(self._per_layer("attention.recurrent_layers", layer, least=0))
        return bool((layer + 1) % self._integer("full_attention_interval", default=family.every))

    def _slides(self, family: _GgufFamily, layer: int) -> bool:
        pattern = self._value("attention.sliding_window_pattern")
        if family.pattern == "listed_window":
            return bool(self._per_layer("attention.sliding_window_pattern", layer, least=0))
        # llama.cpp reads a number for these architectures and falls back to its own for a list.
        every = self._integer("attention.sliding_window_pattern") if type(pattern) is int else family.every
        return bool((layer + 1) % every)

    def _delta_net(self) -> LinearAttention:
        """Inner size is value heads x value dimension, state size the key dimension, groups the key heads."""
        inner, state = self._integer("ssm.inner_size"), self._integer("ssm.state_size")
        return LinearAttention(
            state_elements=inner * state,
            conv_channels=inner + 2 * self._integer("ssm.group_count") * state,
            conv_kernel=self._integer("ssm.conv_kernel"),
        )

    def _head_dim(self, which: str, suffix: str = "") -> int:
        for key in (f"attention.{which}_length{suffix}", f"attention.{which}_length"):
            if self._value(key) is not None:
                return self._integer(key)
        return max(1, self._integer("embedding_length") // self._most_heads())

    def _most_heads(self) -> int:
        """Where layers differ, those without attention have no heads."""
        heads = self._value("attention.head_count")
        if isinstance(heads, tuple):
            heads = max((value for value in heads if isinstance(value, int)), default=None)
        return self._check("attention.head_count", heads, 1)

    def _vocab_size(self) -> int:
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, ArrayInfo | tuple):
            return tokens.length if isinstance(tokens, ArrayInfo) else len(tokens)
        return self._integer("vocab_size")

    def _per_layer(self, key: str, layer: int, least: int = 1) -> int:
        """A value that is one number for all layers, or a list with one per layer."""
        value = self._value(key)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else None
        return self._check(key, value, least)

    def _integer(self, key: str, least: int = 1, default: int | None = None) -> int:
        value = self._value(key)
        return self._check(key, default if value is None else value, least)

    def _check(self, key: str, value: object, least: int) -> int:
        if value is None:
            raise self._unsupported(f"has no `{key}` in its GGUF metadata")
        if not isinstance(value, int) or not least <= value <= _MAX_VALUE:
            raise self._unsupported(f"has the `{key}` {value!r:.40} in its GGUF metadata")
        return int(value)

    def _value(self, key: str) -> MetadataValue | None:
        return self._metadata.get(f"{self._name}.{key}")

    def _unsupported(self, reason: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self._name:.80}` {reason}")
