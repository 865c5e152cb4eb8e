"""Markdown -> the flags and variables that its sentences speak of, in inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from firesteel.launch import Spot
from firesteel.reads import markdown
from firesteel.reads.reader import MAX_SPOT
from firesteel.reads.source_text import SourceFile

MAX_MENTIONS = 2000
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]{1,300})\1(?!`)")
_SAID = re.compile(
    r"(?<![\w-])--(?P<flag>[a-z][a-z0-9_.-]*[a-z0-9])|(?<![\w.])(?P<variable>(?:VLLM|SGLANG|LLAMA_ARG)_[A-Z0-9_]+)\b"
)


@dataclass(frozen=True, slots=True)
class Mention:
    key: str
    """`flag:NAME` or `env:NAME`."""
    spot: Spot


def mentions(page: SourceFile) -> tuple[Mention, ...]:
    """What stands in inline code outside the fences; nothing when the text is not Markdown."""
    if not page.path.lower().endswith((".md", ".markdown", ".mdx")) and markdown.blocks(page) is None:
        return ()
    found = []
    for mention in _mentions(page):
        found.append(mention)
        if len(found) == MAX_MENTIONS:
            break
    return tuple(found)


def _mentions(page: SourceFile) -> Iterator[Mention]:
    for number, line in markdown.prose(page):
        for code in _CODE.finditer(line):
            for said in _SAID.finditer(code[2]):
                name = said["flag"]
                key = (
                    f"flag:{name.replace('_', '-').partition('.')[0]}" if name else f"env:{said['variable']}"
                )
                column = code.start(2) + said.start() + 1
                yield Mention(key, Spot(page.path, number, said[0][:MAX_SPOT], column))
