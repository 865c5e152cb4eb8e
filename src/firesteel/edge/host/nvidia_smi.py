"""nvidia-smi, with a time limit that holds even when it cannot be killed.

Next to a driver in distress it has blocked for 737 s and could not be killed, so nobody waits for it to exit.
https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23, seen 2026-11-15
"""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 10
_abandoned: list[subprocess.Popen[bytes]] = []
"""Killed and not waited for. Kept, since Popen warns when it is deleted while the child runs."""


def query(*arguments: str) -> str | None:
    """Its output; None when it is not installed, fails or does not answer."""
    try:
        child = subprocess.Popen(
            ("nvidia-smi", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        output, _ = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        _abandoned.append(child)
        return None
    return output.decode(errors="replace") if child.returncode == 0 else None
