"""Run a firesteel command for the page, in a process of its own: the gateway's stays small."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress


async def run_command(arguments: Sequence[str], text: bytes) -> bytes:
    """Its standard output, whatever its exit code: with `--json` a failure is a document, too.

    It reads `text` from a file: uvloop raises when a command ends before it has read a pipe.
    """
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "firesteel", *arguments, stdin=file, stdout=PIPE, stderr=DEVNULL
        )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:  # nobody waits for the answer any more
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output
