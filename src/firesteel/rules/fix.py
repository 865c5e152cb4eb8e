"""A finding -> the change to the text that mends it, proved before it is made.

A rule may name a change after which the launch does what its author meant: take a part away, call a flag by
its new name, give it another value. Where those words stand is known from the reader. Each change is tried
alone: the new text is read again, and the change is kept only if the finding is gone and nothing else of any
launch is different.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from firesteel.errors import UsageError
from firesteel.launch import Launch
from firesteel.reads import ReadLaunch
from firesteel.rules.check import Finding

MAX_FIXES = 200
"""Changes to one text; each is read again."""
_BEFORE = re.compile(r"(?:[^\S\n]|\\[^\S\n]*\n)+\Z")
_EMPTY_LINE = re.compile(r"""[\s\-"':=,]*""")
_OPENS = re.compile(r"(?:\b(?:then|do|else|in)|[{(]|&&|\|\|?|;;)$")
"""What stands at the end of a line that the next belongs to."""
_PLAIN = re.compile(r"[\w.,:/+@%=-]+\Z")

V = TypeVar("V")
Words = Sequence[tuple[int, int]]
"""Where the words of a part stand in the text."""
Read = Callable[[str], Sequence[ReadLaunch]]
Check = Callable[[Sequence[ReadLaunch]], Sequence[tuple[ReadLaunch, Finding]]]


@dataclass(frozen=True, slots=True)
class FixedText:
    text: str
    findings: tuple[Finding, ...]
    """What was mended."""


def fix(text: str, read: Read, check: Check) -> FixedText:
    """Mends what can be mended, one finding after the other, the last in the text first."""
    mended: list[Finding] = []
    refused: set[tuple[str, str, int]] = set()
    for _ in range(MAX_FIXES):
        readings = read(text)
        found = [pair for pair in check(readings) if pair[1].fix and _name(pair[1]) not in refused]
        if not found:
            break
        reading, finding = max(found, key=lambda pair: pair[1].spot.line if pair[1].spot else 0)
        changed = change(text, finding, reading)
        if changed is not None and _is_only_that(readings, read, changed, finding):
            text = changed
            mended.append(finding)
        else:
            refused.add(_name(finding))
    return FixedText(text, tuple(reversed(mended)))


def _name(finding: Finding) -> tuple[str, str, int]:
    return finding.rule, finding.key, finding.spot.line if finding.spot else 0


def change(text: str, finding: Finding, reading: ReadLaunch) -> str | None:
    """The text with one finding mended; None where that cannot be written safely."""
    words = [word.span for word in reading.words.get(finding.key, ())]
    wanted = finding.fix
    if wanted is None or not words or any(start >= end for start, end in words):
        return None
    if finding.key == "flaw:blank":
        return text[: words[0][0]] + text[words[0][1] :]
    if wanted.drop:
        return None if _is_used_elsewhere(text, finding.key, words) else _drop(text, words)
    if wanted.rename:
        return _rename(text, words[0], wanted.rename)
    return _set(text, words, wanted.set or "")


def _is_used_elsewhere(text: str, key: str, words: Words) -> bool:
    """A variable that something else in the text names may be wanted there."""
    kind, _, name = key.partition(":")
    if kind != "env":
        return False
    said = sum(text[start:end].count(name) for start, end in words)
    return len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", text)) > said


def _drop(text: str, words: Words) -> str | None:
    """Whole lines when nothing else stands on them, else the words with the blanks before them."""
    start, end = words[0][0], words[-1][1]
    first, last = text.rfind("\n", 0, start) + 1, _line_end(text, end)
    around = text[first:start] + text[end:last]
    continued = text[:first].rstrip(" \t\n").endswith("\\") if first else False
    if not continued and _EMPTY_LINE.fullmatch(around):
        return _drop_lines(text, first, last)
    between = text[start:end]
    if text.startswith("export", start) or ("\n" in between and "\\\n" not in between):
        return None
    before = _BEFORE.search(text, first if not continued else 0, start)
    if before is None or (end < len(text) and not text[end].isspace()):
        return None
    return text[: before.start()] + text[end:]


def _drop_lines(text: str, first: int, last: int) -> str | None:
    """None where they are all that a block or a YAML value holds, or the line before leads into them."""
    above, below = _near_line(text[:first], -1), _near_line(text[last:], 0)
    indent = re.match(r"\s*", text[first:last])
    is_only = above.endswith(":") and not below.startswith(indent[0] if indent and indent[0] else "\0")
    if _OPENS.search(above) or "&" in above.partition("#")[0] or is_only:
        return None
    return text[:first] + text[last + 1 :]


def _near_line(text: str, which: int) -> str:
    """The nearest line that says something, without blanks at its end."""
    said = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return said[which].rstrip() if said else ""


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _rename(text: str, word: tuple[int, int], name: str) -> str | None:
    start, end = word
    typed = re.match(r"--?[A-Za-z0-9][\w.-]*", text[start:end])
    return text[:start] + f"--{name}" + text[start + typed.end() :] if typed else None


def _set(text: str, words: Words, value: str) -> str | None:
    start, end = words[0]
    _, equals, _ = text[start:end].partition("=")
    if not _PLAIN.match(value) or len(words) > 2:
        return None
    if equals:
        return text[: text.index("=", start) + 1] + value + text[end:]
    if len(words) == 1:
        return text[:end] + f" {value}" + text[end:]
    return text[: words[1][0]] + value + text[words[1][1] :]


def _is_only_that(before: Sequence[ReadLaunch], read: Read, text: str, finding: Finding) -> bool:
    """The same launches as before, but for the part that was changed."""
    try:
        after = read(text)
    except UsageError:
        return False
    if len(after) != len(before):
        return False
    pairs = zip(before, after, strict=True)
    changed = [(old.launch, new.launch) for old, new in pairs if old.launch != new.launch]
    if finding.key.startswith("flaw:"):
        return not changed
    if not changed:  # the same part was said twice
        return bool(finding.fix and finding.fix.drop)
    return len(changed) == 1 and _without(changed[0][0], finding) == _without(changed[0][1], finding)


def _without(launch: Launch, finding: Finding) -> Launch:
    kind, _, name = finding.key.partition(":")
    box = launch.container
    renamed = finding.fix.rename if finding.fix else None
    match kind:
        case "flag":
            return replace(launch, flags=_less(_less(launch.flags, name), renamed or ""))
        case "env":
            return replace(launch, env=_less(launch.env, name))
        case "program" if box:
            return replace(launch, container=replace(box, program=()))
        case "option" if box:
            kept = tuple(option for option in box.options if option[0] != name)
            return replace(launch, container=replace(box, options=kept, shm_bytes=None, restart=None))
    return launch


def _less(pairs: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in pairs.items() if key != name}
