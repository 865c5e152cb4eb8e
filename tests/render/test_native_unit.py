"""The unit of an engine without a container."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from firesteel.errors import UsageError
from firesteel.launch import EngineProgram, Launch
from firesteel.render.native_unit import native_unit

LAUNCH = Launch(
    "coder", "/models/a 100 %.gguf", "llamacpp", "11434", {"ctx-size": "4096", "metrics": True},
    {"GGML_CUDA_GRAPHS": "1"}, 8001, program=EngineProgram(("/bin/true",), "11434"),
)  # fmt: skip


def test_the_unit_starts_the_program_itself() -> None:
    text = native_unit(LAUNCH)
    assert "docker" not in text
    assert "Environment=GGML_CUDA_GRAPHS=1\n" in text
    assert 'ExecStart=/bin/true \\\n  --model "/models/a 100 %%.gguf" --host 127.0.0.1 --port 8001' in text


def test_systemd_accepts_it(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "firesteel-coder.service"
    unit.write_text(native_unit(LAUNCH))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "firesteel-coder" not in done.stderr, done.stderr


def test_a_launch_without_a_program_is_refused() -> None:
    with pytest.raises(UsageError):
        native_unit(Launch("coder", "m", "vllm"))
