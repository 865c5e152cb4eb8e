"""Where a figure comes from: a page, the day it was seen, and how far it can be trusted.

Hardware, image, recipe and rule files all write their sources this way, so a face can show them
all this way. A figure without a source is an error of the file, not a figure.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from firesteel.yaml_schema import FileSchema

Confidence = Literal["measured", "reported", "claimed"]
"""measured: a log or a benchmark shows it. reported: users or documents agree on it.
claimed: one voice says so."""


def _is_address(text: str) -> str:
    if not text.startswith(("https://", "http://")):
        raise ValueError("should be an address that starts with https://")
    return text


class Evidence(FileSchema):
    url: Annotated[str, AfterValidator(_is_address)]
    seen: date
    note: str | None = None
    """What the page says that matters here, when the address does not make it plain."""


Sources = Annotated[tuple[Evidence, ...], Field(min_length=1)]
