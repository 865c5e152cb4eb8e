"""Recognizes the format of a file by its content, and reads the starts it describes.

The reader of each YAML format returns None for a document that is not of its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from firesteel.errors import UsageError
from firesteel.reads import compose, kubernetes, llama_swap, recipe, sparkrun, systemd, vllm_recipes
from firesteel.reads.engine_start import EngineStart
from firesteel.reads.nodes import Node, parse_documents
from firesteel.reads.source_text import SourceFile, SourceText

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


def is_yaml(file: SourceFile) -> bool:
    """By its name. Markdown fences inside its values are then not fences."""
    return bool(_YAML_NAME.match(file.path))


def starts(file: SourceFile, block: SourceText | None = None) -> tuple[EngineStart, ...] | None:
    """What a file of a known format starts, or a block of a guide; None for any other text."""
    is_named = block is None and is_yaml(file)
    source = block or file.whole
    unit = None if is_named else systemd.starts(file, source)
    if unit is not None:
        return unit
    if not is_named and not _YAML_START.match(source.text):
        return None
    try:
        documents = parse_documents(file, source)
    except UsageError:
        if is_named:
            raise
        return None
    read = [next((s for form in YAML_FORMATS if (s := form(node)) is not None), None) for node in documents]
    known = [starts for starts in read if starts is not None]
    return tuple(start for starts in known for start in starts) if known or is_named else None
