"""The runner as a process: what a signal does to it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from firesteel.hosts.cluster import runner
from firesteel.hosts.cluster.nodes import Channel
from firesteel.hosts.cluster.rank import Rank
from firesteel.hosts.cluster.ranks import RankSpec


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


def test_a_report_in_the_moment_of_a_stop_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` of Python 3.11 forgets a cancellation that comes with what it waits for: the runner
    watched on for the minute until it was killed."""
    rank = Rank(RankSpec("here", 0, (), {}), Channel("here"), str(tmp_path), tmp_path / "log")
    feed_data = asyncio.StreamReader.feed_data

    async def is_ended() -> bool:
        watching = asyncio.ensure_future(rank.watch())

        def feed_and_cancel(reader: asyncio.StreamReader, data: bytes) -> None:
            feed_data(reader, data)
            asyncio.get_running_loop().call_soon(watching.cancel)

        monkeypatch.setattr(asyncio.StreamReader, "feed_data", feed_and_cancel)
        ended, _ = await asyncio.wait([watching], timeout=30)
        await rank._close()
        return bool(ended)

    assert asyncio.run(is_ended())


@pytest.mark.parametrize(("number", "phase"), [(0, "fallback"), (1, "waiting")])
def test_while_a_fallback_serves_the_nodes_are_waited_for(tmp_path: Path, number: int, phase: str) -> None:
    rank = Rank(RankSpec("here", number, (), {}), Channel("here"), str(tmp_path), tmp_path / "log")
    assert runner._phase("fallback", rank, None, False) == phase
