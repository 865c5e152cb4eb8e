"""Thirty ways in which a checkpoint is damaged, each under the check that an audit must name.

python -m tests.workshop.damaged_checkpoints FOLDER      writes them and the sound ones
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.workshop.audit_checkpoints import (
    EXPERTS,
    GOOD,
    HIDDEN,
    INNER,
    TOKENIZER,
    MadeCheckpoint,
    weights,
)
from tests.workshop.reference_formats import Stored, nvfp4

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
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": EXPERTS,
        "intermediate_size": INNER, "sliding_window": None,
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
_BLOCKS = "fp8-block"
_UP = f"{EXPERT}.up_proj"


def _without_end(made: MadeCheckpoint) -> None:
    made.texts["generation_config.json"] = "{}"
    made.texts["tokenizer_config.json"] = json.dumps({"chat_template": "{{ messages }}"})


def _group_size(size: int) -> Damage:
    def damage(made: MadeCheckpoint) -> None:
        for group in _section_of(made)["config_groups"].values():
            group["weights"] = group["weights"] | {"group_size": size}

    return damage


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
    "end-missing": Damaged(_NVFP4, "eos-missing", _without_end),
    "group-size-differs": Damaged(_NVFP4, "group-size-contradicts-config", _group_size(32)),
    "block-size-differs": Damaged(
        _BLOCKS,
        "group-size-contradicts-config",
        lambda made: _section_of(made).update(weight_block_size=[64, 64]),
    ),
    "blocks-of-compressed-tensors": Damaged(
        _BLOCKS,
        "layout-contradicts-config",
        lambda made: made.config.update(
            quantization_config=GOOD[_FP8]().config["quantization_config"],
        ),
    ),
    "one-matrix-of-one-expert": Damaged(_NVFP4, "experts-missing", _drop(f"{EXPERT}.up_proj.")),
    "class-of-another-family": Damaged(
        _NVFP4, "class-contradicts-config", _config(architectures=["LlamaForCausalLM"])
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
