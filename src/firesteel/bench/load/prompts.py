"""Prompts of an exact length in the engine's own tokenizer, or the user's own from a file.

How well a drafter works depends on the text, so generated text comes in kinds, by small grammars over our
word lists (`data/bench/words.yaml`), the same for the same seed. A prompt has a first line that no other has
(otherwise the prefix cache would be measured), plain words up to the exact token (counted with `/tokenize`,
else estimated, with a note), the text, and a request for more of it. The user's own prompts are lines of
text, JSONL (`prompt`, `messages` or ShareGPT) or a ShareGPT list. They are sent as they are; a file in none
of these forms is refused with its line, before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from firesteel import shipped_data
from firesteel.edge import files
from firesteel.errors import UsageError, printable
from firesteel.launch import Text
from firesteel.values import Value, replace

Count = Callable[[str], Awaitable[int]]
_INSTRUCTIONS: Mapping[Text, str] = {
    "prose": "Go on with this story in the same manner, for as long as you can.",
    "code": "Go on with this module: write more functions in the same manner, and only code.",
    "json": "Go on with this list: write more records of the same form, one a line, and only JSON.",
    "math": "Go on with more problems of this kind, and work each out step by step.",
}
_MAX_TRIES = 6
_MIN_FILLER, _MAX_FILLER_SHARE = 48, 0.03
"""How many filler words a prompt may have: this many tokens, or this share of it."""
_DEFAULT_CHARS, _MAX_CHARS = 4.0, 12.0
"""Characters per token: if unknown, and at most, so that a wrong tokenizer cannot make us write books."""


@cache
def word_lists() -> Mapping[str, list[str]]:
    return shipped_data.load("bench/words.yaml", dict[str, list[str]])


# --- endless text by kind ---


def text_blocks(kind: Text, seed: str) -> Iterator[str]:
    """An endless series of pieces of text."""
    rng = random.Random(f"{kind}/{seed}")
    make = {"prose": _sentence, "code": _function, "json": _record, "math": _problem}[kind]
    while True:  # the caller takes as many as it needs
        piece = make(rng)
        yield piece if piece.endswith("\n") else f"{piece} "


def _pick(rng: random.Random, name: str) -> str:
    return rng.choice(word_lists()[name])


def _sentence(rng: random.Random) -> str:
    first = f"{_clause(rng)} {_pick(rng, 'adverbs')}"
    if rng.random() < 0.5:
        first += f", {_pick(rng, 'joins')} {_clause(rng)}"
    return first[0].upper() + first[1:] + ("." if rng.random() < 0.75 else ".\n")


def _clause(rng: random.Random) -> str:
    who = _pick(rng, "people") if rng.random() < 0.4 else f"the {_noun(rng)}"
    return f"{who} {_pick(rng, 'verbs')} the {_noun(rng)}"


def _noun(rng: random.Random) -> str:
    return f"{_pick(rng, 'adjectives')} {_pick(rng, 'nouns')}" if rng.random() < 0.6 else _pick(rng, "nouns")


def _function(rng: random.Random) -> str:
    task, thing, key = _pick(rng, "tasks"), _pick(rng, "things"), _pick(rng, "fields")
    other, limit = _pick(rng, "fields"), rng.randint(2, 900)
    body = rng.choice(
        (
            f'    found = []\n    for {thing} in {thing}s:\n        if {thing}["{key}"] > {limit}:\n'
            f'            found.append({thing}["{other}"])\n    return found\n',
            f"    total = {limit}\n    for {thing} in {thing}s:\n"
            f"        total += {thing}.{key} * {thing}.{other}\n"
            f"    return total / max(1, len({thing}s))\n",
            f'    if not {thing}s:\n        raise ValueError("no {thing}s to {task}")\n'
            f"    return sorted({thing}s, key=lambda each: each.{key})[:{limit}]\n",
            f"    by_{key} = {{}}\n    for {thing} in {thing}s:\n"
            f"        by_{key}.setdefault({thing}.{key}, []).append({thing}.{other})\n    return by_{key}\n",
        )
    )
    return f"def {task}_{thing}s_by_{key}_{limit}({thing}s):\n{body}"


def _record(rng: random.Random) -> str:
    row = {
        "id": rng.randint(1000, 999999),
        "kind": _pick(rng, "things"),
        "status": _pick(rng, "states"),
        "owner": _pick(rng, "people"),
        _pick(rng, "fields"): round(rng.uniform(0, 500), 2),
        "tags": rng.sample(word_lists()["adjectives"], 2),
    }
    return json.dumps(row) + "\n"


def _problem(rng: random.Random) -> str:
    a, b = rng.randint(12, 98), rng.randint(3, 19)
    c = rng.randint(2, a * b - 1)
    thing, who = _pick(rng, "things"), _pick(rng, "people")
    return (
        f"{who} has {a} boxes with {b} {thing}s each and gives {c} of them away.\n"
        f"First {a} * {b} = {a * b}.\nThen {a * b} - {c} = {a * b - c}.\nSo {a * b - c} {thing}s are left.\n"
    )


# --- to the exact token ---


Message = dict[str, str]


class Prompt(Value):
    text: str
    tokens: int
    """Counted or estimated."""
    before: tuple[Message, ...] = ()
    """Messages before it, in prompts of the user's own."""


class PromptWriter(Struct):
    """Writes prompts for one engine's tokenizer. Equal arguments give an equal prompt, in any order of
    calls."""

    count: Count
    chars_per_token: dict[Text, float] = {}
    """By kind of text; measured once, on a text that is always the same."""

    async def prompt(self, kind: Text, tokens: int, seed: str, tag: str, prefix: str = "") -> Prompt:
        """`tag` makes the beginning unique. `prefix` may be shared with other prompts; its tokens count."""
        chars_per_token = await self._chars_per_token(kind)
        draft = _Draft(kind, text_blocks(kind, seed), prefix, tag, random.Random(seed))
        draft.grow(tokens, chars_per_token)
        best = Prompt("", 0)
        for _ in range(_MAX_TRIES):
            text = draft.text()
            counted = await self.count(text)
            if not best.text or abs(counted - tokens) < abs(best.tokens - tokens):
                best = Prompt(text, counted)
            if counted == tokens or not draft.correct(tokens - counted, chars_per_token):
                break
        return best

    async def _chars_per_token(self, kind: Text) -> float:
        if kind not in self.chars_per_token:
            text = "".join(islice(text_blocks(kind, "how long tokens are"), 40))
            counted = await self.count(text)
            ratio = min(_MAX_CHARS, max(1.0, len(text) / counted)) if counted > 0 else _DEFAULT_CHARS
            self.chars_per_token[kind] = ratio
        return self.chars_per_token[kind]


class _Draft(Struct):
    """A prompt that is corrected until its length is exact: whole lines of text, and single filler words."""

    kind: Text
    blocks: Iterator[str]
    prefix: str
    tag: str
    rng: random.Random
    lines: list[str] = []
    filler: list[str] = []
    is_bare: bool = False
    """Too short for text of a kind: filler words only."""
    is_cut: bool = False
    """Lines were removed once. After that only words are added, otherwise it might never end."""

    def text(self) -> str:
        filler = " ".join(self.filler)
        if self.is_bare:
            return f"{self.prefix}{self.tag} {filler}.".replace(" .", ".")
        head = f"{self.tag}: {filler}\n" if filler else f"{self.tag}:\n"
        return f"{self.prefix}{head}{''.join(self.lines)}{_INSTRUCTIONS[self.kind]}"

    def grow(self, tokens: int, chars_per_token: float) -> None:
        """The first guess, a little too short, so that filler words can make up the rest."""
        self._add_lines((tokens - max(6, tokens // 100)) * chars_per_token - len(self.text()))

    def correct(self, missing: int, chars_per_token: float) -> bool:
        """Add or remove words for a small difference, lines for a large one; False: nothing more can be
        done."""
        tokens = missing + len(self.text()) / chars_per_token
        max_filler = max(_MIN_FILLER, round(_MAX_FILLER_SHARE * tokens))
        is_large = len(self.filler) + missing > max_filler and not self.is_cut
        if missing > 0 and is_large and self._add_lines((missing - 6) * chars_per_token):
            pass
        elif missing > 0:
            self.filler += [self.rng.choice(word_lists()["fill"]) for _ in range(missing)]
        elif len(self.filler) > -missing:
            del self.filler[missing:]
        elif self.lines:
            self.is_cut = True
            surplus = -missing * chars_per_token
            while self.lines and surplus > 0:
                surplus -= len(self.lines.pop())
        elif not self.is_bare:
            self.is_bare = True
        else:
            return False
        return True

    def _add_lines(self, chars: float) -> bool:
        """Add lines that fit, until too many did not; False: none fitted."""
        missed, before = 0, len(self.lines)
        while chars > 0 and missed < 12:
            for line in next(self.blocks).splitlines(keepends=True):
                if len(line) <= chars:
                    self.lines.append(line)
                    chars -= len(line)
                else:
                    missed += 1
        return len(self.lines) > before


# --- prompts of the user's own ---

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
        """An estimate, without the engine's tokenizer."""
        texts = [prompt.text for prompt in self.prompts]
        texts += [message["content"] for prompt in self.prompts for message in prompt.before]
        return max(1, round(sum(map(len, texts)) / len(self.prompts) / _CHARS_PER_TOKEN))


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
        raise UsageError(f"{place} has a message that is not an object", next=_example())
    role = _ROLES.get(str(value.get("role", value.get("from"))))
    if role is None:
        raise UsageError(
            f"{place} has a message whose role is not user, assistant or system", next=_example()
        )
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


async def choose_prompts(
    own: OwnPrompts,
    seed: int,
    count: Callable[[str], Awaitable[int]],
    most_tokens: int | None,
    gather: Callable[[Iterable[Coroutine[Any, Any, Prompt]]], Awaitable[list[Prompt]]],
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
