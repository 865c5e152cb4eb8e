"""Guides -> their blocks of code and their prose, with the lines where they stand.

Markdown and reStructuredText, and Jupyter notebooks: `!` lines, `%%bash` cells, and the blocks of their
Markdown cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from firesteel.reads.source_text import SourceFile, SourceText, join_texts

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
MARKED_SHELLS = {"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"}
SHELLS = {"", "text", *MARKED_SHELLS}
_QUOTE = re.compile(r"[ \t]*>[ \t]?")
GUIDES = (".md", ".markdown", ".mdx", ".rst")
_BLANKS = (" ", "\t")
_INDENTED = re.compile(r"(?: {4,}|\t)\S")
_STARTS_COMMAND = re.compile(
    r"\s*(?:[$%#]\s+)?(?:sudo\s+|env\s+|exec\s+|nohup\s+|(?:export\s+)?[A-Z_]\w*=\S*\s+)*"
    r"(?:\S*/)?(?:docker|podman|nerdctl|vllm|llama-server|sglang|python3?|uv|uvx)\s+\S"
    r"|\s*(?:export\s+)?[A-Z_]\w*="
)
"""A command, or a line that sets a variable for one."""
_DIRECTIVE = re.compile(
    r"(?P<indent>\s*+)(?:\.\. (?:code-block|code|sourcecode|prompt)::[ \t]*(?P<language>[\w+-]*)|.*::\s*\Z)"
)


def starts_command(line: str) -> bool:
    return _STARTS_COMMAND.match(line) is not None


def is_markdown(file: SourceFile) -> bool:
    return file.path.lower().endswith(GUIDES) or blocks(file.whole) is not None


@lru_cache(maxsize=4)  # several readers ask for the blocks of the same file
def blocks(source: SourceText) -> tuple[tuple[str, SourceText], ...] | None:
    """The language and the text of every block; None when there is no fence, so it is not Markdown.

    Indented lines are a block where they begin with a command.
    """
    found: list[tuple[str, SourceText]] = []
    lines: list[tuple[str, int]] = []
    has_fence = False
    for fence, offset, line, _ in _lines(source.text):
        if fence is None:
            continue
        if line is None:
            if lines:
                found.append((fence["language"].lower(), _block(source, lines)))
            has_fence, lines = True, []
        else:
            quote = _QUOTE.match(line) if ">" in fence["indent"] else None
            start = quote.end() if quote else 0
            lines.append((f"{line[start:]}\n", offset + start))
    if not has_fence:
        return None
    return (*found, *(("", _block(source, lines)) for lines in _indented(source)))


def _block(source: SourceText, lines: list[tuple[str, int]]) -> SourceText:
    *others, (last, offset) = lines
    return source.assemble([*others, (last.removesuffix("\n"), offset)], lines[0][1])


def _indented(source: SourceText) -> Iterator[list[tuple[str, int]]]:
    """Four blanks after an empty line; in a list this may also be prose, so a command must begin it."""
    lines: list[tuple[str, int]] = []
    is_after_blank = True
    for fence, offset, line, _ in _lines(source.text):
        is_code = fence is None and line is not None and line[:1] in _BLANKS and bool(_INDENTED.match(line))
        if is_code and line is not None and (lines or (is_after_blank and _STARTS_COMMAND.match(line))):
            lines.append((f"{line}\n", offset))
        elif lines:
            yield lines
            lines = []
        is_after_blank = fence is None and line is not None and not line.strip()
    if lines:
        yield lines


def literal_blocks(source: SourceText) -> tuple[tuple[str, SourceText], ...]:
    """reStructuredText: what is indented below `.. code-block:: bash` or a line that ends in `::`."""
    found: list[tuple[str, SourceText]] = []
    directive: re.Match[str] | None = None
    lines: list[tuple[str, int]] = []
    offset = 0
    for line in (*source.text.split("\n"), "end"):
        indent = len(line) - len(line.lstrip())
        if directive and line.strip() and indent <= len(directive["indent"]):
            if lines:
                found.append(((directive["language"] or "").lower(), _block(source, lines)))
            directive, lines = None, []
        if directive is None:
            directive = _DIRECTIVE.match(line)
        elif line.strip() and not (not lines and line.lstrip().startswith(":")):
            lines.append((f"{line}\n", offset))
        offset += len(line) + 1
    return tuple(found)


def code_lines(file: SourceFile) -> Iterator[tuple[int, str, str | None]]:
    """The lines inside fenced blocks with their number and language, and outside those that are indented."""
    for fence, _, line, number in _lines(file.text):
        if line is not None and (fence or _STARTS_COMMAND.match(line)):
            yield number, line, fence["language"].lower() if fence else ""


def prose(file: SourceFile) -> Iterator[tuple[int, str]]:
    """The number and the text of the lines outside fenced blocks."""
    for fence, _, line, number in _lines(file.text):
        if fence is None and line is not None:
            yield number, line


def is_fence(line: str) -> bool:
    """Whether the line opens or closes a fenced block."""
    return _FENCE.match(line) is not None


_Line = tuple[re.Match[str] | None, int, str | None, int]


@lru_cache(maxsize=4)
def _lines(text: str) -> tuple[_Line, ...]:
    """Every line with the fence around it, its offset and its number; None in place of a closing fence."""
    return tuple(_split_lines(text))


def _split_lines(text: str) -> Iterator[_Line]:
    opened: re.Match[str] | None = None
    offset = number = 0
    is_comment = False
    for number, line in enumerate(text.split("\n"), start=1):
        fence = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if opened is None and (is_comment or "<!--" in line):
            is_comment = "-->" not in line[max(line.rfind("<!--"), 0) :]
        elif opened is None and fence:
            opened = fence
        elif opened and fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            yield opened, offset, None, number
            opened = None
        else:
            yield opened, offset, line, number
        offset += len(line) + 1
    if opened:
        yield opened, offset, None, number


_CELL = re.compile(r"\s*%%(?:bash|sh|script\s+(?:bash|sh))\b[^\n]*(?:\n|\Z)")
_SHELL_LINE = re.compile(r"^[ \t]*!(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def notebook_blocks(file: SourceFile) -> tuple[tuple[str, SourceText], ...]:
    """The shell text of a notebook, with its language; UsageError for a file that is not JSON."""
    from firesteel.reads.yaml_nodes import parse_documents  # PyYAML: JSON with the position of every string

    return tuple(
        block
        for document in parse_documents(file)
        for cell in document.list_items("cells")
        for block in _cell_blocks(cell.text_at("cell_type"), _cell_source(cell.get("source")))
    )


def _cell_blocks(kind: str | None, source: SourceText) -> Iterator[tuple[str, SourceText]]:
    if kind == "markdown":
        yield from blocks(source) or ()
    elif kind == "code":
        yield from (("bash", part) for part in _shell_parts(source))


def _cell_source(node: object) -> SourceText:
    from firesteel.reads.yaml_nodes import Node

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
