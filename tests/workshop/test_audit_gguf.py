"""`audit` of GGUF files: made with the reference package, then damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

from firesteel.errors import UsageError
from firesteel.facts.formats.gguf import BLOCK_SCALES
from firesteel.facts.formats.number_bytes import summarize_blocks
from firesteel.workshop.audit import audit
from firesteel.workshop.repair import RepairOptions, repair
from tests.edge.hub_server import serving

HIDDEN, TOKENS, EXPERTS, LAYERS = 32, 40, 4, 6


def made(path: Path, change: Callable[[dict[str, Any]], None] = lambda parts: None) -> Path:
    """A tiny MoE with five layers and one MTP layer. `change` gets its parts before they are written."""
    tensors = {
        "token_embd.weight": (TOKENS, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (TOKENS, HIDDEN),
    }
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN), f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate_inp.weight": (EXPERTS, HIDDEN),
            f"blk.{layer}.ffn_up_exps.weight": (EXPERTS, 2 * HIDDEN, HIDDEN),
        }  # fmt: skip
    parts: dict[str, Any] = {
        "tensors": tensors, "tokens": [f"t{number}" for number in range(TOKENS)], "template": "{{ x }}",
        "quantized": set(), "drop_layers": (), "end": TOKENS - 1,
    }  # fmt: skip
    change(parts)
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_block_count(LAYERS)
    writer.add_eos_token_id(parts["end"])
    writer.add_nextn_predict_layers(1)
    writer.add_expert_count(EXPERTS)
    writer.add_embedding_length(HIDDEN)
    if parts["tokens"]:
        writer.add_token_list(parts["tokens"])
    if parts["template"]:
        writer.add_chat_template(parts["template"])
    for name, shape in parts["tensors"].items():
        if name in parts["quantized"]:
            rows = np.zeros((shape[0], shape[1] // 32 * 18), np.uint8)
            writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType.Q4_0)
        else:
            writer.add_tensor(name, np.full(shape, parts.get("fill", 0.0), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def without(start: str) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        parts["tensors"] = {
            name: shape for name, shape in parts["tensors"].items() if not name.startswith(start)
        }

    return change


def fewer_experts(parts: dict[str, Any]) -> None:
    parts["tensors"]["blk.1.ffn_up_exps.weight"] = (EXPERTS - 1, 2 * HIDDEN, HIDDEN)


def narrow_head(parts: dict[str, Any]) -> None:
    parts["tensors"]["output.weight"] = (TOKENS, HIDDEN // 2)


CASES: dict[str, Callable[[dict[str, Any]], None]] = {
    "layers-missing": without("blk.1."),
    "mtp-missing": without("blk.5."),
    "experts-missing": fewer_experts,
    "router-quantized": lambda parts: parts["quantized"].add("blk.0.ffn_gate_inp.weight"),
    "tensor-missing": without("blk.2.attn_q."),
    "shape-contradicts-config": narrow_head,
    "eos-beyond-vocabulary": lambda parts: parts.update(end=TOKENS),
    "tokenizer-missing": lambda parts: parts["tokens"].clear(),
    "tokenizer-beyond-embeddings": lambda parts: parts["tokens"].append("one too many"),
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "FIRESTEEL_HOME": str(tmp_path / "home/firesteel")}


def test_a_sound_gguf_is_clean(tmp_path: Path, environ: dict[str, str]) -> None:
    report = audit(str(made(tmp_path / "model.gguf")), environ=environ)
    assert report.findings == ()
    assert report.summary.model_type == "qwen3moe"
    assert report.summary.drafter_bytes > 0


@pytest.mark.parametrize("check", CASES)
def test_a_damaged_gguf_is_named(check: str, tmp_path: Path, environ: dict[str, str]) -> None:
    report = audit(str(made(tmp_path / "model.gguf", CASES[check])), environ=environ)
    assert [found.check for found in report.findings if found.level != "note"] == [check]


def test_a_cut_gguf_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    path = made(tmp_path / "model.gguf")
    data = path.read_bytes()
    for size, check in ((len(data) - 100, "shard-truncated"), (30, "shard-truncated")):
        path.write_bytes(data[:size])
        assert [found.check for found in audit(str(path), environ=environ).findings] == [check]
    path.write_bytes(b"JUNK" + data[4:])
    assert [found.check for found in audit(str(path), environ=environ).findings] == ["shard-damaged"]
    with pytest.raises(UsageError, match="GGUF"):
        repair(str(path), RepairOptions(), environ=environ)


@pytest.mark.parametrize("dtype", BLOCK_SCALES)
def test_scales_of_blocks_are_where_the_reference_reads_them(dtype: str) -> None:
    kind = GGMLQuantizationType[dtype]
    size = GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(7).integers(0, 256, (4000, size), np.uint8)
    for start in BLOCK_SCALES[dtype]:
        blocks[:, start + 1] &= 0x3B  # a finite number
    assert np.isfinite(dequantize(blocks, kind)).all()
    assert summarize_blocks(blocks.tobytes(), size, BLOCK_SCALES[dtype]).not_finite == 0
    for start in BLOCK_SCALES[dtype]:
        damaged = blocks.copy()
        damaged[5, start + 1] |= 0x7C
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(dequantize(damaged, kind)).all()
        found = summarize_blocks(damaged.tobytes(), size, BLOCK_SCALES[dtype])
        assert (found.not_finite, found.count) == (1, 4000 * len(BLOCK_SCALES[dtype]))


def test_deep_reads_every_byte_of_a_gguf(tmp_path: Path, environ: dict[str, str]) -> None:
    path = made(tmp_path / "model.gguf", lambda parts: parts.update(fill=1.0))
    report = audit(str(path), deep=True, environ=environ)
    assert report.is_clean and report.read_bytes == path.stat().st_size
    data = bytearray(path.read_bytes())
    data[-2:] = b"\xc0\x7f"  # the last value of the last tensor
    path.write_bytes(data)
    assert audit(str(path), environ=environ).is_clean
    deep = audit(str(path), deep=True, environ=environ)
    assert [(found.check, found.tensor) for found in deep.findings] == [
        ("weights-not-finite", f"blk.{LAYERS - 1}.ffn_up_exps.weight")
    ]


def test_a_gguf_on_the_hub(tmp_path: Path, environ: dict[str, str]) -> None:
    path = made(tmp_path / "model.gguf", CASES["experts-missing"])
    with serving() as hub:
        hub.add("org/model-gguf", {"model.gguf": path.read_bytes(), "README.md": b"x"})
        report = audit("org/model-gguf", environ=environ | {"HF_ENDPOINT": hub.url})
        assert [found.check for found in report.findings] == ["experts-missing"]
        sound = made(tmp_path / "sound.gguf").read_bytes()
        hub.add(
            "org/many", {"m-Q4_K_M.gguf": path.read_bytes(), "m-Q8_0.gguf": sound, "mmproj-F16.gguf": b"x"}
        )
        env = environ | {"HF_ENDPOINT": hub.url}
        assert audit("org/many:Q8_0", environ=env).is_clean
        for model in ("org/many", "org/many:Q2_K"):
            with pytest.raises(UsageError, match="GGUF"):
                audit(model, environ=env)
