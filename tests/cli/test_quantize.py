"""`firesteel quantize`: what it shows, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import Firesteel
from tests.workshop import made_checkpoints as made
from tests.workshop.upload_hub import upload_hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return made.write_checkpoint(tmp_path / "tiny", made.QWEN3_MOE, made.fused(made.qwen3_moe(), 4))


def test_from_a_folder_to_a_plan_of_the_result(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "tiny in 4 bits"
    ran = firesteel("quantize", str(model), "--to", "nvfp4", "--out", str(target))
    assert ran.code == 0, ran.err
    for part in ("871,936 bytes", "32 matrices in nvfp4", "before", "after", "largest errors"):
        assert part in ran.out
    assert f"firesteel plan '{target}'" in ran.err
    again = firesteel("quantize", str(model), "--to", "nvfp4", "--out", str(target))
    assert again.code == 2
    assert "already exists" in again.err
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


def test_a_damaged_source_is_stopped_before_the_work(
    firesteel: Firesteel, model: Path, tmp_path: Path
) -> None:
    tensors = made.fused(made.qwen3_moe(), 4)
    tensors.pop("model.layers.1.input_layernorm.weight")
    tensors.pop("model.layers.1.self_attn.o_proj.weight")
    damaged = made.write_checkpoint(tmp_path / "damaged", made.QWEN3_MOE, tensors)
    words = ("quantize", str(damaged), "--to", "nvfp4", "--out", str(tmp_path / "out"))
    ran = firesteel(*words)
    assert ran.code == 3 and "audit-tensor-missing" in ran.err
    assert "--despite tensor-missing" in ran.err and not (tmp_path / "out").exists()
    assert firesteel(*words, "--despite", "no-such-check").code == 2
    done = firesteel(*words, "--despite", "tensor-missing")
    assert done.code == 3, "the audit stops the result, too"
    assert "audit: stop:" in done.out and f"firesteel audit {tmp_path / 'out'}" in done.err


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
    assert f"next: {sys.executable} -m pip install numpy" in ran.err


def test_upload_goes_to_a_private_repository_and_goes_on(
    firesteel: Firesteel, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "name"
    words = ("quantize", str(model), "--to", "nvfp4", "--out", str(out), "--upload", "org/name")
    with upload_hub() as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
        assert firesteel(*words, env={**env, "HF_TOKEN": "", "HF_HOME": str(tmp_path / "hf")}).code == 2
        assert not out.exists(), "a missing token is told before the work"
        hub.fails_commits = 1
        refused = firesteel(*words, env=env)
        assert refused.code == 1
        assert "refused the upload" in refused.err
        again = firesteel(*words, env=env)
        assert again.code == 0, again.err
    assert len(hub.sent) == 1, "the weights were sent once"
    assert {created["visibility"] for created in hub.created} == {"private"}
    local = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert hub.files == local
    assert "firesteel-catalog/models/org/name.yaml" in local


def test_the_catalog_takes_the_entries(firesteel: Firesteel, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "Tiny-NVFP4"
    assert firesteel("quantize", str(model), "--to", "nvfp4", "--out", str(out)).code == 0
    shutil.copytree(out / "firesteel-catalog", tmp_path / "home" / "catalog")
    ran = firesteel("plan", "tiny-nvfp4", "--host", "gb10")
    assert ran.code == 0, ran.err


def test_calibration_is_planned_and_never_wedges_a_spark(firesteel: Firesteel, model: Path) -> None:
    words = ("quantize", str(model), "--to", "nvfp4-w4a4", "--calibrate", "cnn_dailymail", "--host", "gb10")
    ran = firesteel(*words)
    assert ran.code == 0, ran.err
    assert "hf_ptq.py" in ran.out
    assert "--dataset cnn_dailymail" in ran.out
    assert firesteel(*words, "--json").json["hours_high"] >= 0
