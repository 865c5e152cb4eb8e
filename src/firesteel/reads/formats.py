"""Which format a file has, told by what stands in it: file -> what it says is to be started.

Each reader looks at a document and says None when it is not of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from firesteel.errors import UsageError
from firesteel.reads import compose, kubernetes, llama_swap, own, sparkrun, systemd, vllm_recipes
from firesteel.reads.nodes import Node, documents
from firesteel.reads.passage import Page, Passage
from firesteel.reads.start import Start

YAML_FORMATS: tuple[Callable[[Node], Iterable[Start] | None], ...] = (
    compose.starts,
    kubernetes.starts,
    llama_swap.starts,
    own.starts,
    sparkrun.starts,
    vllm_recipes.starts,
)
_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(r"(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:---\s*\n|[A-Za-z_][\w.-]*:(?:[^\S\n]|\n))")


def is_yaml(page: Page) -> bool:
    """By its name: what stands in its values is then YAML's, fences too."""
    return bool(_YAML_NAME.match(page.path))


def starts(page: Page, source: Passage | None = None) -> tuple[Start, ...] | None:
    """What a file of a known format starts, or a block of a guide; None when it is none of these."""
    is_named = source is None and is_yaml(page)
    source = source or page.whole
    unit = None if is_named else systemd.starts(page, source)
    if unit is not None:
        return unit
    if not is_named and not _YAML_START.match(source.text):
        return None
    try:
        nodes = documents(page, source)
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
