"""The role of a tensor, from its name.

There are two naming schemes: Hugging Face's module paths
(`model.layers.3.mlp.experts.7.up_proj.weight_scale`) and GGUF's short names (`blk.3.ffn_up_exps.weight`). One
ordered table covers both: the first pattern found in the name wins, so everything inside a tower or a drafter
belongs to it, whatever its name there. Patterns match modules, not leaves: scales, zero points and biases
have the role of their weight. Every number is read as `#`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from firesteel.facts.model.tensors import Role

_TABLE: tuple[tuple[str, Role], ...] = (
    # Hugging Face towers and their projectors; whisper calls its audio tower the encoder
    (r"(^|\.)(visual|vision_(tower|model|encoder)|vision_\w*(adapter|projector)|embed_vision)\.", Role.TOWER),
    (
        r"(^|\.)(audio_(tower|model|encoder|projection)|sound_[\w#]+|embed_audio|whisper_encoder)\.",
        Role.TOWER,
    ),
    (r"(^|\.)(multi_?modal_projector|mm_projector|patch_merger|image_newline)\b", Role.TOWER),
    (r"^(model\.)?encoder\.|^mlp#\.", Role.TOWER),
    # GGUF: vision, audio, and the projector between them and the model
    (r"^(v|a|mm|resampler|adapter)\.", Role.TOWER),
    (r"(^|\.)(mtp|mtp_[\w#]+|nextn|(eagle|medusa|draft)[\w#]*)\.", Role.DRAFTER),
    (r"\.(eh_proj|enorm|hnorm|shared_head)\.", Role.DRAFTER),
    (r"^(output|embed_out|proj_out|head)\.|(^|\.)lm_head\.", Role.HEAD),
    (r"rotary_emb|^rope_(freqs|factors)", Role.OTHER),
    (
        r"(^|\.)(embed_tokens(_per_layer)?|embed_positions|word_embeddings|embeddings|wte|wpe)\.",
        Role.EMBEDDINGS,
    ),
    (r"^(embed|token_embd|per_layer_token_embd|position_embd|token_types)\.", Role.EMBEDDINGS),
    (r"(norm|norm_?#|norm_f|norm_exps)(\.(weight|bias|scale))?$|\.ln_[\w#]+\.", Role.NORMS),
    (r"\.shared?_experts?(_gate)?\.|\.shared_mlp\.|_shexp\.", Role.SHARED_EXPERT),
    (r"\.experts\.|_(ch)?exps\.|\.ffn_(gate|up|down)\.#\.", Role.ROUTED_EXPERTS),
    (r"\.moe\.(gate|up|down)_proj\.|\.block_sparse_moe\.(in|out)put_linear\.", Role.ROUTED_EXPERTS),
    (
        r"\.router\.|\.(mlp|block_sparse_moe|moe|mixer|feed_forward|ffn)\.gate\.|ffn_gate_(inp|tid#eid)\.",
        Role.ROUTER,
    ),
    (r"e_score_correction_bias|\.router_bias$|\.exp_probs_b\b", Role.ROUTER),
    # Nemotron-H calls every layer's one block its mixer, be it Mamba, attention or MLP
    (r"\.mixer\.(up_proj|down_proj|fc#_latent_proj)\.|\.routed_expert_(up|down)_proj\.", Role.DENSE_MLP),
    (r"\.(self_|linear_|cross_|encoder_)?attn\.|\.(self_)?attention\.|\.mixer\.|\.mamba\.", Role.ATTENTION),
    (r"\.layers\.#\.conv\.", Role.ATTENTION),
    (r"\.(cross_)?attn_\w+|\.ssm_\w+|\.(shortconv|indexer)|\.time_mix_", Role.ATTENTION),
    (r"\.(mlp|feed_forward|ffn)\.|\.ffn_\w+|\.fc#\.|\.channel_mix_", Role.DENSE_MLP),
)

_NUMBER = re.compile(r"\d+")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks)\.(\d{1,6})\.")


def role_of(name: str, layers: int | None = None) -> Role:
    """`layers` is the count without MTP layers: some families number those after the last layer."""
    role = _role_of_kind(_NUMBER.sub("#", name[:256]))
    if layers is not None and role is not Role.TOWER:
        layer = _LAYER.search(name)
        if layer and int(layer[1]) >= layers:
            return Role.DRAFTER
    return role


@lru_cache(maxsize=4096)
def _role_of_kind(kind: str) -> Role:
    """Layers and experts differ only in their numbers, so a checkpoint has a few dozen kinds of names."""
    return next((role for pattern, role in _TABLE if re.search(pattern, kind)), Role.OTHER)
