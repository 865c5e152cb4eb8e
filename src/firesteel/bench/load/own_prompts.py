"""Prompts of the user's own, from a file, to measure with in place of generated ones.

    one a line      any text file: every line that is not empty is a prompt
    JSONL           every line an object with `prompt`, with `messages` as in a request, or as in ShareGPT
    ShareGPT        a list of objects with `conversations`: the first question of each is a prompt

They are sent as they are. A file that is not what it seems is refused with the line, before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from firesteel.bench.load.prompts import Message, Prompt
from firesteel.edge import files
from firesteel.errors import UsageError, printable
from firesteel.values import Value, replace

MAX_USED = 500
"""Prompts that are counted and sent; chosen by the seed where a file has more."""
_MAX_ENTRIES = 200_000
_MAX_MESSAGES = 1000
_CHARS_PER_TOKEN = 4
_KEYS = ("prompt", "messages", "conversations")
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "bard": "assistant", "assistant": "assistant", "system": "system", "developer": "developer",
}  # fmt: skip


class OwnPrompts(Value):
    label: str
    """The file's name and the beginning of its digest: other prompts are another load."""
    prompts: tuple[Prompt, ...]
    """Not counted yet."""
    notes: tuple[str, ...] = ()

    @property
    def mean_tokens(self) -> int:
        """About: the engine's tokenizer is not asked."""
        return max(1, round(fmean(_chars(prompt) for prompt in self.prompts) / _CHARS_PER_TOKEN))


def read_prompts(path: Path) -> OwnPrompts:
    text = files.read_text(path)
    most = files.MAX_BYTES
    if len(text.encode(errors="replace")) >= most:
        less = f"jq -c '.[:1000][]' {path} > part.jsonl, or head -n 1000 {path} > part.jsonl"
        raise UsageError(f"{path} is longer than {most // 2**20} MiB", next=less)
    return parse_prompts(text, path.name)


def parse_prompts(text: str, name: str) -> OwnPrompts:
    """By its ending, or else by its first character. A line that cannot be read is an error."""
    name = printable(name)
    for bad, what in (("\0", "is not text"), ("\ufffd", "is not UTF-8")):
        if bad in text:
            line = text.count("\n", 0, text.index(bad)) + 1
            raise UsageError(f"{name}, line {line}, {what}", next="--prompts with a text file")
    found = list(_prompts(text, name))
    prompts = tuple(prompt for prompt in found if prompt)
    if not prompts:
        raise UsageError(f"{name} contains no prompt", next=_example())
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    skipped = len(found) - len(prompts)
    notes = (f"{skipped} of {len(found)} entries of {name} ask nothing and are left out",) if skipped else ()
    return OwnPrompts(f"{name[:40]} {digest}", prompts, notes)


def _example() -> str:
    return 'a line such as {"prompt": "Why is the sky blue?"}'


def _prompts(text: str, name: str) -> Iterator[Prompt | None]:
    """None for an entry without a question."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    is_lines = name.endswith((".txt", ".text")) or (
        start not in ("{", "[") and not name.endswith((".json", ".jsonl"))
    )
    if is_lines:
        for line in text.lstrip("\ufeff").splitlines():
            if line.strip():
                yield Prompt(line.strip(), 0)
        return
    for number, (place, entry) in enumerate(_entries(text, name, start)):
        if number >= _MAX_ENTRIES:
            raise UsageError(f"{name} has more than {_MAX_ENTRIES:,} entries", next=f"head -n 1000 {name}")
        yield _prompt(entry, place)


def _entries(text: str, name: str, start: str) -> Iterator[tuple[str, object]]:
    if start == "[":
        entries = _json(text, name)
        for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
            yield f"{name}, entry {number},", entry
        return
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if line.strip():
            place = f"{name}, line {number},"
            yield place, _json(line, place)


def _json(text: str, place: str) -> object:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = f" (its line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{place.rstrip(',')} is not JSON{line}", next=_example()) from error


def _prompt(entry: object, place: str) -> Prompt | None:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, Mapping) or not (key := next((key for key in _KEYS if key in entry), "")):
        raise UsageError(f"{place} has none of `{'`, `'.join(_KEYS)}`", next=_example())
    value = entry[key]
    if key == "prompt":
        messages = [{"role": "user", "content": _text(value, f"{place} `prompt`")}]
    elif not isinstance(value, list) or len(value) > _MAX_MESSAGES:
        raise UsageError(f"{place} `{key}` is not a list of at most {_MAX_MESSAGES:,}", next=_example())
    else:
        messages = [_message(each, f"{place} `{key}`") for each in value]
    asked = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        return None
    last = asked[0] if key == "conversations" else asked[-1]
    before = tuple(message for message in messages[:last] if message["content"].strip())
    return Prompt(messages[last]["content"], 0, before) if messages[last]["content"].strip() else None


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, Mapping):
        raise UsageError(f"{place} has a message that is no object", next=_example())
    role = _ROLES.get(str(value.get("role", value.get("from"))))
    if role is None:
        raise UsageError(f"{place} has a message of neither user, assistant nor system", next=_example())
    return {"role": role, "content": _text(value.get("content", value.get("value")), place)}


def _text(value: object, place: str) -> str:
    """A text, or the text parts of a message."""
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value
    ):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise UsageError(f"{place} has no text", next=_example())
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place} has half of a character (a lone surrogate)", next=_example()) from error
    return value


def _chars(prompt: Prompt) -> int:
    return len(prompt.text) + sum(len(message["content"]) for message in prompt.before)


async def choose_prompts(
    own: OwnPrompts,
    seed: int,
    count: Callable[[str], Awaitable[int]],
    most_tokens: int | None,
    gather: Callable[[Sequence[Awaitable[Prompt]]], Awaitable[list[Prompt]]],
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """Counted, shuffled by the seed, and short enough; with notes about those that are left out."""
    chosen = random.Random(f"{seed}/{own.label}").sample(own.prompts, min(MAX_USED, len(own.prompts)))

    async def counted(prompt: Prompt) -> Prompt:
        text = "\n".join([*(message["content"] for message in prompt.before), prompt.text])
        return replace(prompt, tokens=await count(text))

    every = await gather([counted(prompt) for prompt in chosen])
    fitting = tuple(prompt for prompt in every if most_tokens is None or prompt.tokens <= most_tokens)
    notes = list(own.notes)
    if len(own.prompts) > len(every):
        notes.append(f"{len(every)} of {len(own.prompts):,} prompts were chosen by the seed")
    if len(fitting) < len(every):
        left = len(every) - len(fitting)
        notes.append(f"{left} prompts of more than {most_tokens:,} tokens do not fit the context: left out")
    if not fitting:
        raise UsageError(
            f"no prompt of {own.label} fits the context with its answer", next="--answer with fewer tokens"
        )
    notes.append("own prompts are sent as they are: where they begin alike, a prefix cache helps")
    return fitting, tuple(notes)
