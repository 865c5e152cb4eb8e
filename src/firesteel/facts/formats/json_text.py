"""JSON objects too big to parse whole: walked member by member, in memory that does not grow.

A safetensors header is one JSON object with up to hundreds of thousands of members. `json.loads` would
hold the text, a dict a tensor and a list a shape all at once, several times the size of the answer;
a hostile header could make that gigabytes. Here text arrives in pieces, and each member is decoded,
handed out and forgotten before the next piece is asked for.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator

from firesteel.facts.formats.byte_source import BadHeader, ByteSource, bad_header

PIECE_BYTES = 1024 * 1024
MAX_VALUE_CHARS = 2 * 1024 * 1024
"""One key or one member's value. The longest real one is a `__metadata__` of some tens of kilobytes."""

Pairs = tuple[tuple[str, object], ...]
"""A decoded JSON object: its members in order, so that a key that comes twice can be seen."""

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN_KEY = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*')
_U64_DIGITS = 20


def _whole(digits: str) -> int | None:
    """A whole number that fits 64 bits; None for `-1`, `-0` and numbers long enough to stall a parser."""
    return int(digits) if len(digits) <= _U64_DIGITS and digits[0] != "-" else None


def _no_constant(word: str) -> object:
    raise ValueError(word)  # NaN and Infinity are Python's, not JSON's


def _fraction(_: str) -> None:
    return None


_DECODER = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_whole, parse_float=_fraction, parse_constant=_no_constant
)


def text_pieces(source: ByteSource, start: int, length: int) -> Iterator[str]:
    """A range of a source as UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    end = start + length
    while start < end:
        take = min(PIECE_BYTES, end - start)
        try:
            yield decoder.decode(source.read(start, take), final=start + take == end)
        except UnicodeDecodeError:
            raise bad_header(source.name, "is damaged: its header is not UTF-8") from None
        start += take


class JsonText:
    """A cursor over JSON text. For each key that `members` yields, take its `value` (or its `members`)."""

    def __init__(self, name: str, pieces: Iterable[str]) -> None:
        self._name = name
        self._pieces = iter(pieces)
        self._text = ""
        self._at = 0

    def members(self) -> Iterator[str]:
        self._expect("{")
        if self._next_char() == "}":
            self._expect("}")
            return
        while True:
            plain = self.match(_PLAIN_KEY)
            yield plain[1] if plain else self._key()
            if self._expect(",}") == "}":
                return

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The short way past JSON of a form known beforehand. None takes nothing; then take the `value`."""
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def value(self) -> object:
        """The JSON value here, objects as Pairs, numbers that are not whole and 64-bit as None."""
        self._next_char()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # A number that touches the end may go on in the next piece.
                if end < len(self._text) or not self._more():
                    break
            except RecursionError:
                raise self.bad("is damaged: its JSON is nested too deeply") from None
            except ValueError:
                # Wrong, or only not here yet: the next piece tells.
                if len(self._text) - self._at > MAX_VALUE_CHARS:
                    limit = f"{MAX_VALUE_CHARS:,} characters"
                    raise self.bad(
                        f"is damaged: its JSON has a value that is broken or over {limit}"
                    ) from None
                if not self._more():
                    raise self._not_json() from None
        if self._text.find("\\u", self._at, end) >= 0 and not _is_text(value):
            raise self.bad("is damaged: its JSON has half a surrogate pair")
        self._at = end
        return value

    def end(self) -> None:
        """Nothing but white space may follow."""
        if self._next_char():
            raise self._not_json()

    def bad(self, what: str) -> BadHeader:
        return bad_header(self._name, what)

    def _not_json(self) -> BadHeader:
        return self.bad("is damaged: its JSON is broken or no object")

    def _key(self) -> str:
        key = self.value()
        if not isinstance(key, str):
            raise self._not_json()
        self._expect(":")
        return key

    def _expect(self, chars: str) -> str:
        char = self._next_char()
        if not char or char not in chars:
            raise self._not_json()
        self._at += 1
        return char

    def _next_char(self) -> str:
        """Skip white space; the character here, or nothing at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
