"""Small checkpoints with the shapes and names of real families; the same bytes on every machine.

Imports nothing of firesteel: `scripts/record-quantize-oracle` runs in llm-compressor's environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.workshop.made_weights import bf16_bits, f32

DTYPES = {"uint16": "BF16", "float16": "F16", "float32": "F32", "uint8": "U8"}
Tensors = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Tensors, dtypes: Mapping[str, str] | None = None) -> None:
    header, offset = {}, 0
    for name, array in tensors.items():
        dtype = (dtypes or {}).get(name, DTYPES[array.dtype.name])
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    shards: int = 1,
    dtypes: Mapping[str, str] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "generation_config.json").write_text('{"do_sample": true, "eos_token_id": 2}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("a licence")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtypes)
        return folder
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        own = names[number::shards]
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in own}, dtypes)
        weight_map |= dict.fromkeys(own, file)
    index = {
        "metadata": {"total_size": sum(array.nbytes for array in tensors.values())},
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 160, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def llama(make: Any = bf16_bits, config: Mapping[str, Any] = LLAMA) -> dict[str, NDArray[Any]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        own = f"model.layers.{layer}."
        shapes |= {
            f"{own}self_attn.q_proj.weight": (hidden, hidden),
            f"{own}self_attn.k_proj.weight": (kv, hidden),
            f"{own}self_attn.v_proj.weight": (kv, hidden),
            f"{own}self_attn.o_proj.weight": (hidden, hidden),
            f"{own}mlp.gate_proj.weight": (wide, hidden),
            f"{own}mlp.up_proj.weight": (wide, hidden),
            f"{own}mlp.down_proj.weight": (hidden, wide),
            f"{own}input_layernorm.weight": (hidden,),
            f"{own}post_attention_layernorm.weight": (hidden,),
        }
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    return {name: make(name, shape) for name, shape in shapes.items()}


QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 128,
    "intermediate_size": 256, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 160, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6,
}  # fmt: skip


def qwen3_moe(config: Mapping[str, Any] = QWEN3_MOE) -> dict[str, NDArray[Any]]:
    """One matrix for each expert; the weights of the gates are up to 8 times those of the ups."""
    tensors = {name: array for name, array in llama(config=config).items() if ".mlp." not in name}
    hidden, wide = config["hidden_size"], config["moe_intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        own = f"model.layers.{layer}."
        for head in ("q_norm", "k_norm"):
            tensors[f"{own}self_attn.{head}.weight"] = bf16_bits(f"{own}{head}", (config["head_dim"],))
        tensors[f"{own}mlp.gate.weight"] = bf16_bits(f"{own}gate", (config["num_experts"], hidden))
        for expert in range(config["num_experts"]):
            part = f"{own}mlp.experts.{expert}."
            tensors[f"{part}gate_proj.weight"] = scaled(bf16_bits(f"{part}gate", (wide, hidden)), expert)
            tensors[f"{part}up_proj.weight"] = bf16_bits(f"{part}up", (wide, hidden))
            tensors[f"{part}down_proj.weight"] = bf16_bits(f"{part}down", (hidden, wide))
    return tensors


def scaled(bits: NDArray[np.uint16], exponent: int) -> NDArray[np.uint16]:
    """Times 2^exponent, except zeros and the rows of very small numbers."""
    return np.where((bits >> 7 & 0xFF) > 50, bits + (exponent << 7), bits).astype(np.uint16)


def fused(tensors: Tensors, experts: int, transposed: bool = False) -> dict[str, NDArray[Any]]:
    """The same experts in 3-D tensors, gate before up."""
    out = {name: array for name, array in tensors.items() if ".experts." not in name}
    for parent in dict.fromkeys(name.split(".experts.")[0] for name in tensors if ".experts." in name):
        parts = {
            part: np.stack([tensors[f"{parent}.experts.{expert}.{part}.weight"] for expert in range(experts)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        gate_up = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
        for name, array in (("gate_up_proj", gate_up), ("down_proj", parts["down_proj"])):
            out[f"{parent}.experts.{name}"] = np.ascontiguousarray(
                array.transpose(0, 2, 1) if transposed else array
            )
    return out


def llama_f32() -> dict[str, NDArray[Any]]:
    return llama(f32)
