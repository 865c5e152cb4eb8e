"""Jupyter notebooks -> shell text: `!` lines, `%%bash` cells, and the blocks of Markdown cells."""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.reads import markdown
from firesteel.reads.source_text import SourceFile, SourceText, join_texts

_CELL = re.compile(r"\s*%%(?:bash|sh|script\s+(?:bash|sh))\b[^\n]*(?:\n|\Z)")
_SHELL_LINE = re.compile(r"^[ \t]*!(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def blocks(file: SourceFile) -> tuple[tuple[str, SourceText], ...]:
    """With their language; UsageError for a file that is not JSON."""
    from firesteel.reads.nodes import parse_documents  # PyYAML: JSON with the position of every string

    return tuple(
        block
        for document in parse_documents(file)
        for cell in document.list_items("cells")
        for block in _blocks(cell.text_at("cell_type"), _source(cell.get("source")))
    )


def _blocks(kind: str | None, source: SourceText) -> Iterator[tuple[str, SourceText]]:
    if kind == "markdown":
        yield from markdown.blocks(source) or ()
    elif kind == "code":
        yield from (("bash", part) for part in _shell_parts(source))


def _source(node: object) -> SourceText:
    from firesteel.reads.nodes import Node

    if not isinstance(node, Node):
        return SourceText("", ((0, 0),))
    return join_texts(item.content for item in node.list_items()) if node.is_list else node.content


def _shell_parts(source: SourceText) -> Iterator[SourceText]:
    cell = _CELL.match(source.text)
    if cell:
        yield source.part(cell.end(), len(source.text))
        return
    for line in _SHELL_LINE.finditer(source.text):
        yield source.part(source.text.index("!", line.start()) + 1, line.end())
