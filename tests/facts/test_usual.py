"""Labels -> bytes, against what is published under those labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firesteel.errors import UsageError
from firesteel.facts.parameters import parameters
from firesteel.facts.usual import LABELS, is_gguf, usual_weights

CONFIGS = Path(__file__).parent / "configs"


def gigabytes(name: str, label: str) -> float:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return usual_weights(parameters(config), label, "config.json").total_bytes / 1e9


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


def test_four_bits_leave_the_head_alone() -> None:
    config = json.loads((CONFIGS / "Qwen--Qwen3-8B.json").read_text())
    weights = usual_weights(parameters(config), "nvfp4", "config.json")
    forms = {form for role, form in weights.bytes_by_format if role.value == "head"}
    assert forms == {"16-bit"} and weights.provenance == "derived"


def test_every_label_is_known_and_others_are_refused() -> None:
    sizes = {label: gigabytes("Qwen--Qwen3-8B", label) for label in LABELS}
    assert min(sizes.values()) > 4.5 and max(sizes.values()) < 16.5
    assert is_gguf("Q4_K_M") and not is_gguf("nvfp4")
    with pytest.raises(UsageError, match="`int3` is no quantization") as caught:
        gigabytes("Qwen--Qwen3-8B", "int3")
    assert "nvfp4" in (caught.value.next or "")
