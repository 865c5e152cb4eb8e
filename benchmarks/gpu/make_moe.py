"""Make a small mixture of experts with random weights, and one whose shared scales were broken on purpose.

    python benchmarks/gpu/make_moe.py new TOKENIZER_FOLDER OUT        # 64 experts, BF16, Qwen3's layout
    python benchmarks/gpu/make_moe.py fuse MOE OUT                    # the same, all experts in one tensor
    python benchmarks/gpu/make_moe.py llama4 TOKENIZER_FOLDER OUT     # 64 experts in one tensor, transposed
    python benchmarks/gpu/make_moe.py dequantize QUANTIZED OUT        # its weights in BF16: the reference
    python benchmarks/gpu/make_moe.py misscale QUANTIZED OUT          # NVFP4: gate and up by up to 10 apart

`dequantize` reads the formats by itself, so that it is an oracle for `firesteel quantize`. `misscale` divides
the global scale and the block scales of `up_proj` of each expert by a factor of 1 to 10: every tensor has the
same value as before, but an engine that keeps one global scale for gate and up makes one of them wrong.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "mlp_only_layers": [],
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 49152,
}
SHARED_KEYS = (
    "attention_bias", "bos_token_id", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
    "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "rms_norm_eps", "rope_theta", "tie_word_embeddings", "torch_dtype", "use_cache", "vocab_size",
)  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def new(tokenizer: Path, out: Path) -> None:
    layer = attention(CONFIG, "self_attn.q_norm.weight", "self_attn.k_norm.weight")
    hidden, inner = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
    layer["mlp.gate.weight"] = (CONFIG["num_experts"], hidden)
    for expert in range(CONFIG["num_experts"]):
        layer |= {
            f"mlp.experts.{expert}.gate_proj.weight": (inner, hidden),
            f"mlp.experts.{expert}.up_proj.weight": (inner, hidden),
            f"mlp.experts.{expert}.down_proj.weight": (hidden, inner),
        }
    write(tokenizer, out, CONFIG, layer)


def fuse(moe: Path, out: Path) -> None:
    """Each layer's experts as two tensors, [experts, outputs, inputs], gate before up."""
    shutil.copytree(moe, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = read(moe)

    def all_of(at: str, matrix: str) -> torch.Tensor:
        names = (f"{at}.{expert}.{matrix}.weight" for expert in range(CONFIG["num_experts"]))
        return torch.stack([tensors.pop(name) for name in names])

    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp.experts"
        tensors[f"{at}.gate_up_proj"] = torch.cat((all_of(at, "gate_proj"), all_of(at, "up_proj")), 1)
        tensors[f"{at}.down_proj"] = all_of(at, "down_proj")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def llama4(tokenizer: Path, out: Path) -> None:
    """Experts as [experts, inputs, outputs], with a shared one beside them."""
    hidden, inner, experts = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"], CONFIG["num_experts"]
    layer = attention(CONFIG) | {
        "feed_forward.router.weight": (experts, hidden),
        "feed_forward.experts.gate_up_proj": (experts, hidden, 2 * inner),
        "feed_forward.experts.down_proj": (experts, inner, hidden),
        "feed_forward.shared_expert.gate_proj.weight": (inner, hidden),
        "feed_forward.shared_expert.up_proj.weight": (inner, hidden),
        "feed_forward.shared_expert.down_proj.weight": (hidden, inner),
    }
    config = {key: CONFIG[key] for key in SHARED_KEYS} | {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "attn_temperature_tuning": False,
        "attention_chunk_size": 8192,
        "interleave_moe_layer_step": 1,
        "intermediate_size": inner,
        "intermediate_size_mlp": CONFIG["intermediate_size"],
        "no_rope_layers": [1] * CONFIG["num_hidden_layers"],
        "num_experts_per_tok": 1,
        "num_local_experts": experts,
        "use_qk_norm": False,
    }
    write(tokenizer, out, config, layer)


def attention(config: dict[str, Any], *norms: str) -> dict[str, tuple[int, ...]]:
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
    } | dict.fromkeys(norms, (head,))


def write(tokenizer: Path, out: Path, config: dict[str, Any], layer: dict[str, tuple[int, ...]]) -> None:
    shutil.copytree(tokenizer, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    (out / "config.json").write_text(json.dumps(config, indent=1))
    torch.manual_seed(7)
    hidden = config["hidden_size"]
    state: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(config["num_hidden_layers"]):
        state |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    tensors = {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.05).to(torch.bfloat16)
        for name, shape in state.items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def dequantize(quantized: Path, out: Path) -> None:
    """Compressed-tensors: FP8 with a scale for each row or for the tensor, NVFP4 in blocks of 16."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = read(quantized)
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        base = name.removesuffix(".weight_packed").removesuffix(".weight")
        if name.endswith(".weight_packed"):
            nibbles = torch.stack((tensor & 15, tensor >> 4), -1).flatten(-2).long()
            values = torch.tensor(E2M1)[nibbles & 7] * (1 - 2 * (nibbles >> 3)).float()
            scales = tensors[f"{base}.weight_scale"].float() / tensors[f"{base}.weight_global_scale"].float()
            blocks = values.unflatten(-1, (-1, 16)) * scales.unsqueeze(-1)
            plain[f"{base}.weight"] = blocks.flatten(-2).to(torch.bfloat16)
        elif tensor.dtype == torch.float8_e4m3fn and name.endswith(".weight"):
            plain[name] = (tensor.float() * tensors[f"{base}.weight_scale"].float()).to(torch.bfloat16)
        elif not name.endswith(("_scale", "_scale_inv")):
            plain[name] = tensor
    save_file(plain, out / "model.safetensors", metadata={"format": "pt"})
    copy_rest(quantized, out)
    config = json.loads((quantized / "config.json").read_text())
    config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config, indent=1))


def misscale(quantized: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = read(quantized)
    torch.manual_seed(3)
    for name in list(tensors):
        if name.endswith("up_proj.weight_global_scale") and ".experts." in name:
            factor = 1 + 9 * torch.rand(1).item()
            tensors[name] = tensors[name] / factor
            scales = name.replace("weight_global_scale", "weight_scale")
            tensors[scales] = (tensors[scales].float() / factor).to(torch.float8_e4m3fn)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    copy_rest(quantized, out)
    shutil.copy(quantized / "config.json", out)


def read(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def copy_rest(source: Path, out: Path) -> None:
    for path in source.glob("*"):
        if (
            path.suffix in (".json", ".jinja", ".txt")
            and "index" not in path.name
            and path.name != "config.json"
        ):
            shutil.copy(path, out)


if __name__ == "__main__":
    commands = {"new": new, "fuse": fuse, "llama4": llama4, "dequantize": dequantize, "misscale": misscale}
    commands[sys.argv[1]](*map(Path, sys.argv[2:4]))
