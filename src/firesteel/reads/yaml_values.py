"""YAML values as docker options: what the readers of compose files and manifests share.

An option has the position of its key or of its list item in the file.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from firesteel.launch import Mount
from firesteel.reads.docker import DockerOption, mount_argument
from firesteel.reads.nodes import Entry, Node
from firesteel.reads.shell import Word
from firesteel.values import replace

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
