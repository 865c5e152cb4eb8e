"""What an audit costs: seconds and bytes for published layouts, and a deep one beside reading the file.

    PYTHONPATH=src:. .venv-dev/bin/python benchmarks/audit.py

Times are CPU seconds of one core, which a busy machine does not change much.
Checkpoints are sparse files with the configs of published models: real names, shapes and scalars, no weights.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.workshop.audit_checkpoints import write_safetensors
from tests.workshop.published import read_config, write_published
from tests.workshop.reference_formats import Stored

from firesteel.workshop.audit import audit

MODELS = ("nvidia--Qwen3.6-27B-NVFP4", "nvidia--Qwen3.6-35B-A3B-NVFP4", "nvidia--MiniMax-M2.5-NVFP4")
MODELS += ("Qwen--Qwen3-30B-A3B-FP8", "deepseek-ai--DeepSeek-V3")


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    environ = {"HOME": str(folder), "FIRESTEEL_HOME": str(folder / "home")}
    try:
        for name in MODELS:
            size = write_published(read_config(name), folder / name)
            began = time.process_time()
            report = audit(str(folder / name), environ=environ)
            took = time.process_time() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(
                f"{name}: {size / 1e9:.0f} GB, {report.summary.tensors:,} tensors, {took:.1f} s, "
                f"read {report.read_bytes / 1e6:.1f} MB, {peak} MB at most so far, clean {report.is_clean}"
            )
            shutil.rmtree(folder / name)
        _deep(folder / "deep", environ)
    finally:
        shutil.rmtree(folder)


def _deep(folder: Path, environ: dict[str, str]) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    plain = Stored.bf16(rng.standard_normal((16384, 8192)).astype(np.float32))
    packed = Stored("F8_E4M3", (16384, 8192), rng.integers(0, 126, 2**27, dtype=np.uint8).tobytes())
    write_safetensors(folder / "model.safetensors", {"a.weight": plain, "b.weight": packed})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    path = folder / "model.safetensors"
    began = time.process_time()
    with path.open("rb", buffering=0) as file:
        while file.read(8 * 2**20):
            pass
    reading = time.process_time() - began
    began = time.process_time()
    audit(str(folder), deep=True, environ=environ)
    took = time.process_time() - began
    size = path.stat().st_size / 1e6
    print(f"deep: {size / took:.0f} MB/s on one core, {took / reading:.1f} x of reading the file")


if __name__ == "__main__":
    main()
