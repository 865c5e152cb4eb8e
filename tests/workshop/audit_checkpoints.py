"""Small checkpoints as quantizers and publishers write them; `damaged_checkpoints.py` damages them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.workshop.reference_formats import Stored, fp8_rows, nvfp4

Tensors = dict[str, Stored]
Style = Literal["plain", "ct-nvfp4", "ct-w4a4", "modelopt", "ct-fp8", "block-fp8", "spark"]

HIDDEN, INNER, VOCABULARY, EXPERTS = 64, 128, 320, 4
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {f"t{number}": number for number in range(VOCABULARY - 2)}},
    "added_tokens": [{"id": VOCABULARY - 2, "content": "<s>"}, {"id": VOCABULARY - 1, "content": "</s>"}],
}
MOE_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2,
    "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "intermediate_size": INNER,
    "moe_intermediate_size": INNER, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DENSE_CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
    "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048, "intermediate_size": INNER, "tie_word_embeddings": False,
}  # fmt: skip
MLA_CONFIG: dict[str, Any] = {
    "model_type": "glm4_moe_lite", "num_hidden_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 2048,
    "intermediate_size": INNER, "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
_EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
_TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


@dataclass
class MadeCheckpoint:
    """A checkpoint in memory: changed freely, then written."""

    tensors: Tensors
    config: dict[str, Any]
    texts: dict[str, str] = field(default_factory=dict)
    """Other files."""
    shards: int = 2
    index: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda index: index
    after: Callable[[Path], None] = lambda folder: None
    """What happens to the files once they are written."""

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2))
        for name, text in self.texts.items():
            (folder / name).write_text(text)
        names = list(self.tensors)
        size = -(-len(names) // self.shards)
        weight_map: dict[str, str] = {}
        for number in range(self.shards):
            part = f"model-{number + 1:05}-of-{self.shards:05}.safetensors"
            if self.shards == 1:
                part = "model.safetensors"
            held = {name: self.tensors[name] for name in names[number * size : (number + 1) * size]}
            write_safetensors(folder / part, held)
            weight_map |= dict.fromkeys(held, part)
        if self.shards > 1:
            total = sum(len(stored.data) for stored in self.tensors.values())
            index = self.index({"metadata": {"total_size": total}, "weight_map": weight_map})
            if index is not None:
                (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.after(folder)
        return folder


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Large types first, then by name, as the reference library writes them."""
    order = sorted(tensors, key=lambda name: (-tensors[name].item_bytes, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in order:
        stored = tensors[name]
        header[name] = {
            "dtype": stored.dtype, "shape": list(stored.shape), "data_offsets": [at, at + len(stored.data)],
        }  # fmt: skip
        at += len(stored.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].data)


# --- sound ones ---


def weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights with the names and shapes of the family; outliers make their ranges differ."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        values = random.standard_normal((rows, columns)).astype(np.float32) * 0.05
        values[random.integers(rows), random.integers(columns)] = random.uniform(0.3, 3.0)
        return values

    made: dict[str, NDArray[np.float32]] = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    layers = config["num_hidden_layers"]
    drafters = config.get("num_nextn_predict_layers", 0)
    for number in range(layers + drafters):
        made |= {f"model.layers.{number}.{name}": values for name, values in _layer(config, number, matrix)}
        if number >= layers:
            made[f"model.layers.{number}.eh_proj.weight"] = matrix(HIDDEN, 2 * HIDDEN)
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                made[f"model.layers.{number}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    made["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    made["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
    return made


def _layer(config: Mapping[str, Any], number: int, matrix: Callable[[int, int], Any]) -> Any:
    yield "input_layernorm.weight", np.ones(HIDDEN, np.float32)
    yield "post_attention_layernorm.weight", np.ones(HIDDEN, np.float32)
    yield "self_attn.o_proj.weight", matrix(HIDDEN, HIDDEN)
    if "kv_lora_rank" in config:
        yield "self_attn.q_a_proj.weight", matrix(48, HIDDEN)
        yield "self_attn.q_a_layernorm.weight", np.ones(48, np.float32)
        yield "self_attn.q_b_proj.weight", matrix(4 * 32, 48)
        yield "self_attn.kv_a_proj_with_mqa.weight", matrix(32 + 16, HIDDEN)
        yield "self_attn.kv_a_layernorm.weight", np.ones(32, np.float32)
        yield "self_attn.kv_b_proj.weight", matrix(4 * 32, 32)
    else:
        for name, rows in (("q_proj", HIDDEN), ("k_proj", HIDDEN // 2), ("v_proj", HIDDEN // 2)):
            yield f"self_attn.{name}.weight", matrix(rows, HIDDEN)
        if config["model_type"] == "qwen3_moe":
            yield "self_attn.q_norm.weight", np.ones(16, np.float32)
            yield "self_attn.k_norm.weight", np.ones(16, np.float32)
    experts = config.get("num_experts") or config.get("n_routed_experts") or 0
    mlps = [""] if number < config.get("first_k_dense_replace", 0) or not experts else []
    if not mlps:
        yield "mlp.gate.weight", matrix(experts, HIDDEN)
        mlps = [f"experts.{expert}." for expert in range(experts)]
        if config.get("n_shared_experts"):
            mlps.append("shared_experts.")
            yield "mlp.gate.e_score_correction_bias", np.zeros(experts, np.float32)
    for mlp in mlps:
        yield f"mlp.{mlp}gate_proj.weight", matrix(INNER, HIDDEN)
        yield f"mlp.{mlp}up_proj.weight", matrix(INNER, HIDDEN)
        yield f"mlp.{mlp}down_proj.weight", matrix(HIDDEN, INNER)


def shares_scale(name: str) -> str:
    """A key that is equal for modules with one global scale."""
    for leaves in (
        ("q_proj", "k_proj", "v_proj"),
        ("gate_proj", "up_proj"),
        ("q_a_proj", "kv_a_proj_with_mqa"),
    ):
        if name.endswith(leaves):
            return f"{name.rpartition('.')[0]}.{leaves[0]}"
    return name


def is_converted(name: str, layers: int) -> bool:
    """What quantizers convert: linear layers of the model itself."""
    parts = name.split(".")
    in_drafter = parts[:2] == ["model", "layers"] and int(parts[2]) >= layers
    return name.endswith(("_proj.weight", "_with_mqa.weight")) and not in_drafter


def good(style: Style, of: Mapping[str, Any] = MOE_CONFIG, seed: int = 0) -> MadeCheckpoint:
    config: dict[str, Any] = json.loads(json.dumps(of))
    layers = config["num_hidden_layers"]
    plain = weights(config, seed)
    tensors: Tensors = {}
    amax: dict[str, float] = {}
    for name, values in plain.items():
        key = shares_scale(name.removesuffix(".weight"))
        amax[key] = max(amax.get(key, 0.0), float(np.abs(values).max()))
    for name, values in plain.items():
        module = name.removesuffix(".weight")
        if style == "plain" or not is_converted(name, layers):
            tensors[name] = Stored.bf16(values)
        elif style in ("ct-fp8", "block-fp8") or (style == "spark" and "self_attn" in name):
            tensors |= fp8_rows(module, values, 128 if style == "block-fp8" else None)
        else:
            shape = "modelopt" if style == "modelopt" else "compressed-tensors"
            has_inputs = style in ("ct-w4a4", "modelopt")
            tensors |= nvfp4(module, values, amax[shares_scale(module)], shape, has_inputs)
    ignore = [
        f"model.layers.{layer}.mlp.gate"
        for layer in range(layers)
        if f"model.layers.{layer}.mlp.gate.weight" in plain
    ]
    ignore += ["lm_head"]
    if config.get("num_nextn_predict_layers"):
        ignore.append(
            f"model.layers.{layers}*" if style == "modelopt" else rf"re:model\.layers\.{layers}\..*"
        )
    texts = {
        "tokenizer.json": json.dumps(TOKENIZER),
        "tokenizer_config.json": json.dumps({"eos_token": "</s>", "chat_template": "{{ messages }}"}),
        "generation_config.json": json.dumps({"eos_token_id": VOCABULARY - 1}),
    }
    section = _section(style, ignore)
    if section:
        config["quantization_config"] = section
    if style == "modelopt":
        quantization = {
            "quant_algo": "NVFP4",
            "group_size": 16,
            "kv_cache_quant_algo": None,
            "exclude_modules": ignore,
        }
        texts["hf_quant_config.json"] = json.dumps(
            {"producer": {"name": "modelopt", "version": "0.45.0"}, "quantization": quantization}
        )
    return MadeCheckpoint(tensors, config, texts)


def _section(style: Style, ignore: list[str]) -> dict[str, Any] | None:
    group: dict[str, Any] = {"targets": ["Linear"], "weights": _WEIGHTS, "input_activations": None}
    section: dict[str, Any] = {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ignore,
        "format": "nvfp4-pack-quantized", "config_groups": {"group_0": group},
    }  # fmt: skip
    match style:
        case "plain":
            return None
        case "ct-w4a4":
            group["input_activations"] = {**_WEIGHTS, "dynamic": "local"}
        case "modelopt":
            return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore, "group_size": 16}
        case "ct-fp8":
            group |= {"weights": _EIGHT, "input_activations": _TOKENS}
            section["format"] = "float-quantized"
        case "block-fp8":
            return {
                "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ignore,
                "activation_scheme": "dynamic", "fmt": "e4m3",
            }  # fmt: skip
        case "spark":
            section["format"] = "mixed-precision"
            group |= {"targets": ["re:.*mlp.*_proj"], "format": "nvfp4-pack-quantized"}
            section["config_groups"]["group_1"] = {
                "targets": ["re:.*self_attn.*_proj"], "weights": _EIGHT, "input_activations": _TOKENS,
                "format": "float-quantized",
            }  # fmt: skip
    return section


GOOD: Mapping[str, Callable[[], MadeCheckpoint]] = {
    "plain-moe": lambda: good("plain"),
    "plain-dense": lambda: good("plain", DENSE_CONFIG),
    "nvfp4-compressed-tensors": lambda: good("ct-nvfp4"),
    "nvfp4-dense": lambda: good("ct-nvfp4", DENSE_CONFIG),
    "nvfp4-w4a4": lambda: good("ct-w4a4"),
    "nvfp4-modelopt": lambda: good("modelopt"),
    "fp8-dynamic": lambda: good("ct-fp8"),
    "fp8-block": lambda: good("block-fp8"),
    "spark": lambda: good("spark"),
    "mla-spark": lambda: good("spark", MLA_CONFIG),
    "mla-nvfp4": lambda: good("ct-nvfp4", MLA_CONFIG),
    "mla-modelopt": lambda: good("modelopt", MLA_CONFIG),
    "mla-plain": lambda: good("plain", MLA_CONFIG),
}
