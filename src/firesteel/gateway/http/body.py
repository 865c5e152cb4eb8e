"""What a request's body says of itself, found without parsing the prompt.

A coding agent sends 400 KB a turn, and the gateway needs twenty bytes of it: the model's name. Two facts of
JSON's grammar are enough to find them. Inside a string every quote is written `\\"`, so the bytes `"model"`
without a backslash before them are a string of their own, never part of what somebody wrote to a model; with
a colon after them they are a key. And the last byte closes the outermost object, so a key's depth is the
number of brackets that close between it and the end. Clients put `model` behind the messages with little
after it, and then the prompt is not looked at at all; or first, and then it is searched once and never
parsed.

A key that comes twice at the top: the last counts, as it does for `json.loads` and for the engines' readers;
one more among the first members is refused. A body that is no JSON is not always noticed. The engine will
say so.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from firesteel.gateway.interfaces import Refusal

MAX_NAME_BYTES = 512
MAX_KEYS = 1000
"""How many keys called `model`, at any depth, are looked at."""
MAX_WALK_BYTES = 4 * 1024 * 1024
"""How much JSON is looked at to learn a key's depth: 20 ms of it. `model` last needs none."""
MAX_STRINGS = 100_000
"""With brackets in them, in such a walk."""
END_BYTES = 1024
"""Of either end, where a key with plain members around it needs no walk."""
MAX_PARTS = 1000
MAX_PART_HEAD_BYTES = 4096
PREFIX_BYTES = 2048


@dataclass(slots=True)
class ModelField:
    """The model that a body names, and where: `body[start:end]` is the name as it is spelled there.

    `end` 0: it is not in the body; the query named it.
    """

    model: str
    start: int
    end: int
    is_json: bool = True


class _Refused(Exception):
    def __init__(self, kind: str, why: str) -> None:
        self.refusal = Refusal(400, kind, why)


def find_model(body: bytes, content_type: bytes) -> ModelField | Refusal:
    """The model that a JSON or multipart body names. What is not multipart is taken for JSON."""
    try:
        if content_type[:9].lower() == b"multipart":
            return _in_multipart(body, content_type)
        return _in_json(body)
    except _Refused as no:
        return no.refusal


def splice(body: bytes, found: ModelField, name: bytes) -> bytes:
    """The body with another name for its model."""
    if not found.end:
        return body
    if found.is_json:
        name = json.dumps(name.decode(), ensure_ascii=False)[1:-1].encode()
    return b"".join((body[: found.start], name, body[found.end :]))


def wants_stream(body: bytes) -> bool:
    """Whether a JSON body asks for a stream."""
    try:
        value = _value_of(body, _STREAM)
    except _Refused:
        return False
    return value is not None and body.startswith(b"true", value)


def prompt_prefix(body: bytes) -> int:
    """A number for the conversation that a JSON body goes on with; 0: unknown. The same in every process.

    Made of how the first text begins and how the user's first one does: all sessions of an agent share the
    former, and only the latter tells them apart. Neither changes while the conversation grows.
    """
    first = _TEXT_MEMBER.search(body, 0, 64 * 1024)
    if first is None:
        return 0
    number = zlib.crc32(_beginning(body, first.end()))
    users = _USERS_TEXT.search(body, 0, first.end() + 256 * 1024)
    return (zlib.crc32(_beginning(body, users.end()), number) if users else number) or 1


def _beginning(body: bytes, at: int) -> bytes:
    text = _TEXT.match(body, at, at + PREFIX_BYTES)
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
_USERS_TEXT = re.compile(
    rb'"role"[ \t\r\n]*:[ \t\r\n]*"user"[ \t\r\n]*,[ \t\r\n]*"content"[ \t\r\n]*:[ \t\r\n]*'
    rb'(?:\[[ \t\r\n]*\{[^"{}]*(?:"type"[^"{}]*"[a-z_]*"[^"{}]*)?"text"[ \t\r\n]*:[ \t\r\n]*)?"'
)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_BACKSLASH = ord("\\")


class _Key:
    """A name to look for: as everybody writes it, and in every way that JSON allows."""

    def __init__(self, name: str) -> None:
        self.plain = f'"{name}"'.encode()
        first = _OBJECT.pattern + b"(?:" + _MEMBER + b",)*?" + _SPACE + b"(" + self.plain + b")"
        self.first = re.compile(first + _COLON.pattern)
        letters = "".join(f"(?:{letter}|\\\\u(?i:{ord(letter):04x}))" for letter in name)
        self.spelled = re.compile(f'"{letters}"'.encode() + _COLON.pattern)
        self.escapes = sorted({f"\\u{ord(letter):04x}"[:-1].encode() for letter in name})


_MODEL = _Key("model")
_STREAM = _Key("stream")


_FLAT = rb'"[^"\\]*"|[-+.0-9A-Za-z]+'
_LAST = re.compile(
    rb'"model"' + _SPACE + rb":" + _SPACE + rb'"([^"\\\x00-\x1f]{1,510})"'
    rb'(?:' + _SPACE + rb"," + _SPACE + rb'"[^"\\]*"' + _SPACE + rb":" + _SPACE
    + rb"(?:" + _FLAT + rb"|\{(?:[^\"\\{}\[\]]|\"[^\"\\]*\")*\}))*" + _SPACE + rb"\}" + _SPACE + rb"\Z"
)  # fmt: skip
"""`model` with nothing behind it but plain members and the end of the object that it is in: which is then the
outermost one, and this the last `model` in it. So most clients write it, after the messages."""


_FIRST = re.compile(
    _SPACE + rb"\{" + _SPACE + rb'"model"' + _SPACE + b":" + _SPACE + rb'"([^"\\\x00-\x1f]{1,510})"'
)
_LAST_BYTES = 4096
_ESCAPED_LETTER = rb"\u006"
"""How every letter of `model` begins when it is escaped."""


def _plainly(body: bytes) -> ModelField | None:
    """As clients write it: `model` last, or first and nowhere else. A third of the time of a real search."""
    at = body.rfind(b'"model"')
    if at < 1 or body[at - 1] == _BACKSLASH:
        return None
    if len(body) - at < _LAST_BYTES and (match := _LAST.match(body, at)):
        is_object = body.startswith(b"{") or _OBJECT.match(body) is not None
        is_sure = is_object and body.find(b'"model"', 0, min(at, _LAST_BYTES)) < 0
    else:
        match = _FIRST.match(body)
        is_sure = match is not None and match.start(1) > at and body.rfind(_ESCAPED_LETTER) < 0
    if not is_sure or match is None:
        return None
    try:
        return ModelField(match[1].decode(), match.start(1), match.end(1))
    except UnicodeDecodeError:
        return None


def _in_json(body: bytes) -> ModelField:
    if found := _plainly(body):
        return found
    if not _OBJECT.match(body):
        raise _Refused("bad_body", 'The body is not a JSON object in UTF-8. Send {"model": ..., ...}.')
    value = _value_of(body, _MODEL)
    if value is None:
        raise _missing()
    name = _NAME.match(body, value, value + MAX_NAME_BYTES)
    name = name or _ESCAPED_NAME.match(body, value, value + MAX_NAME_BYTES)
    if name is None:
        raise _Refused("bad_body", f"`model` is not a string of at most {MAX_NAME_BYTES} bytes.")
    return ModelField(_text(name[0]), name.start(1), name.end(1))


def _text(token: bytes) -> str:
    """A JSON string's text, as other programs can read it: no half of a surrogate pair."""
    try:
        text: str = json.loads(token) if b"\\" in token else token[1:-1].decode()
        text.encode()
    except ValueError:
        raise _Refused("bad_body", "`model` is not a string of UTF-8 text.") from None
    if not text:
        raise _missing()
    return text


def _missing() -> _Refused:
    return _Refused(
        "missing_model", "The request names no model. Add `model`; /v1/models lists what there is."
    )


def _value_of(body: bytes, key: _Key) -> int | None:
    """Where the value of the top-level member of that name begins."""
    head = key.first.match(body, 0, END_BYTES)
    first = head.start(1) if head else -1
    found = _top_level(body, _plain_keys(body, key), first)
    since = found[0] if found else 0
    if any(body.rfind(escape, since) >= 0 for escape in key.escapes):
        found = _top_level(body, _spelled_keys(body, key), first)
    if found and head and found[0] != first:
        raise _Refused("ambiguous_body", f"The body has {key.plain.decode()} twice. Send it once.")
    return found[1] if found else None


def _plain_keys(body: bytes, key: _Key) -> Iterator[tuple[int, int]]:
    """Where members of that name begin, at any depth, and where their values do; the last first."""
    stop = len(body)
    while (at := body.rfind(key.plain, 0, stop)) >= 0:
        stop = at
        colon = _COLON.match(body, at + len(key.plain))
        if colon and body[at - 1] != _BACKSLASH:
            yield at, colon.end()


def _spelled_keys(body: bytes, key: _Key) -> Iterator[tuple[int, int]]:
    spelled = [hit.span() for hit, _ in zip(key.spelled.finditer(body), range(MAX_KEYS + 1), strict=False)]
    return (span for span in reversed(spelled) if body[span[0] - 1] != _BACKSLASH)


def _top_level(body: bytes, keys: Iterator[tuple[int, int]], first: int) -> tuple[int, int] | None:
    """The last of the keys that lies in the outermost object."""
    depth, known = 0, len(body)
    for count, (at, value) in enumerate(keys):
        if count >= MAX_KEYS:
            raise _intricate()
        if at == first or (known == len(body) and _is_near_end(body, value)):
            return at, value
        if at < known - at:
            depth = -closes(body[:at])
        else:
            depth += closes(body[at:known])
        known = at
        if depth == 1:
            return at, value
    return None


def _is_near_end(body: bytes, value: int) -> bool:
    """Whether nothing but plain members follow, and the end: what most clients send."""
    return len(body) - value <= END_BYTES and _LAST_MEMBERS.match(body, value) is not None


def closes(text: bytes) -> int:
    """How many more brackets close than open in JSON that does not begin in a string.

    Without its escapes, a text's quotes go in and out of strings by turns. Two that meet can be left out
    together: what lies within and what without stays the same, and strings with brackets in them are left.
    """
    if len(text) > MAX_WALK_BYTES:
        raise _intricate()
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = unescaped.translate(None, _NOT_STRUCTURE).replace(b'""', b"").split(b'"', 2 * MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS:
        raise _intricate()
    bare = b"".join(pieces[::2])
    return bare.count(b"}") + bare.count(b"]") - bare.count(b"{") - bare.count(b"[")


def _intricate() -> _Refused:
    return _Refused(
        "ambiguous_body", "The model's name is too hard to find in this body. Put `model` last in it."
    )


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
    """The part called `model` (RFC 7578). What files hold is jumped over."""
    found = None
    for name, is_file, start, end in _parts(body, _delimiter(content_type)):
        if name != b"model":
            continue
        if found or is_file:
            raise _Refused(
                "ambiguous_body", "The form has `model` twice, or as a file. Send it once, as text."
            )
        found = _part_model(body, start, end)
    if found is None:
        raise _missing()
    return found


def _part_model(body: bytes, start: int, end: int) -> ModelField:
    if not 0 < end - start <= MAX_NAME_BYTES:
        raise _missing() if start == end else _bad_form(f"`model` is longer than {MAX_NAME_BYTES} bytes")
    try:
        return ModelField(body[start:end].decode(), start, end, is_json=False)
    except UnicodeDecodeError:
        raise _bad_form("`model` is not UTF-8") from None


def _delimiter(content_type: bytes) -> bytes:
    boundary = _BOUNDARY.fullmatch(content_type.strip())
    if boundary is None:
        raise _bad_form("its Content-Type is not multipart/form-data with one plain boundary")
    return b"\r\n--" + (boundary[1] or boundary[2])


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[bytes, bool, int, int]]:
    """Each part's name, whether it is a file, and where it lies. The end must be there, and no preamble."""
    if not body.startswith(delimiter[2:]):
        raise _bad_form("it does not begin with its boundary")
    at = len(delimiter) - 2
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", at):
            return
        stop = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD_BYTES)
        if not body.startswith(b"\r\n", at) or stop < 0:
            raise _bad_form("a part has no head, or one that is too long")
        end = body.find(delimiter, stop + 2)
        if end < 0:
            raise _bad_form("its closing boundary is missing")
        name, is_file = _part_name(body[at + 2 : stop])
        yield name, is_file, stop + 4, max(end, stop + 4)
        at = end + len(delimiter)
    raise _bad_form(f"it has more than {MAX_PARTS} parts")


def _part_name(head: bytes) -> tuple[bytes, bool]:
    dispositions = _DISPOSITION.findall(head)
    if len(dispositions) != 1 or head.lower().count(b"content-disposition") != 1:
        raise _bad_form("a part does not say once what it is (Content-Disposition: form-data)")
    parameters = dispositions[0]
    said = [(key.lower(), quoted or bare) for key, quoted, bare in _PARAMETER.findall(parameters)]
    values = dict(said)
    is_odd = len(values) < len(said) or _PARAMETER.sub(b"", parameters).strip()
    if is_odd or b"name" not in values or b"name*" in values:
        raise _bad_form("a part's Content-Disposition cannot be read")
    return values[b"name"], b"filename" in values or b"filename*" in values


def _bad_form(why: str) -> _Refused:
    return _Refused("bad_body", f"The form cannot be read: {why}.")
