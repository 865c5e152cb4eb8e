"""YAML as people write it -> nodes that know where they stand.

Other people's files, so more is allowed than in ours: anchors and aliases, merge keys, several documents.
What could blow up is bounded: aliases are followed and never copied, and a walk visits so many nodes at
most. Scalars stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from firesteel.errors import UsageError
from firesteel.reads import shell
from firesteel.reads.passage import Anchor, Page, Passage
from firesteel.reads.shell import Line, Word

MAX_DEPTH = 40
MAX_NODES = 100_000
MAX_DOCUMENTS = 500
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|\n[ \t]*|.)", re.DOTALL)
_HEADER = re.compile(r"[|>][^\n]*\n")
_NULLS = {"null", "~", ""}


@dataclass(frozen=True, slots=True)
class Node:
    """A mapping, a list or a text; asking one for what it is not gives nothing."""

    yaml: yaml.Node
    page: Page

    @property
    def text(self) -> str | None:
        """A scalar's text; None for anything else, and for a plain null."""
        node = self.yaml
        if not isinstance(node, yaml.ScalarNode) or (not node.style and node.value in _NULLS):
            return None
        return str(node.value)

    @property
    def word(self) -> Word | None:
        """A scalar as one word."""
        text = self.text
        if text is None:
            return None
        span = (self.yaml.start_mark.index, self.yaml.end_mark.index)
        return Word(text, *self.page.place(span[0]), 0, len(text), span, self.passage, True)

    @property
    def passage(self) -> Passage:
        """A scalar's text, and where each part of it stands."""
        if not isinstance(self.yaml, yaml.ScalarNode):
            return Passage("", ((0, self.yaml.start_mark.index),))
        return _aligned(self.yaml, self.page)

    def commands(self) -> tuple[Line, ...]:
        """A scalar read as shell text; nothing when it cannot be."""
        try:
            return shell.split(self.passage, self.page)
        except UsageError:
            return ()

    def words(self) -> tuple[Word, ...]:
        """A list of words, or a text with a command's words in it, on however many lines."""
        if isinstance(self.yaml, yaml.SequenceNode):
            return tuple(word for each in self.each() if (word := each.word))
        try:
            return shell.words(self.passage, self.page)
        except UsageError:
            return ()

    def get(self, *keys: str) -> Node | None:
        """What stands under these keys, one inside the other; None when there is no such thing."""
        node: Node | None = self
        for key in keys:
            node = dict(node.items()).get(key) if node else None
        return node

    def items(self) -> Iterator[tuple[str, Node]]:
        """Keys in order; what a merge key (`<<`) brings stands first, so that the node's own win."""
        yield from self._items(0)

    def _items(self, depth: int) -> Iterator[tuple[str, Node]]:
        if not isinstance(self.yaml, yaml.MappingNode) or depth > 4:
            return
        for key, value in self.yaml.value:
            if isinstance(key, yaml.ScalarNode) and key.value == "<<":
                inner = Node(value, self.page)
                for each in (inner, *inner.each()):
                    yield from each._items(depth + 1)
        for key, value in self.yaml.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                yield str(key.value), Node(value, self.page)

    def keys(self) -> Iterator[tuple[Word, Node]]:
        """As `items`, with each key as a word; without what was merged in."""
        for key, value in self.yaml.value if isinstance(self.yaml, yaml.MappingNode) else ():
            word = Node(key, self.page).word
            if word:
                yield word, Node(value, self.page)

    def each(self) -> Iterator[Node]:
        """The items of a list."""
        if isinstance(self.yaml, yaml.SequenceNode):
            yield from (Node(item, self.page) for item in self.yaml.value)

    @property
    def is_list(self) -> bool:
        return isinstance(self.yaml, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.yaml, yaml.MappingNode)


def documents(page: Page) -> tuple[Node, ...]:
    """Every YAML document of a page; UsageError with the line where it is none."""
    try:
        _bound(page)
        found = [node for node in yaml.compose_all(page.text, Loader=yaml.CBaseLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _mistake(page, mark.line + 1 if mark else 1, error.problem or "not YAML") from None
    except yaml.YAMLError as error:
        raise _mistake(page, 1, f"not YAML: {str(error).splitlines()[0]}") from None
    return tuple(Node(node, page) for node in found)


def _bound(page: Page) -> None:
    """Before anything is built: deep nesting overflows the C stack, and many documents take long."""
    depth = documents = 0
    for seen, event in enumerate(yaml.parse(page.text, Loader=yaml.CBaseLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise _mistake(page, line, f"nested deeper than {MAX_DEPTH} levels")
        if seen > MAX_NODES or documents > MAX_DOCUMENTS:
            raise _mistake(page, line, f"more than {MAX_NODES:,} values or {MAX_DOCUMENTS} documents")


def _mistake(page: Page, line: int, what: str) -> UsageError:
    return UsageError(f"{page.path}:{line}: {what}", next=f"correct {page.path} at line {line}")


def _aligned(node: yaml.ScalarNode, page: Page) -> Passage:
    """The value of a scalar laid beside its source: YAML takes away indents, quotes, escapes and folds."""
    value, source = str(node.value), page.text
    at, end = node.start_mark.index, node.end_mark.index
    if node.style in ("'", '"'):
        at, end = at + 1, end - 1
    elif node.style in ("|", ">"):
        header = _HEADER.match(source, at, end)
        at = header.end() if header else at
    if source[at : at + len(value)] == value:
        return Passage(value, ((0, at),))
    return Passage(value, tuple(_walk(value, source, at, end, node.style == '"')) or ((0, at),))


def _walk(value: str, source: str, at: int, end: int, escapes: bool) -> Iterator[Anchor]:
    expected = -1
    for offset, character in enumerate(value):
        while at < end:
            escape = _ESCAPE.match(source, at, end) if escapes and source[at] == "\\" else None
            if escape and escape[1][0] != "\n":
                step = escape.end() - at
                break
            if not escape and _same(character, source[at]):
                step = 1
                break
            at = escape.end() if escape else at + 1
        else:
            return
        if at != expected:
            yield offset, at
        at += step
        expected = at if step == 1 else -1


def _same(character: str, written: str) -> bool:
    """A fold turns a line end into a blank."""
    return character == written or (character == " " and written in "\n\t")
