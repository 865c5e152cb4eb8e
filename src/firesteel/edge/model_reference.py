"""What the name of a model refers to: something on disk, or a repository on the Hub."""

from __future__ import annotations

from pathlib import Path

from firesteel.hub_id import is_hub_id

__all__ = ["is_hub_id", "is_path"]


def is_path(name: str) -> bool:
    """Something on disk, or written like it; such a name is never looked up in the catalog."""
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")):
        return True
    try:
        return Path(name).is_dir()
    except OSError:  # longer than any file name
        return False
