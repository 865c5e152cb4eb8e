"""Rates that cannot be, and rates that should not be, as they were published."""

from __future__ import annotations

import pytest

from firesteel.errors import UsageError
from firesteel.planner import doubt

SPARK = 273e9
SUPER = 12.8e9
"""Bytes a step of Nemotron-3-Super NVFP4, whose attention and head are wider than 4 bits."""


@pytest.mark.parametrize(
    ("rate", "size", "source"),
    [
        (23.7, SUPER, "vllm.ai blog, said to be without speculation; 16.3 was measured elsewhere"),
        (73.5, 5.6e9, "gemma-4-26B NVFP4 with NVIDIA's layer mix: another checkpoint"),
        (59.0, 5.2e9, "gpt-oss-120b in vLLM: attention and head in MXFP4 too"),
    ],
)
def test_too_good_to_be_this_checkpoint(rate: float, size: float, source: str) -> None:
    found = doubt(rate, size, SPARK)
    assert found is not None and found.is_too_good, source
    assert found.share > 0.95
    assert any("speculative" in reason for reason in found.reasons)
    assert any("checkpoint" in reason for reason in found.reasons)


def test_too_slow_for_one_user() -> None:
    found = doubt(17.6, 5.2e9, SPARK)
    assert found is not None and not found.is_too_good
    assert any("eager" in reason for reason in found.reasons)


def test_several_users_may_be_slow() -> None:
    assert doubt(4.0, 20e9, SPARK, users=32) is None


@pytest.mark.parametrize(("rate", "size"), [(16.29, SUPER), (4.54, 51.6e9), (57.1, 3.6e9)])
def test_rates_that_can_be(rate: float, size: float) -> None:
    assert doubt(rate, size, SPARK) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_no_rate_is_no_rate(rate: float) -> None:
    with pytest.raises(UsageError):
        doubt(rate, 1e9, SPARK)
