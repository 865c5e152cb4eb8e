"""nvidia-smi, asked without ever waiting for it longer than it deserves.

Next to a driver in distress it has blocked for 737 s, and cannot even be killed then; so nobody waits for it
to go. https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23, seen 2026-11-15
"""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 10
_left_behind: list[subprocess.Popen[bytes]] = []
"""Told to go; the kernel collects them when they do."""


def query(*words: str) -> str | None:
    """What it prints; None when it is not there, fails or does not answer."""
    try:
        smi = subprocess.Popen(
            ("nvidia-smi", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        said, _ = smi.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        smi.kill()
        _left_behind.append(smi)
        return None
    return said.decode(errors="replace") if smi.returncode == 0 else None
