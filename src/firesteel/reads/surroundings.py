"""What stands around a command in its text: the comments, the paragraph and the headings above it.

A guide says beside a command, not in it, which machine and which release it is for. `above` gives the lines
that may say so, the nearest first: comments of the same script or block, the text between this block and the
one before it, then the headings that enclose it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from firesteel.launch import EngineName
from firesteel.reads import markdown
from firesteel.reads.source_text import SourceFile

Line = tuple[int, str]
"""A line's number and its text."""
MachineKind = Literal["spark", "other", "unsaid"]
_HEADING = re.compile(r"\s{0,3}(#{1,6})\s+\S")
_COMMENT = re.compile(r"\s*(?:#|//|<!--)\s?(?!!)")
_TRAILING = re.compile(r"\s#\s.*")
_TEXT_VALUE = re.compile(r"[\w-]+:\s*[|>]")
_HARDWARE_KEY = re.compile(
    r"""(?<![\w./-])["']?
        (?=[\w./-]*(?:hardware|accelerator|gpu[._-]?(?:product|type|model|name|family)
            |node_?selector|instance[_-]?type|machine))
        (?P<key>[\w./-]++)["']?\s*+:\s*(?P<value>.*)""",
    re.VERBOSE | re.IGNORECASE,
)
_HARDWARE_WORDS = ("hardware", "accelerator", "gpu", "selector", "instance", "machine")
"""One of which every such key has."""
_GPU_LINE = re.compile(r"\s*GPU\s*:?\s+\S")
"""A line of an environment that a guide lists in a block."""
_NOT_HARDWARE = re.compile(r"overrides|strategy_hardware|opt_in", re.IGNORECASE)
_FORK = re.compile(
    r"(?:git\s+clone|git\+|_REPO\w{0,40}=)[^\n]{0,200}?[:/](?!vllm-project/|sgl-project/|ggml-org/|ggerganov/)"
    r"[\w.-]{1,100}/(?P<engine>vllm|sglang|llama\.cpp)(?:\.git)?(?![\w/-])"
)
"""A source of the engine that is not its project's own."""
_NEAR = 25
"""Lines of text above a block that belong to it."""


class Surroundings:
    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.lines = file.text.split("\n")
        self._mentions: dict[re.Pattern[str], bool] = {}
        self.machines: dict[str, tuple[MachineKind, str] | None] = {}
        """Lines that were searched for machines: see `stated_machine`."""
        self._lines_with: dict[str, list[Line]] = {}
        self.is_guide = markdown.blocks(file.whole) is not None and not file.path.endswith((".yaml", ".yml"))
        self.prose = dict(markdown.prose(file)) if self.is_guide else {}
        """The lines outside the blocks of a guide; empty for any other file."""
        self.headings = {
            number: len(match[1]) for number, text in self.prose.items() if (match := _HEADING.match(text))
        }

    def above(self, number: int) -> Iterator[Line]:
        """Lines that may say what the command at this line is for, the nearest first."""
        trailing = _TRAILING.search(self.lines[number - 1])
        if trailing:
            yield number, trailing[0]
        number -= 1
        if not self.prose:
            above = bisect_right(self._comments, number, key=lambda found: found[0])
            yield from reversed(self._comments[:above])
            return
        while number > 0 and number not in self.prose:
            text = self.lines[number - 1]
            if markdown.is_fence(text):
                break
            if _COMMENT.match(text):
                yield number, text
            number -= 1
        yield from self._guide_above(number)

    def _guide_above(self, number: int) -> Iterator[Line]:
        end = max(number - _NEAR, 0)
        number -= number not in self.prose  # the opening fence itself
        while number > end and number in self.prose and number not in self.headings:
            yield number, self.prose[number]
            number -= 1
        level = 7
        for heading in sorted((line for line in self.headings if line <= number), reverse=True):
            if self.headings[heading] < level:
                level = self.headings[heading]
                yield heading, self.prose[heading]

    def builds_fork(self, engine: EngineName) -> bool:
        """Whether the text, or a Dockerfile beside or above it, fetches a fork of the engine to build it."""
        return {"llamacpp": "llama.cpp"}.get(engine, engine) in self._forks

    @cached_property
    def _forks(self) -> frozenset[str]:
        images = filter(None, (self.file.beside(f"{up}Dockerfile") for up in ("", "../", "../../")))
        texts = (self.file.text, *(image.text for image in images))
        return frozenset(fork["engine"] for text in texts for fork in _FORK.finditer(text))

    def lines_with(self, word: str) -> list[Line]:
        """The lines that contain it, in lower or upper case; searched once for all launches."""
        if word not in self._lines_with:
            found = (index for index, text in enumerate(self._lower_lines) if word in text)
            self._lines_with[word] = [(index + 1, self.lines[index]) for index in found]
        return self._lines_with[word]

    @cached_property
    def _lower_lines(self) -> list[str]:
        return self.file.text.lower().split("\n")

    @cached_property
    def may_name_spark(self) -> bool:
        """Whether the text has what every name of a Spark has: most do not, and need no pattern."""
        text = self.file.text.lower()
        return any(part in text for part in ("spark", "gb10", "gb-10", "gb_10", "121"))

    def mentions(self, pattern: re.Pattern[str]) -> bool:
        """Whether the text does, or a README beside or above it; searched once for all of its launches."""
        if pattern not in self._mentions:
            guides = filter(None, (self.file.beside(f"{up}README.md") for up in ("", "../", "../../")))
            texts = (self.file.text, *(guide.text for guide in guides))
            self._mentions[pattern] = any(pattern.search(text) for text in texts)
        return self._mentions[pattern]

    def is_in_value(self, number: int) -> bool:
        """Whether the line belongs to a text that is the value of a key: `guide: |` of a recipe."""
        while number > 0 and (not self.lines[number - 1].strip() or self.lines[number - 1][0].isspace()):
            number -= 1
        return number > 0 and _TEXT_VALUE.match(self.lines[number - 1]) is not None

    @property
    def document(self) -> Iterator[Line]:
        """The text of a guide, or the comments of any other file, from its beginning."""
        if not self.prose:
            yield from self._comments
            return
        yield from self.prose.items()
        yield from ((number, text) for number, text in self.lines_with("gpu") if _GPU_LINE.match(text))

    @cached_property
    def _comments(self) -> list[Line]:
        return [(number, text) for number, text in enumerate(self.lines, 1) if _COMMENT.match(text)]

    @cached_property
    def hardware(self) -> list[Line]:
        """The values of keys such as `hardware`, on their line or indented below it; and those of the chart
        that a template belongs to."""
        values = self.file.beside("../values.yaml") if ".Values" in self.file.text else None
        of_chart = _hardware(values.text.split("\n")) if values else ()
        return [*_hardware(self.lines), *((1, text) for _, text in of_chart)]


def _hardware(lines: list[str]) -> list[Line]:
    found: list[Line] = []
    indent: int | None = None
    text = "\n".join(lines).lower()
    words = [word for word in _HARDWARE_WORDS if word in text]
    if not words:
        return found
    for number, text in enumerate(lines, 1):
        depth = len(text) - len(text.lstrip())
        if indent is not None and text.strip():
            if depth > indent:
                found.append((number, text))
                continue
            indent = None
        lower = text.lower() if ":" in text else ""
        key = _HARDWARE_KEY.search(text) if lower and any(word in lower for word in words) else None
        if key and not _NOT_HARDWARE.search(key["key"]):
            found.append((number, key["value"].partition("}")[0]))
            indent = depth
    return found
