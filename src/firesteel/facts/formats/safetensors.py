"""The safetensors format: what is in a file, from its header alone, in bounded memory.

A safetensors header is one JSON object with up to hundreds of thousands of members. `json.loads` would hold
the text, a dict per tensor and a list per shape all at once, several times the size of the result; a hostile
header could make that gigabytes. Here the text arrives in pieces, and each member is decoded, yielded and
forgotten before the next piece is read.

    8 bytes      length of the header, little endian
    the header   JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
    the data     tensors end to end, no hole, no overlap, to the last byte of the file

A header that does not describe exactly the bytes that follow it is refused: the figures of a plan are sums
over headers, and a wrong sum is worse than none. A checkpoint in shards has an index,
`model.safetensors.index.json`, that maps tensors to shards.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getsizeof, intern

from firesteel.facts.formats.byte_source import BadHeader, ByteSource, bad_header, truncated
from firesteel.facts.model.tensors import Tensor, role_of
from firesteel.values import Value

PIECE_BYTES = 1024 * 1024
MAX_VALUE_CHARS = 2 * 1024 * 1024
"""Limit for one key or one value. The longest real one is a `__metadata__` of some tens of kilobytes."""

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


MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_TENSORS = 400_000
"""Limit for one file. The largest real ones have 300,000: 512 experts per layer, three matrices each, four
tensors per NVFP4 matrix, and shards of up to 50 GB."""
MAX_NAMES_BYTES = 80 * 1024 * 1024
MAX_SHAPES = 65_536
MAX_DIMENSIONS = 16
MAX_INDEX_TENSORS = 1_000_000
MAX_SHARDS = 10_000

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip

_U64_END = 2**64
_PREFIX_BYTES = 8
_WHOLE = r"(?:0|[1-9][0-9]{0,19})"
_PLAIN_INFO = re.compile(
    rf'\{{"dtype":"([A-Z0-9_]{{1,16}})","shape":\[((?:{_WHOLE}(?:,{_WHOLE})*)?)\],'
    rf'"data_offsets":\[({_WHOLE}),({_WHOLE})\]\}}'
)
"""A tensor as the reference library writes it, which almost every file comes from."""


class HeaderTable(Value):
    """What a header promises, whether or not the file has the bytes."""

    tensors: tuple[Tensor, ...]
    """In the order of their data: each starts where the one before it ends."""
    data_start: int
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.data_start + self.data_bytes


def read_header(source: ByteSource, layers: int | None = None) -> tuple[Tensor, ...]:
    """The tensors of one file in the order of their data. Layers from number `layers` on are MTP layers."""
    table = read_table(source, layers)
    if table.file_bytes > source.size:
        raise truncated(source.name)
    if table.file_bytes < source.size:
        spare = source.size - table.file_bytes
        raise bad_header(source.name, f"has {spare:,} bytes after its last tensor")
    return table.tensors


def read_table(source: ByteSource, layers: int | None = None) -> HeaderTable:
    """The header of a file whose data may be incomplete."""
    header_bytes = _header_bytes(source)
    text = JsonText(source.name, text_pieces(source, _PREFIX_BYTES, header_bytes))
    tensors: list[Tensor] = []
    starts = array("Q")
    reader = _HeaderReader(source.name, layers)
    for name in text.members():
        reader.check_name(name)
        if name == "__metadata__":
            reader.check_metadata(text.value())
            continue
        plain = text.match(_PLAIN_INFO)
        if plain:
            tensor, start = reader.checked_tensor(name, plain[1], plain[2], int(plain[3]), int(plain[4]))
        else:
            tensor, start = reader.tensor(name, text.value())
        tensors.append(tensor)
        starts.append(start)
    text.end()
    ordered = _in_file_order(source.name, tensors, starts)
    return HeaderTable(ordered, _PREFIX_BYTES + header_bytes, sum(tensor.bytes for tensor in ordered))


def _header_bytes(source: ByteSource) -> int:
    if source.size < _PREFIX_BYTES:
        raise truncated(source.name)
    length = int.from_bytes(source.read(0, _PREFIX_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise bad_header(source.name, f"claims a header of {length:,} bytes; it is not a safetensors file")
    if _PREFIX_BYTES + length > source.size:
        raise truncated(source.name)
    return length


class _HeaderReader:
    """Checks the members of one header, one by one."""

    def __init__(self, name: str, layers: int | None) -> None:
        self._name = name
        self._layers = layers
        self._seen: set[str] = set()
        self._names_bytes = 0
        self._shapes: dict[tuple[str, str], tuple[tuple[int, ...], int]] = {}

    def check_name(self, name: str) -> None:
        if name in self._seen:
            raise self._bad(name, "appears twice")
        self._seen.add(name)
        self._names_bytes += getsizeof(name)
        if len(self._seen) > MAX_TENSORS:
            raise bad_header(self._name, f"names over {MAX_TENSORS:,} tensors, more than any real model")
        if self._names_bytes > MAX_NAMES_BYTES:
            raise bad_header(self._name, "has longer tensor names than any real model")

    def check_metadata(self, value: object) -> None:
        if value is None:
            return
        pairs = self._pairs("__metadata__", value)
        if not all(isinstance(text, str) for text in pairs.values()):
            raise self._bad("__metadata__", "is not a map of strings")

    def tensor(self, name: str, value: object) -> tuple[Tensor, int]:
        """The tensor, and where its data starts."""
        fields = self._pairs(name, value)
        dtype = fields.get("dtype")
        shape = self._whole_numbers(name, fields, "shape")
        offsets = self._whole_numbers(name, fields, "data_offsets")
        if not isinstance(dtype, str) or len(offsets) != 2:
            raise self._bad(name, "has no dtype or not two data_offsets")
        return self.checked_tensor(name, dtype, ",".join(map(str, shape)), offsets[0], offsets[1])

    def checked_tensor(
        self, name: str, dtype: str, shape_text: str, start: int, end: int
    ) -> tuple[Tensor, int]:
        # Shapes repeat by the thousand; sharing them halves the memory of a big checkpoint.
        known = self._shapes.get((dtype, shape_text))
        if known is None:
            known = self._shapes[dtype, shape_text] = self._measure(name, dtype, shape_text)
        shape, size = known
        if end - start != size or end >= _U64_END:
            raise self._bad(name, f"of {size:,} bytes does not fill its data_offsets")
        return Tensor(name, intern(dtype), shape, size, role_of(name, self._layers)), start

    def _measure(self, name: str, dtype: str, shape_text: str) -> tuple[tuple[int, ...], int]:
        """The shape, and the bytes of a tensor of that shape."""
        if dtype not in DTYPE_BITS:
            raise self._bad(name, f"has the unknown dtype {dtype}")
        shape = tuple(map(int, shape_text.split(","))) if shape_text else ()
        if len(shape) > MAX_DIMENSIONS:
            raise self._bad(name, f"has over {MAX_DIMENSIONS} dimensions")
        if len(self._shapes) == MAX_SHAPES:
            raise bad_header(self._name, f"has over {MAX_SHAPES:,} shapes, more than any real model")
        elements = 1
        for length in shape:
            elements *= length
            if length >= _U64_END or elements * DTYPE_BITS[dtype] >= _U64_END:
                raise self._bad(name, "has more elements than 64 bits count")
        if elements * DTYPE_BITS[dtype] % 8:
            raise self._bad(name, "ends inside a byte")
        return shape, elements * DTYPE_BITS[dtype] // 8

    def _whole_numbers(self, name: str, fields: dict[str, object], field: str) -> tuple[int, ...]:
        values = fields.get(field)
        if not isinstance(values, list):
            raise self._bad(name, f"has no {field}")
        if not all(type(value) is int for value in values):
            raise self._bad(name, f"has a {field} that is not made of whole numbers")
        return tuple(values)

    def _pairs(self, name: str, value: object) -> dict[str, object]:
        if not isinstance(value, tuple):
            raise self._bad(name, "is not a JSON object")
        fields = dict(value)
        if len(fields) != len(value):
            raise self._bad(name, "has a key twice")
        return fields

    def _bad(self, name: str, what: str) -> BadHeader:
        return bad_header(self._name, f"is damaged: `{name[:80]}` {what}")


def _in_file_order(name: str, tensors: list[Tensor], starts: array[int]) -> tuple[Tensor, ...]:
    """The tensors must cover their data end to end."""
    order: Sequence[int] = range(len(tensors))
    if _first_gap(tensors, starts, order) is not None:
        # An empty tensor starts where the next one does, and goes before it.
        order = sorted(order, key=lambda index: starts[index] << 64 | tensors[index].bytes)
    gap = _first_gap(tensors, starts, order)
    if gap is not None:
        raise bad_header(
            name, f"is damaged: tensor `{tensors[gap].name[:80]}` overlaps another or follows a gap"
        )
    return tuple(tensors[index] for index in order)


def _first_gap(tensors: list[Tensor], starts: array[int], order: Sequence[int]) -> int | None:
    """The first tensor that does not start where the one before it ends."""
    end = 0
    for index in order:
        if starts[index] != end:
            return index
        end += tensors[index].bytes
    return None


def read_index(name: str, text: str) -> tuple[str, ...]:
    """The shard names of an index, each once, sorted."""
    return tuple(sorted(set(read_weight_map(name, text).values())))


def read_shards(
    index_text: str,
    open_shard: Callable[[str], ByteSource],
    layers: int | None = None,
    name: str = "model.safetensors.index.json",
) -> tuple[Tensor, ...]:
    """All tensors of a checkpoint in shards. Every tensor of the index must be there exactly once.

    A tensor of a shard that the index does not list counts too: engines load whole shards.
    """
    promised = read_weight_map(name, index_text)
    seen: set[str] = set()
    tensors: list[Tensor] = []
    for shard in sorted(set(promised.values())):
        for tensor in read_header(open_shard(shard), layers):
            if tensor.name in seen:
                raise bad_header(shard, f"holds `{tensor.name[:80]}`, which an earlier shard holds too")
            if promised.pop(tensor.name, shard) != shard:
                raise bad_header(shard, f"holds `{tensor.name[:80]}`, which {name} lists in another file")
            seen.add(tensor.name)
            tensors.append(tensor)
    for missing, shard in promised.items():
        raise bad_header(shard, f"lacks `{missing[:80]}`, which {name} promises")
    return tuple(tensors)


def read_weight_map(name: str, text: str) -> dict[str, str]:
    """Tensor name -> shard name."""
    index_json = JsonText(
        name, (text[index : index + PIECE_BYTES] for index in range(0, len(text), PIECE_BYTES))
    )
    shards: dict[str, str] | None = None
    for key in index_json.members():
        if key != "weight_map":
            index_json.value()
        elif shards is None:
            shards = _shards(name, index_json)
        else:
            raise bad_header(name, "has two weight maps")
    index_json.end()
    if not shards:
        raise bad_header(name, "has no weight_map; it is not a safetensors index")
    return shards


def _shards(name: str, index_json: JsonText) -> dict[str, str]:
    shards: dict[str, str] = {}
    names: dict[str, str] = {}
    for tensor in index_json.members():
        shard = index_json.value()
        if not isinstance(shard, str) or not _is_file_name(shard):
            raise bad_header(name, f"names a shard that is not a plain file name: {shard!r:.80}")
        if tensor in shards:
            raise bad_header(name, f"names `{tensor[:80]}` twice")
        if len(shards) == MAX_INDEX_TENSORS:
            raise bad_header(name, f"names over {MAX_INDEX_TENSORS:,} tensors, more than any real model")
        shards[tensor] = names.setdefault(shard, shard)
        if len(names) > MAX_SHARDS:
            raise bad_header(name, f"names over {MAX_SHARDS:,} shards, more than any real model")
    return shards


def _is_file_name(shard: str) -> bool:
    """A name without a path, on every system."""
    return bool(shard) and shard.isprintable() and shard not in (".", "..") and not set(shard) & set("/\\:")


def front(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """How a file begins that has these tensors (name, dtype, shape, bytes) in this order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_PREFIX_BYTES, "little") + text
