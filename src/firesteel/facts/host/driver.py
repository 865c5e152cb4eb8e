"""The NVIDIA driver that a CUDA version needs."""

from __future__ import annotations

import re

_OLDEST = {11: 450, 12: 525, 13: 580}
"""By the major number of both:
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, seen 2026-11-15"""


def oldest_driver(cuda: str | None) -> int | None:
    """`13.0.2` -> 580; None for a version that is not known."""
    major = re.match(r"\d+", cuda or "")
    return _OLDEST.get(int(major[0])) if major else None
