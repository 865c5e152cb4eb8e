"""The tokenizer of a simulated model: words of up to eight letters, numbers of up to three digits.

It is exact in both directions, which is what a load generator needs: the pieces of a text, joined, are the
text, and a text made of n known pieces has n tokens.
"""

from __future__ import annotations

import re
from zlib import crc32

_PIECE = re.compile(r" ?[A-Za-z]{1,8}| ?[0-9]{1,3}|\n+| +|[^\sA-Za-z0-9]|\s")
_VOCABULARY = 2**31


class Tokenizer:
    """Token numbers are hashes of the pieces; those that it has made can be turned back."""

    def __init__(self) -> None:
        self._pieces: dict[int, str] = {}

    def numbers(self, text: str) -> list[int]:
        return [self._number(piece) for piece in pieces(text)]

    def text(self, numbers: list[int]) -> str:
        """Unknown numbers become question marks."""
        return "".join(self._pieces.get(number, "?") for number in numbers)

    def _number(self, piece: str) -> int:
        number = crc32(piece.encode()) % _VOCABULARY
        if len(self._pieces) < 1_000_000:  # bounds the memory of a long benchmark
            self._pieces.setdefault(number, piece)
        return number


def pieces(text: str) -> list[str]:
    return _PIECE.findall(text)


def count(text: str) -> int:
    return len(pieces(text))


def blocks(text: str, size: int = 16) -> list[int]:
    """A chained hash per full block of tokens: two prompts share a cached prefix as far as these agree."""
    tokens = pieces(text)
    hashes: list[int] = []
    last = 0
    for start in range(0, len(tokens) - len(tokens) % size, size):
        last = crc32("\0".join(tokens[start : start + size]).encode(), last)
        hashes.append(last << 32 | start)
    return hashes
