"""A Hugging Face `config.json` -> Architecture.

The kind of each layer of a config, as transformers calls it: `full_attention`, `mamba`, `moe`.

Newer configs list the kinds. Older ones rely on a pattern of their model class, or mark layers under a key of
their own; `families.py` has the patterns.

Configs that a newer transformers has written again, as most quantizers do, in the keys of the publisher.

Seen in what transformers 5.19.0 writes for the published configs, 2026-11-16. Only families whose keys it
renames are here; anything that does not have the expected form is returned as it is, and refused by name.

Configs have many names for the same value, and leave out the defaults of their model class. What each family
means is data, in `families.py`; this module reads the values. Every value comes from the config or from that
table; a value that neither has is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
from firesteel.facts.model.encoder_weights import as_language_model, speech_of
from firesteel.facts.model.families import FAMILIES, MAX_LAYERS, Config, ConfigValues

_DRAFTER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# MiniMax-M2 declares `num_mtp_modules`, but its published checkpoints do not hold them.
_MAX_DRAFTERS = 64

_BLOCKS = {
    "M": "mamba", "*": "full_attention", "E": "moe", "-": "mlp",
    "mamba": "mamba", "attention": "full_attention", "moe": "moe", "mlp": "mlp",
    "linear_attention": "mamba", "full_attention": "full_attention",
}  # fmt: skip


def layer_kinds(values: ConfigValues) -> list[str]:
    if values.family.pattern == "blocks":
        return _blocks(values)
    count = layer_count(values)
    if values.family.pattern == "parallel_mamba":
        return ["mamba", "full_attention"] * count  # two caches, so two entries
    listed = _listed(values, count)
    return listed[:count] if listed else [_kind(values, layer) for layer in range(count)]


def layer_count(values: ConfigValues) -> int:
    count = values.integer("num_hidden_layers")
    if count > MAX_LAYERS:
        raise values.unsupported(f"has {count:,} layers")
    return count


def drafter_count(values: ConfigValues) -> int:
    count = values.first_integer(_DRAFTER_LAYERS)
    if count > _MAX_DRAFTERS:
        raise values.unsupported(f"has {count:,} MTP layers")
    return count


def drafter_kinds(values: ConfigValues, count: int) -> list[str]:
    """The kinds of the drafter layers: as listed, or full attention."""
    if values.family.pattern == "blocks":
        if not count:
            return []
        blocks = values.get("mtp_layers_block_type") or values.get("mtp_hybrid_override_pattern") or "*E"
        if not isinstance(blocks, Sequence) or len(blocks) > _MAX_DRAFTERS:
            raise values.unsupported("does not list the blocks of its MTP layers")
        return [_block(values, block) for block in blocks] * count
    if values.family.pattern == "block_configs":
        return []
    listed = _listed(values, layer_count(values))
    if listed and len(listed) > layer_count(values):
        return listed[-count:]
    return ["sparse_attention" if values.family.pattern == "marked_sparse" else "full_attention"] * count


def window(values: ConfigValues) -> int:
    """The window, 0 without one. Qwen's configs have a window that is only used with `use_sliding_window`."""
    switch = values.get("use_sliding_window")
    if switch is None:
        switch = values.family.pattern != "late_window"
    if switch is False or values.is_null("sliding_window") or values.get("sliding_window") is None:
        return 0
    return values.integer("sliding_window", least=0)


def _listed(values: ConfigValues, count: int) -> list[str] | None:
    """`layer_types`, where the family uses them. The MTP layers may be in that list too."""
    listed = values.get("layer_types") or _by_attention_numbers(values, count)
    if listed is None or values.family.pattern in ("marked_window", "marked_linear", "marked_sparse"):
        return None
    if not isinstance(listed, Sequence) or len(listed) not in (count, count + drafter_count(values)):
        raise values.unsupported(f"has {count} layers but not as many `layer_types`")
    return [str(kind) for kind in listed]


def _by_attention_numbers(values: ConfigValues, count: int) -> list[str] | None:
    """Older configs of LFM2 list the numbers of the layers with attention; the others are convolutions."""
    numbers = values.get("full_attn_idxs") if values.family.recurrence == "short_conv" else None
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        return None
    return ["full_attention" if number in numbers else "conv" for number in range(count)]


def _kind(values: ConfigValues, layer: int) -> str:
    match values.family.pattern:
        case "window":
            slides = bool(window(values))
        case "late_window":
            slides = bool(window(values)) and layer >= values.integer("max_window_layers", least=0)
        case "alternate_window":
            slides = bool(window(values)) and bool((layer + 1) % _every(values))
        case "grouped_linear" if layer >= layer_count(values) // _every(values) * _every(values):
            return "full_attention"
        case "alternate_linear" | "grouped_linear":
            return "linear_attention" if (layer + 1) % _every(values) else "full_attention"
        case "alternate_mamba":
            is_full = layer % _every(values) == values.integer("attn_layer_offset", least=0)
            return "full_attention" if is_full else "mamba"
        case "alternate_chunk":
            return "chunked_attention" if _is_chunked(values, layer) else "full_attention"
        case "marked_window":
            slides = _is_marked(values, "hybrid_layer_pattern", layer)
        case "marked_full":
            is_full = _is_marked(values, "attn_type_list", layer)
            return "full_attention" if is_full else "linear_attention"
        case "marked_linear":
            return _linear_or_full(values, layer)
        case "marked_sparse":
            return "sparse_attention" if _is_sparse(values, layer) else "full_attention"
        case "listed":
            raise values.unsupported("has no `layer_types`")
        case _:
            if window(values):
                raise values.unsupported("sets `sliding_window`, which its family does not use")
            slides = False
    return "sliding_attention" if slides else "full_attention"


def _every(values: ConfigValues) -> int:
    pattern = values.get(values.family.every_key)
    if isinstance(pattern, str) and re.fullmatch("L{1,99}G", pattern):  # EXAONE 4: `LLLG`
        return len(pattern)
    return values.integer_or(values.family.every_key, values.family.every)


def _is_chunked(values: ConfigValues, layer: int) -> bool:
    """Llama 4 has no positions in its full-attention layers; its list has a 0 for those."""
    if values.get("no_rope_layers"):
        return _is_marked(values, "no_rope_layers", layer)
    return bool((layer + 1) % _every(values))


def _is_sparse(values: ConfigValues, layer: int) -> bool:
    if values.get("sparse_attention_config") is None:
        return False
    sparse = values.nested("sparse_attention_config")
    if sparse.get("use_sparse_attention") is False:
        return False
    return _is_marked(sparse, "sparse_attention_freq", layer)


def _is_marked(values: ConfigValues, key: str, layer: int) -> bool:
    marks = values.get(key)
    if not isinstance(marks, Sequence) or layer >= len(marks) or marks[layer] not in (0, 1):
        raise values.unsupported(f"has no mark for each layer in `{key}`")
    return bool(marks[layer])


def _linear_or_full(values: ConfigValues, layer: int) -> str:
    marks = values.nested("linear_attn_config")
    for key, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
        listed = marks.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and layer + 1 in listed:
            return kind
    raise values.unsupported(f"does not list layer {layer + 1} in `linear_attn_config`")


def _blocks(values: ConfigValues) -> list[str]:
    keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    blocks = next((value for key in keys if (value := values.get(key))), None)
    if not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= MAX_LAYERS:
        raise values.unsupported("does not list its blocks")
    if values.integer_or("num_hidden_layers", len(blocks)) != len(blocks):
        raise values.unsupported(f"has {len(blocks)} blocks but not as many `num_hidden_layers`")
    return [_block(values, block) for block in blocks]


def _block(values: ConfigValues, block: object) -> str:
    if not isinstance(block, str) or block not in _BLOCKS:
        raise values.unsupported(f"has a block of the unknown type `{str(block)[:80]}`")
    return _BLOCKS[block]


def known_model_types() -> frozenset[str]:
    """The values of `model_type` whose layers and shapes are known."""
    return frozenset(FAMILIES)


def as_published(model_type: str, text: Mapping[str, object]) -> Mapping[str, object]:
    if model_type == "whisper":
        return as_language_model(text)
    kinds = text.get("layer_types")
    listed = [str(kind) for kind in kinds] if isinstance(kinds, Sequence) else []
    if "per_layer_config" in text:
        return _without_overrides(model_type, text, listed)
    if model_type == "deepseek_v4" and "compress_ratios" not in text:
        return _with_ratios(text, listed)
    if "minimax_m3_sparse" in listed:
        return _with_sparse_config(text, listed)
    return text


def _without_overrides(
    model_type: str, text: Mapping[str, object], kinds: Sequence[str]
) -> Mapping[str, object]:
    """Overrides of single layers are Gemma 4's values for full attention, if they are the same in each."""
    overrides = text["per_layer_config"]
    rest = {key: value for key, value in text.items() if key != "per_layer_config"}
    if not overrides:
        return rest
    family = FAMILIES.get(model_type)
    full = {number for number, kind in enumerate(kinds) if kind == "full_attention"}
    if not family or not isinstance(overrides, Mapping) or not all(str(key).isdecimal() for key in overrides):
        return text
    values = list(overrides.values())
    same = all(isinstance(value, Mapping) and value == values[0] for value in values)
    if not same or {int(key) for key in overrides} != full or set(values[0]) - set(family.full_keys):
        return text
    return rest | {family.full_keys[key]: value for key, value in values[0].items()}


def _with_ratios(text: Mapping[str, object], kinds: Sequence[str]) -> Mapping[str, object]:
    rates, feed_forwards = text.get("compress_rates"), text.get("mlp_layer_types")
    if not isinstance(rates, Mapping) or not isinstance(feed_forwards, Sequence) or not kinds:
        return text
    rest = {key: value for key, value in text.items() if key not in ("layer_types", "mlp_layer_types")}
    return rest | {
        "compress_ratios": [rates.get(kind, 0) for kind in kinds],
        "num_hash_layers": list(feed_forwards).count("hash_moe"),
    }


def _with_sparse_config(text: Mapping[str, object], kinds: Sequence[str]) -> Mapping[str, object]:
    return dict(text) | {
        "sparse_attention_config": {
            "sparse_index_dim": text.get("index_head_dim"),
            "sparse_num_index_heads": text.get("index_n_heads"),
            "sparse_topk_blocks": text.get("index_topk_blocks"),
            "sparse_block_size": text.get("index_block_size"),
            "sparse_attention_freq": [int(kind == "minimax_m3_sparse") for kind in kinds],
        }
    }


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k",
    "moe_topk", "moe_k",
)  # fmt: skip
_STATE_DTYPES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")

_OTHER_CACHES = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "sparse_attention_config": "block-sparse attention",
    "index_topk": "sparse attention with an index cache",
    "compress_ratios": "compressed attention",
    "linear_attn_config": "linear attention",
    "hybrid_override_pattern": "Mamba layers",
    "layers_block_type": "layers of several kinds",
    "num_kv_shared_layers": "layers that share a KV cache",
    "per_layer_config": "layers that differ one by one",
    "block_configs": "layers that differ one by one",
}
"""Keys that indicate another kind of cache, in a family that is not known to use them."""


def architecture_of_config(config: object) -> Architecture:
    """The language model of a config, without its towers."""
    values = language_model_values(config)
    reader = _LayerReader(values)
    layers = reader.layers()
    drafter_layers = drafter_count(values)
    outer_type = config.get("model_type") if isinstance(config, Mapping) else None
    experts = 0 if values.get("enable_moe_block") is False else values.first_integer(_EXPERTS)
    if experts == 1 and values.family.pattern == "alternate_mamba":
        experts = 0  # a small Jamba has one "expert" in each layer: a plain MLP
    picked = values.first_integer(_EXPERTS_PER_TOKEN) if experts else 0
    if experts and not 1 <= picked <= experts:
        raise values.unsupported(f"has {experts} experts, of which it uses {picked} for a token")
    return Architecture(
        model_type=str(outer_type or values.model_type),
        layers=layers,
        hidden_size=values.integer("hidden_size"),
        vocab_size=values.integer("vocab_size"),
        max_context=values.integer("max_position_embeddings"),
        experts=experts,
        experts_per_token=picked,
        drafter_layers=drafter_layers,
        drafters=reader.drafters(layers, drafter_layers),
        state_dtype=next(
            (str(dtype) for key in _STATE_DTYPES if (dtype := values.get(key))),
            "bfloat16" if values.family.recurrence == "lightning" else None,  # the dtype of the model
        ),
        attention_heads=values.first_integer(["num_attention_heads"]),
        feed_forward_size=values.first_integer(["moe_intermediate_size", "intermediate_size"]),
        generates=not _POOLS.search(str(values.get("architectures"))),
        speech=speech_of(outer_type, values.first_integer(["max_source_positions"])),
        expert_input_size=values.first_integer(["moe_latent_size"]),
    )


_POOLS = re.compile(r"For(?:Sequence|Token)Classification|RewardModel|EmbeddingModel|ForRetrieval|'\w+Model'")
"""Class names of checkpoints without a language model's head."""


def as_llama(config: object) -> object:
    """The config of an unknown family as if it were Llama's; the config itself where its family is known.

    Only for a plan that says so. What has another kind of cache by its keys is still refused.
    """
    kind = _text_type(config) if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(kind, str) or kind in FAMILIES:
        return config
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    as_text = {**text, "model_type": "llama"}
    found = {**config, "text_config": as_text} if text is nested else as_text
    try:
        architecture_of_config(found)
    except UnknownArchitecture as error:
        raise UnknownArchitecture(error.what.replace("llama", kind[:80], 1)) from None
    return found


def _text_config(config: Config) -> Config:
    """The part of a config that describes its language model."""
    outer = thinker_config(config)
    nested = outer.get("text_config")
    return nested if isinstance(nested, Mapping) else outer


def thinker_config(config: Config) -> Config:
    """Qwen's models with sound have one more level: the part that understands and answers."""
    thinker = config.get("thinker_config")
    return thinker if isinstance(thinker, Mapping) else config


def _text_type(config: Config) -> object:
    kind = _text_config(config).get("model_type") or config.get("model_type")
    return "qwen3" if kind == "qwen3_asr_text" else kind


def language_model_values(config: object) -> ConfigValues:
    """The values of the language model in a config, with its family."""
    if not isinstance(config, Mapping):
        raise UnknownArchitecture(f"config.json holds a {type(config).__name__}, not an object with keys")
    text = _text_config(config)
    model_type = _text_type(config)
    if not isinstance(model_type, str):
        raise UnknownArchitecture("config.json has no `model_type`")
    if model_type == "bailing_hybrid" and text.get("short_conv_kernel_size"):
        model_type = (
            "bailing_moe_v3"  # Ling 3 has the type of Ling 2.5, but KDA instead of lightning attention
        )
    text = as_published(model_type, text)
    _refuse_other_caches(model_type, text)
    if model_type not in FAMILIES:
        raise UnknownArchitecture(
            f"`{model_type:.80}` is a model_type that firesteel does not know",
            next="firesteel plan MODEL --weights-bytes BYTES plans it as if its layers were like Llama's",
        )
    return ConfigValues(model_type, text, FAMILIES[model_type])


def _refuse_other_caches(model_type: str, text: Config) -> None:
    known = FAMILIES[model_type].reads if model_type in FAMILIES else frozenset()
    for key, what in _OTHER_CACHES.items():
        if text.get(key) and key not in known:
            raise UnknownArchitecture(
                f"`{model_type:.80}` has {what} (`{key}`), which firesteel does not know for this family"
            )
    if text.get("use_bidirectional_attention") in (True, "all"):
        raise UnknownArchitecture(f"`{model_type:.80}` attends in both directions; it generates no text")


class _LayerReader:
    """The layers of one config."""

    def __init__(self, values: ConfigValues) -> None:
        self._values = values
        self._family = values.family
        self._layers_by_kind: dict[str, Layer] = {}

    def layers(self) -> tuple[Layer, ...]:
        if self._family.pattern == "block_configs":
            return tuple(self._sized_layer(block) for block in self._block_configs())
        if self._family.attention == "compressed":
            return tuple(self._compressed(ratio) for ratio in self._ratios(layer_count(self._values)))
        kinds = layer_kinds(self._values)
        layers = [self._layer(kind) for kind in kinds]
        if self._values.get("index_topk"):
            layers = self._indexed(layers)
        return self._shared(tuple(layers), kinds)

    def drafters(self, layers: Sequence[Layer], count: int) -> tuple[Layer, ...]:
        if self._family.attention == "compressed":
            return (self._compressed(0),) * count
        drafters = [self._layer(kind) for kind in drafter_kinds(self._values, count)]
        if self._values.get("index_topk"):
            # each drafter picks its own tokens, so it has an indexer like a first layer
            drafters = [self._indexed([drafter])[0] for drafter in drafters]
        return tuple(drafters)

    def _layer(self, kind: str) -> Layer:
        if kind not in self._layers_by_kind:
            self._layers_by_kind[kind] = self._layer_of(kind)
        return self._layers_by_kind[kind]

    def _layer_of(self, kind: str) -> Layer:
        recurrence = self._family.recurrence
        if kind == "linear_attention" and recurrence == "delta_net":
            return self._delta_net()
        if kind == "linear_attention" and recurrence == "kda":
            return self._kda()
        if kind == "linear_attention" and recurrence == "lightning":
            heads, dim = self._values.integer("num_attention_heads"), self._head_dim("head_dim")
            return LinearAttention(heads * dim * dim, conv_channels=0, conv_kernel=1)
        if kind == "conv" and recurrence == "short_conv":
            return LinearAttention(
                0, self._values.integer("hidden_size"), self._values.integer("conv_L_cache")
            )
        if kind == "mamba" and recurrence == "mamba2":
            return Mamba2(*(self._values.integer(key) for key in self._family.mamba_keys))
        if kind == "mamba" and recurrence == "mamba":
            # The first Mamba: a state for each of its channels, of which the convolution sees all.
            channels = self._values.integer("mamba_expand") * self._values.integer("hidden_size")
            state = channels * self._values.integer("mamba_d_state")
            return LinearAttention(state, channels, self._values.integer("mamba_d_conv"))
        if kind in ("mlp", "moe") and self._family.pattern == "blocks":
            return NoCache("mlp" if kind == "mlp" else "moe")
        if kind == "chunked_attention" and self._family.pattern == "alternate_chunk":
            if self._values.is_null("attention_chunk_size"):
                return self._full()
            return ChunkedAttention(*self._heads({}), self._values.integer("attention_chunk_size"))
        if kind == "sparse_attention" and self._family.pattern == "marked_sparse":
            return self._sparse()
        if kind in ("deepseek_sparse_attention", "indexed_attention") and self._family.attention == "latent":
            return self._latent()
        if kind == "full_attention":
            return self._latent() if self._family.attention == "latent" else self._full()
        if kind == "sliding_attention":
            return self._sliding()
        raise self._values.unsupported(f"has layers of the unknown type `{kind:.80}`")

    def _full(self) -> FullAttention:
        return FullAttention(*self._heads(self._family.full_keys))

    def _sliding(self) -> FullAttention | SlidingAttention:
        heads = self._heads(self._family.window_keys)
        width = window(self._values)
        if width:
            return SlidingAttention(*heads, width)
        if self._values.get("use_sliding_window") is False:
            return FullAttention(*heads)
        raise self._values.unsupported("has sliding layers and no `sliding_window`")

    def _latent(self) -> LatentAttention:
        return LatentAttention(self._values.integer("kv_lora_rank"), self._values.integer("qk_rope_head_dim"))

    def _sparse(self) -> SparseAttention:
        sparse = self._values.nested("sparse_attention_config")
        return SparseAttention(
            *self._heads({}),
            Indexer(sparse.integer("sparse_num_index_heads"), sparse.integer("sparse_index_dim")),
            attends=sparse.integer("sparse_topk_blocks") * sparse.integer("sparse_block_size"),
        )

    def _delta_net(self) -> LinearAttention:
        integer = self._values.integer
        key_heads, value_heads = integer("linear_num_key_heads"), integer("linear_num_value_heads")
        key_dim, value_dim = integer("linear_key_head_dim"), integer("linear_value_head_dim")
        return LinearAttention(
            state_elements=value_heads * key_dim * value_dim,
            conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
            conv_kernel=integer("linear_conv_kernel_dim"),
        )

    def _kda(self) -> LinearAttention:
        """Kimi Delta Attention has as many heads for keys as for values, of one dimension."""
        linear, heads_key = self._values, "num_attention_heads"
        if self._family.pattern == "marked_linear":
            linear, heads_key = self._values.nested("linear_attn_config"), "num_heads"
        heads, dim = linear.integer(heads_key), linear.integer("head_dim")
        return LinearAttention(heads * dim * dim, 3 * heads * dim, linear.integer("short_conv_kernel_size"))

    def _indexed(self, layers: Sequence[Layer]) -> list[Layer]:
        """Sparse layers with their indexer; GLM-5.2 has one for every four layers."""
        integer = self._values.integer
        indexer, attends = Indexer(integer("index_n_heads"), integer("index_head_dim")), integer("index_topk")
        return [
            LatentAttention(
                layer.kv_lora_rank,
                layer.qk_rope_head_dim,
                indexer if self._has_indexer(number, len(layers)) else None,
                attends,
            )
            if isinstance(layer, LatentAttention)
            else layer
            for number, layer in enumerate(layers)
        ]

    def _has_indexer(self, layer: int, count: int) -> bool:
        listed = self._values.per_layer("indexer_types", count) if count > 1 else None
        if listed is not None:
            return listed[layer] == "full"
        every = self._values.integer_or("index_topk_freq", 1)
        return max(layer - self._values.integer_or("index_skip_topk_offset", 2, least=0) + 1, 0) % every == 0

    def _ratios(self, count: int) -> list[int]:
        listed = self._values.per_layer("compress_ratios", count)
        if listed is None:
            raise self._values.unsupported("has no `compress_ratios`")
        if unknown := next((ratio for ratio in listed if ratio not in (0, 4, 128)), None):
            raise self._values.unsupported(f"compresses {str(unknown)[:40]} tokens into one, not 4 or 128")
        return [ratio if isinstance(ratio, int) else 0 for ratio in listed]

    def _compressed(self, ratio: int) -> CompressedAttention:
        """Only layers with blocks of 4 tokens have an indexer."""
        integer = self._values.integer
        indexer = Indexer(integer("index_n_heads"), integer("index_head_dim")) if ratio == 4 else None
        return CompressedAttention(
            head_dim=integer("head_dim"),
            rope_dim=integer("qk_rope_head_dim"),
            window=integer("sliding_window"),
            ratio=ratio,
            indexer=indexer,
            attends=integer("index_topk") if indexer else 0,
        )

    def _shared(self, layers: tuple[Layer, ...], kinds: Sequence[str]) -> tuple[Layer, ...]:
        """The last layers may share the cache of the last layer of their kind that has one."""
        shared = self._values.first_integer(["num_kv_shared_layers"])
        if not shared:
            return layers
        first = len(layers) - shared
        last_of = {kind: number for number, kind in enumerate(kinds[: max(first, 0)])}
        if missing := next((kind for kind in kinds[max(first, 0) :] if kind not in last_of), None):
            raise self._values.unsupported(
                f"shares the KV cache of a `{missing:.40}` layer that it does not have"
            )
        return layers[:first] + tuple(SharedKv(last_of[kind]) for kind in kinds[first:])

    def _block_configs(self) -> list[ConfigValues]:
        count = layer_count(self._values)
        blocks = self._values.per_layer("block_configs", count)
        if blocks is None or not all(isinstance(block, Mapping) for block in blocks):
            raise self._values.unsupported("does not list each layer in `block_configs`")
        return [
            ConfigValues(self._values.model_type, block, self._family)
            for block in blocks
            if isinstance(block, Mapping)
        ]

    def _sized_layer(self, block: ConfigValues) -> Layer:
        attention, ffn = block.nested("attention"), block.nested("ffn")
        for key in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
            if attention.get(key):
                raise self._values.unsupported(
                    f"has a layer with `{key}`, whose cache firesteel does not know"
                )
        if attention.is_true("no_op"):
            return NoCache("none" if ffn.is_true("no_op") else "mlp")
        heads, group = self._values.integer("num_attention_heads"), attention.integer("n_heads_in_group")
        dim = self._head_dim("head_dim")
        return FullAttention(max(1, heads // group), dim, dim)

    def _heads(self, keys: Mapping[str, str]) -> tuple[int, int, int]:
        """KV heads, and the dimensions of a key and of a value."""
        kv_heads = self._values.integer(self._key("num_key_value_heads", keys))
        key_dim = self._head_dim(self._key("head_dim", keys))
        value_key = self._key("v_head_dim", keys)
        value_dim = key_dim if self._values.get(value_key) is None else self._values.integer(value_key)
        return kv_heads, key_dim, value_dim

    def _key(self, key: str, other_keys: Mapping[str, str]) -> str:
        """The key of this value for this kind of layer."""
        other = other_keys.get(key, key)
        # Gemma 4 has fewer global KV heads only where keys serve as values.
        if other == "num_global_key_value_heads" and not self._values.is_true("attention_k_eq_v"):
            return key
        if self._values.get(other) is not None:
            return other
        if key == "num_key_value_heads" and self._values.get("num_attention_groups") is not None:
            return "num_attention_groups"
        return key

    def _head_dim(self, key: str) -> int:
        if self._values.get(key) is not None:
            return self._values.integer(key)
        hidden, heads = self._values.integer("hidden_size"), self._values.integer("num_attention_heads")
        if hidden % heads:
            raise self._values.unsupported(
                f"has no `head_dim`, and {hidden} does not divide by {heads} heads"
            )
        return hidden // heads
