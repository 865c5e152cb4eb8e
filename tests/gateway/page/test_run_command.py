"""Commands for the page run in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
import uvloop

from firesteel.gateway.page import run_command


@pytest.mark.parametrize("text", [b"", b"docker run x"])
def test_a_command_that_reads_nothing_may_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """With uvloop, as in the gateway: it raises when a pipe is written that the other side has closed."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec <&-\necho '{}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def run_many() -> list[bytes]:
        return [
            output
            for _ in range(5)
            for output in await asyncio.gather(*(run_command(("x",), text) for _ in range(8)))
        ]

    assert uvloop.run(run_many()) == [b"{}\n"] * 40
