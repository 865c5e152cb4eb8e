"""The files that a browser loads."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = (".html", ".css", ".js", ".svg")


def read_files() -> dict[str, bytes]:
    """By name."""
    folder = Path(__file__).parent
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES}
