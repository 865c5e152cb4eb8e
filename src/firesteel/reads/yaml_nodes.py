"""YAML as people write it -> nodes that know their position, and docker options made of them.

These are other people's files, so more is allowed than in ours: anchors and aliases, merge keys, several
documents. The size and the depth are limited before anything walks the nodes, with every alias counted as the
nodes that it stands for. Scalars stay text. An option has the position of its key or of its list item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import yaml

from firesteel.errors import UsageError
from firesteel.launch import Mount
from firesteel.reads import shell
from firesteel.reads.docker import DockerOption, mount_argument
from firesteel.reads.shell import Word
from firesteel.reads.source_text import Anchor, SourceFile, SourceText
from firesteel.values import Value, replace

MAX_DEPTH = 40
MAX_NODES = 100_000
MAX_DOCUMENTS = 500
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|\n[ \t]*|.)", re.DOTALL)
_HEADER = re.compile(r"[|>][^\n]*\n")
_Pairs = dict[str, tuple[yaml.ScalarNode, "Node"]]
Entry = tuple[Word, "Node"]
"""A key and its value."""
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = {"null", "Null", "NULL", "~", ""}


class Node(Value, dict=True):
    """A mapping, a list or a scalar. Asked for what it is not, or for keys it does not have, it gives
    nothing."""

    raw: yaml.Node
    file: SourceFile
    source: SourceText
    """The YAML text that the marks of the node refer to."""

    @property
    def text(self) -> str | None:
        """A scalar's text; None for anything else, and for a plain null."""
        node = self.raw
        if not isinstance(node, yaml.ScalarNode) or (not node.style and node.value in _NULLS):
            return None
        return str(node.value)

    @property
    def word(self) -> Word | None:
        """A scalar as one word."""
        text = self.text
        if text is None:
            return None
        span = self.source.span(self.raw.start_mark.index, self.raw.end_mark.index)
        return Word(text, *self.file.place(span[0]), 0, len(text), span, self.content, True)

    @property
    def content(self) -> SourceText:
        """The text of a scalar, and where it stands."""
        if not isinstance(self.raw, yaml.ScalarNode):
            return self.source.inner("", ((0, self.raw.start_mark.index),))
        return _aligned(self.raw, self.source)

    def plain_value(self) -> object:
        """As JSON would have it: text, true or false, a list or a mapping; None for null."""
        if self.is_list:
            return [item.plain_value() for item in self.list_items()]
        if self.is_mapping:
            return {name: value.plain_value() for name, value in self.items()}
        is_plain = isinstance(self.raw, yaml.ScalarNode) and not self.raw.style
        return _BOOLEANS.get(self.text or "", self.text) if is_plain else self.text

    def words(self, *keys: str) -> tuple[Word, ...]:
        """The scalars of a list, or the words of a command in a scalar, on any number of lines."""
        node = self.get(*keys)
        if node is None or node.is_list:
            return tuple(word for item in self.list_items(*keys) if (word := item.word))
        try:
            return shell.words(node.content, self.file)
        except UsageError:
            return ()

    def get(self, *keys: str) -> Node | None:
        """The value under these keys, each inside the value of the one before; None if there is none."""
        node: Node | None = self
        for key in keys:
            pair = node._pairs.get(key) if node else None
            node = pair[1] if pair else None
        return node

    def text_at(self, *keys: str) -> str | None:
        node = self.get(*keys)
        return node.text if node else None

    def word_at(self, *keys: str) -> Word | None:
        node = self.get(*keys)
        return node.word if node else None

    def entry_at(self, *keys: str) -> Entry | None:
        return self.entries(*keys[:-1]).get(keys[-1])

    def items(self, *keys: str) -> Iterator[tuple[str, Node]]:
        """The keys and values of a mapping; its own keys override those of a merge key (`<<`)."""
        node = self.get(*keys)
        for name, (_, value) in node._pairs.items() if node else ():
            yield name, value

    def entries(self, *keys: str) -> dict[str, Entry]:
        """Like `items`, with the position of the keys."""
        node = self.get(*keys)
        return {
            name: (word, value)
            for name, (key, value) in (node._pairs if node else {}).items()
            if (word := self._node(key).word)
        }

    def list_items(self, *keys: str) -> Iterator[Node]:
        node = self.get(*keys)
        if node and isinstance(node.raw, yaml.SequenceNode):
            yield from (self._node(item) for item in node.raw.value)

    @cached_property
    def _pairs(self) -> _Pairs:
        """A merge key may name several mappings, and the earlier wins."""
        merged_pairs: _Pairs = {}
        pairs = self.raw.value if isinstance(self.raw, yaml.MappingNode) else ()
        for value in (value for key, value in pairs if _is_merge(key)):
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for mapping in reversed(merged):
                merged_pairs |= self._node(mapping)._pairs
        for key, value in pairs:
            if isinstance(key, yaml.ScalarNode) and not _is_merge(key):
                merged_pairs[str(key.value)] = (key, self._node(value))
        return merged_pairs

    def _node(self, node: yaml.Node) -> Node:
        return Node(node, self.file, self.source)

    @property
    def is_list(self) -> bool:
        return isinstance(self.raw, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.raw, yaml.MappingNode)


def _is_merge(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<"


def parse_documents(file: SourceFile, source: SourceText | None = None) -> tuple[Node, ...]:
    """Every YAML document of a file, or of a part of it; UsageError with the line that is not YAML."""
    source = source or file.whole
    try:
        _check_size(source, file)
        nodes = list(yaml.compose_all(source.text, Loader=yaml.CBaseLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(file, source.at(mark.index if mark else 0), error.problem or "not YAML") from None
    except yaml.YAMLError as error:
        raise _error(file, source.at(0), f"not YAML: {str(error).splitlines()[0]}") from None
    sizes: dict[int, tuple[int, int]] = {}
    for node in nodes if "*" in source.text else ():  # without an alias nothing expands
        _check_expanded_size(node, sizes, lambda offset, problem: _error(file, source.at(offset), problem))
    return tuple(Node(node, file, source) for node in nodes)


def _check_size(source: SourceText, file: SourceFile) -> None:
    """Before nodes are built: deep nesting overflows the C stack, and many documents take long."""
    depth = documents = 0
    for count, event in enumerate(yaml.parse(source.text, Loader=yaml.CBaseLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        offset = source.at(event.start_mark.index if event.start_mark else 0)
        if depth > MAX_DEPTH:
            raise _error(file, offset, f"nested deeper than {MAX_DEPTH} levels")
        if count > MAX_NODES or documents > MAX_DOCUMENTS:
            raise _error(file, offset, f"more than {MAX_NODES:,} values or {MAX_DOCUMENTS} documents")


def _check_expanded_size(
    node: yaml.Node, sizes: dict[int, tuple[int, int]], error: Callable[[int, str], UsageError]
) -> tuple[int, int]:
    """How many values and levels a node has with its aliases expanded. Each node is measured once.

    An alias comes after its anchor, so its node is already measured, unless it names a node around itself:
    that would expand for ever.
    """
    if id(node) not in sizes:
        sizes[id(node)] = (0, MAX_DEPTH + 1)
        inner = [_check_expanded_size(child, sizes, error) for child in _children(node)]
        values = 1 + sum(count for count, _ in inner)
        sizes[id(node)] = (values, 1 + max((levels for _, levels in inner), default=0))
    values, levels = sizes[id(node)]
    if values > MAX_NODES:
        raise error(node.start_mark.index, f"more than {MAX_NODES:,} values with its aliases expanded")
    if levels > MAX_DEPTH + 1:
        raise error(node.start_mark.index, f"nested deeper than {MAX_DEPTH} levels with its aliases expanded")
    return values, levels


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from child if isinstance(child, tuple) else (child,)


def _error(file: SourceFile, offset: int, problem: str) -> UsageError:
    line, _ = file.place(offset)
    return UsageError(f"{file.path}:{line}: {problem}", next=f"correct {file.path} at line {line}")


def _aligned(node: yaml.ScalarNode, source: SourceText) -> SourceText:
    """The value of a scalar aligned with its source: YAML removes indents, quotes, escapes and folds."""
    value, text = str(node.value), source.text
    start, end = node.start_mark.index, node.end_mark.index
    if node.style in ("'", '"'):
        start, end = start + 1, end - 1
    elif node.style in ("|", ">"):
        header = _HEADER.match(text, start, end)
        start = header.end() if header else start
    if text[start : start + len(value)] == value:
        return source.inner(value, ((0, start),))
    return source.inner(value, tuple(_align(value, text, start, end, node.style == '"')) or ((0, start),))


def _align(value: str, source: str, position: int, end: int, has_escapes: bool) -> Iterator[Anchor]:
    """Walk through value and source together; an anchor wherever they stop going in step."""
    expected, offset = -1, 0
    while offset < len(value):
        character = value[offset]
        while position < end:
            escape = (
                _ESCAPE.match(source, position, end) if has_escapes and source[position] == "\\" else None
            )
            if escape and escape[1][0] != "\n":
                step = escape.end() - position
                break
            # Folding turns a line end into a blank.
            is_folded = character == " " and source[position] in "\n\t"
            if not escape and (character == source[position] or is_folded):
                step = 1
                break
            position = escape.end() if escape else position + 1
        else:
            return
        if position != expected:
            yield offset, position
        length = 1
        if not has_escapes:  # the rest of the line goes in step, as a rule
            line_end = value.find("\n", offset) + 1 or len(value)
            line = value[offset:line_end]
            length = len(line) if source.startswith(line, position, end) else 1
        position += length * step
        offset += length
        expected = position if step == 1 else -1


_TRUE = frozenset({"true", "yes", "on"})
"""What YAML 1.1 reads as true; the text of a scalar keeps the author's spelling."""


def is_true(node: Node | None) -> bool:
    return ((node.text if node else None) or "").lower() in _TRUE


def option_from(name: str, entry: Entry | None, value: str | None = None) -> list[DockerOption]:
    """An option with the value of a key, or with `value` at its position; none where the key has none."""
    if entry is None:
        return []
    key, node = entry
    value = node.text if value is None else value
    return [] if value is None else [DockerOption(name, value, key, node.word)]


def switches(names: Mapping[str, str], entries: Mapping[str, Entry]) -> list[DockerOption]:
    """Options without a value, for the keys that are true."""
    return [
        DockerOption(name, None, entries[key][0], entries[key][1].word)
        for key, name in names.items()
        if key in entries and is_true(entries[key][1])
    ]


def start_word(node: Node) -> Word:
    """An empty word where a node begins."""
    return Word("", *node.file.place(node.source.at(node.raw.start_mark.index)))


def node_word(node: Node) -> Word:
    """A scalar as a word; for a mapping or a list an empty word that spans all of it."""
    return node.word or with_node_span(node, start_word(node))


def with_node_span(node: Node, word: Word) -> Word:
    """The word with the span of a whole list item, so that removing the word removes the item."""
    start, end = node.raw.start_mark.index, _end(node.raw)
    end = start + len(node.source.text[start:end].rstrip())
    return replace(word, span=node.source.span(start, end))


def _end(node: yaml.Node) -> int:
    """The end mark of a block stands where the next node begins, so ask its last child."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[-1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def mount_option(source: str, target: str, is_read_only: bool, word: Word) -> DockerOption:
    return DockerOption(*mount_argument(Mount(source, target, is_read_only)), word)
