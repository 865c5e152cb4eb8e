"""What to type next, with the word by which firesteel was called: `./firesteel up`, not `firesteel up`."""

from __future__ import annotations

import os
import re


def typed(text: str, called: str | None = None) -> str:
    """The launcher says in FIRESTEEL_COMMAND how it was called."""
    called = called or os.environ.get("FIRESTEEL_COMMAND") or "firesteel"
    return re.sub(r"\bfiresteel(?= [a-z-]|$)", lambda _: called, text)
