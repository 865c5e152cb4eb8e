"""Recognizes the format of a file by its content, and reads the starts it describes.

The reader of each YAML format returns None for a document that is not of its format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from firesteel.errors import UsageError
from firesteel.reads import dockerfile, markdown, nomad, systemd
from firesteel.reads.engine_start import EngineStart
from firesteel.reads.source_text import SourceFile, SourceText

if TYPE_CHECKING:
    from firesteel.reads.nodes import Node

_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(
    r"(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:---\s*\n|(?:-[^\S\n]+)?[A-Za-z_][\w.-]*:(?:[^\S\n]|\n))"
)


def is_yaml(file: SourceFile) -> bool:
    """By its name. Markdown fences inside its values are then not fences."""
    return bool(_YAML_NAME.match(file.path))


def starts(file: SourceFile, block: SourceText | None = None) -> tuple[EngineStart, ...] | None:
    """What a file of a known format starts, or a block of a guide; None for any other text."""
    documents = parse(file, block)
    if documents is None:
        return text_starts(file, block or file.whole)
    return yaml_starts(file, block, documents)


def parse(file: SourceFile, block: SourceText | None = None) -> tuple[Node, ...] | None:
    """The documents of a YAML file, or of a block; None for other text. UsageError for a file that is called
    YAML and is not."""
    is_named = block is None and is_yaml(file)
    source = block or file.whole
    if not is_named and not _YAML_START.match(source.text):
        return None
    # They load PyYAML, which takes as long to import as a command takes to check.
    from firesteel.reads import helm
    from firesteel.reads.nodes import parse_documents

    if is_named and helm.is_template(source):
        source = helm.filled_template(file)
    try:
        return parse_documents(file, source)
    except UsageError:
        if is_named:
            raise
        return None


def text_starts(file: SourceFile, source: SourceText) -> tuple[EngineStart, ...] | None:
    readers = (systemd.starts, dockerfile.starts, nomad.starts)
    return next((found for read in readers if (found := read(file, source)) is not None), None)


def yaml_starts(
    file: SourceFile, block: SourceText | None, documents: Iterable[Node]
) -> tuple[EngineStart, ...] | None:
    from firesteel.reads import (
        compose,
        helm,
        kubernetes,
        llama_swap,
        recipe,
        sparkrun,
        vllm_recipes,
        workflows,
    )

    formats = (compose, kubernetes, llama_swap, recipe, sparkrun, vllm_recipes, workflows, helm)
    read = [next((s for form in formats if (s := form.starts(node)) is not None), None) for node in documents]
    known = [starts for starts in read if starts is not None]
    is_named = block is None and is_yaml(file)
    return tuple(start for starts in known for start in starts) if known or is_named else None


def embedded_texts(documents: Iterable[Node]) -> Iterator[SourceText]:
    """The texts in YAML that may be a guide or a script: several lines, or the start of a command."""
    nodes = list(documents)
    while nodes:
        node = nodes.pop()
        text = node.text
        if text is not None and ("\n" in text or markdown.starts_command(text)):
            yield node.content
        nodes += (*node.list_items(), *(value for _, value in node.items()))
