"""GGUF labels, by the llama-quantize of a real build (`scripts/make-test-engine`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from firesteel.edge.checkpoints import open_path
from firesteel.edge.home import Home
from firesteel.edge.programs.installed import find_program
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.workshop.quantize.other_quantizers import is_gguf_label, plan_gguf, run_gguf

ENGINES = Home(
    Path(
        os.environ.get("FIRESTEEL_TEST_ENGINES")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firesteel-test-engines"
    )
)
PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def quantizer(built_engine: Path) -> Path:
    return Path(find_program("llamacpp", ENGINES).argv[0]).with_name("llama-quantize")


@pytest.fixture(scope="module")
def half(pulled: Home, quantizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's GGUF, in F16."""
    (source,) = pulled.weights.glob("*/*.gguf")
    made = tmp_path_factory.mktemp("gguf") / "smollm2.gguf"
    command = [str(quantizer), "--allow-requantize", str(source), str(made), "F16"]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.mark.real
def test_a_label_by_llama_cpp_itself(half: Path, tmp_path: Path) -> None:
    plan = plan_gguf(str(half), "Q4_K_M", None, ENGINES, PATH)
    size = run_gguf(plan, tmp_path / "out.gguf", 2)
    weights = open_path(str(tmp_path / "out.gguf")).weights
    assert plan.bytes == pytest.approx(weights.total_bytes, rel=0.001)
    assert size > weights.total_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    with pytest.raises(UsageError, match="already exists"):
        run_gguf(plan, tmp_path / "out.gguf", 2)
    with pytest.raises(UsageError, match="already quantized"):
        plan_gguf(str(tmp_path / "out.gguf"), "q8_0", None, ENGINES, PATH)


@pytest.mark.real
def test_what_llama_cpp_cannot_do_is_told_before(half: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="importance matrix"):
        plan_gguf(str(half), "iq2_xs", None, ENGINES, PATH)
    with pytest.raises(HostNotReady, match="convert_hf_to_gguf"):
        plan_gguf(str(tmp_path), "q4_k_m", None, ENGINES, PATH)
    with pytest.raises(HostNotReady, match="llama-server"):
        plan_gguf(str(half), "q4_k_m", None, Home(tmp_path), {"PATH": str(tmp_path)})
    bad = tmp_path / "imatrix.gguf"
    bad.write_text("no matrix")
    with pytest.raises(FiresteelError, match="llama-quantize failed"):
        run_gguf(plan_gguf(str(half), "q4_k_m", bad, ENGINES, PATH), tmp_path / "out.gguf", 2)
    assert not list(tmp_path.glob("*out*"))


def test_labels() -> None:
    assert is_gguf_label("Q4_K_M")
    assert not is_gguf_label("nvfp4")
