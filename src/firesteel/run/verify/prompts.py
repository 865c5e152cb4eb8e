"""Long prompts that no cache has seen: sentences put together by a seed. Pure.

A prompt that repeats an earlier one costs nothing, since engines keep what they have read. So each begins
with other words than all before it.
"""

from __future__ import annotations

import random

_WHO = (
    "the keeper",
    "a sailor",
    "the baker",
    "an old teacher",
    "the gardener",
    "a young doctor",
    "a painter",
)
_DID = ("found", "carried", "sold", "mended", "counted", "painted", "washed", "lost", "borrowed", "weighed")
_WHAT = ("a lamp", "the rope", "two letters", "an apple", "the wheel", "a map", "some bread", "a blue coat")
_WHERE = ("by the river", "in the market", "near the harbour", "under the bridge", "on the hill")
_WHEN = ("in the morning", "after the rain", "before noon", "last winter", "on a Monday", "at dusk")
TOKENS_PER_WORD = 1.3
"""Where the engine has no tokenizer to ask."""


def filler(words: int, seed: int) -> str:
    """So many words, to the sentence; other ones for each seed from the first on."""
    rolls = random.Random(seed)
    text, count = [f"Note {seed}."], 2
    while count < words:
        text.append(_sentence(rolls))
        count += text[-1].count(" ") + 1
    return " ".join(text)


def _sentence(rolls: random.Random) -> str:
    parts = [rolls.choice(kind) for kind in (_WHO, _DID, _WHAT, _WHERE, _WHEN)]
    words = " ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def with_needle(words: int, seed: int, needle: str) -> str:
    """A long text with one fact a third of the way in, and a question for it at the end."""
    sentences = filler(words, seed).split(". ")
    sentences.insert(len(sentences) // 3, f"The password of the lighthouse is {needle}")
    text = ". ".join(sentences)
    return f"{text}\n\nWhat is the password of the lighthouse? Answer with the password only."
