"""That the process asks glibc for what it means to ask, and that nothing is lost by it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
from firesteel.gateway import allocator
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if sys.argv[1] == "held": allocator.retain_free_memory()
for _ in range(20): bytes(bytearray(400_000))
before = faults()
for _ in range(100): bytes(bytearray(400_000))
print(faults() - before)
"""


def _count_faults(how: str) -> int:
    said = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, check=True, timeout=60)
    return int(said.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_long_prompts_do_not_ask_for_their_pages_anew() -> None:
    assert _count_faults("held") < 1000 < _count_faults("as it is")


def test_what_is_frozen_is_not_looked_at_again() -> None:
    from firesteel.gateway.allocator import freeze_startup_objects

    try:
        freeze_startup_objects()
        assert gc.get_freeze_count() > 0
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
