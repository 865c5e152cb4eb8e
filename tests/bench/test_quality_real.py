"""`compare --quality` of two real servers: the embedded model, and the same one with coarser weights."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from firesteel.edge.home import Home
from tests.conftest import run_firesteel

pytestmark = [pytest.mark.real, pytest.mark.slow]


def coarser(source: Path, target: Path) -> Path:
    """The last of four bits is chance in a third of the layers: a worse quantization, without a quantizer."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    random = np.random.default_rng(0)
    for tensor in GGUFReader(target, "r+").tensors:
        if tensor.tensor_type.name == "Q4_1" and tensor.name.startswith("blk.1"):
            blocks = tensor.data.reshape(-1, 20)  # scale and least as float16, then 16 bytes of nibbles
            blocks[:, 4:] ^= random.integers(256, size=(len(blocks), 16), dtype=np.uint8) & 0x11
    return target


@pytest.fixture
def models(engine_home: Home, tmp_path: Path) -> tuple[Path, Path, Path]:
    found = next(engine_home.weights.rglob("*.gguf"))
    one, twin = tmp_path / "one.gguf", tmp_path / "twin.gguf"
    shutil.copyfile(found, one)
    shutil.copyfile(found, twin)
    return one, twin, coarser(found, tmp_path / "worse.gguf")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_worse_quantization_is_seen(engine_home: Home, models: tuple[Path, Path, Path]) -> None:
    for path in models:
        port = str(_free_port())
        ran = run_firesteel(engine_home.root, "up", str(path), "--context", "2048", "--port", port)
        assert ran.code == 0, ran.err
    same = run_firesteel(
        engine_home.root, "bench", "compare", "--quality", "one", "twin", "--budget", "2m", "--json"
    )
    worse = run_firesteel(
        engine_home.root, "bench", "compare", "--quality", "one", "worse", "--budget", "2m", "--json"
    )
    twins, coarse = same.json["comparison"], worse.json["comparison"]
    assert twins["agreement"]["value"] == 1.0
    assert twins["kl"]["value"] < 1e-4
    assert twins["questions"]["verdict"] == "cannot tell"
    assert coarse["agreement"]["value"] < 0.9
    assert coarse["kl"]["low"] > twins["kl"]["high"]
