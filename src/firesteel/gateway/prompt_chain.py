"""What an engine's cache should have had of a prompt: where a prompt departs from the one before, and why.

An engine keeps the state of prompts that it has read, and reads only what follows the first difference. So a
turn of a conversation costs little, unless something near the beginning has changed. Of every conversation
(a key, a model, and its messages up to the first answer) `PromptChains` keeps the last prompt as a chain of
hashes: one for each line or part of the system prompt, of the tools, and of the messages of each turn. The
hashes have a key that this process draws and never writes, no text is kept, and what is kept has a limit.

    body ── the same around its messages, the same messages, more at the end? ── yes: hash what is new
                  └─ no: parse, and compare with the last prompt of this conversation or, where it is new,
                     with the session that is most like it

Only a prompt that departs is parsed. Parts are compared in the order in which templates write them: system,
tools, messages. A piece that differs has a cause (`prompt_causes.py`); at the end the engine's own count of
cached tokens says whether it was read again (`cache_report.py`).

Nothing here knows a client, a clock or a socket. `take` is called once a prompt was sent.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from itertools import islice, pairwise, takewhile
from operator import itemgetter, methodcaller
from typing import Any

from msgspec import Struct, field

from firesteel.gateway.prompt_causes import Cause, Marks, is_summary, marks_of, what_changed

MAX_BODY_BYTES = 2 * 2**20
"""A longer prompt is not followed: parsing it would hold up the streams of others."""
MAX_KEPT_BYTES = 4 * 2**20
MAX_GROUPS, MAX_CONVERSATIONS, MAX_COMPARED = 64, 32, 8
"""Keys with their models; conversations of each; and how many of those a new session is compared with."""
_SIZE, _EDGE = 8, 64
"""Bytes of a hash; and of the end of the messages, by which most other conversations are told apart."""
_SIMILAR, _KEPT = 0.5, 0.3
"""The least that two sessions of one program share of system prompt and tools; and that is left of the
messages of a conversation of which a part was dropped. Our choice."""
_MARKED, _MARKED_OPENING, _MARKED_TURN = 1000, 300, 16
"""Pieces of the system prompt, at the beginning of the messages, and at their end that are looked at: where
programs write what changes."""
_MIN_PIECE = 24
"""Bytes; shorter pieces (brackets, empty lines) are in every prompt."""
_hash = partial(blake2b, digest_size=_SIZE, key=os.urandom(32))
_digest = methodcaller("digest")
_BLANKS = frozenset(_hash(word).digest() for word in (b"", b"text", b"input_text", b"output_text"))
"""Of pieces that say nothing."""
_CUT = re.compile(rb'\\n|"(?:role|type|text|content)":')
_strip = methodcaller("strip", b'"[]{}, ')
_CACHE_CONTROL = re.compile(rb',\s?"cache_control":\s?\{[^{}]*\}|"cache_control":\s?\{[^{}]*\},\s?')
"""Moves to the last message with each turn; templates do not see it."""
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODE = json.JSONDecoder().raw_decode
_SYSTEM, _SYSTEM_ROLES = ("system", "instructions"), ("system", "developer")
_ANSWER_ROLES = ("assistant", "tool")
_ROLES = ("user", *_ANSWER_ROLES, *_SYSTEM_ROLES)
_ANSWER_TYPES = ("function_call", "reasoning", "function_call_output", "custom_tool_call")
_SETTINGS = (
    "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "tool_choice", "response_format",
    "text", "output_config",
)  # fmt: skip
"""Members that a template may write into the prompt."""
_FIELD = re.compile(
    rb'"(text|input|arguments|tool_calls|output|reasoning_content|thinking|name|source|image_url)":'
)
_TAG = re.compile(rb"<([a-zA-Z_-]+)>")


class Pieces(Struct):
    """A stretch of a prompt: a hash of each piece, and what kind of text is in it where that is known."""

    size: int
    """Bytes."""
    hashes: bytes
    marks: Marks
    whole: bytes
    """A hash of all of it."""

    def __len__(self) -> int:
        return len(self.hashes) // _SIZE

    def each(self, start: int = 0) -> Iterator[bytes]:
        hashes = self.hashes
        return (hashes[at : at + _SIZE] for at in range(start * _SIZE, len(hashes), _SIZE))

    @property
    def kept(self) -> int:
        return len(self.hashes) + 64 * len(self.marks)


class Sending(Struct):
    """Where a prompt was sent."""

    model: str = ""
    replica: int = 0
    era: int = 0
    """Counts the starts of the engine."""
    was_answered: bool = False
    """The engine has read it to its end."""


class SeenPrompt(Struct):
    """What is known of a prompt when it was sent."""

    total: int
    """Bytes of the prompt; so are the next two, and `at`."""
    shared: int = 0
    """The same as in the prompt before, from the beginning."""
    lost: int = 0
    """Behind the first difference, and in the prompt before as well."""
    cause: Cause | None = None
    detail: str = ""
    where: str = ""
    """The place of the first difference, without any text of the prompt."""
    at: int = 0
    has_other_settings: bool = False
    is_turn: bool = True
    """Of a conversation that is known; otherwise a session of its own."""
    before: Sending | None = None
    """Of the prompt that it was compared with."""
    now: Sending = field(default_factory=Sending)


class Conversation(Struct, eq=False):
    opening: bytes
    """Hash of the messages up to the first answer."""
    start: int
    """Where the messages begin in the body."""
    behind: int
    """Bytes behind them."""
    frame: bytes
    """Hash of what is around them."""
    edge: bytes
    """Hash of the last bytes of the messages."""
    whole: bytes
    """Hash of all messages."""
    system: Pieces
    tools: Pieces
    each_tool: tuple[tuple[bytes, bytes], ...]
    """Hashes of name and definition."""
    settings: bytes
    turns: list[Pieces]
    """The messages: those of the first prompt, then what each turn has added."""
    size: int
    """Bytes of the messages."""
    count: int
    """Of the messages, about."""
    last: Sending | None = None

    @property
    def prompt_size(self) -> int:
        return self.system.size + self.tools.size + self.size

    @property
    def kept(self) -> int:
        return sum(each.kept for each in (self.system, self.tools, *self.turns))

    def known(self) -> set[bytes]:
        return {piece for part in (self.system, self.tools, *self.turns) for piece in part.each()}


class PromptChains:
    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], list[Conversation]] = OrderedDict()
        """By key and model, the last used at the end; in each the last used first."""
        self._eras: dict[str, int] = {}
        self.kept = 0
        """Bytes, about."""

    def restarted(self, model: str) -> None:
        """Its engine's cache is empty."""
        self._eras[model] = self._eras.get(model, 0) + 1

    def take(self, key: str, model: str, body: bytes, engine: tuple[str, int]) -> SeenPrompt | None:
        """`model`: as the client calls it; `engine`: the model that is served, and its replica. None: this is
        no conversation, or it is too long."""
        if len(body) > MAX_BODY_BYTES:
            return None
        if b'"cache_control":' in body:
            body = _CACHE_CONTROL.sub(b"", body)
        group = self._groups.get((key, model), [])
        now = Sending(*engine, self._eras.get(engine[0], 0))
        for found in group:
            if (seen := self._extended(found, body)) is not None:
                group.remove(found)
                break
        else:
            try:
                prompt = PromptParts.read(body)
            except (ValueError, IndexError, RecursionError):
                return None
            if prompt is None:
                return None
            found = prompt.conversation(body, group)
            seen = self._compared(found, prompt, key, group)
            for old in [each for each in group if each.opening == found.opening]:
                self._drop(group, old)
            self.kept += found.kept
        group.insert(0, found)
        self._groups[key, model] = group
        self._groups.move_to_end((key, model))
        if len(group) > MAX_CONVERSATIONS:
            self._drop(group, group[-1])
        while len(self._groups) > MAX_GROUPS or self.kept > MAX_KEPT_BYTES:
            key_and_model, oldest = next(iter(self._groups.items()))
            self._drop(oldest, oldest[-1])
            if not oldest:
                del self._groups[key_and_model]
        seen.now = found.last = now
        return seen

    def _drop(self, group: list[Conversation], old: Conversation) -> None:
        group.remove(old)
        self.kept -= old.kept

    def _extended(self, found: Conversation, body: bytes) -> SeenPrompt | None:
        """The next turn of this conversation, which is not parsed; None: it is something else."""
        start, end = found.start, len(body) - found.behind
        had = start + found.size
        if end < had or _hash(body[max(start, had - _EDGE) : had]).digest() != found.edge:
            return None
        if _hash(body[:start] + body[end:]).digest() != found.frame:
            return None
        state = _hash(body[start:had])
        if state.digest() != found.whole or (end > had and not body.startswith(b",", had)):
            return None
        shared = found.prompt_size
        if end > had:
            tail = body[had:end]
            state.update(tail)
            turn = _pieces(tail, 0, _MARKED_TURN)
            found.turns.append(turn)
            self.kept += turn.kept
            found.whole, found.edge = state.digest(), _hash(body[max(start, end - _EDGE) : end]).digest()
            found.size += turn.size
            found.count += _count(tail)
        return SeenPrompt(shared + end - had, shared, before=found.last)

    def _compared(
        self, new: Conversation, prompt: PromptParts, key: str, group: list[Conversation]
    ) -> SeenPrompt:
        same = next((each for each in group if each.opening == new.opening), None)
        if same is not None:
            return _compare(new, prompt, same, is_turn=True)
        own = (each for (owner, _), all in self._groups.items() if owner == key for each in all)
        elsewhere = next((each for each in own if each.opening == new.opening), None)
        if elsewhere is not None and new.count > 1:  # not only the same question to two models
            return SeenPrompt(
                new.prompt_size, lost=min(new.prompt_size, elsewhere.prompt_size), cause="model"
            )
        ends = {_hash(prompt.messages[max(0, end - _EDGE) : end]).digest() for end, *_ in prompt.items[:-1]}
        continued = next((each for each in group if each.edge in ends), None)
        if continued is not None:  # its beginning was dropped, or written anew
            return _compare(new, prompt, continued, is_turn=True)
        alike = [each for each in group[:MAX_COMPARED] if _likeness(new, each) >= _SIMILAR]
        if alike:  # the engine has them all: the one that shares most from the beginning
            nearest = max(alike, key=lambda each: (_same(new.system, each.system), _likeness(new, each)))
            return _compare(new, prompt, nearest, is_turn=False)
        others = group[:MAX_COMPARED] if new.count > 1 else []
        overlaps = [(_overlap(prompt.messages, new.turns[0], each), each) for each in others]
        overlap, rest = max(overlaps, key=itemgetter(0), default=(0.0, new))
        if overlap >= _SIMILAR:
            return _compare(new, prompt, rest, is_turn=True)
        return SeenPrompt(new.prompt_size, is_turn=False)


# -- a body in parts --


class PromptParts(Struct):
    system: bytes
    tools: bytes
    each_tool: tuple[tuple[bytes, bytes], ...]
    settings: bytes
    start: int
    """Where the messages begin that are not the system prompt."""
    messages: bytes
    items: list[tuple[int, str, str]]
    """Where each message ends in `messages`, its role and its type."""

    @staticmethod
    def read(body: bytes) -> PromptParts | None:
        """None: it has no messages. Raises ValueError, IndexError or RecursionError for what is no JSON.
        Characters are bytes here, so that places are those of the body."""
        text = body.decode("latin-1")
        members = dict(_members(text))
        found = members.get("messages") or members.get("input")
        if found is None or text[found[0]] != "[":
            return None
        system = b"".join(body[slice(*members[name][:2])] for name in _SYSTEM if name in members)
        items: list[tuple[int, str, str]] = []
        start = found[1] - 1
        for begin, end, value in found[2]:
            fields = value if isinstance(value, dict) else {}
            role, kind = str(fields.get("role") or ""), str(fields.get("type") or "message")
            if role in _SYSTEM_ROLES and not items:
                system += body[begin:end]
            else:
                start = start if items else begin
                items.append((end - start, role, kind))
        tools = members.get("tools", (0, 0, None))
        each_tool = tuple(map(_tool, tools[2])) if isinstance(tools[2], list) else ()
        settings = b"".join(body[slice(*members[name][:2])] for name in _SETTINGS if name in members)
        messages = body[start : start + items[-1][0]] if items else b""
        return PromptParts(
            system, body[slice(*tools[:2])], each_tool, _hash(settings).digest(), start, messages, items
        )

    @property
    def questions(self) -> list[int]:
        """Where each message up to the first answer ends."""
        asked = takewhile(
            lambda item: item[1] not in _ANSWER_ROLES and item[2] not in _ANSWER_TYPES, self.items
        )
        return [end for end, *_ in asked]

    def conversation(self, body: bytes, others: list[Conversation]) -> Conversation:
        start, messages = self.start, self.messages
        end = start + len(messages)
        return Conversation(
            _hash(messages[: max(self.questions, default=0)]).digest(),
            start,
            len(body) - end,
            _hash(body[:start] + body[end:]).digest(),
            _hash(messages[-_EDGE:]).digest(),
            _hash(messages).digest(),
            _common(self.system, (each.system for each in others), _MARKED),
            _common(self.tools, (each.tools for each in others), 0),
            self.each_tool,
            self.settings,
            [_pieces(messages, _MARKED_OPENING, _MARKED_TURN)],
            len(messages),
            _count(messages),
        )


def _members(text: str) -> Iterator[tuple[str, tuple[int, int, Any]]]:
    """Of the outermost object: where each value begins and ends, and the value; of messages these three of
    each."""
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = _DECODE(text, at)
        start = _skip(text, _skip(text, at) + 1)
        is_list = name in ("messages", "input") and text[start] == "["
        value, at = _elements(text, start + 1) if is_list else _DECODE(text, start)
        yield name, (start, at, value)
        at = _behind_comma(text, at)


def _elements(text: str, at: int) -> tuple[list[tuple[int, int, Any]], int]:
    found, at = [], _skip(text, at)
    while text[at] != "]":
        value, end = _DECODE(text, at)
        found.append((at, end, value))
        at = _behind_comma(text, end)
    return found, at + 1


def _behind_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _tool(tool: Any) -> tuple[bytes, bytes]:
    inner = tool.get("function", tool) if isinstance(tool, dict) else {}
    name = inner.get("name", "") if isinstance(inner, dict) else ""
    return _hash(json.dumps(name).encode()).digest(), _hash(json.dumps(tool).encode()).digest()


def _count(messages: bytes) -> int:
    return messages.count(b'"role":') + messages.count(b'"call_id":')


def _split(data: bytes) -> list[bytes]:
    """Into lines, and the values of what is around them; without the brackets between."""
    return list(map(_strip, _CUT.split(data)))


def _pieces(data: bytes, first: int, last: int = 0) -> Pieces:
    """`first`, `last`: how many pieces at the beginning and the end are looked at."""
    parts = _split(data)
    marks = marks_of(parts, _hash, 0, min(first, len(parts)))
    marks |= marks_of(parts, _hash, max(first, len(parts) - last), len(parts))
    return Pieces(len(data), b"".join(map(_digest, map(_hash, parts))), marks, _hash(data).digest())


def _common(data: bytes, known: Iterable[Pieces], marked: int) -> Pieces:
    """Of a part that sessions share: mostly it is known."""
    whole = _hash(data).digest()
    found = next((each for each in known if each.whole == whole), None)
    return _pieces(data, marked) if found is None else found


# -- comparing --


def _likeness(new: Conversation, old: Conversation) -> float:
    """What two sessions share of system prompt and tools, wherever it stands."""
    known = {*old.system.each(), *old.tools.each()}
    masked = {mask for marks in old.system.marks.values() for mask in marks.values()}
    alike = sum(piece in known for piece in new.tools.each())
    for at, piece in enumerate(new.system.each()):
        alike += piece in known or not masked.isdisjoint(new.system.marks.get(at, {}).values())
    return alike / (len(new.system) + len(new.tools))


def _lost(data: bytes, pieces: Pieces, known: set[bytes], at: int = 0) -> int:
    """Bytes of it, from a piece on, that the prompt before had as well. Short pieces do not count."""
    parts = zip(_split(data)[at:], pieces.each(at), strict=True)
    return sum(len(part) for part, piece in parts if len(part) >= _MIN_PIECE and piece in known)


def _overlap(data: bytes, pieces: Pieces, old: Conversation) -> float:
    """The part of some messages, in bytes, that another conversation has as well."""
    return _lost(data, pieces, old.known()) / max(1, len(data))


def _compare(new: Conversation, prompt: PromptParts, old: Conversation, *, is_turn: bool) -> SeenPrompt:
    seen = SeenPrompt(new.prompt_size, is_turn=is_turn, before=old.last)
    seen.has_other_settings = new.settings != old.settings
    known, messages = old.known(), new.turns[0]
    if new.system.hashes != old.system.hashes:
        at, seen.at, line = _first_difference(prompt.system, new.system, old.system)
        seen.cause = what_changed(new.system, old.system, at, _BLANKS)
        seen.where = f"system prompt, line {line}"
        seen.lost = _lost(prompt.system, new.system, known, at) + _lost(prompt.tools, new.tools, known)
        seen.lost += _lost(prompt.messages, messages, known)
    elif new.each_tool != old.each_tool:
        index, seen.detail = _changed_tool(new.each_tool, old.each_tool)
        at, offset, _ = _first_difference(prompt.tools, new.tools, old.tools)
        seen.cause, seen.where, seen.at = "tools", f"tool {index}", new.system.size + offset
        seen.lost = _lost(prompt.tools, new.tools, known, at) + _lost(prompt.messages, messages, known)
    else:
        seen.at, data = new.system.size + new.tools.size, prompt.messages
        for turn in old.turns:
            same = data[: turn.size]
            if _hash(same).digest() != turn.whole and _pieces(same, 0).hashes != turn.hashes:
                _compare_turn(seen, prompt, data, turn, old, old.count - new.count)
                break
            seen.at, data = seen.at + turn.size, data[turn.size :]
    seen.shared = seen.at
    return seen


def _compare_turn(
    seen: SeenPrompt, prompt: PromptParts, data: bytes, turn: Pieces, old: Conversation, dropped: int
) -> None:
    """`data`: from the turn on that differs. `dropped`: by how many messages the prompt is shorter."""
    pieces, known = _pieces(data, _MARKED_OPENING, _MARKED_TURN), old.known()
    at, offset, _ = _first_difference(data, pieces, turn)
    seen.at += offset
    offset += len(prompt.messages) - len(data)
    seen.where, own = _place(prompt, offset)
    seen.lost = _lost(data, pieces, known, at)
    cause, is_turn = what_changed(pieces, turn, at, _BLANKS), seen.is_turn
    is_list = all(cause in each.marks.get(at, {}) for each in (pieces, turn))
    if not (is_turn or is_list or cause in ("date", "attribution") or _is_inside_tag(own)):
        cause = "system"  # such words may be the user's own
    ends = [end for end, *_ in prompt.items if end > offset]
    questions = [end for end in prompt.questions if end > offset]
    keeps_task = any(_hash(prompt.messages[:end]).digest() == old.opening for end in prompt.questions)
    looked_at = ends[: max(1, len(questions)) if keeps_task else 1]
    has_summary = any(
        is_summary(prompt.messages[begin:end], is_certain=is_turn)
        for begin, end in pairwise([offset, *looked_at])
    )
    has_part = is_turn and seen.lost >= _KEPT * (len(prompt.messages) - offset)
    was_later = next(pieces.each(at), b"") in known
    # A turn adds two messages: where there are only as many as before, some are gone.
    has_less = (dropped > 0 and (has_summary or has_part)) or (
        dropped == 0 and is_turn and (has_summary or (has_part and was_later))
    )
    if cause in ("date", "git", "attribution", "folder") or (cause != "system" and not has_less):
        seen.cause = cause
    elif has_less:
        seen.cause, seen.lost, seen.is_turn = "compaction", seen.total - seen.at, True
    elif seen.lost and questions and _is_inside_tag(own):
        seen.cause = "system"
    elif is_turn:
        seen.cause = "history"
        seen.detail = "the conversation went back" if dropped > 0 and not seen.lost else ""
    else:
        seen.where, seen.lost = "", 0  # here the task of another session begins


def _place(prompt: PromptParts, offset: int) -> tuple[str, bytes]:
    """Of a byte in the messages; and its message up to there."""
    begin = 0
    for index, (end, role, kind) in enumerate(prompt.items, 1):
        if end > offset:
            own = prompt.messages[begin:offset]
            fields = [name.decode() for name in _FIELD.findall(own)[-1:]]
            who = role if role in _ROLES else kind if kind in _ANSWER_TYPES else "other"
            line = own.count(b"\\n") + 1
            return ", ".join((f"message {index} ({who})", *fields, f"line {line}")), own
        begin = end
    return f"message {len(prompt.items)}", b""


def _is_inside_tag(text: bytes) -> bool:
    """Whether it ends there: that is what a program tells the model, not what its user does."""
    names = _TAG.findall(text)
    return bool(names) and b"</" + names[-1] not in text


def _same(new: Pieces, old: Pieces) -> int:
    """How many pieces are the same, from the beginning."""
    low, high = 0, min(len(new), len(old))
    while low < high:
        middle = (low + high + 1) // 2
        if new.hashes[: middle * _SIZE] == old.hashes[: middle * _SIZE]:
            low = middle
        else:
            high = middle - 1
    return low


def _first_difference(data: bytes, new: Pieces, old: Pieces) -> tuple[int, int, int]:
    """The piece, where it begins in `data`, and its line."""
    same = _same(new, old)
    cuts = list(islice(_CUT.finditer(data), same))
    return same, cuts[-1].end() if cuts else 0, 1 + sum(cut[0] == b"\\n" for cut in cuts)


def _changed_tool(
    new: tuple[tuple[bytes, bytes], ...], old: tuple[tuple[bytes, bytes], ...]
) -> tuple[int, str]:
    """The first tool that differs, from 1, and how the tools do."""
    same = [now == before for now, before in zip(new, old, strict=False)]
    before, after = {name for name, _ in old}, {name for name, _ in new}
    added, removed = len(after - before), len(before - after)
    if added or removed:
        how = " and ".join(f"{n} {word}" for n, word in ((added, "added"), (removed, "removed")) if n)
    elif sorted(new) == sorted(old):
        how = "in another order"
    else:
        how = f"{same.count(False)} with another definition"
    return (same.index(False) if False in same else len(same)) + 1, how
