"""Which format a file has, told by what stands in it: file -> what it says is to be started.

Each reader looks at a document and says None when it is not of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from firesteel.errors import UsageError
from firesteel.reads import compose, kubernetes, llama_swap, recipe, sparkrun, systemd, vllm_recipes
from firesteel.reads.container_start import EngineStart
from firesteel.reads.nodes import Node, documents
from firesteel.reads.source_text import Passage, SourceFile

YAML_FORMATS: tuple[Callable[[Node], Iterable[EngineStart] | None], ...] = (
    compose.starts,
    kubernetes.starts,
    llama_swap.starts,
    recipe.starts,
    sparkrun.starts,
    vllm_recipes.starts,
)
_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(r"(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:---\s*\n|[A-Za-z_][\w.-]*:(?:[^\S\n]|\n))")


def is_yaml(page: SourceFile) -> bool:
    """By its name: what stands in its values is then YAML's, fences too."""
    return bool(_YAML_NAME.match(page.path))


def starts(page: SourceFile, source: Passage | None = None) -> tuple[EngineStart, ...] | None:
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
    found: list[EngineStart] = []
    known = is_named
    for node in nodes:
        for form in YAML_FORMATS:
            starts = form(node)
            if starts is not None:
                found += starts
                known = True
                break
    return tuple(found) if known else None
