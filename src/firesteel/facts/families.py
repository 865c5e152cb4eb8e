"""The model families we know, by `model_type`: how their layers alternate, and what their configs leave out.

A family is here when its attention is one that `architecture.py` has a value for and its layer pattern
was read in its model code. One that is not here is refused: MLA, Mamba, sparse indexers, chunked
attention and shared KV each have a cache of their own shape.
Seen in transformers as of 2026-08-21; `mimo` and `mimo_v2_flash` in the code beside their checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Pattern = Literal[
    "full",  # every layer sees everything
    "window",  # every layer slides, if `sliding_window` is set
    "late_window",  # layers from `max_window_layers` on slide, if `use_sliding_window`
    "alternate_window",  # every n-th layer sees everything, the others slide
    "alternate_linear",  # every n-th layer sees everything, the others are Gated DeltaNet
    "marked_window",  # `hybrid_layer_pattern` marks the layers that slide
    "listed",  # only `layer_types` tells
]


@dataclass(frozen=True, slots=True)
class Family:
    pattern: Pattern = "full"
    """How layers alternate where the config has no `layer_types`."""
    every: int = 0
    """The n of an alternating pattern, where the config does not say."""
    every_key: str = ""
    """What the config calls that n."""
    defaults: Mapping[str, int | str] = field(default_factory=dict)
    """What the model class fills in for a key that the config leaves out: a figure, or another key's."""
    full_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that hold other figures for the layers that see everything."""
    window_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that hold other figures for the layers that slide."""


_ALL_HEADS: Mapping[str, int | str] = {"num_key_value_heads": "num_attention_heads"}

_LATE_WINDOW = Family("late_window")
_DELTA_NET = Family("alternate_linear", 4, "full_attention_interval", {"head_dim": 256})
_GEMMA4 = Family(
    "listed",
    defaults={"global_head_dim": 512},
    full_keys={"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"},
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(defaults=_ALL_HEADS),
    "mistral": Family("window"),
    "ministral": Family("window"),
    "ministral3": Family("window"),
    "mixtral": Family("window"),
    "phi3": Family("window", defaults=_ALL_HEADS),
    "qwen2": _LATE_WINDOW,
    "qwen2_vl": _LATE_WINDOW,
    "qwen2_vl_text": _LATE_WINDOW,
    "qwen2_5_vl": _LATE_WINDOW,
    "qwen2_5_vl_text": _LATE_WINDOW,
    "qwen3": Family("late_window", defaults={"head_dim": 128}),
    "qwen3_moe": Family(),
    "qwen3_vl_text": Family(defaults={"head_dim": 128}),
    "qwen3_vl_moe_text": Family(),
    "qwen3_next": _DELTA_NET,
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": _DELTA_NET,
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
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "smollm3": Family(),
    "granite": Family(defaults=_ALL_HEADS),
    "granitemoe": Family(defaults=_ALL_HEADS),
    "olmo2": Family(defaults=_ALL_HEADS),
    "olmo3": Family("alternate_window", 4, defaults=_ALL_HEADS),
    "olmoe": Family(defaults=_ALL_HEADS),
    "cohere2": Family("alternate_window", 4, "sliding_window_pattern", _ALL_HEADS),
    "seed_oss": Family(defaults={"head_dim": 128}),
    "glm4": Family(defaults={"head_dim": 128}),
    "glm4_moe": Family(),
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
    "step3p5": Family("listed"),
    "step3p7": Family("listed"),
}
