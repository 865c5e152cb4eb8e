"""Headers written by hand, so that a test can write what the reference packages would not."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firesteel.facts.formats.byte_source import BadHeader

Offsets = tuple[int, int]


def safetensors_file(header: object, data_bytes: int = 0) -> bytes:
    """`header` is JSON text, or something to dump as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def info(dtype: str, shape: Sequence[object], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def text(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, length: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, length) + items


def tensor(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_file(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data_bytes: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, key_count = counts or (len(tensors), len(keys))
    header = struct.pack("<4sIQQ", b"GGUF", version, tensor_count, key_count) + b"".join((*keys, *tensors))
    padding = -len(header) % 32 if tensors else 0
    return header + bytes(padding + data_bytes)


@dataclass
class BigSource:
    """A header in front of data that nobody may read, of any size. Records what was read."""

    name: str
    header: bytes
    size: int
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        known = self.header[start : start + length]
        return known + bytes(length - len(known))


def refusal(read: Callable[[], object]) -> tuple[str, int]:
    """The line a reader refuses with, and the most bytes of memory it had on the way."""
    tracemalloc.start()
    try:
        read()
    except BadHeader as error:
        line = str(error)
        assert line.isprintable() and len(line) <= 300
        assert error.next
        return line, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    raise AssertionError("this header was accepted")
