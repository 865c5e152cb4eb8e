"""`firesteel quantize`: what it shows, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import Firesteel
from tests.workshop import made_checkpoints as made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return made.write_checkpoint(tmp_path / "tiny", made.QWEN3_MOE, made.fused(made.qwen3_moe(), 4))


def test_from_a_folder_to_a_plan_of_the_result(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "tiny-nvfp4"
    ran = firesteel("quantize", str(model), "--to", "nvfp4", "--out", str(target))
    assert ran.code == 0, ran.err
    for part in ("871,936 bytes", "32 matrices in nvfp4", "before", "after", "largest errors"):
        assert part in ran.out
    assert f"firesteel plan {target}" in ran.err
    again = firesteel("quantize", str(model), "--to", "nvfp4", "--out", str(target))
    assert again.code == 2
    assert "exists already" in again.err
    assert firesteel("plan", str(target), "--host", "gb10").code == 0


def test_json(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    words = ("quantize", str(model), "--to", "fp8-dynamic", "--out", str(tmp_path / "out"), "--json")
    plan = firesteel(*words, "--dry-run").json
    assert plan["document"] == "firesteel.quantize-plan/1"
    assert plan["forecast"]["after"]["fits"]
    assert not (tmp_path / "out").exists()
    done = firesteel(*words).json
    assert done["document"] == "firesteel.quantize/1"
    assert (
        done["bytes"]
        == plan["bytes"]
        == sum(p.stat().st_size for p in (tmp_path / "out").glob("*.safetensors"))
    )
    assert len(done["errors"]) == plan["matrices"]


def test_what_cannot_be_done_says_what_to_type(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    unknown = firesteel("quantize", str(model), "--to", "nvfp5")
    assert unknown.code == 2
    assert "nvfp4-spark" in unknown.err
    absent = firesteel("quantize", "org/not-pulled", "--to", "nvfp4")
    assert absent.code == 2
    assert "firesteel pull org/not-pulled --weights-only" in absent.err
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 256}))
    stopped = firesteel("quantize", str(model), "--to", "nvfp4")
    assert stopped.code == 3
    assert "--keep" in stopped.err


def test_without_numpy_it_says_what_to_install(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'numpy' else find(name, *rest)\n"
    )
    path = os.pathsep.join((str(hidden), os.environ.get("PYTHONPATH", "")))
    ran = firesteel("quantize", str(model), "--to", "nvfp4", env={"PYTHONPATH": path})
    assert ran.code == 5
    assert "firesteel[workshop]" in ran.err
