"""How each family lays out its weights: the names of its modules, and which of them it has.

`parameters.py` has what all families share; this table holds the differences. A family is listed when the
tensors of the layout equal those of its own model class in name, shape and count.
Seen in transformers 5.22.2, its classes built on the meta device; Kimi K3's latent experts, output gates and
residual projections, `nemotron-nas` and all MTP layers in vLLM 0.32; the names of modules, where
transformers has renamed them, in the ignore lists of published checkpoints. All seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.values import Value, replace

Drafter = Literal["none", "eh_proj", "fc", "input_proj", "blocks", "two_proj"]


class Layout(Value):
    prefix: str = "model."
    nested_prefix: str = "model.language_model."
    """The prefix where the checkpoint also holds other models, such as towers."""
    embedding: str = "embed_tokens"
    head: str = "lm_head"
    nested_head: str = "lm_head"
    tied: bool = False
    """Whether the head is the embedding table, where the config does not set it."""
    norms: int = 2
    """RMS norms of the hidden size in each layer."""
    bias: Literal["none", "qkv", "qkvo"] = "none"
    """The attention projections that have a bias."""
    bias_key: str = ""
    """The key that enables it; without a key it is always on."""
    qk_norm: Literal["none", "head", "flat"] = "none"
    """Norms of queries and keys: as wide as one head, or as all heads together."""
    qk_norm_key: str = ""
    query_gate: Literal["none", "doubled", "wide", "heads"] = "none"
    """Gates on the output of attention: as wide as the queries, inside their projection or in one of their
    own, or one per head."""
    scalars: int = 0
    """Single numbers in each layer."""
    sinks: bool = False
    attention: str = "self_attn"
    fused: str = ""
    """The projection that holds queries, keys and values in one."""
    output: str = "o_proj"
    mlp: str = "mlp"
    gated: bool = True
    moe: str = "mlp"
    router: str = "gate"
    expert: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    expert_biases: bool = False
    dense_key: str = "intermediate_size"
    expert_key: str = "moe_intermediate_size"
    shared: str = "shared_experts"
    shared_keys: tuple[str, ...] = ()
    """Keys of the size of the shared expert; without them it is the sum of the shared experts."""
    shared_gate: bool = False
    corrects_router: bool = False
    """Whether the router has a bias that balances the load."""
    corrects_router_key: str = ""
    """The key that enables it; without a key it is always on."""
    drafter: Drafter = "none"
    drafter_is_dense: bool = False
    """Whether MTP layers have an MLP although the last layers of the model have experts."""
    drafter_copies: int = 0
    """Copies of the embedding table or the head in each MTP layer."""


_QWEN2 = Layout(bias="qkv")
_QWEN3 = Layout(bias="qkvo", bias_key="attention_bias", qk_norm="head")
_QWEN_NEXT = replace(
    _QWEN3,
    query_gate="doubled",
    shared="shared_expert",
    shared_keys=("shared_expert_intermediate_size",),
    shared_gate=True,
    drafter="fc",
)
_DEEPSEEK = Layout(
    nested_prefix="language_model.model.",
    nested_head="language_model.lm_head",
    bias="qkvo",
    bias_key="attention_bias",
    corrects_router=True,
    drafter="eh_proj",
)
_DEEPSEEK_V3 = replace(_DEEPSEEK, drafter_copies=2)
"""Its MTP layer holds 11.5 B of its own and copies of the embedding table and of the head, 0.9 B each:
https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md, seen 2026-11-15."""
_GEMMA = Layout(tied=True)
_MIXTRAL = Layout(moe="block_sparse_moe", expert=("w1", "w3", "w2"), expert_key="intermediate_size")
_MINIMAX_M3 = Layout(
    prefix="language_model.model.",
    nested_prefix="language_model.model.",
    head="lm_head",
    qk_norm="head",
    moe="block_sparse_moe",
    expert=("w1", "w3", "w2"),
    expert_key="intermediate_size",
    dense_key="dense_intermediate_size",
    shared_keys=("shared_intermediate_size",),
    corrects_router=True,
)
_DEEPSEEK_V4 = Layout(
    prefix="",
    embedding="embed",
    head="head",
    moe="ffn",
    expert=("w1", "w3", "w2"),
    corrects_router=True,
    drafter="two_proj",
)
_STEP = Layout(
    qk_norm="head",
    query_gate="heads",
    shared="share_expert",
    shared_keys=("share_expert_dim",),
    corrects_router=True,
    drafter="eh_proj",
    drafter_is_dense=True,
    drafter_copies=1,
)
_BAILING = Layout(
    embedding="word_embeddings",
    attention="attention",
    fused="query_key_value",
    output="dense",
    bias="qkv",
    bias_key="use_qkv_bias",
    qk_norm="head",
    qk_norm_key="use_qk_norm",
    corrects_router=True,
    corrects_router_key="moe_router_enable_expert_bias",
    drafter="eh_proj",
)
_GRANITE_MOE = Layout(
    moe="block_sparse_moe",
    router="router",
    expert_key="intermediate_size",
    shared="shared_mlp",
    shared_keys=("shared_intermediate_size",),
)
_GLM4_MOE = Layout(
    bias="qkv",
    bias_key="attention_bias",
    qk_norm="head",
    qk_norm_key="use_qk_norm",
    corrects_router=True,
    drafter="eh_proj",
)
_LFM2 = Layout(tied=True, qk_norm="head", mlp="feed_forward", moe="feed_forward")

LAYOUTS: Mapping[str, Layout] = {
    "llama": Layout(bias="qkvo", bias_key="attention_bias"),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "nemotron-nas", "cwm"), Layout()),
    "smollm3": Layout(tied=True),
    "granite": Layout(bias="qkvo", bias_key="attention_bias", tied=True),
    "seed_oss": Layout(bias="qkv", bias_key="attention_bias"),
    "phi3": Layout(fused="qkv_proj"),
    "glm4": Layout(fused="qkv_proj", bias="qkv", bias_key="attention_bias", norms=4),
    "glm": Layout(bias="qkv", bias_key="attention_bias"),
    "glm4v_text": Layout(bias="qkv", norms=4),
    "arcee": Layout(bias="qkvo", bias_key="attention_bias", gated=False),
    "apertus": Layout(bias="qkvo", bias_key="attention_bias", gated=False, qk_norm="head", scalars=4),
    "ernie4_5": Layout(tied=True),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2),
    "qwen2_moe": replace(
        _QWEN2,
        shared="shared_expert",
        shared_keys=("shared_expert_intermediate_size",),
        shared_gate=True,
    ),
    "mimo": Layout(bias="qkv", bias_key="attention_bias", drafter="input_proj"),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "mellum"), _QWEN3),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN_NEXT),
    **dict.fromkeys(("mixtral", "minimax", "minimax_m1"), _MIXTRAL),
    "minimax_m2": replace(_MIXTRAL, qk_norm="flat", corrects_router=True),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), _MINIMAX_M3),
    "gpt_oss": Layout(
        bias="qkvo",
        sinks=True,
        router="router",
        expert=("gate_up_proj", "down_proj"),
        expert_key="intermediate_size",
        expert_biases=True,
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4),
    "gemma3_text": replace(_GEMMA, norms=4, qk_norm="head"),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"), Layout(tied=True, norms=4, qk_norm="head", scalars=1)
    ),
    **dict.fromkeys(("olmo2", "olmo3"), Layout(qk_norm="flat")),
    "olmoe": Layout(qk_norm="flat", expert_key="intermediate_size"),
    "cohere2": Layout(norms=1, tied=True),
    "cohere": Layout(norms=1, tied=True, bias="qkvo", bias_key="attention_bias"),
    "cohere2_moe": Layout(
        norms=1, tied=True, dense_key="prefix_dense_intermediate_size", expert_key="intermediate_size"
    ),
    "olmo_hybrid": Layout(qk_norm="flat"),
    **dict.fromkeys(("granitemoe", "granitemoehybrid", "granitemoeshared"), _GRANITE_MOE),
    "granite_swa": Layout(tied=True, sinks=True),
    "granitemoe_swa": replace(_GRANITE_MOE, sinks=True),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), _GLM4_MOE),
    "solar_open": Layout(corrects_router=True),
    "exaone_moe": Layout(qk_norm="head", corrects_router=True),
    "hy_v3": Layout(qk_norm="head", expert_key="expert_hidden_dim", corrects_router=True, drafter="eh_proj"),
    "laguna": Layout(
        qk_norm="head",
        query_gate="heads",
        shared_keys=("shared_expert_intermediate_size",),
        corrects_router=True,
    ),
    "afmoe": Layout(norms=4, qk_norm="head", query_gate="wide", router="router.gate", corrects_router=True),
    "muse_glimmer_text": Layout(norms=4, query_gate="wide"),
    "exaone4": Layout(qk_norm="head"),
    "ernie4_5_moe": Layout(tied=True, corrects_router=True),
    "dots1": replace(_QWEN3, corrects_router=True),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_vl_text"), _QWEN3),
    "hunyuan_v1_moe": replace(
        _QWEN3,
        router="gate.wg",
        expert_key="intermediate_size",
        shared="shared_mlp",
        shared_keys=("intermediate_size",),
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, corrects_router=True),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), _BAILING),
    **dict.fromkeys(
        ("bailing_hybrid", "bailing_moe_v3"),
        replace(_BAILING, shared_keys=("moe_shared_expert_intermediate_size",)),
    ),
    **dict.fromkeys(
        ("falcon_h1", "jamba"),
        Layout(mlp="feed_forward", moe="feed_forward", router="router", expert_key="intermediate_size"),
    ),
    "mimo_v2_flash": Layout(corrects_router=True),
    **dict.fromkeys(("step3p5", "step3p7"), _STEP),
    "llama4_text": Layout(
        prefix="language_model.model.",
        nested_prefix="language_model.model.",
        nested_head="language_model.lm_head",
        mlp="feed_forward",
        moe="feed_forward",
        router="router",
        expert=("gate_up_proj", "down_proj"),
        dense_key="intermediate_size_mlp",
        expert_key="intermediate_size",
        shared="shared_expert",
        shared_keys=("intermediate_size",),
    ),
    **dict.fromkeys(("deepseek_v2", "mistral4"), replace(_DEEPSEEK, corrects_router=False)),
    "youtu": replace(_DEEPSEEK, tied=True),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32"), _DEEPSEEK_V3),
    **dict.fromkeys(("kimi_k2", "glm_moe_dsa", "glm4_moe_lite"), _DEEPSEEK),
    "kimi_linear": replace(_DEEPSEEK, moe="block_sparse_moe", expert=("w1", "w3", "w2")),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _DEEPSEEK_V4),
    "nemotron_h": Layout(
        prefix="backbone.",
        embedding="embeddings",
        norms=1,
        attention="mixer",
        mlp="mixer",
        gated=False,
        moe="mixer",
        expert=("up_proj", "down_proj"),
        shared_keys=("moe_shared_expert_intermediate_size",),
        corrects_router=True,
        drafter="blocks",
    ),
}
