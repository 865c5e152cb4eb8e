"""How firesteel was started: the name to type, and the standard streams.

Commands are spelled as it was called: `./firesteel up`, not `firesteel up`. Streams may be closed, full, or
have no reader at the other end.
"""

from __future__ import annotations

import os
import re
import sys

from firesteel.errors import FiresteelError


def typed(text: str, called: str | None = None) -> str:
    """Replaces `firesteel` by how it was started, which the launcher puts in FIRESTEEL_COMMAND."""
    called = called or os.environ.get("FIRESTEEL_COMMAND") or "firesteel"
    return re.sub(r"\bfiresteel(?= [a-z-]|$)", lambda _: called, text)


# --- the standard streams ---


class OutputLost(FiresteelError):
    """Nothing more can be written to stdout; with --json, too, the error goes to stderr."""


def open_standard_streams() -> None:
    """Opens stdin and stderr where they are closed: the next file opened would take their place."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def require_stdout() -> None:
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        raise OutputLost("stdout is closed, so nothing can be shown", next="firesteel ... > FILE")


def discard_output() -> None:
    """What is still in the buffer would fail once more when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
