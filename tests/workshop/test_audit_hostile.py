"""Files that nobody wrote in good faith: an audit names what is wrong or refuses, in bounded memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from firesteel.errors import FiresteelError
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.workshop.audit import audit
from firesteel.workshop.repair import RepairOptions, repair
from tests.workshop.audit_checkpoints import GOOD, good, write_safetensors
from tests.workshop.reference_formats import Stored

JSON_FILES = (
    "config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "generation_config.json", "hf_quant_config.json",
)  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 1e308, "", "\x1b[31m\u202e", "x" * 5000, [], {}, [[]], {"a": {"b": []}},
    ["re:(a+)+$"], ["re:["], ["*" * 300], [None, 3],
)  # fmt: skip


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "FIRESTEEL_HOME": str(tmp_path / "home/firesteel")}


def survives(folder: Path, environ: dict[str, str]) -> tuple[CheckpointFinding, ...]:
    """Findings, or a readable error: never anything else. The same for what `repair` would do."""
    try:
        findings = audit(str(folder), deep=True, environ=environ).findings
    except FiresteelError as error:
        assert error.what
        return ()
    try:
        repair(str(folder), RepairOptions(), environ=environ)
    except FiresteelError as error:
        assert error.what
    return findings


@pytest.mark.parametrize("start", ["nvfp4-modelopt", "mla-nvfp4", "fp8-block"])
def test_mutated_headers(start: str, tmp_path: Path, environ: dict[str, str]) -> None:
    made = GOOD[start]().write(tmp_path / "model")
    path = made / "model-00001-of-00002.safetensors"
    sound = path.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    rng = random.Random(start)
    for _ in range(60):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(8 + length)] = rng.choice(
                (0, 0x22, 0x2C, 0x39, 0x5B, 0x7D, rng.randrange(256))
            )
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        path.write_bytes(data)
        survives(made, environ)


@pytest.mark.parametrize("name", JSON_FILES)
def test_mutated_texts(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    made = GOOD["nvfp4-modelopt"]().write(tmp_path / "model")
    sound = (made / name).read_text()
    rng = random.Random(name)
    for _ in range(30):
        value = json.loads(sound)
        _mutate(value, rng)
        (made / name).write_text(json.dumps(value))
        survives(made, environ)
    for text in (
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        "\ud800".encode(errors="replace").decode(),
    ):
        (made / name).write_text(text)
        survives(made, environ)


def _mutate(value: Any, rng: random.Random) -> None:
    """Somewhere inside, another value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(value[key], dict | list) or not value[key] or rng.random() < 0.3:
            value[key] = rng.choice(HOSTILE)
            return
        value = value[key]


@pytest.mark.parametrize(
    "shape", [(), (0,), (0, 64), (1, 0), (1,), (3,), (2, 2, 2), (1,) * 16, (64, 1), (1, 2**20)]
)
@pytest.mark.parametrize("part", ["weight_packed", "weight_scale", "weight_global_scale", "weight"])
def test_hostile_shapes(part: str, shape: tuple[int, ...], tmp_path: Path, environ: dict[str, str]) -> None:
    made = good("ct-nvfp4")
    size = 1
    for length in shape:
        size *= length
    dtype, item = {"weight_packed": ("U8", 1), "weight_scale": ("F8_E4M3", 1)}.get(part, ("F32", 4))
    stored = Stored(dtype, shape, bytes(size * item))
    for module in ("model.layers.0.mlp.experts.0.up_proj", "model.embed_tokens", "model.layers.0.mlp.gate"):
        made.tensors[f"{module}.{part}"] = stored
    findings = survives(made.write(tmp_path / "model"), environ)
    assert any(found.level == "stop" for found in findings) or part == "weight"


def test_names_cannot_move_the_cursor(tmp_path: Path, environ: dict[str, str]) -> None:
    made = good("ct-nvfp4")
    made.tensors["model.\x1b[2J.weight_scale"] = Stored.f32([1.0])
    findings = survives(made.write(tmp_path / "model"), environ)
    assert any(found.check == "scale-without-weight" for found in findings)


def test_memory_is_bounded(tmp_path: Path, environ: dict[str, str]) -> None:
    """Four thousand tensors: names, shapes and scalars, nothing of the data."""
    made = GOOD["nvfp4-compressed-tensors"]().write(tmp_path / "model")
    many = {
        f"model.layers.0.mlp.experts.{number}.{leaf}_proj.weight_global_scale": Stored.f32([1.0])
        for number in range(2000)
        for leaf in ("gate", "up")
    }
    write_safetensors(made / "model-00001-of-00002.safetensors", many)
    tracemalloc.start()
    survives(made, environ)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 2**20
