"""Make small checkpoints with random weights, one for each kind of model whose sleep is to be tried.

    python benchmarks/gpu/make_sleepers.py OUT [NAME ...]

Needs torch, transformers 5.17 and safetensors, and firesteel's own packages for the quantized ones. OUT
gets a folder for each name, FAMILY-FORMAT: the families of `FAMILIES` in BF16, then what `FORMATS` lists;
`large`, only by name, is Qwen3-8B in 16 GB. `firesteel quantize` writes fp8-dynamic, fp8-block, nvfp4 and
mxfp4; `modelopt` is NVFP4 in the layout of NVIDIA's ModelOpt with scales for an FP8 KV cache, and `mixed` is
what nvidia/Qwen3.6-35B-A3B-NVFP4 has: attention in FP8, experts in NVFP4, weights only.

The weights are random, but scaled so that each token's logits depend on the text before it and still mostly
follow from the token itself. A drafter that shares the embeddings and the head is then right about half the
time, so the count of accepted tokens shows whether its weights are the right ones. Prompts are token ids;
only the model with a vision tower has a tokenizer and an image processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

VOCABULARY = 1024
SOURCE = Path(__file__).resolve().parents[2] / "src"
BASIC = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 64,
}
SHARED = {"shared_expert_intermediate_size": 256}
QWEN35 = BASIC | EXPERTS | SHARED | DELTA | {"mtp_num_hidden_layers": 1}
VISION = {
    "depth": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_heads": 4,
    "num_position_embeddings": 256,
    "out_hidden_size": 512,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": BASIC | {"model_type": "qwen3"},
    "draft": BASIC | {"model_type": "qwen3", "num_hidden_layers": 2},
    "qwen3_moe": BASIC | EXPERTS | {"model_type": "qwen3_moe", "norm_topk_prob": True},
    "gemma3": BASIC | {"model_type": "gemma3_text", "sliding_window": 64, "tie_word_embeddings": True},
    "gpt_oss": BASIC
    | {
        "model_type": "gpt_oss",
        "intermediate_size": 512,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
    },
    "qwen3_next": BASIC | EXPERTS | SHARED | DELTA | {"model_type": "qwen3_next"},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": QWEN35 | {"model_type": "qwen3_5_moe_text"},
        "vision_config": VISION | {"model_type": "qwen3_5_moe"},
        "image_token_id": 1020,
        "video_token_id": 1021,
        "vision_start_token_id": 1022,
        "vision_end_token_id": 1023,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": BASIC
    | {
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_routed_experts": 16,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 256,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "head_dim": 64,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "vocab_size": VOCABULARY,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "hybrid_override_pattern": "ME*M",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "ssm_state_size": 64,
        "mamba_num_heads": 16,
        "mamba_head_dim": 64,
        "n_groups": 4,
        "conv_kernel": 4,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 512,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "use_conv_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
}
FORMATS = {
    "qwen3": ("fp8-dynamic", "fp8-block", "nvfp4", "modelopt"),
    "qwen3_moe": ("fp8-dynamic", "fp8-block", "nvfp4", "modelopt", "mxfp4"),
    "gpt_oss": ("mxfp4",),
    "qwen3_next": ("fp8-dynamic", "nvfp4"),
    "qwen3_5_moe": ("fp8-dynamic", "fp8-block", "nvfp4", "modelopt", "mixed"),
    "deepseek_v3": ("fp8-dynamic", "fp8-block", "nvfp4"),
    "nemotron_h": ("fp8-dynamic", "nvfp4", "modelopt"),
}
MODELOPT_SOURCE = {"modelopt": "nvfp4", "mixed": "nvfp4"}
SMALL_OUTPUTS = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "down_proj", "fc2.weight")


def main(out: Path, names: list[str]) -> int:
    for family in FAMILIES:
        wanted = [
            form for form in ("bf16", *FORMATS.get(family, ())) if not names or f"{family}-{form}" in names
        ]
        plain = out / f"{family}-bf16"
        if wanted and not plain.exists():
            make(family, plain)
        for form in wanted:
            if form != "bf16" and not (out / f"{family}-{form}").exists():
                try:
                    write(form, plain, out / f"{family}-{form}")
                except Exception as error:
                    print(f"FAILED {family}-{form}: {error!r}"[:2000], flush=True)
                    continue
            print(f"{family}-{form}", flush=True)
    if not names or "lora" in names:
        adapter(out / "lora")
    if "large" in names:
        large(out / "large")
    return 0


def make(family: str, folder: Path) -> None:
    settings = dict(FAMILIES[family])
    config = CONFIG_MAPPING[settings.pop("model_type")].from_dict(settings)
    torch.manual_seed(11)
    auto = AutoModelForImageTextToText if family == "qwen3_5_moe" else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    tensors = load_file(folder / "model.safetensors")
    add_mtp(family, tensors)
    embeddings: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(17)
    for name in sorted(tensors):
        tensors[name] = scaled(name, tensors[name], generator)
    for name in tensors:  # the same in every family, so that a drafter can share them
        kind = next(
            (
                end
                for end in ("embed_tokens.weight", "embeddings.weight", "lm_head.weight")
                if name.endswith(end)
            ),
            "",
        )
        if kind and tuple(tensors[name].shape) == (VOCABULARY, 512):
            own = torch.Generator().manual_seed(23 if kind == "lm_head.weight" else 29)
            spread = 0.12 if kind == "lm_head.weight" else 1.0
            embeddings[name] = (torch.randn(VOCABULARY, 512, generator=own) * spread).to(torch.bfloat16)
    if family == "gemma3":
        embeddings = {
            name: tensor * 0.05 for name, tensor in embeddings.items()
        }  # times the root of 512 in the model
    tensors |= embeddings
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    document = json.loads((folder / "config.json").read_text())
    document.pop("transformers_version", None)
    if family == "deepseek_v3":  # vLLM asks for what transformers no longer writes
        document |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    (folder / "config.json").write_text(json.dumps(document | {"torch_dtype": "bfloat16"}, indent=1))
    if family == "qwen3_5_moe":
        add_processor(folder)


def scaled(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Matrices get outputs of about the size of their inputs, those that end a block a seventh of it."""
    if tensor.dim() < 2 or "conv1d" in name or "pos_embed" in name or "patch_embed" in name:
        if tensor.dim() == 1 and name.endswith("bias"):
            noise = torch.randn(tensor.shape, generator=generator) * 0.02
            return (tensor.float() + noise).to(tensor.dtype)
        return tensor
    spread = tensor.shape[-1] ** -0.5 * (0.15 if name.endswith(SMALL_OUTPUTS) else 1.0)
    if name == "mtp.fc.weight" or name.endswith("eh_proj.weight"):
        half = tensor.shape[0]
        return torch.cat((torch.eye(half), torch.randn(half, half, generator=generator) * 0.002), 1).to(
            tensor.dtype
        )
    return (torch.randn(tensor.shape, generator=generator) * spread).to(tensor.dtype)


def add_mtp(family: str, tensors: dict[str, torch.Tensor]) -> None:
    """A layer like the last one that has full attention, and what leads into it."""
    if family == "qwen3_5_moe":
        start = "model.language_model.layers.3."
        tensors |= {
            f"mtp.layers.0.{name.removeprefix(start)}": tensor.clone()
            for name, tensor in list(tensors.items())
            if name.startswith(start)
        }
        zeros = torch.zeros(512, dtype=torch.bfloat16)  # norms multiply by one more than their weight
        for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
            tensors[f"mtp.{name}.weight"] = zeros.clone()
        tensors["mtp.fc.weight"] = torch.zeros(512, 1024, dtype=torch.bfloat16)
    elif family == "deepseek_v3":
        start, to = "model.layers.3.", "model.layers.4."
        tensors |= {
            to + name.removeprefix(start): tensor.clone()
            for name, tensor in list(tensors.items())
            if name.startswith(start)
        }
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{to}{name}.weight"] = torch.ones(512, dtype=torch.bfloat16)
        tensors[f"{to}eh_proj.weight"] = torch.zeros(512, 1024, dtype=torch.bfloat16)
        tensors[f"{to}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{to}shared_head.head.weight"] = tensors["lm_head.weight"].clone()


def add_processor(folder: Path) -> None:
    special = {
        "<|endoftext|>": 2,
        "<|image_pad|>": 1020,
        "<|video_pad|>": 1021,
        "<|vision_start|>": 1022,
        "<|vision_end|>": 1023,
    }
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in plain] + [chr(256 + number) for number in range(256 - len(plain))]
    vocabulary = {letter: 3 + number for number, letter in enumerate(letters)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, number in special.items()
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary | special,
            "merges": [],
        },
    }
    sizes = {"shortest_edge": 65536, "longest_edge": 1048576}
    image = {
        "size": sizes,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    documents = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2TokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "chat_template": "{{ messages[0].content }}",
        },
        "preprocessor_config.json": image
        | {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor"},
        "video_preprocessor_config.json": image
        | {"video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor"},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1))


def write(form: str, plain: Path, out: Path) -> None:
    if plain.name.startswith("gpt_oss"):
        to_openai_mxfp4(plain, out)
        return
    if form not in MODELOPT_SOURCE:
        argv = [
            sys.executable,
            "-m",
            "firesteel",
            "quantize",
            str(plain),
            "--to",
            form,
            "--out",
            str(out),
            "--threads",
            "2",
            "--json",
        ]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            raise RuntimeError(
                f"firesteel quantize exited {done.returncode}: {done.stderr[-600:]} {done.stdout[-900:]}"
            )
        return
    quantized = plain.parent / plain.name.replace("-bf16", "-nvfp4")
    if not quantized.exists():
        write("nvfp4", plain, quantized)
    to_modelopt(plain, quantized, out, is_mixed=form == "mixed")


def to_modelopt(plain: Path, quantized: Path, out: Path, is_mixed: bool) -> None:
    """The same numbers under ModelOpt's names; its second scale is one over the global scale."""
    original, tensors = read(plain), read(quantized)
    config = json.loads((plain / "config.json").read_text())
    result: dict[str, torch.Tensor] = {}
    algorithms: dict[str, dict[str, str]] = {}
    for name, tensor in tensors.items():
        base = name.rpartition(".")[0]
        if name.endswith((".weight_scale", ".weight_global_scale", ".input_global_scale")):
            continue
        if not name.endswith(".weight_packed"):
            result[name] = tensor
            continue
        is_expert = ".mlp." in name or ".mixer.experts" in name
        if is_mixed and not is_expert:
            weight = original[f"{base}.weight"].float()
            scale = weight.abs().max() / 448
            result[f"{base}.weight"] = (weight / scale).to(torch.float8_e4m3fn)
            result[f"{base}.weight_scale"], result[f"{base}.input_scale"] = scale, torch.tensor(0.05)
            algorithms[base] = {"quant_algo": "FP8"}
            continue
        result[f"{base}.weight"] = tensor
        result[f"{base}.weight_scale"] = tensors[f"{base}.weight_scale"]
        result[f"{base}.weight_scale_2"] = (1 / tensors[f"{base}.weight_global_scale"].float()).reshape(())
        if not is_mixed:
            result[f"{base}.input_scale"] = torch.tensor(0.01)
        algorithms[base.split(".experts.")[0] + (".experts" if ".experts." in base else "")] = {
            "quant_algo": "W4A16_NVFP4"
        }
    for base in {name.removesuffix(".k_proj.weight") for name in result if name.endswith(".k_proj.weight")}:
        if not base.startswith("mtp"):
            result[f"{base}.k_proj.k_scale"], result[f"{base}.v_proj.v_scale"] = (
                torch.tensor(0.02),
                torch.tensor(0.015),
            )
    kept = sorted(
        name.removesuffix(".weight")
        for name, tensor in result.items()
        if name.endswith(".weight") and tensor.dim() == 2 and f"{name}_scale" not in result
    )
    about: dict[str, Any] = {
        "quant_method": "modelopt",
        "ignore": [*kept, "mtp*"],
        "producer": {"name": "modelopt", "version": "0.40.0"},
    }
    cache = {
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "kv_cache_quant_algo": "FP8",
    }
    if is_mixed:
        about |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": algorithms, "group_size": 16} | cache
    else:
        group = {
            "input_activations": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
            "targets": ["Linear"],
            "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
        }
        about |= {"quant_algo": "NVFP4", "config_groups": {"group_0": group}} | cache
    out.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in result.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    for path in plain.iterdir():
        if path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            (out / path.name).write_bytes(path.read_bytes())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": about}, indent=1))


def to_openai_mxfp4(plain: Path, out: Path) -> None:
    """gpt-oss's own layout: [experts, outputs, blocks of 32, 16 bytes], and a power of two for each block."""
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    result: dict[str, torch.Tensor] = {}
    for name, tensor in read(plain).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            result[name] = tensor
            continue
        blocks = tensor.float().transpose(1, 2).unflatten(-1, (-1, 32))
        exponents = torch.floor(torch.log2(blocks.abs().amax(-1).clamp_min(2.0**-120))) - 2
        values = blocks / torch.exp2(exponents).unsqueeze(-1)
        codes = (values.abs().unsqueeze(-1) - levels).abs().argmin(-1).to(torch.uint8) | (
            (values < 0).to(torch.uint8) << 3
        )
        result[f"{name}_blocks"] = codes[..., 0::2] | (codes[..., 1::2] << 4)
        result[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = json.loads((plain / "config.json").read_text())
    out.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in result.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    about = {"quant_method": "mxfp4", "modules_to_not_convert": left}
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": about}, indent=1))


def large(folder: Path) -> None:
    """Qwen3-8B's shapes, for `sleep_server.py`: 16 GB, with a tokenizer of one token for each byte."""
    settings = json.loads((SOURCE.parent / "tests/facts/configs/Qwen--Qwen3-8B.json").read_text())
    settings.pop("architectures", None)
    torch.manual_seed(1)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = CONFIG_MAPPING[settings.pop("model_type")].from_dict(settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="4GB")
    loader = SourceFileLoader("checkpoints", str(SOURCE.parent / "scripts/make-random-checkpoint"))
    module = module_from_spec(spec_from_loader("checkpoints", loader))
    loader.exec_module(module)
    module.write_tokenizer(folder)


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def adapter(folder: Path) -> None:
    """Rank 8 on queries and on the MLP's last matrix of `qwen3`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator, tensors = torch.Generator().manual_seed(3), {}
    for layer in range(4):
        for name, rows, columns in (("self_attn.q_proj", 512, 512), ("mlp.down_proj", 512, 1024)):
            at = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{at}.lora_A.weight"] = (
                torch.randn(8, columns, generator=generator) * columns**-0.5
            ).to(torch.bfloat16)
            tensors[f"{at}.lora_B.weight"] = (torch.randn(rows, 8, generator=generator) * 0.2).to(
                torch.bfloat16
            )
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
