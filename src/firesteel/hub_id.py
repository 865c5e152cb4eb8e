"""Names of repositories on the Hub: `ORG/NAME`."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/\w[\w.-]*\Z", re.ASCII)
_MAX_PART_CHARS = 96


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hub id; only the Hub knows whether the repository exists."""
    return _HUB_ID.match(text) is not None


def is_valid_hub_id(text: str) -> bool:
    """Whether the Hub accepts such a name: `--` separates the parts in the folder names of its cache."""
    fits = all(len(part) <= _MAX_PART_CHARS for part in text.split("/"))
    return is_hub_id(text) and fits and "--" not in text and ".." not in text
