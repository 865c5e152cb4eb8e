from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.formats.byte_source import BadHeader, MemorySource
from firesteel.facts.formats.json_text import JsonText, text_pieces

values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


def members(*pieces: str) -> dict[str, object]:
    reader = JsonText("x", pieces)
    found = {key: reader.value() for key in reader.members()}
    reader.end()
    return found


def as_pairs(value: object) -> object:
    """What JsonText makes of a value: objects as tuples of pairs."""
    if isinstance(value, dict):
        return tuple((key, as_pairs(item)) for key, item in value.items())
    return [as_pairs(item) for item in value] if isinstance(value, list) else value


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values, max_size=5),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_any_object_in_any_pieces_reads_as_json_does(
    value: dict[str, object], size: int, ascii_only: bool, indent: int | None
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert members(*pieces) == {key: as_pairs(item) for key, item in value.items()}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a":-1}', None),
        ('{"a":-0}', None),
        ('{"a":1.0}', None),
        ('{"a":1e3}', None),
        ('{"a":%s}' % ("9" * 21), None),
        ('{"a":"\\ud83d\\ude00"}', "\U0001f600"),
        (' \n{ "a" \t: 1 } \r\n', 1),
    ],
)
def test_numbers_that_are_not_integers_are_none(written: str, value: object) -> None:
    assert members(written) == {"a": value}


@pytest.mark.parametrize(
    "written",
    [
        "", " ", "{", "}", "[]", "1", '"a"', "{}}", "{} x", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}',
        '{"a":1 "b":2}',
        "{1:2}", '{"a":NaN}', '{"a":-Infinity}', '{"a":01}', '{"a":+1}', "{'a':1}", '{"a\n":1}', '{"a":"\t"}',
        '{"\\ud800":1}', '{"a":"\\udc00"}', '{"a":["\\ud800"]}', '{"a":{"\\udfff":1}}', "\ufeff{}",
        '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", '{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(written: str) -> None:
    with pytest.raises(BadHeader):
        members(written)


def test_a_value_without_end_is_refused_before_it_is_read_whole() -> None:
    pieces = iter(['{"a":"'] + ["x" * 1024 * 1024] * 50)
    reader = JsonText("x", pieces)
    next(reader.members())
    with pytest.raises(BadHeader, match="invalid or over"):
        reader.value()
    assert len(list(pieces)) > 40


def test_text_that_is_cut_inside_a_character_is_refused() -> None:
    data = "\u20ac".encode()
    assert "".join(text_pieces(MemorySource("x", data), 0, 3)) == "\u20ac"
    with pytest.raises(BadHeader, match="not UTF-8"):
        list(text_pieces(MemorySource("x", data), 0, 2))
