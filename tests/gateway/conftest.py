from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone whose clocks change: 2026-10-25 has 25 hours, 2026-03-29 has 23."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
