"""Checkpoints with the configs of published models: real names, shapes and sizes, in sparse files.

Only headers and scalars are written, so that 60 GB take a few megabytes of disk.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.quantization import Quantization, read_quantization
from firesteel.facts.model.tensors import TensorGroup

CONFIGS = Path(__file__).parents[1] / "facts" / "configs"
_SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "I64": 8}
Row = tuple[str, str, tuple[int, ...]]


def read_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def write_published(config: dict[str, Any], folder: Path, shard_bytes: int = 5 * 10**9) -> int:
    """As the publisher's tool lays it out; returns the bytes that the files claim."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}", "eos_token": "a"}')
    rows = [
        row
        for group in parameters_of_config(config).groups
        for row in _rows(group, read_quantization(config))
    ]
    shards: list[list[Row]] = [[]]
    size = total = 0
    for row in rows:
        size += _bytes(row)
        shards[-1].append(row)
        if size > shard_bytes:
            shards.append([])
            total, size = total + size, 0
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, held in zip(names, shards, strict=True):
        write_sparse(folder / name, held)
    weight_map = {row[0]: name for name, held in zip(names, shards, strict=True) for row in held}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return total + size


def _rows(group: TensorGroup, quantization: Quantization | None) -> Iterator[Row]:
    form = quantization.format_of(group) if quantization and group.is_linear else None
    for name in _names(group):
        shape = group.shape
        if form is None or form.bits >= 16:
            yield f"{name}.weight", "BF16", shape
        elif form.name == "nvfp4":
            rows, columns = shape
            is_packed = quantization is not None and quantization.method == "compressed-tensors"
            yield f"{name}.{'weight_packed' if is_packed else 'weight'}", "U8", (rows, columns // 2)
            yield f"{name}.weight_scale", "F8_E4M3", (rows, columns // 16)
            yield (
                f"{name}.{'weight_global_scale' if is_packed else 'weight_scale_2'}",
                "F32",
                (1,) if is_packed else (),
            )
            yield (
                f"{name}.{'input_global_scale' if is_packed else 'input_scale'}",
                "F32",
                (1,) if is_packed else (),
            )
        elif form.block:
            rows, columns = (-(-size // block) for size, block in zip(shape, form.block, strict=True))
            yield f"{name}.weight", "F8_E4M3", shape
            yield f"{name}.weight_scale_inv", "F32", (rows, columns)
        elif form.name == "fp8":
            yield f"{name}.weight", "F8_E4M3", shape
            yield f"{name}.weight_scale", "F32", (shape[0], 1) if form.has_row_scales else ()
        else:
            raise NotImplementedError(form.name)


def _names(group: TensorGroup) -> Iterator[str]:
    """One entry stands for all experts, and for equal norms."""
    if group.count == 1:
        yield group.name
    elif ".experts.0." in group.name:
        yield from (group.name.replace(".experts.0.", f".experts.{number}.") for number in range(group.count))
    else:
        yield from (f"{group.name}{number or ''}" for number in range(group.count))


def _bytes(row: Row) -> int:
    size = _SIZES[row[1]]
    for length in row[2]:
        size *= length
    return size


def write_sparse(path: Path, rows: list[Row]) -> None:
    order = sorted(rows, key=lambda row: (-_SIZES[row[1]], row[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, scalars, block_scales = 0, [], []
    for row in order:
        header[row[0]] = {"dtype": row[1], "shape": list(row[2]), "data_offsets": [at, at + _bytes(row)]}
        if row[1] == "F32" and row[0].endswith(("scale", "scale_2", "scale_inv")):
            scalars.append((at, row[0], _bytes(row) // 4))
        if row[1] == "F8_E4M3" and row[0].endswith("weight_scale"):
            block_scales.append((at, min(4096, _bytes(row))))
        at += _bytes(row)
    text = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for offset, name, count in scalars:
            value = 2000.0 if name.endswith("global_scale") else 0.0005
            file.seek(8 + len(text) + offset)
            file.write(struct.pack("<f", value) * count)
        for offset, count in block_scales:  # what an audit looks into
            file.seek(8 + len(text) + offset)
            file.write(b"\x38" * count)
        file.truncate(8 + len(text) + at)
