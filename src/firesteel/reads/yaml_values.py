"""What YAML files say of a container, in docker's words: the part that compose files and manifests share.

An option stands where its key or its list item stands in the file.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import yaml

from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import Word
from firesteel.reads.source_text import Anchor, Passage
from firesteel.units import GIB, KIB, MIB

_FAR = 2**62
_TRUE = frozenset({"true", "yes", "on"})
"""What YAML 1.1 takes for true; the text of a scalar keeps the author's spelling."""

Entry = tuple[Word, Node]
"""A key and what stands under it."""


def entry(node: Node | None, *keys: str) -> Entry | None:
    """The last of these keys, each inside the one before."""
    inner = node.get(*keys[:-1]) if node else None
    return inner.entries().get(keys[-1]) if inner else None


def text(node: Node | None, *keys: str) -> str | None:
    found = node.get(*keys) if node else None
    return found.text if found else None


def each(node: Node | None, *keys: str) -> Iterator[Node]:
    """The items of a list under these keys."""
    found = node.get(*keys) if node else None
    return found.each() if found else iter(())


def is_true(node: Node | None) -> bool:
    return (text(node) or "").lower() in _TRUE


def option(name: str, said: Entry | None, value: str | None = None) -> list[DockerOption]:
    """An option whose value a key has, as it stands or as docker would say it; none where it has none."""
    if said is None:
        return []
    key, node = said
    value = node.text if value is None else value
    return [] if value is None else [DockerOption(name, value, key, node.word)]


def switches(names: Mapping[str, str], entries: Mapping[str, Entry]) -> list[DockerOption]:
    """Options without a value, for the keys that are true."""
    return [
        DockerOption(name, None, entries[key][0], entries[key][1].word)
        for key, name in names.items()
        if key in entries and is_true(entries[key][1])
    ]


def here(node: Node) -> Word:
    """An empty word where a node begins."""
    return Word("", *node.page.place(node.source.at(node.yaml.start_mark.index)))


def place(node: Node) -> Word:
    """A text itself; a mapping or a list as a whole."""
    return node.word or whole(node, here(node))


def whole(node: Node, word: Word) -> Word:
    """A word that stands for a whole item of a list: it is seen where it is, and goes with the item."""
    start, end = node.yaml.start_mark.index, _end(node.yaml)
    end = start + len(node.source.text[start:end].rstrip())
    return replace(word, span=node.source.span(start, end))


def _end(node: yaml.Node) -> int:
    """A block's own end mark stands where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[-1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def mount(source: str, target: str, is_read_only: bool, word: Word) -> DockerOption:
    """`-v`, or `--mount` where a colon in a path would be taken for a separator."""
    if ":" not in source + target:
        return DockerOption("volume", f"{source}:{target}" + (":ro" if is_read_only else ""), word)
    kind = "bind" if source[:1] in ("/", ".", "~", "$") else "volume"
    end = ("readonly",) if is_read_only else ()
    return DockerOption(
        "mount", separated(f"type={kind}", f"source={source}", f"target={target}", *end), word
    )


def separated(*fields: str) -> str:
    """Fields with commas between, as docker reads them."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(fields)
    return row.getvalue()


def docker_size(count: int) -> str:
    """Bytes as people write them for docker: `16g`."""
    for unit, letter in ((GIB, "g"), (MIB, "m"), (KIB, "k")):
        if count and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def made(passage: Passage, pieces: Iterable[tuple[str, int]]) -> Passage:
    """Texts one after the other, each with the offset in the passage where it stands."""
    texts: list[str] = []
    anchors: list[Anchor] = []
    length = 0
    for text, at in pieces:
        if text:
            anchors += ((length + ours, there) for ours, there in _anchors(passage, at, len(text)))
            texts.append(text)
            length += len(text)
    return Passage("".join(texts), tuple(anchors) or ((0, passage.at(0)),))


def _anchors(passage: Passage, at: int, length: int) -> Iterator[Anchor]:
    yield 0, passage.at(at)
    index = bisect_right(passage.anchors, (at, _FAR))
    while index < len(passage.anchors) and passage.anchors[index][0] < at + length:
        ours, there = passage.anchors[index]
        yield ours - at, there
        index += 1
