"""Markdown -> the flags and variables that its sentences mention, in inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from firesteel.dataclass import dataclass
from firesteel.launch import Spot
from firesteel.reads import markdown
from firesteel.reads.reader import MAX_SPOT
from firesteel.reads.source_text import SourceFile

MAX_MENTIONS = 2000
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]{1,300})\1(?!`)")
_NAME = re.compile(
    r"(?<![\w-])--(?P<flag>[a-z][a-z0-9_.-]*[a-z0-9])|(?<![\w.])(?P<variable>(?:VLLM|SGLANG|LLAMA_ARG)_[A-Z0-9_]+)\b"
)


@dataclass(frozen=True, slots=True)
class Mention:
    key: str
    """`flag:NAME` or `env:NAME`."""
    spot: Spot


def mentions(file: SourceFile) -> tuple[Mention, ...]:
    """What the inline code outside fenced blocks mentions; nothing when the text is not Markdown."""
    if not markdown.is_markdown(file):
        return ()
    return tuple(islice(_mentions(file), MAX_MENTIONS))


def _mentions(file: SourceFile) -> Iterator[Mention]:
    for number, line in markdown.prose(file):
        for code in _CODE.finditer(line):
            for name in _NAME.finditer(code[2]):
                flag = (name["flag"] or "").replace("_", "-").partition(".")[0]
                column = code.start(2) + name.start() + 1
                spot = Spot(file.path, number, name[0][:MAX_SPOT], column)
                yield Mention(f"flag:{flag}" if flag else f"env:{name['variable']}", spot)
