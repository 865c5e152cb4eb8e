"""Find the model that a request's body names, without parsing the prompt.

A coding agent sends 400 KB per turn, and the gateway needs twenty bytes of it: the model's name. Two facts
about JSON are enough to find them. Inside a string every quote is written `\\"`, so the bytes `"model"`
without a backslash before them are a complete string, never part of a prompt; with a colon after them they
are a key. And the last byte closes the outermost object, so the depth of a key is the number of brackets that
close between it and the end. Most clients put `model` after the messages with little behind it, and then the
prompt is not examined at all; or first, and then the prompt is searched once and never parsed.

If a key occurs twice at the top level, the last one counts, as for `json.loads` and the engines; a second one
among the first members is rejected. Invalid JSON is not always noticed here; the engine rejects it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from firesteel.gateway.interfaces import Rejection

MAX_NAME_BYTES = 512
MAX_KEYS = 1000
"""Keys called `model`, at any depth, that are examined."""
MAX_WALK_BYTES = 4 * 1024 * 1024
"""JSON that is examined to find the depth of a key: 20 ms. None is needed if `model` is last."""
MAX_STRINGS = 100_000
"""Strings with brackets in that part."""
END_BYTES = 1024
"""At either end of the body, a key among plain members is recognized without examining the rest."""
SEARCH_BYTES = 64 * 1024
MAX_NEAR_KEYS = 8
"""At the end of the body, where options are searched."""
MAX_PARTS = 1000
MAX_PART_HEAD_BYTES = 4096
PREFIX_BYTES = 2048


class ModelField(Struct):
    """The model that a body names, and its position: `body[start:end]` is the name as it is spelled there.

    `end` is 0 if the query named it.
    """

    model: str
    start: int
    end: int
    is_json: bool = True


class _Rejected(Exception):
    def __init__(self, kind: str, why: str) -> None:
        self.rejection = Rejection(400, kind, why)


def find_model(body: bytes, content_type: bytes) -> ModelField | Rejection:
    """Find the model in a JSON or multipart body. Anything that is not multipart is treated as JSON."""
    try:
        if content_type[:9].lower() == b"multipart":
            return _in_multipart(body, content_type)
        return _find_common(body) or _in_json(body)
    except _Rejected as error:
        return error.rejection


Edit = tuple[int, int, bytes]
"""`body[start:end]` becomes these bytes."""


def model_edit(field: ModelField, name: bytes) -> Edit | None:
    """The edit that gives a body another model name; None: the body has none."""
    if not field.end:
        return None
    if field.is_json:
        name = json.dumps(name.decode(), ensure_ascii=False)[1:-1].encode()
    return field.start, field.end, name


def edited(body: bytes, edits: Iterable[Edit]) -> list[bytes | memoryview]:
    """The edited body in pieces; those of the body itself are not copied."""
    pieces: list[bytes | memoryview] = []
    view, position = memoryview(body), 0
    for start, end, text in sorted(edits):
        pieces += (view[position:start], text)
        position = end
    return [*pieces, view[position:]]


def wants_stream(body: bytes) -> bool:
    """Whether a JSON body asks for a stream; in a long one only options near either end are seen."""
    try:
        value = _value_of(body, STREAM) if len(body) <= SEARCH_BYTES else find_near_ends(body, STREAM)
    except _Rejected:
        return False
    return value is not None and body.startswith(b"true", value)


def prompt_prefix(body: bytes) -> int:
    """A hash of the conversation that a JSON body continues; 0: unknown. The same in every process.

    From the beginning of the first text and of the user's first text: all sessions of an agent share the
    former, and only the latter distinguishes them. Neither changes while the conversation grows.
    """
    first = _TEXT_MEMBER.search(body, 0, 64 * 1024)
    if first is None:
        return 0
    number = zlib.crc32(_text_start(body, first.end()))
    user = _USER_TEXT.search(body, 0, first.end() + 256 * 1024)
    return (zlib.crc32(_text_start(body, user.end()), number) if user else number) or 1


def _text_start(body: bytes, position: int) -> bytes:
    text = _TEXT.match(body, position, position + PREFIX_BYTES)
    return text[0] if text else b""


_SPACE = rb"[ \t\r\n]*"
_OBJECT = re.compile(_SPACE + rb"\{")
_COLON = re.compile(_SPACE + b":" + _SPACE)
_SCALAR = rb'(?:"[^"\\]*"|[-+.0-9A-Za-z]+)'
_MEMBER = _SPACE + rb'"[^"\\]*"' + _SPACE + b":" + _SPACE + _SCALAR + _SPACE
_LAST_MEMBERS = re.compile(_SCALAR + _SPACE + b"(?:," + _MEMBER + rb")*\}" + _SPACE + rb"\Z")
_NAME = re.compile(rb'"([^"\\\x00-\x1f]*)"')
_ESCAPED_NAME = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\.)*)"')
_TEXT = re.compile(rb'(?:[^"\\]+|\\.)*')
_TEXT_MEMBER = re.compile(rb'"(?:content|text|prompt|input|input_prefix)"' + _SPACE + b":" + _SPACE + b'"')
_USER_TEXT = re.compile(
    rb'"role"[ \t\r\n]*:[ \t\r\n]*"user"[ \t\r\n]*,[ \t\r\n]*"content"[ \t\r\n]*:[ \t\r\n]*'
    rb'(?:\[[ \t\r\n]*\{[^"{}]*(?:"type"[^"{}]*"[a-z_]*"[^"{}]*)?"text"[ \t\r\n]*:[ \t\r\n]*)?"'
)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_BACKSLASH = ord("\\")


class _Key:
    """A key to search for: as clients write it, and with every escape that JSON allows."""

    def __init__(self, name: str) -> None:
        self.plain = f'"{name}"'.encode()
        first = _OBJECT.pattern + b"(?:" + _MEMBER + b",)*?" + _SPACE + b"(" + self.plain + b")"
        self.first = re.compile(first + _COLON.pattern)
        letters = "".join(f"(?:{letter}|\\\\u(?i:{ord(letter):04x}))" for letter in name)
        self.spelled = re.compile(f'"{letters}"'.encode() + _COLON.pattern)
        self.escapes = sorted({f"\\u{ord(letter):04x}"[:-1].encode() for letter in name})


_MODEL = _Key("model")
STREAM = _Key("stream")
STREAM_OPTIONS = _Key("stream_options")


_FLAT = rb'"[^"\\]*"|[-+.0-9A-Za-z]+'
_LAST = re.compile(
    rb'"model"' + _SPACE + rb":" + _SPACE + rb'"([^"\\\x00-\x1f]{1,510})"'
    rb'(?:' + _SPACE + rb"," + _SPACE + rb'"[^"\\]*"' + _SPACE + rb":" + _SPACE
    + rb"(?:" + _FLAT + rb"|\{(?:[^\"\\{}\[\]]|\"[^\"\\]*\")*\}))*" + _SPACE + rb"\}" + _SPACE + rb"\Z"
)  # fmt: skip
"""`model` followed only by plain members and the end of its object, which must then be the outermost one.
Most clients write it so, after the messages."""


_FIRST = re.compile(
    _SPACE + rb"\{" + _SPACE + rb'"model"' + _SPACE + b":" + _SPACE + rb'"([^"\\\x00-\x1f]{1,510})"'
)
_LAST_BYTES = 4096
_ESCAPED_LETTER = rb"\u006"
"""The beginning of every escaped letter of `model`."""


def _find_common(body: bytes) -> ModelField | None:
    """The common cases: `model` last, or first and nowhere else. Takes a third of the time of a full
    search."""
    position = body.rfind(b'"model"')
    if position < 1 or body[position - 1] == _BACKSLASH:
        return None
    if len(body) - position < _LAST_BYTES and (match := _LAST.match(body, position)):
        is_object = body.startswith(b"{") or _OBJECT.match(body) is not None
        is_sure = is_object and body.find(b'"model"', 0, min(position, _LAST_BYTES)) < 0
    else:
        match = _FIRST.match(body)
        is_sure = match is not None and match.start(1) > position and body.rfind(_ESCAPED_LETTER) < 0
    if not is_sure or match is None:
        return None
    try:
        return ModelField(match[1].decode(), match.start(1), match.end(1))
    except UnicodeDecodeError:
        return None


def _in_json(body: bytes) -> ModelField:
    if not _OBJECT.match(body):
        raise _Rejected("bad_body", 'The body is not a JSON object in UTF-8. Send {"model": ..., ...}.')
    value = _value_of(body, _MODEL)
    if value is None:
        raise _missing()
    name = _NAME.match(body, value, value + MAX_NAME_BYTES)
    name = name or _ESCAPED_NAME.match(body, value, value + MAX_NAME_BYTES)
    if name is None:
        raise _Rejected("bad_body", f"`model` is not a string of at most {MAX_NAME_BYTES} bytes.")
    return ModelField(_text(name[0]), name.start(1), name.end(1))


def _text(token: bytes) -> str:
    """The text of a JSON string; half a surrogate pair is rejected."""
    try:
        text: str = json.loads(token) if b"\\" in token else token[1:-1].decode()
        text.encode()
    except ValueError:
        raise _Rejected("bad_body", "`model` is not a string of UTF-8 text.") from None
    if not text:
        raise _missing()
    return text


def _missing() -> _Rejected:
    return _Rejected("missing_model", "The request names no model. Add `model`; /v1/models lists the models.")


def _value_of(body: bytes, key: _Key) -> int | None:
    """The position of the value of a top-level member."""
    head = key.first.match(body, 0, END_BYTES)
    first = head.start(1) if head else -1
    field = _top_level(body, _plain_keys(body, key), first)
    since = field[0] if field else 0
    if any(body.rfind(escape, since) >= 0 for escape in key.escapes):
        field = _top_level(body, _spelled_keys(body, key), first)
    if field and head and field[0] != first:
        raise _Rejected("ambiguous_body", f"The body has {key.plain.decode()} twice. Send it once.")
    return field[1] if field else None


def find_near_ends(body: bytes, key: _Key) -> int | None:
    """The position of the value of a top-level member near either end; megabytes of prompt are not
    searched."""
    begin, stop = max(0, len(body) - SEARCH_BYTES), len(body)
    for _ in range(MAX_NEAR_KEYS):
        if (stop := body.rfind(key.plain, begin, stop)) < 0:
            break
        colon = _COLON.match(body, stop + len(key.plain))
        if colon and body[stop - 1] != _BACKSLASH:
            value = colon.end()
            if _is_near_end(body, value) or net_closing_brackets(body[stop:]) == 1:
                return value
    head = key.first.match(body, 0, END_BYTES) if begin else None
    return head.end() if head else None


def _plain_keys(body: bytes, key: _Key) -> Iterator[tuple[int, int]]:
    """Positions of members of that name and of their values, at any depth, the last first."""
    stop = len(body)
    while (position := body.rfind(key.plain, 0, stop)) >= 0:
        stop = position
        colon = _COLON.match(body, position + len(key.plain))
        if colon and body[position - 1] != _BACKSLASH:
            yield position, colon.end()


def _spelled_keys(body: bytes, key: _Key) -> Iterator[tuple[int, int]]:
    spelled = [hit.span() for hit, _ in zip(key.spelled.finditer(body), range(MAX_KEYS + 1), strict=False)]
    return (span for span in reversed(spelled) if body[span[0] - 1] != _BACKSLASH)


def _top_level(body: bytes, keys: Iterator[tuple[int, int]], first: int) -> tuple[int, int] | None:
    """The last of the keys that is in the outermost object."""
    depth, known = 0, len(body)
    for count, (position, value) in enumerate(keys):
        if count >= MAX_KEYS:
            raise _too_complex()
        if position == first or (known == len(body) and _is_near_end(body, value)):
            return position, value
        if position < known - position:
            depth = -net_closing_brackets(body[:position])
        else:
            depth += net_closing_brackets(body[position:known])
        known = position
        if depth == 1:
            return position, value
    return None


def _is_near_end(body: bytes, value: int) -> bool:
    """Whether only plain members follow, as in most requests."""
    return len(body) - value <= END_BYTES and _LAST_MEMBERS.match(body, value) is not None


def net_closing_brackets(text: bytes) -> int:
    """Closing minus opening brackets outside of strings, in JSON that does not begin inside a string.

    Without escapes, quotes alternately begin and end a string. Two adjacent quotes can be removed: what is
    inside and outside stays the same, and only strings that contain brackets remain.
    """
    if len(text) > MAX_WALK_BYTES:
        raise _too_complex()
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = unescaped.translate(None, _NOT_STRUCTURE).replace(b'""', b"").split(b'"', 2 * MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS:
        raise _too_complex()
    bare = b"".join(pieces[::2])
    return bare.count(b"}") + bare.count(b"]") - bare.count(b"{") - bare.count(b"[")


def _too_complex() -> _Rejected:
    return _Rejected("ambiguous_body", "The body is too complex to find the model's name. Put `model` last.")


_BOUNDARY = re.compile(
    rb"""multipart/form-data[ \t]*;[ \t]*boundary="""
    rb"""(?:"([ 0-9A-Za-z'()+_,./:=?-]{0,69}[0-9A-Za-z'()+_,./:=?-])"|([0-9A-Za-z'+_.-]{1,70}))"""
    rb"""[ \t]*(?:;[ \t]*charset=(?i:"?utf-8"?))?""",
    re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb"(?:^|\r\n)content-disposition[ \t]*:[ \t]*form-data((?:[ \t]*;[^\r\n]*)?)(?=\r\n|$)", re.I
)
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')


def _in_multipart(body: bytes, content_type: bytes) -> ModelField:
    """The part called `model` (RFC 7578). File contents are skipped."""
    boundary = _BOUNDARY.fullmatch(content_type.strip())
    if boundary is None:
        raise _bad_form("its Content-Type is not multipart/form-data with a plain boundary")
    field = None
    for name, is_file, start, end in _parts(body, b"\r\n--" + (boundary[1] or boundary[2])):
        if name != b"model":
            continue
        if field or is_file:
            raise _Rejected(
                "ambiguous_body", "The form has `model` twice, or as a file. Send it once, as text."
            )
        field = _part_model(body, start, end)
    if field is None:
        raise _missing()
    return field


def _part_model(body: bytes, start: int, end: int) -> ModelField:
    if not 0 < end - start <= MAX_NAME_BYTES:
        raise _missing() if start == end else _bad_form(f"`model` is longer than {MAX_NAME_BYTES} bytes")
    try:
        return ModelField(body[start:end].decode(), start, end, is_json=False)
    except UnicodeDecodeError:
        raise _bad_form("`model` is not UTF-8") from None


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[bytes, bool, int, int]]:
    """Name, whether it is a file, start and end of each part. A preamble or a missing end is rejected."""
    if not body.startswith(delimiter[2:]):
        raise _bad_form("it does not begin with its boundary")
    position = len(delimiter) - 2
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", position):
            return
        stop = body.find(b"\r\n\r\n", position, position + MAX_PART_HEAD_BYTES)
        if not body.startswith(b"\r\n", position) or stop < 0:
            raise _bad_form("a part has no head, or one that is too long")
        end = body.find(delimiter, stop + 2)
        if end < 0:
            raise _bad_form("its closing boundary is missing")
        name, is_file = _part_name(body[position + 2 : stop])
        yield name, is_file, stop + 4, max(end, stop + 4)
        position = end + len(delimiter)
    raise _bad_form(f"it has more than {MAX_PARTS} parts")


def _part_name(head: bytes) -> tuple[bytes, bool]:
    dispositions = _DISPOSITION.findall(head)
    if len(dispositions) != 1 or head.lower().count(b"content-disposition") != 1:
        raise _bad_form("a part must have exactly one Content-Disposition: form-data")
    parameters = dispositions[0]
    pairs = [(key.lower(), quoted or bare) for key, quoted, bare in _PARAMETER.findall(parameters)]
    values = dict(pairs)
    is_odd = len(values) < len(pairs) or _PARAMETER.sub(b"", parameters).strip()
    if is_odd or b"name" not in values or b"name*" in values:
        raise _bad_form("the Content-Disposition of a part is invalid")
    return values[b"name"], b"filename" in values or b"filename*" in values


def _bad_form(why: str) -> _Rejected:
    return _Rejected("bad_body", f"The form is invalid: {why}.")
