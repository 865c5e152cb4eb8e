"""Make the checkpoints that the GPU proofs need from one GGUF of SmolLM2: the model itself, and damaged ones.

    python benchmarks/gpu/make_models.py SmolLM2-135M-Instruct.Q4_1.gguf OUT

Needs torch, transformers, gguf and safetensors. OUT gets a folder for each:

    smollm2            in BF16, as it should be
    swapped            layers 3 and 20 in each other's place
    template           a chat template of another family
    kv-fp8             with scales for an FP8 KV cache, calibrated on a text
    kv-fp8-over-8      those scales divided by 8: keys and values are cut off at an eighth of their range
    kv-fp8-times-8     those scales times 8: small values lose bits
    draft              some noise on every weight: a draft model that is often right
    broken-shard       the weights without their last fifth
    missing-file       an index that names a file which is not there
    bad-config         a config.json with a key cut short
    other-shape        a config.json with half the hidden size that the weights have
    large              a config.json alone, of the size of an 8B model with SmolLM2's tokenizer
    too-large          a config.json alone, whose embeddings would take 250 GiB
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

WRONG_TEMPLATE = "{% for message in messages %}[INST] {{ message['content'][::-1] }} [/INST]{% endfor %}"
TEXT = (
    "A lighthouse is a tower with a strong lamp that warns ships of rocks and shows them the way into a "
    "harbour. def add(first, second):\n    return first + second\n 17 * 23 = 391. The keeper wrote the "
    "weather, the wind and the names of the passing ships into a book every evening. "
) * 12
FP8_MAX = 448.0


def main(gguf: Path, out: Path) -> int:
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    state = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}

    def save(name: str, tensors: dict[str, torch.Tensor], **changed: Any) -> Path:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | changed, default=str, indent=1))
        tokenizer.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        return folder

    plain = save("smollm2", state)
    save("swapped", swap_layers(state, 3, 20))
    set_template(save("template", state), WRONG_TEMPLATE)
    scales = kv_scales(model, tokenizer)
    for name, factor in (("kv-fp8", 1.0), ("kv-fp8-over-8", 1 / 8), ("kv-fp8-times-8", 8.0)):
        tensors = state | {key: value * factor for key, value in scales.items()}
        save(name, tensors, quantization_config=KV_FP8)
    torch.manual_seed(1)
    save("draft", {name: with_noise(tensor) for name, tensor in state.items()})
    damage(plain, out, config)
    return 0


KV_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {},
    "ignore": ["lm_head"],
    "kv_cache_scheme": {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "symmetric": True,
        "dynamic": False,
    },
}

WITHOUT_WEIGHTS: dict[str, dict[str, Any]] = {
    "large": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "too-large": {"vocab_size": 8_192_000, "hidden_size": 16384, "head_dim": 64},
}


def swap_layers(state: dict[str, torch.Tensor], one: int, other: int) -> dict[str, torch.Tensor]:
    swapped = dict(state)
    for name in state:
        if f".layers.{one}." in name:
            partner = name.replace(f".layers.{one}.", f".layers.{other}.")
            swapped[name], swapped[partner] = state[partner], state[name]
    return swapped


def set_template(folder: Path, template: str) -> None:
    for path in folder.glob("chat_template*"):
        path.write_text(template)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


@torch.no_grad()
def kv_scales(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """The largest key and value of each layer on a text, over the largest FP8 number."""
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids[:, :1024]
    cache = model(tokens, use_cache=True).past_key_values
    scales = {}
    for number, layer in enumerate(cache.layers):
        for name, tensor in (("k_scale", layer.keys), ("v_scale", layer.values)):
            scale = (tensor.abs().max().float() / FP8_MAX).reshape(1)
            scales[f"model.layers.{number}.self_attn.{name}"] = scale
    return scales


def with_noise(tensor: torch.Tensor) -> torch.Tensor:
    noise = torch.randn_like(tensor, dtype=torch.float32) * tensor.float().std() * 0.05
    return (tensor.float() + noise).to(torch.bfloat16) if tensor.dim() > 1 else tensor


def damage(plain: Path, out: Path, config: dict[str, Any]) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(plain, out / name, dirs_exist_ok=True)
        return out / name

    weights = copy("broken-shard") / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size * 4 // 5)
    folder = copy("missing-file")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001-of-00002.safetensors").unlink()
    path = copy("bad-config") / "config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ' "vocab_')
    (copy("other-shape") / "config.json").write_text(
        json.dumps(config | {"hidden_size": config["hidden_size"] // 2, "head_dim": 64}, default=str)
    )
    for name, changed in WITHOUT_WEIGHTS.items():
        folder = copy(name)
        (folder / "model.safetensors").unlink()
        (folder / "config.json").write_text(json.dumps(config | changed, default=str))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
