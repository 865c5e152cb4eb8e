""""""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import safetensors as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.formats import safetensors
from firesteel.facts.formats.byte_source import BadHeader, MemorySource
from firesteel.facts.formats.safetensors import (
    DTYPE_BITS,
    JsonText,
    read_header,
    read_index,
    read_shards,
    text_pieces,
)
from firesteel.facts.model.tensors import Role, Tensor

from .header_bytes import BigSource, info, refusal, safetensors_file

TORCH_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
    "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip

deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = reference.deserialize

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 4), max_size=4)


def read(data: bytes, layers: int | None = None) -> tuple[Tensor, ...]:
    return read_header(MemorySource("x.safetensors", data), layers)


def as_reference_reads(data: bytes) -> dict[str, tuple[str, tuple[int, ...], int]]:
    return {
        name: (found["dtype"], tuple(found["shape"]), len(found["data"])) for name, found in deserialize(data)
    }


def as_we_read(data: bytes) -> dict[str, tuple[str, tuple[int, ...], int]]:
    return {tensor.name: (tensor.dtype, tensor.shape, tensor.bytes) for tensor in read(data)}


def written(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> bytes:
    """Written by the reference package; every tensor is zeros."""
    zeros = ctypes.create_string_buffer(8 * 4**4)
    specs = {}
    for name, (dtype, shape) in tensors.items():
        elements = 1
        for length in shape:
            elements *= length
        size = elements * DTYPE_BITS[TORCH_NAMES[dtype]] // 8
        specs[name] = reference.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(zeros), data_len=size
        )
    return bytes(reference.serialize(specs, metadata))


@given(
    st.dictionaries(names, st.tuples(st.sampled_from(sorted(TORCH_NAMES)), shapes), min_size=1, max_size=6),
    st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(), max_size=3),
)
def test_what_the_reference_writes_we_read_the_same(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    data = written(tensors, metadata)
    assert as_we_read(data) == as_reference_reads(data)
    assert len(as_we_read(data)) == len(tensors)


@pytest.mark.parametrize("dtype", [*DTYPE_BITS, "F6", "F4_E2M1", "C128", "U4", "f32", ""])
def test_dtypes_are_those_of_the_reference(dtype: str) -> None:
    data_bytes = DTYPE_BITS.get(dtype, 8)
    data = safetensors_file({"a": info(dtype, [4, 2], 0, data_bytes)}, data_bytes)
    if dtype in DTYPE_BITS:
        assert as_we_read(data) == as_reference_reads(data) == {"a": (dtype, (4, 2), data_bytes)}
    else:
        with pytest.raises(reference.SafetensorError):
            deserialize(data)
        with pytest.raises(BadHeader, match="unknown dtype"):
            read(data)


def test_tensors_come_in_the_order_of_their_data() -> None:
    header = {"b": info("U8", [4], 2, 6), "empty": info("U8", [0], 2, 2), "a": info("U8", [2], 0, 2)}
    assert [tensor.name for tensor in read(safetensors_file(header, 6))] == ["a", "empty", "b"]


def test_roles_are_set_and_mtp_layers_recognized_by_the_count() -> None:
    name = "model.layers.61.mlp.experts.0.up_proj.weight"
    data = safetensors_file({name: info("U8", [1], 0, 1)}, 1)
    assert [tensor.role for tensor in read(data) + read(data, 61)] == [Role.ROUTED_EXPERTS, Role.DRAFTER]


A, B = info("U8", [2], 0, 2), info("U8", [2], 2, 4)
BIG = 2**63


def raw_shape(numbers: bytes) -> bytes:
    return b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,%d]}}' % (
        numbers,
        0 if b"-0" in numbers else 2,
    )


REFUSED = {
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "header longer than the file": (10).to_bytes(8, "little") + b"{}",
    "header of 2^63 bytes": BIG.to_bytes(8, "little") + b"{}",
    "header of 2^64 - 1 bytes": b"\xff" * 8 + b"{}",
    "header of one byte more than the limit": (100_000_001).to_bytes(8, "little") + b"{}",
    "no header": bytes(8),
    "a list": safetensors_file(b"[]"),
    "a number": safetensors_file(b"1"),
    "words after": safetensors_file(b"{} x"),
    "a zero byte after": safetensors_file(b"{}\0"),
    "not UTF-8": safetensors_file(b'{"\xff":{}}'),
    "a surrogate in UTF-8": safetensors_file(b'{"\xed\xa0\x80":{}}'),
    "half a surrogate pair": safetensors_file({"a\ud800": A}, 2),
    "nested 100,000 deep": safetensors_file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nested 100,000 deep, open": safetensors_file(b'{"a":' * 100_000),
    "tensor is a list": safetensors_file({"a": ["U8", [2], [0, 2]]}, 2),
    "tensor is null": safetensors_file({"a": None}),
    "tensor is a string": safetensors_file({"a": "U8"}),
    "no dtype": safetensors_file({"a": {"shape": [2], "data_offsets": [0, 2]}}, 2),
    "no shape": safetensors_file({"a": {"dtype": "U8", "data_offsets": [0, 2]}}, 2),
    "no data_offsets": safetensors_file({"a": {"dtype": "U8", "shape": [2]}}, 2),
    "dtype is a number": safetensors_file({"a": {**A, "dtype": 8}}, 2),
    "dtype is a list": safetensors_file({"a": {**A, "dtype": ["U8"]}}, 2),
    "shape is a number": safetensors_file({"a": {**A, "shape": 2}}, 2),
    "shape is an object": safetensors_file({"a": {**A, "shape": {}}}, 2),
    "negative length": safetensors_file({"a": info("U8", [-2], 0, 2)}, 2),
    "two negative lengths": safetensors_file({"a": info("U8", [-2, -1], 0, 2)}, 2),
    "minus zero": safetensors_file(raw_shape(b"-0,2"), 0),
    "length is a fraction": safetensors_file({"a": info("U8", [2.0], 0, 2)}, 2),
    "length is NaN": safetensors_file({"a": info("U8", [float("nan")], 0, 2)}, 2),
    "length is true": safetensors_file({"a": info("U8", [True, 2], 0, 2)}, 2),
    "length is a string": safetensors_file({"a": info("U8", ["2"], 0, 2)}, 2),
    "length has leading zeros": safetensors_file(raw_shape(b"02"), 2),
    "length of 2^64": safetensors_file({"a": info("U8", [2**64], 0, 2)}, 2),
    "length of 5,000 digits": safetensors_file(raw_shape(b"9" * 5000), 2),
    "product over 2^64, then zero": safetensors_file({"a": info("U8", [2**63, 2, 0], 0, 0)}),
    "bits over 2^64": safetensors_file({"a": info("U8", [2**62], 0, 2**62)}),
    "three offsets": safetensors_file({"a": {**A, "data_offsets": [0, 2, 2]}}, 2),
    "one offset": safetensors_file({"a": {**A, "data_offsets": [2]}}, 2),
    "negative offset": safetensors_file({"a": {**A, "data_offsets": [-2, 0]}}, 2),
    "offsets backwards": safetensors_file({"a": {**A, "data_offsets": [2, 0]}}, 2),
    "offsets of 2^64": safetensors_file({"a": {**A, "data_offsets": [2**64, 2**64 + 2]}}, 2),
    "offsets are not the shape's": safetensors_file({"a": info("U8", [3], 0, 2)}, 3),
    "data is not the shape's": safetensors_file({"a": info("U8", [3], 0, 2)}, 2),
    "size is not the dtype's": safetensors_file({"a": info("U16", [2], 0, 2)}, 2),
    "half a byte, counted": safetensors_file({"a": info("F4", [3], 0, 2)}, 2),
    "half a byte, dropped": safetensors_file({"a": info("F4", [3], 0, 1)}, 1),
    "three quarters of a byte": safetensors_file({"a": info("F6_E2M3", [1], 0, 0)}),
    "overlap": safetensors_file({"a": A, "b": info("U8", [2], 1, 3)}, 3),
    "the same bytes twice": safetensors_file({"a": A, "b": A}, 2),
    "hole": safetensors_file({"a": A, "b": info("U8", [2], 3, 5)}, 5),
    "hole before the first": safetensors_file({"b": B}, 4),
    "an empty tensor beyond the end": safetensors_file({"a": A, "e": info("U8", [0], 5, 5)}, 2),
    "an empty tensor inside another": safetensors_file({"a": A, "e": info("U8", [0], 1, 1)}, 2),
    "a byte too few": safetensors_file({"a": A}, 1),
    "a byte too many": safetensors_file({"a": A}, 3),
    "data of 2^60 bytes": safetensors_file({"a": info("U8", [2**60], 0, 2**60)}, 2),
    "tensor twice": safetensors_file(b'{"a":%s,"a":%s}' % ((json.dumps(A).encode(),) * 2), 2),
    "key twice": safetensors_file(b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', 2),
    "metadata twice": safetensors_file(b'{"__metadata__":{},"__metadata__":{}}'),
    "metadata is a list": safetensors_file({"__metadata__": []}),
    "metadata holds a number": safetensors_file({"__metadata__": {"a": 1}}),
    "metadata holds an object": safetensors_file({"__metadata__": {"a": {}}}),
    "metadata key twice": safetensors_file(b'{"__metadata__":{"a":"b","a":"c"}}'),
    "seventeen dimensions": safetensors_file({"a": info("U8", [1] * 17, 0, 1)}, 1),
}  # fmt: skip

ACCEPTED_BY_THE_REFERENCE = {"tensor is a list", "tensor twice", "metadata key twice", "seventeen dimensions"}


def compact(data: bytes) -> bytes:
    """The same file as the reference would space it: such headers are read another, shorter way."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b": ", b":").replace(b", ", b",")
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    line, peak_bytes = refusal(lambda: read(REFUSED[case]))
    assert line.startswith("x.safetensors ")
    assert peak_bytes < 10_000_000


@pytest.mark.parametrize("case", [case for case, data in REFUSED.items() if b'", ' in data or b'": ' in data])
def test_refused_in_the_form_of_the_reference(case: str) -> None:
    assert refusal(lambda: read(compact(REFUSED[case])))[0] == refusal(lambda: read(REFUSED[case]))[0]


@pytest.mark.parametrize("case", REFUSED)
def test_the_reference_refuses_it_too(case: str) -> None:
    if case in ACCEPTED_BY_THE_REFERENCE:
        deserialize(REFUSED[case])
    else:
        with pytest.raises(reference.SafetensorError):
            deserialize(REFUSED[case])


@pytest.mark.parametrize(
    "data",
    [
        safetensors_file({}),
        safetensors_file(b' \n{ } \t'),
        safetensors_file({"__metadata__": None, "": info("F32", [], 0, 4)}, 4),
        safetensors_file({"a": {"data_offsets": [0, 2], "new": [{"x": -1.5}], **A}}, 2),
        safetensors_file({"a": info("U8", [0, 2**63], 0, 0)}),
        safetensors_file({"\U0001f525": info("F4", [3, 2], 0, 3)}, 3),
    ],
)  # fmt: skip
def test_unusual_but_valid(data: bytes) -> None:
    assert as_we_read(data) == as_reference_reads(data)


def test_cut_at_every_byte() -> None:
    data = written({"a.weight": ("float32", [2, 2]), "b": ("uint8", [3])}, {"format": "pt"})
    for length in range(len(data)):
        with pytest.raises(BadHeader, match="truncated"):
            read(data[:length])


@settings(max_examples=300)
@given(st.data())
def test_a_changed_file_is_read_as_the_reference_does_or_refused(data: st.DataObject) -> None:
    changed = bytearray(written({"a.weight": ("float32", [2, 2]), "b": ("uint8", [3])}, {"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        ours = as_we_read(bytes(changed))
    except BadHeader:
        return
    assert ours == as_reference_reads(bytes(changed))


def hostile(members: Iterable[str]) -> BigSource:
    header = ("{" + ",".join(members) + "}").encode()
    return BigSource("x.safetensors", len(header).to_bytes(8, "little") + header, 2**40)


def empty_tensor(name: str, shape: str = "0") -> str:
    return f'"{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}'


HOSTILE: dict[str, Callable[[], Iterable[str]]] = {
    "bytes after its last tensor": lambda: (empty_tensor(f"{n}", " 0") for n in range(2**13)),
    "longer tensor names": lambda: (empty_tensor(f"\U0001f525{n}" + "x" * 3000) for n in range(10_000)),
    "over 65,536 shapes": lambda: (empty_tensor(f"{n}", "0" + f",{n + 300}" * 3) for n in range(66_000)),
    "over 2,097,152 characters": lambda: [
        '"__metadata__":' + json.dumps({f"k{n}": f"v{n}" for n in range(2**18)})
    ],
    "invalid or over": lambda: ['"a":{"x":[' + ",".join(["[]"] * 2**21) + "]}"],
}


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_headers_take_little_memory(line: str) -> None:
    source = hostile(HOSTILE[line]())
    message, peak_bytes = refusal(lambda: read_header(source))
    assert line in message
    assert peak_bytes < 100_000_000


def test_too_many_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the refusal, at a hundredth: `scripts/fuzz-headers` watches the memory, which takes its time."""
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 4000)
    with pytest.raises(BadHeader, match="bytes after its last tensor"):  # as many as may be
        read_header(hostile(empty_tensor(f"{n}") for n in range(4000)))
    with pytest.raises(BadHeader, match="names over 4,000 tensors"):
        read_header(hostile(empty_tensor(f"{n}") for n in range(4001)))


def test_a_header_over_the_limit_is_not_read() -> None:
    source = BigSource("x.safetensors", (100_000_001).to_bytes(8, "little"), 2**40)
    assert "claims a header of 100,000,001 bytes" in refusal(lambda: read_header(source))[0]
    assert source.reads == [(0, 8)]


def test_nothing_past_the_header_is_read() -> None:
    header = safetensors_file({"a": info("BF16", [2**20, 2**15], 0, 2**36)})
    source = BigSource("x.safetensors", header, len(header) + 2**36)
    assert [tensor.bytes for tensor in read_header(source)] == [2**36]
    assert max(start + length for start, length in source.reads) == len(header)


def index(weight_map: object) -> str:
    return json.dumps({"metadata": {"total_size": 1.5}, "weight_map": weight_map})


def test_an_index_names_its_shards_once_and_sorted() -> None:
    assert read_index("i", index({"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"})) == (
        "1.safetensors",
        "2.safetensors",
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", '{"weight_map":{}}', '{"weight_map":[]}', '{"weight_map":null}',
        '{"weight_map":{"a":"x"},"weight_map":{"a":"x"}}', '{"weight_map":{"a":"x","a":"x"}}',
        *(index({"a": name}) for name in ("../x", "/x", "a/b", "a\\b", "..", ".", "", "C:x", "a\n", "a\0")),
        *(index({"a": name}) for name in (1, None, ["x"], {"x": "y"})),
    ],
)  # fmt: skip
def test_a_bad_index_is_refused(text: str) -> None:
    line, _ = refusal(lambda: read_index("model.safetensors.index.json", text))
    assert line.startswith("model.safetensors.index.json ")


SHARDS = {
    "1.safetensors": safetensors_file({"a": A, "b": B}, 4),
    "2.safetensors": safetensors_file({"c": A}, 2),
    "again.safetensors": safetensors_file({"a": A}, 2),
}


def shard(name: str) -> MemorySource:
    return MemorySource(name, SHARDS[name])


def test_shards_join() -> None:
    weight_map = {"c": "2.safetensors", "a": "1.safetensors", "b": "1.safetensors"}
    assert [tensor.name for tensor in read_shards(index(weight_map), shard)] == ["a", "b", "c"]


def test_a_tensor_that_the_index_forgot_counts() -> None:
    assert [tensor.name for tensor in read_shards(index({"a": "1.safetensors"}), shard)] == ["a", "b"]


@pytest.mark.parametrize(
    ("weight_map", "line"),
    [
        ({"a": "1.safetensors", "d": "1.safetensors"}, "1.safetensors lacks `d`"),
        ({"c": "1.safetensors", "a": "2.safetensors"}, "1.safetensors holds `a`, which"),
        ({"b": "1.safetensors", "a": "again.safetensors"}, "1.safetensors holds `a`, which"),
        ({"a": "1.safetensors", "x": "again.safetensors"}, "again.safetensors holds `a`, which an earlier"),
    ],
)
def test_shards_that_do_not_match_their_index_are_refused(weight_map: dict[str, str], line: str) -> None:
    assert line in refusal(lambda: read_shards(index(weight_map), shard))[0]


def test_an_index_is_read_in_bounded_memory() -> None:
    text = index({f"model.layers.{n}": "model.safetensors" for n in range(50_000)})
    assert read_index("i", text) == ("model.safetensors",)
    assert safetensors.MAX_INDEX_TENSORS >= 1_000_000


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
