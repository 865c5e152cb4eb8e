"""ELF files, and the GPU code in them. Pure.

    sections(data)                               (ElfSection(".nv_fatbin", ...), ...)
    needed_libraries(data)                       ("libcudart.so.12", "libc.so.6")
    exported_int(data, "LLAMA_BUILD_NUMBER")     11434

64-bit little-endian only, as on every Spark and every x86 host. Only headers and tables are read, so `data`
may be an mmap of gigabytes. A damaged file gives NotElf or less, never another error.

`gpu_code` shows for which GPUs a library has code: its machine code and PTX by architecture.

    gpu_code(mmap)      GpuCode(machine=("sm_90a", "sm_121a"), ptx=("compute_121",))

nvcc puts code into sections called `.nv_fatbin`: containers, each with entries for one architecture. NVIDIA
does not document the layout. It was read off libraries that nvcc 13.4 built and compared with `cuobjdump`
(tests/facts/gpu_code, 2026-11-15): a container is `BA55ED50`, version, header size, size; an entry has its
kind, the size of its header and of its payload, the architecture and flags. Payloads (often compressed)
are never read.

Machine code runs on its own architecture: `sm_90` on 9.x, `sm_90a` on 9.0 alone, `sm_120f` on its family.
PTX is compiled by the driver for any newer one, which costs minutes at the first start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
    """The file is not a 64-bit little-endian ELF file, or it ends before its own tables do."""


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
        raise NotElf("it has no table of sections")
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


_CONTAINER_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _MACHINE = 1, 2
_SPECIFIC, _FAMILY = 0x100000, 0x200000
"""`sm_90a`: only that chip; `sm_120f`: chips of one family."""
_MAX_ENTRIES = 1_000_000


class GpuCode(Value):
    machine: tuple[str, ...]
    """`sm_121a`, each once, by number."""
    ptx: tuple[str, ...]
    """`compute_90`."""

    def runs_on(self, compute_capability: str) -> str:
        """`as it is`, `after a JIT` by the driver, or `not at all`; for `12.1` and the like."""
        major, _, minor = compute_capability.partition(".")
        number = int(major) * 10 + int(minor or 0)
        if any(_is_native(name, number) for name in self.machine):
            return "as it is"
        if any(name[-1].isdigit() and int(name.partition("_")[2]) <= number for name in self.ptx):
            return "after a JIT"
        return "not at all"


def _is_native(name: str, number: int) -> bool:
    text = name.removeprefix("sm_")
    own = int(text.rstrip("af"))
    if text.endswith("a"):
        return own == number
    # Within one major version newer chips run older code; a family's name is that of its oldest chip.
    return own // 10 == number // 10 and own <= number


def gpu_code(data: Buffer) -> GpuCode:
    """All code of a library or program; raises NotElf. A damaged container ends its section."""
    machine: set[str] = set()
    ptx: set[str] = set()
    for section in sections(data):
        if section.name != ".nv_fatbin" and not section.name.startswith("__nv_relfat"):
            continue
        for kind, architecture, flags in _entries(data, section.offset, section.offset + section.size):
            suffix = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
            if kind == _MACHINE:
                machine.add(f"sm_{architecture}{suffix}")
            elif kind == _PTX:
                ptx.add(f"compute_{architecture}{suffix}")
    return GpuCode(tuple(sorted(machine, key=_order)), tuple(sorted(ptx, key=_order)))


def _order(name: str) -> tuple[int, str]:
    digits = "".join(character for character in name if character.isdigit())
    return int(digits), name


def _entries(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, architecture and flags of every entry between two offsets."""
    position, read = start, 0
    while position + _CONTAINER.size <= end and read < _MAX_ENTRIES:
        magic, _, header_size, size = _CONTAINER.unpack_from(data, position)
        if magic != _CONTAINER_MAGIC:
            position += 8  # containers are aligned, with zeros between them
            read += 1
            continue
        entry, container_end = position + header_size, min(end, position + header_size + size)
        while entry + _ENTRY.size <= container_end and read < _MAX_ENTRIES:
            kind, _, entry_header, payload, *_, architecture, _, _, flags = _ENTRY.unpack_from(data, entry)
            if entry_header < _ENTRY.size or not 0 < architecture < 10_000:
                return
            yield kind, architecture, flags
            entry += entry_header + payload
            read += 1
        if container_end <= position:
            return
        position = container_end + (-container_end % 8)
