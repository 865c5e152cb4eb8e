"""The two ways to read values, with numpy and without, see the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firesteel.facts.formats.number_bytes import ValueSummary, read_scalar, summarize
from firesteel.workshop import audit
from tests.workshop.reference_formats import Stored

DTYPES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_python_agree(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    for data in (rng.bytes(4096), bytes(64), b"\xff" * 64, b"\x7e" * 64, rng.bytes(4)):
        fast = audit.summarize_fast(dtype, data)
        with monkeypatch.context() as patch:
            patch.setattr(audit, "np", None)
            slow = audit.summarize_fast(dtype, data)
        assert _shown(fast) == _shown(slow) == _shown(summarize(dtype, data))
        assert fast.count == len(data) // DTYPES[dtype]


def _shown(values: ValueSummary) -> str:
    return repr(values)  # where NaN equals NaN


def test_values_by_hand() -> None:
    data = Stored.bf16([1.0, -2.0, 0.0, math.inf, 3.0]).data
    assert summarize("BF16", data) == ValueSummary(5, -2.0, 3.0, zeros=1, negatives=1, not_finite=1)
    full = summarize("F8_E4M3", bytes([0x7E, 0x7E, 0x38, 0x7F, 0x00]))
    assert full == ValueSummary(5, 0.0, 448.0, zeros=1, not_finite=1, at_maximum=2)
    assert read_scalar("F32", Stored.f32([0.25]).data) == 0.25
    assert read_scalar("BF16", Stored.bf16([0.25]).data) == 0.25
