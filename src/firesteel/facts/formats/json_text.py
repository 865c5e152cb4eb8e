"""JSON objects that are too large to parse whole: read member by member, in bounded memory.

A safetensors header is one JSON object with up to hundreds of thousands of members. `json.loads` would hold
the text, a dict per tensor and a list per shape all at once, several times the size of the result; a hostile
header could make that gigabytes. Here the text arrives in pieces, and each member is decoded, yielded and
forgotten before the next piece is read.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator

from firesteel.facts.formats.byte_source import BadHeader, ByteSource, bad_header

PIECE_BYTES = 1024 * 1024
MAX_VALUE_CHARS = 2 * 1024 * 1024
"""Of one key or one value. The longest real one is a `__metadata__` of some tens of kilobytes."""

Pairs = tuple[tuple[str, object], ...]
"""A decoded JSON object: its members in order, so that duplicate keys can be detected."""

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN_KEY = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*')
_U64_DIGITS = 20


def _whole(digits: str) -> int | None:
    """An integer that fits 64 bits; None for `-1`, `-0` and numbers long enough to stall a parser."""
    return int(digits) if len(digits) <= _U64_DIGITS and digits[0] != "-" else None


def _refuse_constant(word: str) -> object:
    raise ValueError(word)  # NaN and Infinity are not JSON


_DECODER = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_whole, parse_float=lambda _: None, parse_constant=_refuse_constant
)


def text_pieces(source: ByteSource, start: int, length: int) -> Iterator[str]:
    """A range of a source as UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    end = start + length
    while start < end:
        size = min(PIECE_BYTES, end - start)
        try:
            yield decoder.decode(source.read(start, size), final=start + size == end)
        except UnicodeDecodeError:
            raise bad_header(source.name, "is damaged: its header is not UTF-8") from None
        start += size


class JsonText:
    """A cursor over JSON text. For each key that `members` yields, take its `value` (or its `members`)."""

    def __init__(self, name: str, pieces: Iterable[str]) -> None:
        self._name = name
        self._pieces = iter(pieces)
        self._text = ""
        self._position = 0

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
        """A fast path for JSON of a known form. None: nothing was consumed; then take the `value`."""
        match = pattern.match(self._text, self._position)
        if match:
            self._position = match.end()
        return match

    def value(self) -> object:
        """The JSON value here; objects as Pairs, numbers other than 64-bit integers as None."""
        self._next_char()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
                # A number at the end of the text may continue in the next piece.
                if end < len(self._text) or not self._more():
                    break
            except RecursionError:
                raise self.bad("is damaged: its JSON is nested too deeply") from None
            except ValueError:
                # Invalid, or incomplete: the next piece will show.
                if len(self._text) - self._position > MAX_VALUE_CHARS:
                    limit = f"{MAX_VALUE_CHARS:,} characters"
                    raise self.bad(
                        f"is damaged: its JSON has a value that is invalid or over {limit}"
                    ) from None
                if not self._more():
                    raise self._not_json() from None
        if self._text.find("\\u", self._position, end) >= 0 and not _is_text(value):
            raise self.bad("is damaged: its JSON has half a surrogate pair")
        self._position = end
        return value

    def end(self) -> None:
        """Nothing but white space may follow."""
        if self._next_char():
            raise self._not_json()

    def bad(self, what: str) -> BadHeader:
        return bad_header(self._name, what)

    def _not_json(self) -> BadHeader:
        return self.bad("is damaged: its JSON is invalid or not an object")

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
        self._position += 1
        return char

    def _next_char(self) -> str:
        """Skip white space; the character here, or nothing at the end."""
        while True:
            space = _SPACE.match(self._text, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._more():
                return ""

    def _more(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text = self._text[self._position :] + piece
        self._position = 0
        return True


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
