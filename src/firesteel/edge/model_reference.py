"""What a word in the place of a model's name means: something on disk, or a repository on the Hub."""

from __future__ import annotations

import re
from pathlib import Path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z")


def is_path(word: str) -> bool:
    """Something on disk, or written like it: then it is never looked up in a catalog."""
    return word.startswith((".", "/", "~")) or word.endswith((".gguf", ".json")) or Path(word).is_dir()


def is_hub_id(word: str) -> bool:
    return bool(_HUB_ID.match(word))
