"""`audit` on small checkpoints of many families, as transformers 5.23.0's `save_pretrained` writes them.

`families.json` has the config and the header of each: made from the classes of transformers with random
weights on 2026-11-19. Vision and audio towers are left out. Publishers fuse and rename matrices, so none of
these is stopped; and each is, when one matrix is taken away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from firesteel.workshop.audit import audit
from tests.workshop.published import Row, write_sparse

FAMILIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("families.json").read_text("utf-8"))
MATRIX = re.compile(r"layers\.\d+\..*(k_proj|o_proj|down_proj|w2|output_linear|dense)(\.weight)?\Z")
VECTOR = re.compile(r"layers\.2\.(\w*norm\.weight|\w+\.q_proj\.bias)\Z")
FOUR_LAYERS = [family for family in FAMILIES if FAMILIES[family]["config"].get("num_hidden_layers", 4) >= 4]
NOT_NAMED = {"cosmos3_omni", "hrm_text", "jamba", "llama4", "longcat_flash", "nemotron_h", "step3p7"}
"""Their matrices have other names than those that are known for the family."""


def read_header(family: str) -> list[Row]:
    """`model.layers.#.up_proj.weight 0,1`: the numbers that stand in the place of each `#`."""
    rows: list[Row] = []
    for kind, stored in FAMILIES[family]["tensors"].items():
        dtype, _, shape = stored.partition(" ")
        name, *numbers = kind.split(" ")
        for chosen in product(*(each.split(",") for each in numbers)):
            full = name.replace("#", "{}").format(*chosen)
            rows.append((full, dtype, tuple(map(int, shape.split("x"))) if shape else ()))
    return rows


def write_family(family: str, folder: Path, leave_out: str = "") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FAMILIES[family]["config"]))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    write_sparse(folder / "model.safetensors", [row for row in read_header(family) if row[0] != leave_out])
    return folder


def stops(folder: Path, environ: Mapping[str, str]) -> list[str]:
    report = audit(str(folder), environ=environ)
    return [f"{found.check} {found.tensor}" for found in report.findings if found.level == "stop"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_checkpoint_is_not_stopped(family: str, tmp_path: Path) -> None:
    assert stops(write_family(family, tmp_path / family), {"HOME": str(tmp_path)}) == []


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_NAMED])
def test_a_matrix_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    layers: dict[str, set[str]] = {}
    for name, _, shape in read_header(family):
        if MATRIX.search(name) and len(shape) > 1:
            layers.setdefault(re.sub(r"\d+", "#", name), set()).add(name)
    matrices = [name for names in layers.values() if len(names) > 1 for name in sorted(names)]
    for number, name in enumerate(matrices[:: max(1, len(matrices) // 6)]):
        found = stops(write_family(family, tmp_path / str(number), leave_out=name), {"HOME": str(tmp_path)})
        assert found, f"without {name} nothing is found"


@pytest.mark.parametrize("family", [family for family in FOUR_LAYERS if family not in NOT_NAMED])
def test_a_norm_or_a_bias_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    vectors = [name for name, _, shape in read_header(family) if VECTOR.search(name) and len(shape) == 1]
    assert vectors
    for number, name in enumerate(vectors):
        found = stops(write_family(family, tmp_path / str(number), leave_out=name), {"HOME": str(tmp_path)})
        assert found, f"without {name} nothing is found"
