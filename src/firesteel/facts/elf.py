"""ELF files: the sections of a library or program, the libraries that it loads, and numbers that it exports.

    sections(data)                               (ElfSection(".nv_fatbin", ...), ...)
    needed_libraries(data)                       ("libcudart.so.12", "libc.so.6")
    exported_int(data, "LLAMA_BUILD_NUMBER")     11434

64-bit little-endian only, as on every Spark and every x86 host. Only headers and tables are read, so `data`
may be an mmap of gigabytes. A damaged file gives NotElf or less, never another error.
"""

from __future__ import annotations

import struct
from typing import Any

from firesteel.values import Value

_ELF = b"\x7fELF"
_HEADER = struct.Struct("<IIQQQQII")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_SYMBOLS, _DYNAMIC_TABLE, _DYNAMIC_SYMBOLS = 2, 6, 11
_NEEDED = 1
_MAX_SECTIONS = 100_000
_MAX_ROWS = 1_000_000
_MAX_NAME_BYTES = 256
Buffer = Any
"""bytes or an mmap: whatever `struct.unpack_from` and slices take."""


class NotElf(ValueError):
    """The file is no 64-bit little-endian ELF file, or it ends before its own tables do."""


class ElfSection(Value):
    name: str
    kind: int
    address: int
    """In memory."""
    offset: int
    """In the file."""
    size: int
    """Of what the file holds: a damaged header may promise more."""
    link: int
    """The index of the section with its strings."""


def sections(data: Buffer) -> tuple[ElfSection, ...]:
    """In the order of the file; raises NotElf."""
    if len(data) < 64 or data[:4] != _ELF or data[4] != 2 or data[5] != 1:
        raise NotElf("not a 64-bit little-endian ELF file")
    table, entry_size, count, names_index = (
        struct.unpack_from("<Q", data, 0x28)[0],
        *struct.unpack_from("<HHH", data, 0x3A),
    )
    if not table or count > _MAX_SECTIONS or entry_size < 64 or table + count * entry_size > len(data):
        raise NotElf("its table of sections is not there")
    headers = [_HEADER.unpack_from(data, table + index * entry_size) for index in range(count)]
    if names_index >= count:
        raise NotElf("its sections have no names")
    names = headers[names_index][4]
    return tuple(
        ElfSection(
            _text(data, names + name), kind, address, offset, min(size, max(0, len(data) - offset)), link
        )
        for name, kind, _, address, offset, size, link, _ in headers
    )


def _text(data: Buffer, offset: int) -> str:
    return bytes(data[offset : offset + _MAX_NAME_BYTES]).partition(b"\0")[0].decode("utf-8", "replace")


def needed_libraries(data: Buffer) -> tuple[str, ...]:
    """The names of the libraries that the dynamic linker loads for it."""
    every = sections(data)
    return tuple(
        _text(data, every[table.link].offset + value)
        for table in every
        if table.kind == _DYNAMIC_TABLE and table.link < len(every)
        for tag, value in _rows(_DYNAMIC, data, table)
        if tag == _NEEDED
    )


def exported_int(data: Buffer, symbol: str) -> int | None:
    """The value of a global `int`; None when there is no such symbol, or it has no value in the file."""
    every = sections(data)
    for table in every:
        if table.kind not in (_SYMBOLS, _DYNAMIC_SYMBOLS) or table.link >= len(every):
            continue
        names = every[table.link].offset
        for name, _, _, section, address, size in _rows(_SYMBOL, data, table):
            if size == 4 and 0 < section < len(every) and _text(data, names + name) == symbol:
                home = every[section]
                offset = home.offset + address - home.address
                if home.offset <= offset <= len(data) - 4:
                    return int(struct.unpack_from("<i", data, offset)[0])
    return None


def _rows(row: struct.Struct, data: Buffer, table: ElfSection) -> list[tuple[int, ...]]:
    count = min(table.size // row.size, _MAX_ROWS)
    return [row.unpack_from(data, table.offset + index * row.size) for index in range(count)]
