"""Commands to type, spelled the way firesteel was started: `./firesteel up`, not `firesteel up`."""

from __future__ import annotations

import os
import re


def typed(text: str, called: str | None = None) -> str:
    """Replaces `firesteel` by how it was started, which the launcher puts in FIRESTEEL_COMMAND."""
    called = called or os.environ.get("FIRESTEEL_COMMAND") or "firesteel"
    return re.sub(r"\bfiresteel(?= [a-z-]|$)", lambda _: called, text)
