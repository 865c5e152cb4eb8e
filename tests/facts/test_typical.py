"""Labels -> bytes, against what is published under those labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firesteel.errors import UsageError
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Role
from firesteel.facts.model.typical import LABELS, is_gguf, typical_weights
from firesteel.units import GIB

CONFIGS = Path(__file__).parent / "configs"
APPLE = "https://github.com/ggml-org/Llama-macOS/pull/63"
BENCH = "https://github.com/ggml-org/llama.cpp/blob/master/benches/dgx-spark/dgx-spark.md"


def gigabytes(name: str, label: str) -> float:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return typical_weights(parameters_of_config(config), label, "config.json").total_bytes / 1e9


@pytest.mark.parametrize(
    ("name", "label", "published"),
    [
        ("Qwen--Qwen3-8B", "bf16", 16.38),  # model.safetensors.index.json: 16,381,470,720
        ("Qwen--Qwen3-8B", "q4_k_m", 5.03),  # Qwen/Qwen3-8B-GGUF: 5.03 GB
        ("Qwen--Qwen3-8B", "q5_k_m", 5.85),  # the same: 5.85 GB
        ("Qwen--Qwen3-8B", "q6_k", 6.73),  # the same: 6.73 GB
        ("Qwen--Qwen3-8B", "q8_0", 8.71),  # the same: 8.71 GB
    ],
)
def test_sizes(name: str, label: str, published: float) -> None:
    assert gigabytes(name, label) == pytest.approx(published, rel=0.003)


@pytest.mark.parametrize(
    ("name", "label", "published", "url"),
    [
        ("Qwen--Qwen3.5-27B", "Q8_0", 28.6e9, APPLE),
        ("Qwen--Qwen3.5-27B", "UD-Q4_K_XL", 17.6e9, APPLE),
        ("Qwen--Qwen3.5-35B-A3B", "Q8_0", 36.9e9, APPLE),
        ("Qwen--Qwen3.5-35B-A3B", "UD-Q4_K_XL", 22.2e9, APPLE),
        ("Qwen--Qwen3.5-122B-A10B", "Q8_0", 129.9e9, APPLE),
        ("Qwen--Qwen3.5-122B-A10B", "UD-Q4_K_XL", 68.4e9, APPLE),
        ("Qwen--Qwen3.5-397B-A17B", "Q8_0", 421.5e9, APPLE),
        ("Qwen--Qwen3.5-397B-A17B", "UD-Q4_K_XL", 219.2e9, APPLE),
        ("openai--gpt-oss-20b", "MXFP4_MOE", 11.27 * GIB, BENCH),
        ("openai--gpt-oss-120b", "MXFP4_MOE", 59.02 * GIB, BENCH),
        ("Qwen--Qwen3-30B-A3B", "Q8_0", 30.25 * GIB, BENCH),
        (
            "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
            "Q4_K",
            65.1 * GIB,
            "https://github.com/ggml-org/llama.cpp/blob/master/benches/nemotron/nemotron-dgx-spark.md",
        ),
    ],
)
def test_published_files_lie_in_the_band(name: str, label: str, published: float, url: str) -> None:
    """Of the language model; a tower is a file of its own, and a drafter may be one."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    weights = typical_weights(parameters_of_config(config), label, "config.json")
    beside = (Role.TOWER, Role.DRAFTER)
    total = sum(size for role, size in weights.bytes_by_role.items() if role not in beside)
    low, high = weights.spread
    assert 0.998 * total * low <= published <= total * high, url


def test_a_dynamic_label_says_that_it_is_a_band() -> None:
    config = json.loads((CONFIGS / "Qwen--Qwen3-8B.json").read_text())
    weights = typical_weights(parameters_of_config(config), "ud-q3_k_xl", "config.json")
    assert weights.spread == (0.85, 1.25) and "UD-Q3_K_XL picks types tensor by tensor" in weights.source


def test_four_bits_leave_the_head_alone() -> None:
    config = json.loads((CONFIGS / "Qwen--Qwen3-8B.json").read_text())
    weights = typical_weights(parameters_of_config(config), "nvfp4", "config.json")
    forms = {form for role, form in weights.bytes_by_format if role.value == "head"}
    assert forms == {"16-bit"} and weights.provenance == "derived"


def test_every_label_is_known_and_others_are_refused() -> None:
    sizes = {label: gigabytes("Qwen--Qwen3-8B", label) for label in LABELS}
    assert min(sizes.values()) > 2.0 and max(sizes.values()) < 16.5
    assert is_gguf("Q4_K_M") and is_gguf("UD-IQ2_XXS") and is_gguf("q4_k") and not is_gguf("nvfp4")
    assert not is_gguf("ud-q9_k") and not is_gguf("ud-") and not is_gguf("ud-q4" + "_k" * 10000 + "!")
    with pytest.raises(UsageError, match="`int3` is not a known quantization") as caught:
        gigabytes("Qwen--Qwen3-8B", "int3")
    assert "nvfp4" in (caught.value.next or "")
