""""""

from __future__ import annotations

import pytest

from firesteel.facts.model.tensors import Role, Weights, role_of


def test_experts_that_no_config_counts_are_all_read() -> None:
    weights = Weights({Role.ROUTED_EXPERTS: 800, Role.ATTENTION: 10}, "counted", "a header")
    assert weights.bytes_read_per_token(8, 2) == 210
    assert weights.bytes_read_per_token(0, 0) == 810


ATTENTION = """
layers.2.attn.wq_a.weight
layers.2.attn.attn_sink
layers.2.attn.indexer.compressor.wkv.weight
model.layers.3.self_attn.index_q_proj.weight
model.layers.0.self_attn.q_proj.weight
model.layers.0.self_attn.q_proj.bias
model.layers.0.self_attn.k_proj.k_scale
model.layers.0.self_attn.o_proj.weight_scale_inv
model.layers.0.self_attn.sinks
model.layers.0.self_attn.kv_a_proj_with_mqa.weight
model.layers.0.self_attn.kv_b_proj.weight_scale
model.layers.0.self_attn.indexer.wq_b.weight
model.layers.0.linear_attn.in_proj_qkvz.weight
model.layers.0.linear_attn.A_log
model.layers.0.linear_attn.dt_bias
model.layers.0.linear_attn.conv1d.weight
model.language_model.layers.0.linear_attn.in_proj_qkv.weight
model.language_model.layers.0.self_attn.v_proj.input_scale
backbone.layers.0.mixer.in_proj.weight
backbone.layers.0.mixer.A_log
backbone.layers.0.mixer.q_proj.weight
model.decoder.layers.0.encoder_attn.k_proj.weight
transformer.h.0.attn.c_attn.weight
blk.0.attn_q.weight
blk.0.attn_qkv.weight
blk.0.attn_output.weight
blk.0.attn_sinks.weight
blk.0.attn_gate.weight
blk.0.attn_kv_a_mqa.weight
blk.0.ssm_a
blk.0.ssm_conv1d.weight
blk.0.ssm_dt.bias
blk.0.ssm_ba.weight
blk.0.ssm_out.weight
blk.0.shortconv.conv.weight
blk.0.indexer.attn_k.weight
"""
DENSE_MLP = """
language_model.model.layers.1.block_sparse_moe.routed_expert_down_proj.weight
model.layers.0.mlp.gate_proj.weight
model.layers.0.mlp.gate_up_proj.weight
model.layers.0.mlp.down_proj.weight_scale
model.language_model.layers.0.mlp.up_proj.weight
model.layers.0.feed_forward.gate_proj.weight
backbone.layers.0.mixer.up_proj.weight
backbone.layers.1.mixer.fc1_latent_proj.weight
model.decoder.layers.0.fc1.weight
transformer.h.0.mlp.c_fc.weight
blk.0.ffn_up.weight
blk.0.ffn_gate.weight
blk.0.ffn_down.bias
"""
ROUTED_EXPERTS = """
layers.3.ffn.experts.0.w1.weight
model.layers.3.mlp.experts.127.gate_proj.weight
model.layers.3.mlp.experts.127.gate_proj.weight_scale_2
model.layers.3.mlp.experts.7.down_proj.qzeros
model.layers.3.mlp.experts.gate_up_proj
model.layers.3.mlp.experts.gate_up_proj_blocks
model.layers.3.mlp.experts.down_proj_scales
model.layers.3.mlp.experts.gate_up_proj_bias
model.language_model.layers.3.mlp.experts.0.up_proj.input_scale
model.language_model.layers.3.experts.down_proj
model.layers.3.block_sparse_moe.experts.0.w1.weight
model.layers.3.block_sparse_moe.input_linear.weight
model.layers.3.moe.up_proj.weight
language_model.model.layers.3.feed_forward.experts.gate_up_proj
backbone.layers.1.mixer.experts.0.up_proj.weight
blk.0.ffn_gate_exps.weight
blk.0.ffn_up_exps.bias
blk.0.ffn_down_exps.scale
blk.0.ffn_gate_up_exps.weight
blk.0.ffn_gate.7.weight
"""
SHARED_EXPERT = """
model.layers.3.mlp.shared_expert.up_proj.weight
model.layers.3.mlp.shared_expert_gate.weight
model.layers.3.mlp.shared_experts.down_proj.weight_scale_inv
model.layers.3.share_expert.up_proj.weight
backbone.layers.1.mixer.shared_experts.up_proj.weight
language_model.model.layers.3.feed_forward.shared_expert.up_proj.weight
blk.0.ffn_up_shexp.weight
blk.0.ffn_gate_inp_shexp.weight
"""
ROUTER = """
layers.3.ffn.gate.weight
layers.0.ffn.gate.tid2eid
model.layers.3.mlp.gate.weight
model.layers.3.mlp.gate.e_score_correction_bias
model.layers.3.mlp.router.weight
model.layers.3.mlp.router.bias
model.layers.3.block_sparse_moe.gate.weight
model.layers.3.block_sparse_moe.e_score_correction_bias
model.layers.3.moe.gate.weight
model.layers.3.moe.router_bias
model.language_model.layers.3.router.proj.weight
model.language_model.layers.3.router.per_expert_scale
backbone.layers.1.mixer.gate.weight
blk.0.ffn_gate_inp.weight
blk.0.exp_probs_b.bias
"""
EMBEDDINGS = """
embed.weight
model.embed_tokens.weight
model.language_model.embed_tokens.weight
model.language_model.embed_tokens_per_layer.weight
backbone.embeddings.weight
transformer.wte.weight
model.decoder.embed_positions.weight
token_embd.weight
per_layer_token_embd.weight
position_embd.weight
"""
HEAD = """
head.weight
lm_head.weight
lm_head.weight_scale
language_model.lm_head.weight
proj_out.weight
output.weight
output.bias
"""
TOWER = """
model.visual.blocks.0.attn.qkv.weight
model.visual.merger.linear_fc1.weight
visual.patch_embed.proj.weight
model.vision_tower.encoder.layers.0.self_attn.q_proj.weight
vision_model.encoder.layers.0.mlp.fc1.weight
vision_tower.encoder.norm.weight
model.multi_modal_projector.linear_1.weight
mm_projector.proj.0.weight
vision_language_adapter.w_in.weight
model.embed_vision.embedding_projection.weight
model.embed_audio.embedding_projection.weight
model.audio_tower.layers.0.norm_out.weight
audio_tower.conv1.weight
model.encoder.layers.0.self_attn.k_proj.weight
model.encoder.conv1.weight
mlp1.0.weight
v.blk.0.attn_q.weight
v.patch_embd.weight
v.blk.0.ln1.weight
mm.0.weight
mm.input_projection.weight
a.blk.0.ffn_up.weight
resampler.query
"""
DRAFTER = """
mtp.fc.weight
mtp.layers.0.self_attn.q_proj.weight
mtp.layers.0.mlp.experts.0.up_proj.weight
mtp.norm.weight
mtp.pre_fc_norm_embedding.weight
model.mtp.layers.0.mlp.gate.weight
model.mtp_layers.0.self_attn.q_proj.weight
model.layers.61.eh_proj.weight
model.layers.61.enorm.weight
model.layers.61.shared_head.head.weight
model.layers.61.shared_head.norm.weight
blk.46.nextn.eh_proj.weight
blk.46.nextn.shared_head_norm.weight
nextn.pre_projection.weight
eagle3.fc.weight
"""
NORMS = """
model.norm.weight
model.layers.0.input_layernorm.weight
model.layers.0.post_attention_layernorm.weight
model.language_model.layers.0.post_feedforward_layernorm_1.weight
model.layers.0.self_attn.q_norm.weight
model.layers.0.self_attn.kv_a_layernorm.weight
model.layers.0.linear_attn.norm.weight
backbone.layers.0.norm.weight
backbone.norm_f.weight
transformer.h.0.ln_1.weight
model.decoder.layer_norm.bias
blk.0.attn_norm.weight
blk.0.attn_q_norm.weight
blk.0.ssm_norm.weight
blk.0.ffn_norm.weight
blk.0.post_ffw_norm_1.weight
blk.0.post_attention_norm.weight
output_norm.weight
"""
OTHER = """
rope_freqs.weight
rope_factors_long.weight
model.layers.0.self_attn.rotary_emb.inv_freq
model.language_model.layers.0.layer_scalar
blk.0.layer_output_scale.weight
anything
"""

CASES = [
    (name, role)
    for names, role in (
        (ATTENTION, Role.ATTENTION),
        (DENSE_MLP, Role.DENSE_MLP),
        (ROUTED_EXPERTS, Role.ROUTED_EXPERTS),
        (SHARED_EXPERT, Role.SHARED_EXPERT),
        (ROUTER, Role.ROUTER),
        (EMBEDDINGS, Role.EMBEDDINGS),
        (HEAD, Role.HEAD),
        (TOWER, Role.TOWER),
        (DRAFTER, Role.DRAFTER),
        (NORMS, Role.NORMS),
        (OTHER, Role.OTHER),
    )
    for name in names.split()
]


@pytest.mark.parametrize(("name", "role"), CASES)
def test_role(name: str, role: Role) -> None:
    assert role_of(name) is role


@pytest.mark.parametrize(
    ("name", "layers", "role"),
    [
        ("model.layers.60.mlp.gate.weight", 61, Role.ROUTER),
        ("model.layers.61.mlp.gate.weight", 61, Role.DRAFTER),
        ("model.layers.61.input_layernorm.weight", 61, Role.DRAFTER),
        ("model.layers.61.embed_tokens.weight", 61, Role.DRAFTER),
        ("model.layers.3.mlp.experts.99.up_proj.weight", 61, Role.ROUTED_EXPERTS),
        ("blk.47.ffn_up_exps.weight", 47, Role.DRAFTER),
        ("model.visual.blocks.26.attn.qkv.weight", 24, Role.TOWER),
        ("model.vision_tower.encoder.layers.30.mlp.fc1.weight", 24, Role.TOWER),
        ("lm_head.weight", 1, Role.HEAD),
    ],
)
def test_layers_after_the_last_are_the_drafter(name: str, layers: int, role: Role) -> None:
    assert role_of(name, layers) is role


def test_a_very_long_name_is_quick() -> None:
    assert role_of("layers." * 100_000 + "1" * 100_000, 3) is Role.OTHER
