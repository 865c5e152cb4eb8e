"""The GGUF format: metadata and tensors of a llama.cpp checkpoint, from its header alone.

    GGUF, version, number of tensors, number of keys
    the keys      name, type, value; `general.architecture` names the prefix of the model's own keys
    the tensors   name, dimensions, type, offset into the data
    padding, then the data: each tensor at the next multiple of `general.alignment`

Everything is little endian, strings and arrays have a 64-bit length. Most of a header are the arrays of the
tokenizer, which no plan needs, so long arrays are skipped and only their type and length are kept. Big
checkpoints are split, `name-00001-of-00003.gguf`, each part a complete GGUF; the first has the keys.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from firesteel.facts.formats.byte_source import BadHeader, ByteCursor, ByteSource, bad_header, truncated
from firesteel.facts.model.tensors import Tensor, role_of
from firesteel.values import Value, replace

GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
"""The types that a tensor can have: number -> name, elements in a block, bytes of a block.

A quantized type packs a block of elements with their scale: Q4_1 puts 32 4-bit elements, a 16-bit scale
and a 16-bit minimum into 20 bytes. Missing numbers were withdrawn.
"""

BLOCK_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""Where the 16-bit floats of a block start: its scale, and its minimum. As in ggml's `ggml-common.h`."""

MAX_HEADER_BYTES = 256 * 1024 * 1024
MAX_KEYS = 65_536
MAX_TENSORS = 100_000
"""In one file; real ones have a few thousand, as GGUF stacks the experts of a layer."""
MAX_STRINGS = 4_000_000
"""Over all arrays of strings; a large vocabulary has 260,000 tokens and as many merges again."""
MAX_STRING_BYTES = 8 * 1024 * 1024
MAX_KEPT_BYTES = 48 * 1024 * 1024
"""Memory of all keys and values."""
MAX_PARTS = 1_000
KEPT_NUMBERS = 4096
KEPT_STRINGS = 64

_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 127
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_SUPPORTED_VERSIONS = (2, 3)

_NUMBERS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"),
    4: ("uint32", "I"), 5: ("int32", "i"), 6: ("float32", "f"), 7: ("bool", "?"),
    10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_UINT32, _STRING, _ARRAY = 4, 8, 9


class ArrayInfo(Value):
    """An array too long to keep."""

    type: str
    length: int


Number = int | float | bool
MetadataValue = Number | str | tuple[Number, ...] | tuple[str, ...] | ArrayInfo


class GgufHeader(Value):
    name: str
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[Tensor, ...]
    """Shapes have the outermost dimension first, as in safetensors; the file has the reverse order."""
    alignment: int = _DEFAULT_ALIGNMENT
    data_offset: int = 0
    """Where the tensor data starts in the file."""


def read_header(source: ByteSource) -> GgufHeader:
    """The header of one file, complete or a part."""
    cursor = ByteCursor(source, MAX_HEADER_BYTES)
    version = _read_version(cursor)
    tensor_count, key_count = struct.unpack("<QQ", cursor.take(16))
    if tensor_count > MAX_TENSORS:
        raise cursor.bad(f"claims {tensor_count:,} tensors, more than any real model")
    if key_count > MAX_KEYS:
        raise cursor.bad(f"claims {key_count:,} keys, more than any real model")
    metadata = _read_metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.bad("is damaged: general.alignment is not a power of two")
    tensors, data_bytes = _read_tensors(cursor, tensor_count, alignment, model_layer_count(metadata))
    data_offset = _aligned(cursor.position, alignment) if tensors else cursor.position
    if data_offset + data_bytes > source.size:
        raise truncated(source.name)
    return GgufHeader(source.name, version, MappingProxyType(metadata), tensors, alignment, data_offset)


def model_layer_count(metadata: Mapping[str, MetadataValue]) -> int | None:
    """The layers without MTP layers, which `block_count` includes."""
    architecture = metadata.get("general.architecture")
    blocks = metadata.get(f"{architecture}.block_count")
    drafters = metadata.get(f"{architecture}.nextn_predict_layers", 0)
    if type(blocks) is int and type(drafters) is int and 0 <= drafters < blocks:
        return blocks - drafters
    return None


def _read_version(cursor: ByteCursor) -> int:
    magic, version = struct.unpack("<4sI", cursor.take(8))
    if magic != b"GGUF":
        raise cursor.bad("is not a GGUF file: it does not start with `GGUF`")
    if version & 0xFFFF == 0 and version:
        raise BadHeader(f"{cursor.name} is a big-endian GGUF", next="download the little-endian file")
    if version == 1:
        raise BadHeader(
            f"{cursor.name} is GGUF version 1, which engines no longer support",
            next="convert the model again",
        )
    if version not in _SUPPORTED_VERSIONS:
        raise BadHeader(
            f"{cursor.name} is GGUF version {version}; firesteel reads 2 and 3", next="update firesteel"
        )
    return int(version)


def _read_metadata(cursor: ByteCursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    kept_bytes = strings = 0
    for _ in range(count):
        key = cursor.string("key", _MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.bad(f"is damaged: key `{key[:80]}` appears twice")
        kind = cursor.number("I")
        if key == "general.alignment" and kind != _UINT32:
            raise cursor.bad("is damaged: general.alignment is not a 32-bit number")
        value = _read_value(cursor, key, kind)
        if isinstance(value, ArrayInfo) and value.type == "string":
            strings += value.length
        metadata[key] = value
        kept_bytes += _memory_bytes(key) + _memory_bytes(value)
        if kept_bytes > MAX_KEPT_BYTES or strings > MAX_STRINGS:
            raise cursor.bad("has more metadata than any real model")
    return metadata


def _memory_bytes(value: MetadataValue) -> int:
    parts = sum(sys.getsizeof(part) for part in value) if isinstance(value, tuple) else 0
    return sys.getsizeof(value) + parts


def _read_value(cursor: ByteCursor, key: str, kind: int) -> MetadataValue:
    if kind == _STRING:
        return cursor.string(f"value of `{key[:80]}`", MAX_STRING_BYTES)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _NUMBERS:
        raise cursor.bad(f"is damaged: key `{key[:80]}` has the unknown type {kind}")
    number: Number = cursor.number(_NUMBERS[kind][1])
    return number


def _read_array(cursor: ByteCursor, key: str) -> MetadataValue:
    kind, length = cursor.number("I"), cursor.number("Q")
    if kind == _STRING:
        if length > MAX_STRINGS:
            raise cursor.bad(f"claims {length:,} strings under `{key[:80]}`, more than any real model")
        if length <= KEPT_STRINGS:
            return tuple(cursor.string(f"value of `{key[:80]}`", MAX_STRING_BYTES) for _ in range(length))
        cursor.skip_strings(length)
        return ArrayInfo("string", length)
    if kind not in _NUMBERS:
        raise cursor.bad(f"is damaged: key `{key[:80]}` is an array of the unknown type {kind}")
    name, code = _NUMBERS[kind]
    size = length * struct.calcsize(f"<{code}")
    if length > KEPT_NUMBERS:
        cursor.skip(size)
        return ArrayInfo(name, length)
    return struct.unpack(f"<{length}{code}", cursor.take(size))


def _read_tensors(
    cursor: ByteCursor, count: int, alignment: int, layers: int | None
) -> tuple[tuple[Tensor, ...], int]:
    """The tensors, and the bytes of their data. Each must start where the one before it ends."""
    tensors: list[Tensor] = []
    names: set[str] = set()
    end = 0
    for _ in range(count):
        tensor, offset = _read_tensor(cursor, layers)
        if tensor.name in names:
            raise cursor.bad(f"is damaged: tensor `{tensor.name}` appears twice")
        if offset != _aligned(end, alignment):
            raise cursor.bad(
                f"is damaged: tensor `{tensor.name}` does not start where the one before it ends"
            )
        names.add(tensor.name)
        tensors.append(tensor)
        end = offset + tensor.bytes
    return tuple(tensors), end


def _read_tensor(cursor: ByteCursor, layers: int | None) -> tuple[Tensor, int]:
    name = cursor.string("tensor name", _MAX_NAME_BYTES)
    dimensions = cursor.number("I")
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.bad(f"is damaged: tensor `{name}` has {dimensions:,} dimensions")
    shape: tuple[int, ...] = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions))
    kind, offset = struct.unpack("<IQ", cursor.take(12))
    if kind not in GGML_TYPES:
        raise BadHeader(
            f"{cursor.name} has a tensor of the unknown ggml type {kind}", next="update firesteel"
        )
    dtype, block, block_bytes = GGML_TYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
        if length >= 2**63 or elements >= 2**63:
            raise cursor.bad(f"is damaged: tensor `{name}` has more elements than 63 bits count")
    if (shape[0] if shape else 1) % block:
        raise cursor.bad(f"is damaged: a row of tensor `{name}` is not made of {dtype} blocks of {block}")
    size = elements // block * block_bytes
    return Tensor(name, dtype, shape[::-1], size, role_of(name, layers)), offset


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")


def read_split(first: ByteSource, open_part: Callable[[str], ByteSource]) -> GgufHeader:
    """A checkpoint from its first part; `open_part` is called with the file name of each further part.

    The metadata is that of the first part, the tensors are those of all. A file that is not split is read
    alone.
    """
    header = read_header(first)
    count = header.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise bad_header(first.name, "is damaged: split.count is not a number of parts")
    if count <= 1:
        return header
    tensors = list(header.tensors)
    _check_part(header, 0, count)
    layers = model_layer_count(header.metadata)
    for number, name in enumerate(_other_parts(first.name, count), start=1):
        part = read_header(open_part(name))
        _check_part(part, number, count)
        # Only the first part has the number of layers, which the roles depend on.
        tensors += [replace(tensor, role=role_of(tensor.name, layers)) for tensor in part.tensors]
    promised = header.metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise bad_header(
            header.name, f"promises {promised} tensors in its parts, which hold {len(tensors):,}"
        )
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise bad_header(header.name, "has a tensor in two of its parts")
    return replace(header, tensors=tuple(tensors))


def _other_parts(first_name: str, count: int) -> list[str]:
    file_name = first_name.rpartition("/")[2]
    match = _PART.search(file_name)
    if not match or (int(match[1]), int(match[2])) != (1, count):
        raise BadHeader(
            f"{first_name} is one of {count} parts but not named like the first of them",
            next=f"name it ...-00001-of-{count:05}.gguf, or give the first part",
        )
    return [f"{file_name[: match.start()]}-{number:05}-of-{count:05}.gguf" for number in range(2, count + 1)]


def _check_part(part: GgufHeader, number: int, count: int) -> None:
    numbers = part.metadata.get("split.no"), part.metadata.get("split.count")
    if numbers != (number, count):
        raise bad_header(part.name, f"should be part {number + 1} of {count}, but its metadata differ")
