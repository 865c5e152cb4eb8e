"""Long prompts that no prefix cache has seen: sentences generated from a seed. Pure.

A prompt that repeats an earlier one costs nothing, because engines cache prefixes. So every prompt begins
differently from all before it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

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
"""An estimate for engines that do not offer their tokenizer."""


def filler(words: int, seed: int) -> str:
    """Text of at least that many words, in whole sentences; another seed gives another first word."""
    rng = random.Random(seed)
    sentences, count = [f"Note {seed}."], 2
    while count < words:
        sentence = " ".join(rng.choice(parts) for parts in (_WHO, _DID, _WHAT, _WHERE, _WHEN))
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
        count += sentence.count(" ") + 1
    return " ".join(sentences)


def with_needles(words: int, seed: int, needles: Mapping[str, str]) -> str:
    """A long text with the password of each place, spread from its head to its end."""
    sentences = filler(words, seed).split(". ")
    last = max(1, len(needles) - 1)
    for number, (place, needle) in enumerate(needles.items()):
        at = 1 + round(number / last * (len(sentences) - 2))
        sentences.insert(at, f"The password of the {place} is {needle}")
    return ". ".join(sentences)


def needle_question(place: str) -> str:
    return f"\n\nWhat is the password of the {place}? Answer with the password only."
