"""The examples run as they stand, from a home with nothing in it but what was pulled."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.run.service import all_services

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "tests/facts/configs/families/glm4_moe_lite.json"


@pytest.mark.real
def test_the_journey(quick_home: Home, tmp_path: Path, free_port: int) -> None:
    env = {
        **os.environ,
        "FIRESTEEL": str(write_program(tmp_path)),
        "FIRESTEEL_HOME": str(quick_home.root),
        "PORT": str(free_port),
    }
    done = subprocess.run(
        ["sh", str(ROOT / "examples/journey.sh")],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for seen in (
        "vllm-entrypoint-twice",
        '"content":',
        "smollm2  ready",
        "kind: Deployment",
        "smollm2 has stopped",
    ):
        assert seen in done.stdout + done.stderr, seen
    assert all_services(quick_home) == []


@pytest.mark.slow
def test_three_formats_behind_one_service(tmp_path: Path) -> None:
    """GLM-4.7-Flash with fewer and smaller layers, of which one is for MTP, and its experts fused."""
    config = json.loads(CONFIG.read_text("utf-8"))
    small = {
        "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
        "n_routed_experts": 8, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config | small))
    maker = [sys.executable, str(ROOT / "scripts/make-random-checkpoint")]
    subprocess.run([*maker, "config.json", "glm", "--layers", "3"], cwd=tmp_path, check=True, timeout=300)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "FIRESTEEL": str(write_program(tmp_path)),
        "FIRESTEEL_HOME": str(tmp_path / "home"),
    }
    script = ["sh", str(ROOT / "examples/quantize-and-swap.sh"), "glm"]
    done = subprocess.run(
        script, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("audit: nothing is wrong") == 2 and done.stdout.count("\nclean; read ") == 2
    assert "one of glm glm-fp8 glm-nvfp4" in done.stdout
    assert (tmp_path / "glm.yaml").read_text("utf-8").count("kind: Deployment") == 3


def write_program(folder: Path) -> Path:
    """firesteel as one program, as a user has it, on a path with a space."""
    program = folder / "bin of a user" / "firesteel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m firesteel "$@"\n')
    program.chmod(0o755)
    return program
