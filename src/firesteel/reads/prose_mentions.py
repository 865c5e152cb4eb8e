"""Guides -> the flags, variables and images that their sentences and tables mention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from firesteel.launch import Spot
from firesteel.reads import markdown
from firesteel.reads.reader import MAX_SPOT
from firesteel.reads.source_text import SourceFile
from firesteel.values import Value

MAX_MENTIONS = 2000
_NAME = re.compile(
    r"""(?<![\w-])--(?P<flag>[a-z][a-z0-9_.-]*[a-z0-9])(?:[ =](?P<value>[\w.]+))?
      | (?<![\w.])(?P<variable>(?:VLLM|SGLANG|LLAMA_ARG|NCCL)_[A-Z0-9_]+)(?:=(?P<setting>[\w.,:-]+))?
      | (?<![\w./:-])(?P<image>[a-z0-9.-]+(?:/[a-z0-9._-]+)+:[A-Za-z0-9_][\w.-]*)(?![\w/:])""",
    re.VERBOSE,
)
_TEXTS = (".txt", ".text")


class Mention(Value):
    key: str
    """`flag:NAME`, `env:NAME` or `image:REFERENCE`."""
    spot: Spot
    value: str = ""
    """What follows a flag or a variable: `0.95`."""


def mentions(file: SourceFile) -> tuple[Mention, ...]:
    """What sentences and tables outside fenced blocks mention; nothing when the text is neither a guide nor
    plain text."""
    if not file.path.lower().endswith(_TEXTS) and not markdown.is_markdown(file):
        return ()
    return tuple(islice(_mentions(file), MAX_MENTIONS))


def _mentions(file: SourceFile) -> Iterator[Mention]:
    for number, line in markdown.prose(file):
        if "--" not in line and "_" not in line and ("/" not in line or ":" not in line):
            continue  # no name is without these
        for name in _NAME.finditer(line):
            spot = Spot(file.path, number, name[0].strip(" .,")[:MAX_SPOT], name.start() + 1)
            if name["image"]:
                yield Mention(f"image:{name['image'].rstrip('.')}", spot)
            elif name["variable"]:
                yield Mention(f"env:{name['variable']}", spot, (name["setting"] or "").rstrip(".,"))
            else:
                flag = name["flag"].replace("_", "-").partition(".")[0]
                yield Mention(f"flag:{flag}", spot, (name["value"] or "").rstrip("."))
