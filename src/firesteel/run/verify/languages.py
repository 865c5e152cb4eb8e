"""In which language is a text, and what is it about? For answers of models whose users are not English.

A model may answer in another language than it was asked in, and that is no fault. Its texts are recognized by
the little words that every text of a language is full of (`data/verify/languages.yaml`): garbage has none.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise

from firesteel.shipped_data import load
from firesteel.values import Value

_MIN_LITTLE_WORDS, _MIN_LITTLE_SHARE = 4, 0.2
"""That many different ones, and that share of all words: English prose has a half, German a third."""
_MIN_UNSPACED_SHARE = 0.05
"""Of the letters."""
_MIN_WORDS, _MIN_LETTERS, _MIN_MAIN_SCRIPT = 8, 20, 0.7
_HALVES_FROM_CHARS = 400
_SUBJECT_CHARS = 4

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_RANGES: tuple[tuple[int, int, str], ...] = (
    (0x0370, 0x03FF, "greek"), (0x0400, 0x052F, "cyrillic"), (0x0530, 0x058F, "armenian"),
    (0x0590, 0x05FF, "hebrew"), (0x0600, 0x077F, "arabic"), (0x0900, 0x0DFF, "indic"),
    (0x0E00, 0x0E7F, "thai"), (0x0E80, 0x109F, "indic"), (0x10A0, 0x10FF, "georgian"),
    (0x1100, 0x11FF, "cjk"), (0x1780, 0x17FF, "khmer"), (0x3040, 0x30FF, "cjk"), (0x3130, 0x318F, "cjk"),
    (0x3400, 0x9FFF, "cjk"), (0xAC00, 0xD7AF, "cjk"), (0xF900, 0xFAFF, "cjk"), (0x20000, 0x323AF, "cjk"),
)  # fmt: skip
"""Chinese, Japanese and Korean count as one: an answer in one of them may quote another."""


class _Language(Value):
    little: str
    four: str
    cold: str
    blue: str
    unspaced: bool = False


@cache
def _languages() -> dict[str, tuple[frozenset[str], bool]]:
    """The little words, and whether no space parts its words."""
    known = load("verify/languages.yaml", dict[str, _Language])
    return {name: (frozenset(one.little.split()), one.unspaced) for name, one in known.items()}


def answer_pattern(word: str) -> str:
    """What an answer to a question contains in any of the languages: `four`, `cold` or `blue`."""
    known = load("verify/languages.yaml", dict[str, _Language])
    spaced = "|".join(getattr(one, word) for one in known.values() if not one.unspaced)
    return rf"\b(?:{spaced})|" + "|".join(getattr(one, word) for one in known.values() if one.unspaced)


def script_of(letter: str) -> str:
    code = ord(letter)
    return next((name for low, high, name in _RANGES if low <= code <= high), "latin")


def is_foreign_language(text: str) -> bool:
    """Whether all of it, its end as well, is in one language, and that is not English."""
    language = _language(text)
    if language in (None, "English"):
        return False
    return len(text) < _HALVES_FROM_CHARS or _language(text[len(text) // 2 :]) == language


def _language(text: str) -> str | None:
    words = [word.lower() for word in WORD.findall(text)]
    joined = "".join(words)
    if len(joined) < _MIN_LETTERS:
        return None
    main, most = Counter(map(script_of, joined)).most_common(1)[0]
    if most < _MIN_MAIN_SCRIPT * len(joined):
        return None
    best, highest = None, 0.0
    for name, (little, is_unspaced) in _languages().items():
        if is_unspaced:
            found = (
                [one for one in little for _ in range(joined.count(one))] if main in ("cjk", "thai") else []
            )
            share, least = sum(map(len, found)) / len(joined), _MIN_UNSPACED_SHARE
        else:
            found = [word for word in words if word in little] if len(words) >= _MIN_WORDS else []
            share, least = len(found) / len(words), _MIN_LITTLE_SHARE
        if share >= least and len(set(found)) >= _MIN_LITTLE_WORDS and share > highest:
            best, highest = name, share
    return best


def subject_words(text: str) -> set[str]:
    """What a text is about: its longer words that are not little ones; pairs of letters where no space parts
    the words."""
    if any(script_of(letter) in ("cjk", "thai") for letter in text):
        return {one + other for one, other in pairwise(letter for letter in text if letter.isalpha())}
    little = frozenset[str]().union(*(words for words, _ in _languages().values()))
    words = {word.lower() for word in WORD.findall(text)}
    return {word for word in words if len(word) >= _SUBJECT_CHARS} - little
