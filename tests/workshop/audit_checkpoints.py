"""Small checkpoints as quantizers and publishers write them, and thirty ways in which they are damaged.

    python -m tests.workshop.audit_checkpoints FOLDER      writes all of them

`GOOD` has the sound ones; each of `DAMAGED` starts from one of these and is damaged in one way, under the
check that an audit must name. The file is long because the table of damages and the functions that it names
are read together.
"""

from __future__ import annotations

import json
import sys
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


# --- damaged ones ---

Damage = Callable[[MadeCheckpoint], None]
LAYER = "model.layers.1"
EXPERT = f"{LAYER}.mlp.experts.2"


@dataclass(frozen=True)
class Damaged:
    start: str
    """The sound checkpoint that it is made from."""
    check: str
    """What an audit must call it."""
    damage: Damage
    mended_by: str | None = None
    """The options of `repair` that mend it; `{good}` is the sound checkpoint."""

    def make(self) -> MadeCheckpoint:
        made = GOOD[self.start]()
        self.damage(made)
        return made


def _scale(name: str, factor: float) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        stored = made.tensors[name]
        made.tensors[name] = Stored.f32(stored.floats() * np.float32(factor))

    return damage


def _put(name: str, stored: Stored) -> Damage:
    return lambda made: made.tensors.__setitem__(name, stored)


def _drop(*ends: str) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        for name in [name for name in made.tensors if name.startswith(ends) or name.endswith(ends)]:
            del made.tensors[name]

    return damage


def _config(**values: Any) -> Damage:
    return lambda made: made.config.update(values)


def _section_of(made: MadeCheckpoint) -> dict[str, Any]:
    section: dict[str, Any] = made.config["quantization_config"]
    return section


def _unshare(made: MadeCheckpoint) -> None:
    """Each matrix with a global scale of its own, as by a tool that does not know what engines stack."""
    plain = weights(made.config)
    for name in [name for name in plain if f"{name.removesuffix('.weight')}.weight_packed" in made.tensors]:
        module, values = name.removesuffix(".weight"), plain[name]
        if name.endswith("up_proj.weight"):
            values = values * np.float32(0.3)
        made.tensors |= nvfp4(module, values, float(np.abs(values).max()))


def _plain_experts(made: MadeCheckpoint, which: str = ".experts.") -> None:
    plain = weights(made.config)
    for name in [name for name in plain if which in name]:
        module = name.removesuffix(".weight")
        for tensor in [tensor for tensor in made.tensors if tensor.startswith(f"{module}.")]:
            del made.tensors[tensor]
        made.tensors[name] = Stored.bf16(plain[name])


def _quantize_too(name: str) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        values = weights(made.config)[f"{name}.weight"]
        made.tensors.pop(f"{name}.weight", None)
        rows = -(-values.shape[1] // 16) * 16
        padded = np.zeros((values.shape[0], rows), np.float32)
        padded[:, : values.shape[1]] = values
        made.tensors |= nvfp4(name, padded, float(np.abs(values).max()))

    return damage


def _drafter(kind: Literal["missing", "quantized", "not ignored"]) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        prefix = "model.layers.2."
        if kind == "missing":
            _drop(prefix)(made)
        elif kind == "quantized":
            for name in [name for name in made.tensors if name.startswith(prefix) and "_proj.weight" in name]:
                _quantize_too(name.removesuffix(".weight"))(made)
        if kind != "missing":
            section = _section_of(made)
            section["ignore"] = [entry for entry in section["ignore"] if "layers\\.2" not in entry]

    return damage


def _index(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        made.index = change

    return damage


def _with_one_more(index: dict[str, Any]) -> dict[str, Any]:
    shard = "model-00001-of-00002.safetensors"
    return {**index, "weight_map": {**index["weight_map"], "model.extra.weight": shard}}


def _with_one_less(index: dict[str, Any]) -> dict[str, Any]:
    return {**index, "weight_map": {k: v for k, v in index["weight_map"].items() if k != "lm_head.weight"}}


def _without_quantization(made: MadeCheckpoint) -> None:
    del made.config["quantization_config"]


def _invert(made: MadeCheckpoint) -> None:
    for name in [name for name in made.tensors if name.endswith("weight_global_scale")]:
        made.tensors[name] = Stored.f32(1 / made.tensors[name].floats())


def _after(change: Callable[[Path], None]) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        made.after = change

    return damage


def _truncate(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def _flip_header(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\x00\xff")


def _rename_experts(made: MadeCheckpoint) -> None:
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name in [name for name in made.tensors if ".experts." in name]:
        other = name.replace(".mlp.", ".block_sparse_moe.")
        for leaf, letter in names.items():
            other = other.replace(leaf, letter)
        made.tensors[other] = made.tensors.pop(name)
    for name in [name for name in made.tensors if name.endswith("mlp.gate.weight")]:
        made.tensors[name.replace(".mlp.", ".block_sparse_moe.")] = made.tensors.pop(name)
    section = _section_of(made)
    section["ignore"] = [entry.replace(".mlp.", ".block_sparse_moe.") for entry in section["ignore"]]
    made.config |= {
        "model_type": "mixtral", "num_local_experts": EXPERTS, "intermediate_size": INNER,
        "sliding_window": None,
    }  # fmt: skip


def _rename_to_modelopt(made: MadeCheckpoint) -> None:
    for name in [name for name in made.tensors if name.endswith(".weight_packed")]:
        module = name.removesuffix(".weight_packed")
        made.tensors[f"{module}.weight"] = made.tensors.pop(name)
        divisor = made.tensors.pop(f"{module}.weight_global_scale").floats()
        made.tensors[f"{module}.weight_scale_2"] = Stored.f32(np.float32(1) / divisor[0])


def _text(name: str, text: str | None) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        if text is None:
            del made.texts[name]
        else:
            made.texts[name] = text

    return damage


_NVFP4, _MLA, _FP8, _OPT = "nvfp4-compressed-tensors", "mla-nvfp4", "fp8-dynamic", "nvfp4-modelopt"
_UP = f"{EXPERT}.up_proj"

DAMAGED: Mapping[str, Damaged] = {
    "gate-up-scales-differ": Damaged(_NVFP4, "shared-scales-differ", _unshare, "--scales"),
    "one-pair-differs": Damaged(
        _NVFP4, "shared-scales-differ", _scale(f"{_UP}.weight_global_scale", 1.1), "--scales"
    ),
    "mla-scales-differ": Damaged(_MLA, "shared-scales-differ", _unshare, "--scales"),
    "scales-inverted": Damaged(
        _NVFP4,
        "scale-inverted",
        _invert,
        "--scales",
    ),
    "scale-zero": Damaged(
        _NVFP4, "scale-not-positive", _put(f"{_UP}.weight_global_scale", Stored.f32([0.0])), "--graft {good}"
    ),
    "scale-negative": Damaged(_OPT, "scale-not-positive", _scale(f"{_UP}.weight_scale_2", -1.0)),
    "scale-nan": Damaged(
        _NVFP4, "scale-not-positive", _put(f"{_UP}.weight_global_scale", Stored.f32([np.nan]))
    ),
    "row-scale-nan": Damaged(
        _FP8, "scale-not-positive", _put(f"{_UP}.weight_scale", Stored.bf16(np.full((INNER, 1), np.nan)))
    ),
    "scale-wrong-shape": Damaged(
        _NVFP4, "scale-shape", _put(f"{_UP}.weight_scale", Stored.u8(np.full((INNER, 2), 0x38), "F8_E4M3"))
    ),
    "scale-wrong-type": Damaged(
        _NVFP4, "scale-dtype", _put(f"{_UP}.weight_scale", Stored.bf16(np.ones((INNER, HIDDEN // 16))))
    ),
    "scale-missing": Damaged(_NVFP4, "scale-missing", _drop(f"{_UP}.weight_global_scale"), "--graft {good}"),
    "scales-saturated": Damaged(
        _NVFP4,
        "scale-saturated",
        _put(f"{_UP}.weight_scale", Stored.u8(np.full((INNER, HIDDEN // 16), 0x7E), "F8_E4M3")),
    ),
    "experts-skipped": Damaged(_NVFP4, "experts-not-quantized", _plain_experts),
    "one-expert-skipped": Damaged(_NVFP4, "experts-mixed", lambda made: _plain_experts(made, "experts.3.")),
    "router-quantized": Damaged(
        _NVFP4, "router-quantized", _quantize_too(f"{LAYER}.mlp.gate"), "--graft {good}"
    ),
    "embeddings-quantized": Damaged(_NVFP4, "embeddings-quantized", _quantize_too("model.embed_tokens")),
    "mtp-missing": Damaged(_MLA, "mtp-missing", _drafter("missing"), "--graft {good}"),
    "mtp-quantized": Damaged(_MLA, "mtp-quantized", _drafter("quantized"), "--graft {good}"),
    "mtp-not-ignored": Damaged(_MLA, "mtp-not-ignored", _drafter("not ignored"), "--config"),
    "head-missing": Damaged(_NVFP4, "head-missing", _drop("lm_head."), "--graft {good}"),
    "index-promises-more": Damaged(
        _NVFP4,
        "index-promises-absent-tensor",
        _index(_with_one_more),
        "--index",
    ),
    "index-lacks-tensor": Damaged(
        _NVFP4,
        "tensor-not-in-index",
        _index(_with_one_less),
        "--index",
    ),
    "index-missing": Damaged(_NVFP4, "index-missing", _index(lambda index: None), "--index"),
    "shard-truncated": Damaged(_NVFP4, "shard-truncated", _after(_truncate)),
    "shard-damaged": Damaged(_NVFP4, "shard-damaged", _after(_flip_header)),
    "shard-missing": Damaged(
        _NVFP4, "shard-missing", _after(lambda folder: (folder / "model-00002-of-00002.safetensors").unlink())
    ),
    "layer-missing": Damaged(_NVFP4, "layers-missing", _drop(f"{LAYER}."), "--graft {good}"),
    "experts-missing": Damaged(_NVFP4, "experts-missing", _drop(f"{EXPERT}."), "--graft {good}"),
    "config-of-another-size": Damaged(_NVFP4, "shape-contradicts-config", _config(moe_intermediate_size=96)),
    "config-without-quantization": Damaged(
        _NVFP4, "quantization-config-missing", _without_quantization, "--config"
    ),
    "config-of-modelopt": Damaged(_NVFP4, "layout-contradicts-config", _rename_to_modelopt, "--config"),
    "ignore-list-misses": Damaged(
        _NVFP4,
        "unquantized-not-ignored",
        lambda made: _plain_experts(made, f"{LAYER}.self_attn.o_proj"),
        "--config",
    ),
    "ignored-but-quantized": Damaged(
        _NVFP4,
        "ignored-but-quantized",
        lambda made: _section_of(made)["ignore"].append(f"{LAYER}.self_attn.o_proj"),
        "--config",
    ),
    "input-scales-missing": Damaged(
        "nvfp4-w4a4", "input-scales-missing", _drop(".input_global_scale"), "--config"
    ),
    "experts-called-w1": Damaged(_NVFP4, "moe-target-missing", _rename_experts, "--config"),
    "tokenizer-too-large": Damaged(
        _NVFP4,
        "tokenizer-beyond-embeddings",
        _text("tokenizer.json", json.dumps({**TOKENIZER, "added_tokens": [{"id": 327, "content": "<x>"}]})),
    ),
    "tokenizer-missing": Damaged(
        _NVFP4, "tokenizer-missing", _text("tokenizer.json", None), "--graft {good}"
    ),
    "templates-differ": Damaged(_NVFP4, "templates-differ", _text("chat_template.jinja", "{{ other }}")),
}


def write_all(folder: Path) -> None:
    for name, make in GOOD.items():
        make().write(folder / "good" / name)
    for name, damaged in DAMAGED.items():
        damaged.make().write(folder / "damaged" / name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
