"""Where a figure comes from: a page, the day it was seen, and how reliable it is.

Hardware, image, recipe and rule files have the same schema for sources, so user interfaces can show them
alike. A figure without a source is an error in the file.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from firesteel.values import NOT_EMPTY, ExpandText, FileValue

Confidence = Literal["measured", "reported", "claimed"]
"""measured: a log or a benchmark shows it. reported: users or documents agree on it. claimed: one report."""


def _is_address(text: str) -> str:
    if not text.startswith(("https://", "http://")):
        raise ValueError("should be an address that starts with https://")
    return text


class Evidence(FileValue, kw_only=True):
    url: Annotated[str, ExpandText(_is_address)]
    seen: date
    note: str | None = None
    """What the page says about the figure, if the address does not show it."""


Sources = Annotated[tuple[Evidence, ...], NOT_EMPTY]
