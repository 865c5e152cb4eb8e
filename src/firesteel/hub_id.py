"""Names of repositories on the Hub: `ORG/NAME`, for GGUF files also `ORG/NAME:LABEL`."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/\w[\w.-]*\Z", re.ASCII)
_LABEL = re.compile(r":[\w.-]+\Z", re.ASCII)
_MAX_PART_CHARS = 96


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hub id; only the Hub knows whether the repository exists."""
    return _HUB_ID.match(text) is not None


def is_hub_model(model: str, *, with_label: bool = False) -> bool:
    """Whether an engine takes this name from the Hub, as opposed to a GGUF file in a folder of that name.

    `with_label` accepts `ORG/NAME:Q4_K_M` too, which llama.cpp downloads.
    """
    repository = _LABEL.sub("", model) if with_label else model
    return is_hub_id(repository) and not model.lower().endswith(".gguf")


def is_valid_hub_id(text: str) -> bool:
    """Whether the Hub accepts such a name: `--` separates the parts in the folder names of its cache."""
    fits = all(len(part) <= _MAX_PART_CHARS for part in text.split("/"))
    return is_hub_id(text) and fits and "--" not in text and ".." not in text
