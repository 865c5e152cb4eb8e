from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf as reference
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.formats.byte_source import BadHeader, MemorySource
from firesteel.facts.formats.gguf import GGML_TYPES, MAX_KEYS, ArrayInfo, GgufHeader, read_header, read_split
from firesteel.facts.model.tensors import Role

from .header_bytes import BigSource, array, gguf_file, key, refusal, tensor, text

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
Q4_0 = 2

short_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS: Mapping[str, st.SearchStrategy[object]] = {
    "UINT8": st.integers(0, 2**8 - 1),
    "INT8": st.integers(-(2**7), 2**7 - 1),
    "UINT16": st.integers(0, 2**16 - 1),
    "INT16": st.integers(-(2**15), 2**15 - 1),
    "UINT32": st.integers(0, 2**32 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "FLOAT32": st.floats(width=32),
    "BOOL": st.booleans(),
    "UINT64": st.integers(0, 2**64 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FLOAT64": st.floats(),
}
scalars = st.sampled_from(sorted(NUMBERS)).flatmap(lambda kind: st.tuples(st.just(kind), NUMBERS[kind]))
arrays = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5) | st.lists(
    short_text, min_size=1, max_size=5
)


def read(data: bytes) -> GgufHeader:
    return read_header(MemorySource("x.gguf", data))


def written(
    keys: Mapping[str, object],
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    folder: Path,
    alignment: int | None = None,
) -> Path:
    """Written by the reference package. A key is a (type, number), a string or a list."""
    path = folder / "x.gguf"
    writer = reference.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, value in keys.items():
        if isinstance(value, tuple):
            writer.add_key_value(name, value[1], reference.GGUFValueType[value[0]])
        elif isinstance(value, str):
            writer.add_key_value(name, value, reference.GGUFValueType.STRING)
        elif isinstance(value, list):
            writer.add_array(name, value)
    for name, (kind, shape) in tensors.items():
        quant = reference.GGMLQuantizationType[kind]
        block, block_bytes = reference.GGML_QUANT_SIZES[quant]
        rows = numpy.zeros((*shape[:-1], shape[-1] // block * block_bytes), numpy.uint8)
        writer.add_tensor(name, rows, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float) and math.isnan(ours):
        return math.isnan(theirs)
    if isinstance(ours, tuple) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs and type(ours) is type(theirs)


def assert_read_as_the_reference_does(path: Path) -> None:
    ours = read(path.read_bytes())
    theirs = reference.GGUFReader(path)
    assert [(t.name, t.dtype, t.shape, t.bytes) for t in ours.tensors] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist())[::-1], t.n_bytes) for t in theirs.tensors
    ]
    fields = {name: found.contents() for name, found in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, value in fields.items():
        assert same(ours.metadata[name], value), name
    if ours.tensors:
        assert (ours.data_offset, ours.alignment) == (theirs.data_offset, theirs.alignment)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(short_text.map(lambda name: f"x.{name}"), scalars | short_text | arrays, max_size=6),
    st.dictionaries(
        short_text.filter(lambda name: len(name.encode()) < 64),
        st.tuples(
            st.sampled_from([kind for kind, *_ in GGML_TYPES.values() if kind != "Q2_0"]),
            st.tuples(st.integers(1, 3), st.just(256)) | st.just((256,)) | st.just((0, 256)),
        ),
        max_size=5,
    ),
    st.sampled_from([None, 8, 32, 64, 4096]),
)
def test_what_the_reference_writes_we_read_the_same(
    keys: dict[str, object], tensors: dict[str, tuple[str, tuple[int, ...]]], alignment: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_read_as_the_reference_does(written(keys, tensors, Path(folder), alignment))


def test_types_are_those_of_the_reference() -> None:
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in reference.GGML_QUANT_SIZES.items()}
    newer = {42: ("Q2_0", 64, 18)}
    assert theirs | newer == GGML_TYPES


def test_long_arrays_are_stepped_over_and_short_ones_kept() -> None:
    strings = text("token") * 65
    header = read(
        gguf_file(
            [
                key("tokens", STRING + 1, array(STRING, 65, strings)),
                key("scores", ARRAY, array(F32, 4097, bytes(4 * 4097))),
                key("tags", ARRAY, array(STRING, 2, text("a") + text("b"))),
                key("per_layer", ARRAY, array(BOOL, 4096, bytes(4096))),
                key("none", ARRAY, array(U64, 0, b"")),
                key("last", U8, b"\x07"),
            ]
        )
    )
    assert header.metadata == {
        "tokens": ArrayInfo("string", 65),
        "scores": ArrayInfo("float32", 4097),
        "tags": ("a", "b"),
        "per_layer": (False,) * 4096,
        "none": (),
        "last": 7,
    }


def test_version_2_reads_like_3() -> None:
    assert read(gguf_file(version=2)).version == 2


def test_shapes_have_the_outermost_dimension_first() -> None:
    assert read(gguf_file((), [tensor("a", [64, 3], Q4_0, 0)], 6 * 18)).tensors[0].shape == (3, 64)


def test_roles_are_set_and_mtp_layers_recognized_by_the_metadata() -> None:
    keys = [
        key("general.architecture", STRING, text("qwen35moe")),
        key("qwen35moe.block_count", U32, struct.pack("<I", 3)),
        key("qwen35moe.nextn_predict_layers", U32, struct.pack("<I", 1)),
    ]
    tensors = [tensor(f"blk.{n}.ffn_up_exps.weight", [32], Q4_0, 32 * n) for n in range(3)]
    assert [t.role for t in read(gguf_file(keys, tensors, 96)).tensors] == [
        Role.ROUTED_EXPERTS,
        Role.ROUTED_EXPERTS,
        Role.DRAFTER,
    ]


ALIGNMENT = "general.alignment"
ONE = tensor("a", [32], Q4_0, 0)

REFUSED = {
    "empty file": b"",
    "seven bytes": b"GGUF\3\0\0",
    "not GGUF": b"GGML" + gguf_file()[4:],
    "version 0": gguf_file(version=0),
    "version 1": gguf_file(version=1),
    "version 4": gguf_file(version=4),
    "big endian": b"GGUF\0\0\0\3" + bytes(16),
    "2^63 tensors": gguf_file(counts=(2**63, 0)),
    "2^64 - 1 tensors": gguf_file(counts=(2**64 - 1, 0)),
    "2^63 keys": gguf_file(counts=(0, 2**63)),
    "a million keys": gguf_file(counts=(0, 10**6)),
    "a tensor that is not there": gguf_file(counts=(1, 0)),
    "a key that is not there": gguf_file(counts=(0, 1)),
    "key of 2^63 bytes": gguf_file([struct.pack("<Q", 2**63)]),
    "key of 65,536 bytes": gguf_file([key("k" * 65_536, U8, b"\0")]),
    "key not UTF-8": gguf_file([key(b"\xff", U8, b"\0")]),
    "key twice": gguf_file([key("a", U8, b"\0")] * 2),
    "value type 13": gguf_file([key("a", 13, b"\0" * 8)]),
    "value type 2^32 - 1": gguf_file([key("a", 2**32 - 1, b"\0" * 8)]),
    "string of 2^63 bytes": gguf_file([key("a", STRING, struct.pack("<Q", 2**63))]),
    "string past the end": gguf_file([key("a", STRING, struct.pack("<Q", 1000))]),
    "string not UTF-8": gguf_file([key("a", STRING, text(b"\xed\xa0\x80"))]),
    "array of 2^63 bytes": gguf_file([key("a", ARRAY, array(U8, 2**63, b""))]),
    "array of 2^61 numbers": gguf_file([key("a", ARRAY, array(U64, 2**61, b""))]),
    "array of 2^63 strings": gguf_file([key("a", ARRAY, array(STRING, 2**63, b""))]),
    "array of strings past the end": gguf_file([key("a", ARRAY, array(STRING, 1000, bytes(900)))]),
    "a string in an array past the end": gguf_file([key("a", ARRAY, array(STRING, 65, b"\xff" * 600))]),
    "array of arrays": gguf_file([key("a", ARRAY, array(ARRAY, 1, array(U8, 0, b"")))]),
    "array of type 99": gguf_file([key("a", ARRAY, array(99, 0, b""))]),
    "alignment 0": gguf_file([key(ALIGNMENT, U32, struct.pack("<I", 0))], [ONE], 18),
    "alignment 3": gguf_file([key(ALIGNMENT, U32, struct.pack("<I", 3))], [ONE], 18),
    "alignment 2^31": gguf_file([key(ALIGNMENT, U32, struct.pack("<I", 2**31))], [ONE], 18),
    "alignment of 64 bits": gguf_file([key(ALIGNMENT, U64, struct.pack("<Q", 32))], [ONE], 18),
    "alignment is a string": gguf_file([key(ALIGNMENT, STRING, text("32"))], [ONE], 18),
    "tensor name of 128 bytes": gguf_file((), [tensor("n" * 128, [32], Q4_0, 0)], 18),
    "tensor name not UTF-8": gguf_file((), [tensor(b"\xff", [32], Q4_0, 0)], 18),
    "tensor twice": gguf_file((), [ONE, tensor("a", [32], Q4_0, 32)], 64),
    "five dimensions": gguf_file((), [tensor("a", [32, 1, 1, 1, 1], Q4_0, 0)], 18),
    "2^32 - 1 dimensions": gguf_file((), [text("a") + b"\xff" * 4], 18),
    "dimension of 2^63": gguf_file((), [tensor("a", [2**63], 0, 0)], 18),
    "product of 2^64": gguf_file((), [tensor("a", [2**32, 2**32], 0, 0)], 18),
    "product of 2^64, then zero": gguf_file((), [tensor("a", [2**32, 2**32, 0], 0, 0)], 18),
    "half a block": gguf_file((), [tensor("a", [16], Q4_0, 0)], 18),
    "rows of half a block": gguf_file((), [tensor("a", [16, 2], Q4_0, 0)], 18),
    "ggml type 4, withdrawn": gguf_file((), [tensor("a", [32], 4, 0)], 18),
    "ggml type 2^32 - 1": gguf_file((), [tensor("a", [32], 2**32 - 1, 0)], 18),
    "overlap": gguf_file((), [ONE, tensor("b", [32], Q4_0, 0)], 64),
    "offset not aligned": gguf_file((), [ONE, tensor("b", [32], Q4_0, 18)], 64),
    "hole": gguf_file((), [ONE, tensor("b", [32], Q4_0, 64)], 96),
    "hole before the first": gguf_file((), [tensor("a", [32], Q4_0, 32)], 64),
    "offset of 2^64 - 32": gguf_file((), [tensor("a", [32], Q4_0, 2**64 - 32)], 64),
    "data a byte short": gguf_file((), [ONE], 17),
    "data of 2^60 bytes": gguf_file((), [tensor("a", [2**58], 0, 0)], 64),
    "no padding": gguf_file((), [ONE], 0)[:-1],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    line, peak_bytes = refusal(lambda: read(REFUSED[case]))
    assert line.startswith("x.gguf ")
    assert peak_bytes < 2_000_000


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("big endian", "is a big-endian GGUF"),
        ("version 1", "is GGUF version 1, which engines no longer support"),
        ("version 4", "is GGUF version 4; firesteel reads 2 and 3"),
        ("not GGUF", "is not a GGUF file"),
        ("ggml type 4, withdrawn", "unknown ggml type 4"),
    ],
)
def test_other_kinds_of_files_are_named(case: str, line: str) -> None:
    assert line in refusal(lambda: read(REFUSED[case]))[0]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    keys: dict[str, object] = {"x.a": ("FLOAT32", 1.5), "x.b": "words", "x.c": [1, 2], "x.d": ["a"] * 70}
    data = written(keys, {"a": ("Q4_K", (2, 256)), "b": ("F32", (3,))}, tmp_path).read_bytes()
    header = read(data)
    end = header.data_offset + sum(t.bytes for t in header.tensors)
    for length in range(end):
        with pytest.raises(BadHeader, match="truncated"):
            read(data[:length])
    assert read(data[:end]) == header


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    keys: dict[str, object] = {"x.a": ("UINT64", 7), "x.b": "words", "x.c": [1, 2], "x.d": ["ab"] * 70}
    path = written(keys, {"blk.0.a": ("Q4_K", (2, 256)), "b": ("F32", (3,))}, tmp_path_factory.mktemp("gguf"))
    return path.read_bytes()


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(valid: bytes, data: st.DataObject) -> None:
    changed = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        header = read(bytes(changed))
    except BadHeader as error:
        assert str(error).isprintable()
    else:
        assert header.data_offset + sum(t.bytes for t in header.tensors) <= len(changed)


def numbers(count: int) -> bytes:
    return array(U64, count, b"\xff" * 8 * count)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "claims 100,001 tensors": lambda: gguf_file(counts=(100_001, 0)),
    "claims 65,537 keys": lambda: gguf_file(counts=(0, 65_537)),
    "4,000,001 strings": lambda: gguf_file([key("a", ARRAY, array(STRING, 4_000_001, b""))]),
    "more metadata": lambda: gguf_file([key(f"{n}", ARRAY, numbers(4096)) for n in range(400)]),
    "more metadata than": lambda: gguf_file(
        [key(f"{n}", STRING, text("\U0001f525" + "x" * 1_000_000)) for n in range(15)]
    ),
    "header of over": lambda: gguf_file([key("a", ARRAY, array(U8, 2**30, b""))]),
    "claims 8,388,609 bytes": lambda: gguf_file([key("a", STRING, struct.pack("<Q", 8 * 2**20 + 1))]),
    "truncated": lambda: gguf_file((), [tensor(f"{n}" * 20, [2**40], 24, 2**40 * n) for n in range(50_000)]),
}


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_headers_take_little_memory(line: str) -> None:
    source = BigSource("x.gguf", HOSTILE[line](), 2**40)
    message, peak_bytes = refusal(lambda: read_header(source))
    assert line in message
    assert peak_bytes < 100_000_000


def test_the_most_keys_there_may_be() -> None:
    data = gguf_file([key(f"{n}", U8, b"\0") for n in range(MAX_KEYS)])
    assert len(read(data).metadata) == MAX_KEYS


def test_nothing_far_past_the_header_is_read() -> None:
    tokens = key("tokens", ARRAY, array(STRING, 200_000, text("x" * 20) * 200_000))
    header = gguf_file([tokens], [tensor("a", [2**36], 24, 0)])
    source = BigSource("x.gguf", header, len(header) + 2**36)
    assert read_header(source).tensors[0].bytes == 2**36
    assert max(start + length for start, length in source.reads) <= len(header) + 4 * 2**20
    assert len(source.reads) < 10


def part(number: int, count: int, tensors: list[bytes], **others: int) -> bytes:
    keys = [key("split.no", 2, struct.pack("<H", number)), key("split.count", 2, struct.pack("<H", count))]
    keys += [key(name.replace("__", "."), U32, struct.pack("<I", value)) for name, value in others.items()]
    return gguf_file(keys, tensors, 64)


LLAMA = {"split__tensors__count": 2}
PARTS = {
    "m-00001-of-00002.gguf": part(0, 2, [ONE], **LLAMA),
    "m-00002-of-00002.gguf": part(1, 2, [tensor("b", [32], Q4_0, 0)]),
}


def joined(parts: Mapping[str, bytes], first: str = "m-00001-of-00002.gguf") -> GgufHeader:
    return read_split(
        MemorySource(f"folder/{first}", parts[first]), lambda name: MemorySource(name, parts[name])
    )


def test_parts_join() -> None:
    header = joined(PARTS)
    assert [t.name for t in header.tensors] == ["a", "b"]
    assert header.metadata["split.tensors.count"] == 2


def test_a_file_that_is_not_split_is_read_alone() -> None:
    assert [t.name for t in joined({"x.gguf": gguf_file((), [ONE], 18)}, "x.gguf").tensors] == ["a"]


def test_parts_written_by_the_reference_join(tmp_path: Path) -> None:
    writer = reference.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for number in range(5):
        writer.add_tensor(f"blk.{number}.attn_q.weight", numpy.zeros((2, 32), numpy.float32))
    writer.write_header_to_file(tmp_path / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(parts) == 3
    header = joined(parts, "m-00001-of-00003.gguf")
    assert [t.name for t in header.tensors] == [f"blk.{number}.attn_q.weight" for number in range(5)]
    assert header.metadata["general.architecture"] == "llama"


SECOND = "m-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({SECOND: part(0, 2, [])}, "should be part 2 of 2"),
        ({SECOND: part(1, 3, [])}, "should be part 2 of 2"),
        ({SECOND: gguf_file()}, "should be part 2 of 2"),
        ({SECOND: part(1, 2, [])}, "promises 2 tensors"),
        ({SECOND: part(1, 2, [ONE])}, "in two of its parts"),
        ({SECOND: b"GGUF"}, "truncated"),
        ({"m-00001-of-00002.gguf": part(1, 2, [ONE])}, "should be part 1 of 2"),
        ({"m-00001-of-00002.gguf": part(0, 3, [ONE])}, "not named like the first"),
        ({"m-00001-of-00002.gguf": part(0, 5000, [ONE])}, "split.count is not a number of parts"),
    ],
)
def test_parts_that_do_not_match_are_refused(changed: dict[str, bytes], line: str) -> None:
    assert line in refusal(lambda: joined(PARTS | changed))[0]


def test_a_first_part_under_another_name_is_refused() -> None:
    line, _ = refusal(lambda: joined({"m.gguf": PARTS["m-00001-of-00002.gguf"]}, "m.gguf"))
    assert "one of 2 parts" in line
