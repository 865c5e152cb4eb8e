"""Whether the name of a model refers to something on disk. `hub_id` has the form of names on the Hub."""

from __future__ import annotations

from pathlib import Path


def is_path(name: str) -> bool:
    """Something on disk, or written like it; such a name is never looked up in the catalog."""
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")):
        return True
    try:
        return Path(name).is_dir()
    except OSError:  # longer than any file name
        return False
