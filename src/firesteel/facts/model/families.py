"""The known model families, by `model_type`: how their layers alternate, and what their configs leave out.

A family is listed when `architecture.py` has its kind of attention and its layer pattern was read in its
model code. Other families are refused. Seen in transformers as of 2026-08-21 and in its release 5.22.2, seen
2026-11-15; `kimi_linear` of Kimi K3, `deepseek_v4`, `minimax_m3` and `nemotron-nas` also in vLLM 0.32,
`vllm/models` and `vllm/model_executor/models`, seen 2026-11-15; `exaone4`, `ernie4_5_moe`, `dots1`,
`hunyuan_v1`, `lfm2`, `falcon_h1`, `jamba`, and all families of 2026 that are listed next to older ones in
transformers 5.19.0, `bailing_moe` and its successors in vLLM 0.32, seen 2026-11-16; `mimo` in the
code next to its checkpoint.
`deepseek_ref` is the type of SGLang's conversions of DeepSeek-V4; their keys are the same.

`ConfigValues` looks up values of one config.json under the names that its family uses, and checks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.values import Value, replace

Pattern = Literal[
    "full",  # every layer has full attention
    "window",  # every layer slides, if `sliding_window` is set
    "late_window",  # layers from `max_window_layers` on slide, if `use_sliding_window`
    "alternate_window",  # every n-th layer has full attention, the others slide
    "alternate_linear",  # every n-th layer has full attention, the others are linear
    "grouped_linear",  # the same, and what is left after the last group has full attention
    "alternate_chunk",  # `no_rope_layers` or every n-th layer has full attention, the others see a chunk
    "marked_window",  # `hybrid_layer_pattern` marks the layers that slide
    "marked_full",  # `attn_type_list` marks the layers with full attention, the others are linear
    "marked_linear",  # `linear_attn_config` lists the layers that are linear, counted from 1
    "marked_sparse",  # `sparse_attention_freq` marks the layers that are sparse
    "alternate_mamba",  # every n-th layer has full attention, counted from an offset, the others are Mamba
    "parallel_mamba",  # every layer has full attention and Mamba side by side
    "blocks",  # a letter or a word for each block, which is a layer
    "block_configs",  # each layer has its own values
    "listed",  # only `layer_types` lists them
]

Attention = Literal["grouped", "latent", "compressed"]
Recurrence = Literal["none", "delta_net", "kda", "lightning", "mamba", "mamba2", "short_conv"]


class Family(Value):
    pattern: Pattern = "full"
    """How layers alternate where the config has no `layer_types`."""
    every: int = 0
    """The n of an alternating pattern, where the config does not set it."""
    every_key: str = ""
    """The key of that n."""
    defaults: Mapping[str, int | str] = {}
    """The default of the model class for a missing key: a number, or the key whose value it takes."""
    full_keys: Mapping[str, str] = {}
    """Keys with other values for full-attention layers."""
    window_keys: Mapping[str, str] = {}
    """Keys with other values for sliding layers."""
    attention: Attention = "grouped"
    """What full-attention layers cache."""
    recurrence: Recurrence = "none"
    mamba_keys: tuple[str, str, str, str, str] = ("", "", "", "", "")
    """The keys of heads, head dimension, state size, groups and the width of the convolution."""
    reads: frozenset[str] = frozenset()
    """Keys for other kinds of cache that this family is known to use."""


_ALL_HEADS: Mapping[str, int | str] = {"num_key_value_heads": "num_attention_heads"}

_DELTA_NET = Family(
    "alternate_linear", 4, "full_attention_interval", {"head_dim": 256}, recurrence="delta_net"
)
_SHARED_KV = frozenset({"num_kv_shared_layers"})
_GEMMA4 = Family(
    "listed",
    defaults={"global_head_dim": 512},
    full_keys={"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"},
    reads=_SHARED_KV,
)
_LATENT = Family(attention="latent", reads=frozenset({"kv_lora_rank"}))
_LATENT_SPARSE = Family(attention="latent", reads=frozenset({"kv_lora_rank", "index_topk"}))
_COMPRESSED = Family(
    attention="compressed", defaults={"index_n_heads": 64}, reads=frozenset({"compress_ratios", "index_topk"})
)
_LING = Family(
    "grouped_linear",
    every_key="layer_group_size",
    attention="latent",
    recurrence="lightning",
    reads=frozenset({"kv_lora_rank"}),
)
_INDEXED = Family("marked_sparse", defaults={"head_dim": 128}, reads=frozenset({"sparse_attention_config"}))

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("llama", "whisper"), Family(defaults=_ALL_HEADS)),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "mixtral"), Family("window")),
    "phi3": Family("window", defaults=_ALL_HEADS),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        Family("late_window"),
    ),
    "qwen3": Family("late_window", defaults={"head_dim": 128}),
    "qwen3_moe": Family(),
    "qwen3_vl_text": Family(defaults={"head_dim": 128}),
    "qwen3_vl_moe_text": Family(),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _DELTA_NET),
    "gpt_oss": Family("alternate_window", 2, defaults={"head_dim": 64}),
    "gemma": Family(defaults={"head_dim": 256}),
    "gemma2": Family("alternate_window", 2, defaults={"head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": Family(
        "alternate_window",
        6,
        "sliding_window_pattern",
        {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        },
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    "smollm3": Family(),
    **dict.fromkeys(
        (
            "granite",
            "granitemoe",
            "granitemoeshared",
            "olmo2",
            "arcee",
            "apertus",
            "cohere",
            "hunyuan_vl_text",
        ),
        Family(defaults=_ALL_HEADS),
    ),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), Family("listed", defaults=_ALL_HEADS)),
    "olmo3": Family("alternate_window", 4, defaults=_ALL_HEADS),
    "olmoe": Family(defaults=_ALL_HEADS),
    "olmo_hybrid": Family("listed", defaults=_ALL_HEADS, recurrence="delta_net"),
    **dict.fromkeys(
        ("cohere2", "cohere2_moe"), Family("alternate_window", 4, "sliding_window_pattern", _ALL_HEADS)
    ),
    **dict.fromkeys(
        ("seed_oss", "glm", "glm4", "solar_open", "ernie4_5"), Family(defaults={"head_dim": 128})
    ),
    "hy_v3": Family(defaults={"head_dim": 128, "expert_hidden_dim": "moe_intermediate_size"}),
    **dict.fromkeys(("glm4_moe", "glm4v_text", "glm4v_moe_text"), Family()),
    "minimax_m2": Family(defaults={"head_dim": 128}),
    "mimo": Family(),
    "mimo_v2_flash": Family(
        "marked_window",
        window_keys={
            "num_key_value_heads": "swa_num_key_value_heads",
            "head_dim": "swa_head_dim",
            "v_head_dim": "swa_v_head_dim",
        },
    ),
    "llama4_text": Family(
        "alternate_chunk",
        4,
        "no_rope_layer_interval",
        {"head_dim": 128, "attention_chunk_size": 8192, "intermediate_size_mlp": 16_384},
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4", "youtu"), _LATENT),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _LATENT_SPARSE),
    "kimi_linear": Family(
        "marked_linear",
        defaults={"max_position_embeddings": "model_max_length"},
        attention="latent",
        recurrence="kda",
        reads=frozenset({"kv_lora_rank", "linear_attn_config"}),
    ),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _COMPRESSED),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), _INDEXED),
    "nemotron_h": Family(
        "blocks",
        defaults={"head_dim": "attention_head_dim"},
        recurrence="mamba2",
        mamba_keys=("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
        reads=frozenset({"hybrid_override_pattern", "layers_block_type"}),
    ),
    "granitemoehybrid": Family(
        "blocks",
        defaults=_ALL_HEADS,
        recurrence="mamba2",
        mamba_keys=("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
        reads=frozenset({"layers_block_type"}),
    ),
    **dict.fromkeys(("exaone4", "exaone_moe"), Family("alternate_window", 4, "sliding_window_pattern")),
    "afmoe": Family("alternate_window", 4, "global_attn_every_n_layers", {"head_dim": 128}),
    **dict.fromkeys(
        ("laguna", "mellum", "cwm", "muse_glimmer_text"), Family("listed", defaults={"head_dim": 128})
    ),
    "ernie4_5_moe": Family(defaults=_ALL_HEADS),
    "dots1": Family("late_window", defaults=_ALL_HEADS),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), Family(defaults=_ALL_HEADS)),
    **dict.fromkeys(
        ("lfm2", "lfm2_moe"), Family("listed", defaults={"conv_L_cache": 3}, recurrence="short_conv")
    ),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Family(defaults=_ALL_HEADS)),
    "bailing_hybrid": _LING,
    "bailing_moe_v3": replace(_LING, recurrence="kda"),
    **dict.fromkeys(("minimax", "minimax_m1"), Family("marked_full", recurrence="lightning")),
    "falcon_h1": Family(
        "parallel_mamba",
        defaults=_ALL_HEADS,
        recurrence="mamba2",
        mamba_keys=("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    ),
    "jamba": Family(
        "alternate_mamba",
        8,
        "attn_layer_period",
        {
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        recurrence="mamba",
    ),
    "nemotron-nas": Family("block_configs", reads=frozenset({"block_configs"})),
    "gemma3n_text": Family("listed", reads=_SHARED_KV),
    **dict.fromkeys(("step3p5", "step3p7"), Family("listed")),
}


Config = Mapping[str, object]

MAX_LAYERS = 4096
_MAX_VALUE = 2**40


class ConfigValues:
    def __init__(self, model_type: str, config: Config, family: Family) -> None:
        self.model_type = model_type
        self.family = family
        self._config = config

    def get(self, key: str) -> object:
        """The value in the config, or the default of its model class; None if neither has one."""
        value = self._config.get(key)
        if value is not None:
            return value
        default = self.family.defaults.get(key)
        return self._config.get(default) if isinstance(default, str) else default

    def integer(self, key: str, least: int = 1) -> int:
        value = self.get(key)
        if value is None:
            raise self.unsupported(f"has no `{key}` in its config.json")
        listed = value if isinstance(value, list) and 0 < len(value) <= MAX_LAYERS else []
        if listed and len(listed) == self.get("num_hidden_layers") and listed.count(listed[0]) == len(listed):
            value = listed[0]  # Hunyuan lists a number for each layer
        if type(value) is not int or not least <= value <= _MAX_VALUE:
            raise self.unsupported(f"has the `{key}` {_shown(value)} in its config.json")
        return value

    def integer_or(self, key: str, default: int, least: int = 1) -> int:
        return default if self.get(key) is None else self.integer(key, least)

    def first_integer(self, keys: Sequence[str]) -> int:
        """The first of these keys that is set; 0 without any."""
        for key in keys:
            if self.get(key) is not None:
                return self.integer(key, least=0)
        return 0

    def nested(self, key: str) -> ConfigValues:
        """The values of an object inside this one."""
        value = self._config.get(key)
        if not isinstance(value, Mapping):
            raise self.unsupported(f"has no `{key}` in its config.json")
        return ConfigValues(self.model_type, value, self.family)

    def per_layer(self, key: str, count: int) -> list[object] | None:
        """A list with one entry per layer; None if the config has none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or len(value) < count:
            raise self.unsupported(f"has {count} layers but not as many `{key}`")
        return list(value[:count])

    def is_true(self, key: str) -> bool:
        return self.get(key) is True

    def is_null(self, key: str) -> bool:
        return key in self._config and self._config[key] is None

    def unsupported(self, reason: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self.model_type:.80}` {reason}")


def _shown(value: object) -> str:
    """A wrong value for a message; lists and numbers may be too long to print."""
    if isinstance(value, int) and abs(value) > _MAX_VALUE:
        return "of more digits than a model has"
    return f"{value!r:.40}" if isinstance(value, int | float | str) else f"of type {type(value).__name__}"
