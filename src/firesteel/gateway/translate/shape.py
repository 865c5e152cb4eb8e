"""One shape of a conversation that every chat template takes.

Agents send more than one system message: Codex two `developer` messages at the head, Claude Code a `system`
message in the middle whenever it has a reminder. Many templates refuse both (Qwen's: "System message must be
at the beginning"), know no `developer`, or want users and assistants in turns (Mistral's, Gemma's). A server
that moves every system message to the head instead changes the first bytes of the prompt, and reads all of
it again. So, in any of the three APIs:

    several system or developer messages at the head   one system message
    one in the middle                                  text at the end of the result or user message before
    one right after the first user message             text at its beginning
    user messages that follow each other               one user message

What is moved goes backward by one message only: a conversation that grows at its end keeps its beginning,
and the engine's cache with it. What an agent says at the beginning of every session comes before the user's
words, so that sessions share it. Nothing but the places changes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from firesteel.gateway.translate.values import Json
from firesteel.values import Value

_SYSTEM = ("system", "developer")
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""The words in which Claude Code writes its own reminders into user messages."""


class _Format(Value):
    """Where an API has what is moved."""

    items: str
    head: str
    """The member for the system prompt; empty: it is the first of the items."""
    part: str
    """The type of a text part."""


_FORMATS = {
    "chat": _Format("messages", "", "text"),
    "message": _Format("messages", "system", "text"),
    "response": _Format("input", "instructions", "input_text"),
}
"""By the kind of a route."""
SystemRole = Literal["first", "none"]
"""What a template takes: one system message at the head, or none at all."""
_INNER = re.compile(rb'"role"[ \t\r\n]*:[ \t\r\n]*"(?:system|developer)"')


def has_inner_system(body: bytes) -> bool:
    """Whether a body of Anthropic's API may have a system message that is not at the head."""
    return _INNER.search(body) is not None


def shaped(kind: str, request: Json, system: SystemRole = "first") -> Json:
    """The request in the shape that every template takes; the same object if it has it already."""
    form = _FORMATS.get(kind)
    items = request.get(form.items) if form else None
    if form is None or not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return request
    texts, rest = _split_head(items)
    if texts is None:
        return request
    changed = list(_in_place(_before_the_task(rest, form), form))
    head = _joined([request.get(form.head), *texts] if form.head else texts, form)
    if head and system == "none":
        changed = _with_first(changed, head, form)
        head = None
    if form.head:
        after = {**request, form.items: changed}
        if head:
            after[form.head] = head
        else:
            after.pop(form.head, None)
    else:
        first = [{"role": "system", "content": head}] if head else []
        after = {**request, form.items: [*first, *changed]}
    return request if after == request else after


def _split_head(items: list[Json]) -> tuple[list[Any] | None, list[Json]]:
    """The contents of the system messages at the head, and the rest. None: one has more than text."""
    count = 0
    while count < len(items) and _is_system(items[count]):
        count += 1
    texts = [item.get("content") for item in items[:count]]
    if not all(_is_text(text) for text in texts):
        return None, items
    return texts, items[count:]


def _is_system(item: Json) -> bool:
    return item.get("role") in _SYSTEM and item.get("type", "message") == "message"


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)
    return content is None or isinstance(content, str)


def _joined(contents: list[Any], form: _Format) -> Any:
    """Blocks stay blocks where an API takes them (they say what is cached); otherwise one text."""
    contents = [content for content in contents if content]
    if len(contents) == 1 and (form.items != "input" or isinstance(contents[0], str)):
        return contents[0]
    if form.head == "system" and any(isinstance(content, list) for content in contents):
        return [part for content in contents for part in _parts(content, form)]
    return "\n\n".join(_text(content) for content in contents) or None


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(part["text"] for part in content)


def _parts(content: Any, form: _Format) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": form.part, "text": content}] if content else []


def _before_the_task(items: list[Json], form: _Format) -> list[Json]:
    """System messages that follow the first user message stand before it."""
    count = 1
    while count < len(items) and _is_system(items[count]):
        count += 1
    if not items or not _is_user(items[0]) or _with_result(items[0], "", form) is not None:
        return items
    return [*items[1:count], items[0], *items[count:]]


def _in_place(items: list[Json], form: _Format) -> Iterator[Json]:
    """The rest, with the system messages in it moved backward, and user messages joined."""
    last: Json | None = None
    for item in items:
        if _is_system(item) and _is_text(item.get("content")):
            text = _text(item.get("content") or "")
            item = {"role": "user", "content": text if _is_reminder(text) else _REMINDER.format(text)}
            if form.items == "input":
                item["type"] = "message"
            if last is not None and (result := _with_result(last, item["content"], form)) is not None:
                last = result
                continue
        if last is not None and _is_user(last) and _is_user(item):
            last = {**last, "content": _appended(last.get("content"), item.get("content"), form)}
            continue
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last


def _is_reminder(text: str) -> bool:
    return text.lstrip().startswith("<system-reminder>")


def _is_user(item: Json) -> bool:
    return item.get("role") == "user" and item.get("type", "message") == "message"


def _with_result(item: Json, text: str, form: _Format) -> Json | None:
    """A tool's result with a text at its end; None: the item is none.

    Templates that want users and assistants in turns take a user message after a result for one too many.
    """
    if item.get("role") == "tool":
        return {**item, "content": _appended(item.get("content"), text, form)}
    if item.get("type") == "function_call_output":
        return {**item, "output": _appended(item.get("output"), text, form)}
    blocks = item.get("content")
    if not (_is_user(item) and isinstance(blocks, list) and blocks and isinstance(blocks[-1], dict)):
        return None
    *others, block = blocks
    if block.get("type") != "tool_result":
        return None
    return {
        **item,
        "content": [*others, {**block, "content": _appended(block.get("content"), text, form)}],
    }


def _appended(content: Any, more: Any, form: _Format) -> Any:
    if isinstance(content, list) or isinstance(more, list):
        return [*_parts(content, form), *_parts(more, form)]
    return "\n\n".join(text for text in (content, more) if text)


def _with_first(items: list[Json], head: Any, form: _Format) -> list[Json]:
    """The system prompt at the beginning of the first user message, for a template without that role."""
    if items and _is_user(items[0]):
        return [{**items[0], "content": _appended(head, items[0].get("content"), form)}, *items[1:]]
    first: Json = {"role": "user", "content": head}
    return [{"type": "message", **first} if form.items == "input" else first, *items]
