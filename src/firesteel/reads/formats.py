"""Which format a file has, told by what stands in it: file -> what it says is to be started.

Each reader looks at a document and says None when it is not of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from firesteel.errors import UsageError
from firesteel.reads.nodes import Node, documents
from firesteel.reads.passage import Page
from firesteel.reads.start import Start

YAML_FORMATS: tuple[Callable[[Node], Iterable[Start] | None], ...] = ()
_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(r"(?:\s*(?:#[^\n]*)?\n)*(?:---\s*\n|[A-Za-z_][\w.-]*:(?:[ \t]|\n))")


def starts(page: Page) -> tuple[Start, ...] | None:
    """What a file of a known format starts; None when it is none: a script, a guide, a line."""
    is_named = bool(_YAML_NAME.match(page.path))
    if not is_named and not _YAML_START.match(page.text):
        return None
    try:
        nodes = documents(page)
    except UsageError:
        if is_named:
            raise
        return None
    found: list[Start] = []
    known = is_named
    for node in nodes:
        for form in YAML_FORMATS:
            starts = form(node)
            if starts is not None:
                found += starts
                known = True
                break
    return tuple(found) if known else None
