"""Prompts by kind of text, seeded, distinct, and of an exact length in the engine's own tokenizer.

How fast a drafter is depends on what it drafts: JSON can be guessed, prose cannot. So text comes in kinds,
made by small grammars over our own words (`data/bench/words.yaml`), the same for the same seed.

A prompt is a first line that no other prompt has (else a prefix cache would be what is measured), a line of
plain words that brings the length to the token, the text, and a sentence that asks for more of the same
kind. The length is counted with the engine's `/tokenize`, two calls a prompt as a rule. Where there is none
it is estimated from how many characters a token had in small requests of that kind, and whoever asks is
told that it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import islice

from firesteel.bench.values import Text
from firesteel.yaml_schema import load

Count = Callable[[str], Awaitable[int]]
_ASKS: Mapping[Text, str] = {
    "prose": "Go on with this story in the same manner, for as long as you can.",
    "code": "Go on with this module: write more functions in the same manner, and only code.",
    "json": "Go on with this list: write more records of the same form, one a line, and only JSON.",
    "math": "Go on with more problems of this kind, and work each out step by step.",
}
_TRIES = 6
_FILL_LEAST, _FILL_SHARE = 48, 0.03
"""Of a prompt, what plain words may make up."""
_CHARS, _MOST_CHARS = 4.0, 12.0
"""Of a token: at first, and at most, lest a tokenizer that lies has us write books."""


@cache
def words() -> Mapping[str, list[str]]:
    text = (files("firesteel") / "data" / "bench" / "words.yaml").read_text("utf-8")
    return load("data/bench/words.yaml", text, dict[str, list[str]])


# --- text without end ---


def blocks(kind: Text, seed: str) -> Iterator[str]:
    """Pieces of text, one after the other, without end."""
    order = random.Random(f"{kind}/{seed}")
    make = {"prose": _sentence, "code": _function, "json": _record, "math": _problem}[kind]
    while True:  # as many as are asked for
        piece = make(order)
        yield piece if piece.endswith("\n") else f"{piece} "


def _of(order: random.Random, name: str) -> str:
    return order.choice(words()[name])


def _sentence(order: random.Random) -> str:
    first = f"{_clause(order)} {_of(order, 'adverbs')}"
    if order.random() < 0.5:
        first += f", {_of(order, 'joins')} {_clause(order)}"
    return first[0].upper() + first[1:] + ("." if order.random() < 0.75 else ".\n")


def _clause(order: random.Random) -> str:
    who = _of(order, "people") if order.random() < 0.4 else f"the {_noun(order)}"
    return f"{who} {_of(order, 'verbs')} the {_noun(order)}"


def _noun(order: random.Random) -> str:
    return (
        f"{_of(order, 'adjectives')} {_of(order, 'nouns')}" if order.random() < 0.6 else _of(order, "nouns")
    )


def _function(order: random.Random) -> str:
    task, thing, key = _of(order, "tasks"), _of(order, "things"), _of(order, "fields")
    other, limit = _of(order, "fields"), order.randint(2, 900)
    body = order.choice(
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


def _record(order: random.Random) -> str:
    row = {
        "id": order.randint(1000, 999999),
        "kind": _of(order, "things"),
        "status": _of(order, "states"),
        "owner": _of(order, "people"),
        _of(order, "fields"): round(order.uniform(0, 500), 2),
        "tags": order.sample(words()["adjectives"], 2),
    }
    return json.dumps(row) + "\n"


def _problem(order: random.Random) -> str:
    a, b = order.randint(12, 98), order.randint(3, 19)
    c = order.randint(2, a * b - 1)
    thing, who = _of(order, "things"), _of(order, "people")
    return (
        f"{who} has {a} boxes with {b} {thing}s each and gives {c} of them away.\n"
        f"First {a} * {b} = {a * b}.\nThen {a * b} - {c} = {a * b - c}.\nSo {a * b - c} {thing}s are left.\n"
    )


# --- to the token ---


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    tokens: int
    """As counted, or as estimated."""


@dataclass(slots=True)
class PromptWriter:
    """Makes prompts with one engine's tokenizer. The same ask gives the same prompt, whatever came before."""

    count: Count
    chars: dict[Text, float] = field(default_factory=dict)
    """Of a token, by kind; found once, from a text that is always the same."""
    calls: int = 0

    async def prompt(self, kind: Text, tokens: int, seed: str, tag: str, before: str = "") -> Prompt:
        """`tag` is what no other prompt begins with; `before` a prefix that others may share, of which the
        tokens count too."""
        chars = await self._chars_of(kind)
        draft = _Draft(kind, blocks(kind, seed), before, tag, random.Random(seed))
        draft.grow(tokens, chars)
        best = Prompt("", 0)
        for _ in range(_TRIES):
            text = draft.text()
            counted = await self._counted(text)
            if not best.text or abs(counted - tokens) < abs(best.tokens - tokens):
                best = Prompt(text, counted)
            if counted == tokens or not draft.correct(tokens - counted, chars):
                break
        return best

    async def _chars_of(self, kind: Text) -> float:
        if kind not in self.chars:
            text = "".join(islice(blocks(kind, "how long tokens are"), 40))
            counted = await self._counted(text)
            self.chars[kind] = min(_MOST_CHARS, max(1.0, len(text) / counted)) if counted > 0 else _CHARS
        return self.chars[kind]

    async def _counted(self, text: str) -> int:
        self.calls += 1
        return await self.count(text)


@dataclass(slots=True)
class _Draft:
    kind: Text
    more: Iterator[str]
    before: str
    tag: str
    order: random.Random
    body: list[str] = field(default_factory=list)
    fill: list[str] = field(default_factory=list)
    is_bare: bool = False
    """Too short for text of a kind: plain words only."""
    is_cut: bool = False
    """Lines were too many once: from here on only words are added, or it would never end."""

    def text(self) -> str:
        fill = " ".join(self.fill)
        if self.is_bare:
            return f"{self.before}{self.tag} {fill}.".replace(" .", ".")
        head = f"{self.tag}: {fill}\n" if fill else f"{self.tag}:\n"
        return f"{self.before}{head}{''.join(self.body)}{_ASKS[self.kind]}"

    def grow(self, tokens: int, chars: float) -> None:
        """The first guess: a little short, so that words can make it up."""
        self._add((tokens - max(6, tokens // 100)) * chars - len(self.text()))

    def correct(self, off: int, chars: float) -> bool:
        """By plain words where few are missing, by lines where many are; False: nothing can be done."""
        most = max(_FILL_LEAST, round(_FILL_SHARE * (off + len(self.text()) / chars)))
        if off > 0 and not self.is_cut and len(self.fill) + off > most and self._add((off - 6) * chars):
            pass
        elif off > 0:
            self.fill += [self.order.choice(words()["fill"]) for _ in range(off)]
        elif len(self.fill) > -off:
            del self.fill[off:]
        elif self.body:
            self.is_cut = True
            self._drop(-off * chars)
        elif not self.is_bare:
            self.is_bare = True
        else:
            return False
        return True

    def _add(self, chars: float) -> bool:
        """Lines that fit, as long as one is found every now and then; False: none did."""
        missed, before = 0, len(self.body)
        while chars > 0 and missed < 12:
            for line in next(self.more).splitlines(keepends=True):
                if len(line) <= chars:
                    self.body.append(line)
                    chars -= len(line)
                else:
                    missed += 1
        return len(self.body) > before

    def _drop(self, chars: float) -> None:
        while self.body and chars > 0:
            chars -= len(self.body.pop())
