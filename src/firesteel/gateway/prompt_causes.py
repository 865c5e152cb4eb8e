"""What kind of thing in a prompt has changed: a line of bookkeeping, a date, the state of a repository, ...

Prompts are kept as hashes, so a line is looked at when it arrives. `marks_of` says for each line which kinds
of changing text it has, each with a hash of the line without that text. When a line of the next prompt is
different, and the same without its date, then it was the date. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

Cause = Literal[
    "attribution", "date", "git", "counter", "id", "folder", "tools", "system", "compaction", "history",
    "model", "settings", "replica", "restart", "evicted", "floor",
]  # fmt: skip
CAUSES: dict[Cause, str] = {
    "attribution": "the attribution line changed",
    "date": "a date or time changed",
    "git": "the git status changed",
    "counter": "a count of tokens or turns changed",
    "id": "an identifier changed",
    "folder": "the folder, or the list of its files, changed",
    "tools": "the tools changed",
    "system": "the instructions changed",
    "compaction": "the conversation was compacted",
    "history": "an earlier message changed",
    "model": "the conversation comes from another model",
    "settings": "settings changed that a template may write into the prompt",
    "replica": "another replica has read this conversation",
    "restart": "the engine was started anew",
    "evicted": "the engine no longer had it: evicted, or its template writes earlier turns in another way",
    "floor": "nothing was cached, and that is right",
}
Marks = dict[int, dict[str, bytes]]
"""By piece: the kinds of text in it, each with the hash of the piece without that text."""

MAX_LINE = 400
"""Bytes; a line that a program writes anew each time is shorter."""
_MONTH = rb"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CJK = b"|".join(
    form for unit in "年月日時时分秒년월일시분초" for form in (unit.encode(), b"\\\\u%04x" % ord(unit))
)
_DATE = re.compile(
    rb"\b[u\d][0-9a-f]{0,8}(?: ?(?:"
    + _CJK
    + rb")(?: ?\d{1,2})?(?: ?\((?:[^\x00-\x7f]{3}|\\u[0-9a-f]{4})\))?)+|"
    rb"\b(?:19|20)\d\d[-/.]\d\d?[-/.]\d\d?(?:[t ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?z| ?[+-]\d\d:?\d\d)?)?"
    rb"|\b\d\d?[./]\d\d?[./](?:20)?\d\d\b|\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[ap]\.?m\b\.?)?"
    rb"|\b" + _MONTH + rb" \d\d?(?:st|nd|rd|th)?\b(?:,? ?\d{4})?"
    rb"|\b\d\d?(?:st|nd|rd|th|\.)?(?: of)? " + _MONTH + rb"(?:,? ?\d{4})?|\b1[5-9]\d{8}(?:\d{3})?\b"
    rb"|\b\d+ (?:second|minute|hour|day|week)s?(?: ago)?\b|\b20\d\d-w\d\d\b|\b20[2-4]\d\b"
    rb"|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
)
_ID = re.compile(
    rb"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{12,}\b"
    rb"|\b(?=[a-z_-]*\d)[0-9a-z_-]{20,}\b"
    rb"|\b(?:session|request|trace|conversation|thread|run|process|build|user|machine|correlation|instance)"
    rb"[ _-]?(?:id|key|nonce|number|token)?\b[\"'`]?\s?[:=#]\s?[\"'`]?[0-9a-z][\w.-]{3,}"
    rb"|\b(?:nonce|pid|seed|salt|tmp)\b\s?[:=#/_-]?\s?[\w.-]{3,}"
)
_NUMBER = re.compile(
    rb"\d(?<!\d\d)(?<!\d[.,]\d)(?<!\bv\d)(?<!version[ :=]\d)(?<!version: \d)(?!\d*\.\d{1,2}\.\d)[\d,.]*[km%]?"
)
"""No version: what has that is another text."""
_PATH = re.compile(rb"(?:^|(?<=[\s\"'`(=:>]))(?:~|/[\w.@+-]+|[a-z]:)[/\\][\w.@+/\\-]*")
_KINDS: dict[str, tuple[Cause, tuple[re.Pattern[bytes], ...]]] = {
    "date": ("date", (_DATE,)),
    "id": ("id", (_ID,)),
    "path": ("folder", (_PATH,)),
    "number": ("counter", (_NUMBER,)),
    "day": ("date", (_DATE, _NUMBER)),
}
"""Text that is taken out of a line, and the cause that it stands for; the first pattern must be there. A line
with a date often counts days as well."""
_ATTRIBUTION = re.compile(
    rb"x-anthropic-|billing[-_ ]?header|\bcc_version=|\bcch=|\battribution\b"
    rb"|(?:billing[-_]|telemetry|usage[-_ ]statistics)\w*[:=]"
)
_GIT = re.compile(
    rb"\b(?:git|repo(?:sitory)?)[ _-]?stat(?:us|e)\b|(?:current|main|default|active)[ _]branch"
    rb"|recent[ _]commits?|\bon branch\b"
    rb"|\bgit[ _](?:branch|commit|log|diff|head|user|repo)|\bhead(?: is|:| =)? |\blast commit|\blatest commit"
    rb"|\bworking tree\b|<git|\bbranch:"
    rb"|[ab]e?h(?:ea|in)d (?:\d|(?:of|by) .{0,40}(?:/|commit))"  # ahead, behind
)
_GIT_LINE = re.compile(
    rb"\s*$|\s*[-*]?\s*(?:status|main branch|current branch|recent commits|staged|unstaged|"
    rb"untracked|modified|changes|your branch|nothing to commit"
    rb"|\(clean\)|clean|dirty|git user|commits?|branch)\b.*|\s*\(use .*"
    rb"|\s?[ madrcut?!]{1,2} \S.*|\s*[-*]?\s?`?[0-9a-f]{7,40}\b.*|\s*(?:new file|modified|deleted|renamed):.*"
    rb"|.{0,200}</git.*"
)
_FOLDER = re.compile(
    rb"(?:working|current|project|root|workspace|home|present)[ _]?(?:directory|folder|dir|path|root)|\bcwd\b"
    rb"|(?:directory|folder|file|project) (?:structure|tree|list(?:ing)?|layout|contents?)|\bworkspace\b"
    rb"|\bfiles (?:in|of|open|are)|(?:open|visible|active|recent) (?:files?|tabs|editor)"
    rb"|\xe2\x94[\x94\x9c]\xe2\x94\x80|\\u25(?:14|1c)\\u2500"  # a branch of a tree
)
_FOLDER_LINE = re.compile(
    rb"\s*$|\s*(?:[-*|\xe2+`]|\\u2)\S* ?.*|\s*[\w@.+-]+/?$|\s*[\w@./+-]+\.\w{1,6}\b.*|\s*/\S+$|\s*\S+/.*"
)
_BLOCKS = (("folder", _FOLDER, _FOLDER_LINE), ("git", _GIT, _GIT_LINE))
"""The first line of several, and what the others look like."""
_HINT = re.compile(
    rb"[\d/\\\\\xe2]|git|repo|branch|commit|head|attribution|director|folder|structure|layout|\btree\b|listing|cwd|workspace"
    rb"|project |files|tabs|editor|x-anth|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day"
)
"""No other line has any of these."""
_SUMMARY = re.compile(
    rb"(?i)continued from a previous|\bsummary of\b|<(?:conversation_?)?summary|state_snapshot|compacted"
    rb"|\bhand-?(?:off|over)\b|summar.{0,60}\b(?:conversation|session|messages|history|context|chat|far)\b"
    rb"|spoke to you previously"
    rb"|\b(?:conversation|session|history|context|messages|chat|turns)\b.{0,60}\b(?:summar|compact|condensed|truncated|"
    rb"pruned|omitted|removed|compressed|trimmed|dropped)|\b(?:did|done|happened|progress)\b.{0,40}\bso far\b"
)
_MAYBE_SUMMARY = re.compile(
    rb"(?i)\bsummar|\bso far\b|\bprevious(?:ly)?\b|\bearlier\b|omitted|truncated|condensed|compacted"
)
_BEGINNING = 600
_FEW = 8
"""Lines that may have been added together."""


def is_summary(message: bytes, *, is_certain: bool) -> bool:
    """Whether it begins like what is written in place of earlier messages. `is_certain`: it is known to
    stand in the same conversation."""
    text = message[:_BEGINNING].replace(b"\\n", b" ")
    return _SUMMARY.search(text) is not None or (is_certain and _MAYBE_SUMMARY.search(text) is not None)


class Marked(Protocol):
    marks: Marks

    def __len__(self) -> int: ...

    def each(self, start: int = 0) -> Iterator[bytes]: ...


def marks_of(lines: Sequence[bytes], hash: Callable[[bytes], Any], start: int, end: int) -> Marks:
    """Of the lines from `start` to `end`."""
    marks: Marks = {}
    for at in range(start, end):
        if len(line := lines[at]) > MAX_LINE or not _HINT.search(line := line.lower()):
            continue
        found = marks.get(at, {})
        for kind, (_, (first, *others)) in _KINDS.items():
            if kind == "day" and "date" not in found:
                continue  # it has no date
            without, times = first.subn(b"", line)
            if times:
                for pattern in others:
                    without = pattern.sub(b"", without)
                found[kind] = hash(kind.encode() + without).digest()
        for kind, head, follows in _BLOCKS:
            if head.search(line):
                for behind in _block(lines, at, follows):
                    marks.setdefault(behind, {})[kind] = b""
                found[kind] = b""
        if _ATTRIBUTION.search(line):
            found["attribution"] = b""
        if found:
            marks[at] = marks.get(at, {}) | found
    return marks


def _block(lines: Sequence[bytes], at: int, follows: re.Pattern[bytes]) -> Iterator[int]:
    for behind in range(at + 1, len(lines)):
        if len(lines[behind]) > MAX_LINE or not follows.fullmatch(lines[behind].lower()):
            return
        yield behind


def what_changed(new: Marked, old: Marked, at: int, blanks: Collection[bytes]) -> Cause:
    """The cause at the first piece that differs; "system": the text itself. `blanks`: hashes of lines
    that are passed over."""
    now, before = (each.marks.get(_after_blanks(each, at, blanks), {}) for each in (new, old))
    lines: tuple[Cause, ...] = ("attribution", "git")
    for cause in lines:
        if cause in now or cause in before:
            return cause
    for kind, (cause, _) in _KINDS.items():
        if kind in now and now[kind] == before.get(kind):
            return cause
    if "folder" in now or "folder" in before:
        return "folder"
    # One of them has a line that the other has not.
    only = _only_here(new, old, at) | _only_here(old, new, at)
    for kind in ("date", "id"):
        if kind in only:
            return _KINDS[kind][0]
    return "system"


def _only_here(lines: Marked, others: Marked, at: int) -> set[str]:
    """The kinds of text in the few lines that stand before what the others have at this place."""
    there = next(others.each(at), None)
    few = list(islice(lines.each(at), _FEW + 1))
    count = few.index(there) if there in few else 0
    return {kind for line in range(at, at + count) for kind in lines.marks.get(line, {})}


def _after_blanks(lines: Marked, at: int, blanks: Collection[bytes]) -> int:
    return at + next((count for count, line in enumerate(lines.each(at)) if line not in blanks), 0)
