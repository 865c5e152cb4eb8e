"""YAML as people write it -> nodes that know where they stand.

Other people's files, so more is allowed than in ours: anchors and aliases, merge keys, several documents.
What could blow up is bounded before anyone walks it: a document counts as large and as deep as it is with
every alias written out. Scalars stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import yaml

from firesteel.errors import UsageError
from firesteel.reads import shell
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import Anchor, Passage, SourceFile

MAX_DEPTH = 40
MAX_NODES = 100_000
MAX_DOCUMENTS = 500
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|\n[ \t]*|.)", re.DOTALL)
_HEADER = re.compile(r"[|>][^\n]*\n")
_Yaml = yaml.Node
_Pairs = dict[str, tuple[yaml.ScalarNode, yaml.Node]]
_NULLS = {"null", "Null", "NULL", "~", ""}


@dataclass(frozen=True, slots=True)
class Node:
    """A mapping, a list or a text; asking one for what it is not gives nothing."""

    yaml: yaml.Node
    page: SourceFile
    source: Passage
    """The YAML text, and where that stands in the page."""

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
        span = self.source.span(self.yaml.start_mark.index, self.yaml.end_mark.index)
        return Word(text, *self.page.place(span[0]), 0, len(text), span, self.passage, True)

    @property
    def passage(self) -> Passage:
        """A scalar's text, and where each part of it stands."""
        if not isinstance(self.yaml, yaml.ScalarNode):
            return self.source.inner("", ((0, self.yaml.start_mark.index),))
        return _aligned(self.yaml, self.source)

    def commands(self) -> tuple[ShellCommand, ...]:
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
        """Each key once, with what holds for it: the node's own before what a merge key (`<<`) brings."""
        for name, (_, value) in self._pairs().items():
            yield name, self._node(value)

    def entries(self) -> dict[str, tuple[Word, Node]]:
        """As `items`, with each key as a word."""
        found = ((name, self._node(key).word, value) for name, (key, value) in self._pairs().items())
        return {name: (word, self._node(value)) for name, word, value in found if word}

    def _pairs(self) -> _Pairs:
        """A merge key may name several mappings, and the earlier wins."""
        found: _Pairs = {}
        pairs = self.yaml.value if isinstance(self.yaml, yaml.MappingNode) else ()
        for value in (value for key, value in pairs if _is_merge(key)):
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in reversed(merged):
                found |= self._node(each)._pairs()
        for key, value in pairs:
            if isinstance(key, yaml.ScalarNode) and not _is_merge(key):
                found[str(key.value)] = (key, value)
        return found

    def keys(self) -> Iterator[tuple[Word, Node]]:
        yield from self.entries().values()

    def each(self) -> Iterator[Node]:
        """The items of a list."""
        if isinstance(self.yaml, yaml.SequenceNode):
            yield from (self._node(item) for item in self.yaml.value)

    def _node(self, node: _Yaml) -> Node:
        return Node(node, self.page, self.source)

    @property
    def is_list(self) -> bool:
        return isinstance(self.yaml, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.yaml, yaml.MappingNode)


def _is_merge(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<"


def documents(page: SourceFile, source: Passage | None = None) -> tuple[Node, ...]:
    """Every YAML document of a page, or of a passage of it; UsageError with the line where it is none."""
    source = source or page.whole
    try:
        _bound(source, page)
        found = [node for node in yaml.compose_all(source.text, Loader=yaml.CBaseLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _mistake(page, source.at(mark.index if mark else 0), error.problem or "not YAML") from None
    except yaml.YAMLError as error:
        raise _mistake(page, source.at(0), f"not YAML: {str(error).splitlines()[0]}") from None
    sizes: dict[int, tuple[int, int]] = {}
    for node in found:
        _bound_aliases(node, sizes, lambda at, what: _mistake(page, source.at(at), what))
    return tuple(Node(node, page, source) for node in found)


def _bound(source: Passage, page: SourceFile) -> None:
    """Before anything is built: deep nesting overflows the C stack, and many documents take long."""
    depth = documents = 0
    for seen, event in enumerate(yaml.parse(source.text, Loader=yaml.CBaseLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        here = source.at(event.start_mark.index)
        if depth > MAX_DEPTH:
            raise _mistake(page, here, f"nested deeper than {MAX_DEPTH} levels")
        if seen > MAX_NODES or documents > MAX_DOCUMENTS:
            raise _mistake(page, here, f"more than {MAX_NODES:,} values or {MAX_DOCUMENTS} documents")


def _bound_aliases(
    node: yaml.Node, sizes: dict[int, tuple[int, int]], mistake: Callable[[int, str], UsageError]
) -> tuple[int, int]:
    """How many values and how many levels a node has with its aliases written out, each node measured once.

    An alias stands after its anchor, so that what it names is measured already, unless it names the node it
    stands in: that one has no end.
    """
    if id(node) not in sizes:
        sizes[id(node)] = (0, MAX_DEPTH + 1)
        inner = [_bound_aliases(each, sizes, mistake) for each in _inside(node)]
        values = 1 + sum(count for count, _ in inner)
        sizes[id(node)] = (values, 1 + max((levels for _, levels in inner), default=0))
    values, levels = sizes[id(node)]
    at = node.start_mark.index
    if values > MAX_NODES:
        raise mistake(at, f"more than {MAX_NODES:,} values once its aliases are written out")
    if levels > MAX_DEPTH + 1:
        raise mistake(at, f"nested deeper than {MAX_DEPTH} levels once its aliases are written out")
    return values, levels


def _inside(node: yaml.Node) -> Iterator[yaml.Node]:
    for each in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from each if isinstance(each, tuple) else (each,)


def _mistake(page: SourceFile, offset: int, what: str) -> UsageError:
    line, _ = page.place(offset)
    return UsageError(f"{page.path}:{line}: {what}", next=f"correct {page.path} at line {line}")


def _aligned(node: yaml.ScalarNode, source: Passage) -> Passage:
    """The value of a scalar laid beside its source: YAML takes away indents, quotes, escapes and folds."""
    value, text = str(node.value), source.text
    at, end = node.start_mark.index, node.end_mark.index
    if node.style in ("'", '"'):
        at, end = at + 1, end - 1
    elif node.style in ("|", ">"):
        header = _HEADER.match(text, at, end)
        at = header.end() if header else at
    if text[at : at + len(value)] == value:
        return source.inner(value, ((0, at),))
    return source.inner(value, tuple(_walk(value, text, at, end, node.style == '"')) or ((0, at),))


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
