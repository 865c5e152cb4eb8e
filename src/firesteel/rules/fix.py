"""Fix findings by editing the text, and verify each edit.

A rule may have a fix after which the launch does what its author meant: remove a part, rename a flag, set
another value. The reader knows where these parts are in the text. Each fix is applied alone and the new
text is read again: the edit is kept only if nothing else in any launch has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from firesteel.errors import UsageError
from firesteel.launch import Launch
from firesteel.reads.reader import ReadLaunch
from firesteel.rules.checker import Finding
from firesteel.values import replace

MAX_FIXES = 200
"""Per text; the text is read again after each."""
_LEADING_BLANKS = re.compile(r"(?<![^\S\n])(?:[^\S\n]|\\[^\S\n]*\n)+\Z")
_EMPTY_LINE = re.compile(r"""[\s\-"':=,]*""")
_CONTINUES = re.compile(r"(?:\b(?:then|do|else|in)|[{(]|&&|\|\|?|;;)$")
"""The end of a line that continues on the next."""
_TRAILING_COMMENT = re.compile(r"(?<![^\S\n])[^\S\n]*+(?:(?:\\[^\S\n]+|(?<=[^\S\n]))(#[^\n]*)\Z|\\\Z)")
"""A comment after a command, with the backslash that it makes useless."""
_DASHES = re.compile("[\u2010-\u2015\u2212]{1,2}")
_SAFE_VALUE = re.compile(r"[\w.,:/+@%=-]+\Z")

V = TypeVar("V")
Spans = Sequence[tuple[int, int]]
"""Where the words of a part are in the text."""
Read = Callable[[str], Sequence[ReadLaunch]]
Check = Callable[[Sequence[ReadLaunch]], Sequence[tuple[ReadLaunch, Finding]]]


def fix(text: str, read: Read, check: Check) -> tuple[str, tuple[Finding, ...]]:
    """Fix what can be fixed, one finding after the other, the last in the text first; and what was fixed."""
    fixed: list[Finding] = []
    refused: set[tuple[str, str, int]] = set()
    for _ in range(MAX_FIXES):
        launches = read(text)
        fixable = [pair for pair in check(launches) if pair[1].fix and _rule_and_line(pair[1]) not in refused]
        if not fixable:
            break
        parsed, finding = max(fixable, key=lambda pair: pair[1].location.line if pair[1].location else 0)
        changed = change(text, finding, parsed)
        if changed is not None and _changes_only(launches, read, changed, finding):
            text = changed
            fixed.append(finding)
        else:
            refused.add(_rule_and_line(finding))
    return text, tuple(reversed(fixed))


def _rule_and_line(finding: Finding) -> tuple[str, str, int]:
    return finding.rule, finding.key, finding.location.line if finding.location else 0


def change(text: str, finding: Finding, parsed: ReadLaunch) -> str | None:
    """The text with one finding fixed; None where that cannot be done safely."""
    spans = [word.span for word in parsed.words.get(finding.key, ())]
    fix = finding.fix
    if fix is None or not spans or any(start >= end for start, end in spans):
        return None
    if finding.key == "flaw:blank":
        return text[: spans[0][0]] + text[spans[0][1] :]
    if fix.join:
        return _join(text, spans[0][0])
    if fix.hyphens:
        return _hyphens(text, *spans[0])
    if fix.separate:
        start, end = spans[0]
        return text[:start] + re.sub(r"[^\S\n]+", "=", text[start:end], count=1) + text[end:]
    if fix.drop:
        return None if _is_used_elsewhere(text, finding.key, spans) else _drop(text, spans)
    if fix.rename:
        return _rename(text, spans[0], fix.rename)
    return _set(text, spans, fix.set or "")


def _join(text: str, start: int) -> str | None:
    """The line before ends with a backslash; comments at its end and between the lines go above the command,
    where they end nothing."""
    lines = text.split("\n")
    flag = text.count("\n", 0, start)
    last = flag - 1
    while last >= 0 and lines[last].lstrip().startswith("#"):
        last -= 1
    if last < 0 or not lines[last].strip():
        return None
    own = _TRAILING_COMMENT.search(lines[last])
    ended = lines[last][: own.start()] if own else lines[last].rstrip()
    first = last
    while first > 0 and lines[first - 1].endswith("\\"):
        first -= 1
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    comments = [*([own[1]] if own and own[1] else []), *(line.strip() for line in lines[last + 1 : flag])]
    lines[last:flag] = [f"{ended} \\"]
    lines[first:first] = [indent + comment for comment in comments]
    return "\n".join(lines)


def _hyphens(text: str, start: int, end: int) -> str | None:
    word = _DASHES.match(text, start, end)
    if word is None:
        return None
    name = text[word.end() : end].partition("=")[0]
    return text[:start] + ("-" if len(name) == 1 else "--") + text[word.end() :]


def _is_used_elsewhere(text: str, key: str, spans: Spans) -> bool:
    """A variable that occurs elsewhere in the text may be needed there."""
    kind, _, name = key.partition(":")
    if kind != "env":
        return False
    own_uses = sum(text[start:end].count(name) for start, end in spans)
    return len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", text)) > own_uses


def _drop(text: str, spans: Spans) -> str | None:
    """Remove whole lines when nothing else is on them, otherwise the words with the blanks before them."""
    start, end = spans[0][0], spans[-1][1]
    first, last = text.rfind("\n", 0, start) + 1, _line_end(text, end)
    around = text[first:start] + text[end:last]
    continued = text[:first].rstrip(" \t\n").endswith("\\") if first else False
    if not continued and _EMPTY_LINE.fullmatch(around):
        return _drop_lines(text, first, last)
    between = text[start:end]
    if text.startswith("export", start) or ("\n" in between and "\\\n" not in between):
        return None
    before = _LEADING_BLANKS.search(text, first if not continued else 0, start)
    if before is None or (end < len(text) and not text[end].isspace()):
        return None
    return text[: before.start()] + text[end:]


def _drop_lines(text: str, first: int, last: int) -> str | None:
    """None where a block or a YAML value would become empty, or the line before continues into them."""
    above, below = _nearest_line(text[:first], -1), _nearest_line(text[last:], 0)
    indent = re.match(r"\s*", text[first:last])
    is_only = above.endswith(":") and not below.startswith(indent[0] if indent and indent[0] else "\0")
    if _CONTINUES.search(above) or "&" in above.partition("#")[0] or is_only:
        return None
    return text[:first] + text[last + 1 :]


def _nearest_line(text: str, which: int) -> str:
    """The nearest line that is neither blank nor a comment."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return lines[which].rstrip() if lines else ""


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _rename(text: str, span: tuple[int, int], name: str) -> str | None:
    start, end = span
    typed = re.match(r"--?[A-Za-z0-9][\w.-]*", text[start:end])
    return text[:start] + f"--{name}" + text[start + typed.end() :] if typed else None


def _set(text: str, spans: Spans, value: str) -> str | None:
    start, end = spans[0]
    _, equals, _ = text[start:end].partition("=")
    if not _SAFE_VALUE.match(value) or len(spans) > 2:
        return None
    if equals:
        return text[: text.index("=", start) + 1] + value + text[end:]
    if len(spans) == 1:
        return text[:end] + f" {value}" + text[end:]
    return text[: spans[1][0]] + value + text[spans[1][1] :]


def _changes_only(before: Sequence[ReadLaunch], read: Read, text: str, finding: Finding) -> bool:
    """Whether all launches are the same as before, except for the part that was fixed."""
    try:
        after = read(text)
    except UsageError:
        return False
    if len(after) != len(before):
        return False
    pairs = zip(before, after, strict=True)
    changed = [(old.launch, new.launch) for old, new in pairs if old.launch != new.launch]
    if finding.fix and (finding.fix.join or finding.fix.hyphens):
        return len(changed) == 1 and _only_adds_flags(*changed[0])
    if finding.key.startswith("flaw:"):
        return not changed
    if not changed:  # the same part was given twice
        return bool(finding.fix and finding.fix.drop)
    return len(changed) == 1 and _without(changed[0][0], finding) == _without(changed[0][1], finding)


def _only_adds_flags(old: Launch, new: Launch) -> bool:
    """The new launch has flags that the old one lost, and nothing else is different."""
    is_more = new.flags.items() > old.flags.items() or (new.model, new.port) != (old.model, old.port)
    rest = replace(
        new,
        flags=old.flags,
        extra=old.extra,
        port=old.port,
        name=old.name,
        sparks=old.sparks,
        model=old.model,
    )
    return is_more and set(new.extra) <= set(old.extra) and rest == old and old.model in ("", new.model)


def _without(launch: Launch, finding: Finding) -> Launch:
    kind, _, name = finding.key.partition(":")
    container = launch.container
    renamed = finding.fix.rename if finding.fix else None
    match kind:
        case "flag":
            return replace(launch, flags=_omit(_omit(launch.flags, name), renamed or ""))
        case "env":
            return replace(launch, env=_omit(launch.env, name))
        case "program" if container:
            return replace(launch, container=replace(container, program=()))
        case "option" if container:
            kept = tuple(option for option in container.options if option[0] != name)
            return replace(launch, container=replace(container, options=kept, shm_bytes=None, restart=None))
    return launch


def _omit(pairs: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in pairs.items() if key != name}
