"""The runner as a process: what a signal does to it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from firesteel.hosts.cluster import runner


class Stopping:
    """A runner that has lost a rank and stops the others, when `down` asks for it, too."""

    is_stopping = True

    def __init__(self, *_: object) -> None: ...

    async def run(self) -> int:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        for _ in range(20):
            await asyncio.sleep(0.01)  # the signal has come by now, and nothing is cancelled
        return 1


def test_a_stop_is_not_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Runner", Stopping)
    assert asyncio.run(runner._main(tmp_path, ())) == 1
