"""Fifty streams for five seconds through the whole gateway, with clients that leave and engines that die.

The long run is `benchmarks/gateway/soak.py`; it checks every byte of every stream.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "gateway" / "soak.py"


def test_nothing_is_lost_mixed_or_doubled() -> None:
    text = [sys.executable, str(SOAK), "--seconds", "5", "--streams", "50"]
    done = subprocess.run(text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
