"""Named files of an OCI layout folder or of an archive, opened one at a time. Nothing outside is read."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import IO, cast

from firesteel.images.layers import DamagedImage
from firesteel.units import MIB
from firesteel.values import Value

MAX_DOCUMENT_BYTES = 8 * MIB
_MAX_BLOBS = 10_000


class Blobs(Value):
    """Named files of a folder or an archive."""

    open: Callable[[str], AbstractContextManager[IO[bytes]]]
    size: Callable[[str], int | None]
    """None: there is no such file."""


def folder_blobs(root: Path) -> Blobs:
    def place(name: str) -> Path:
        path = root / name
        if not path.resolve().is_relative_to(root.resolve()):
            raise DamagedImage(f"{path} leads out of the folder", next="copy the layout again")
        return path

    return Blobs(
        lambda name: place(name).open("rb"),
        lambda name: place(name).stat().st_size if place(name).is_file() else None,
    )


def archive_blobs(path: Path) -> Blobs:
    members: dict[str, tarfile.TarInfo] = {}
    try:
        with _Limited(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                members[member.name.removeprefix("./")] = member
                if len(members) > _MAX_BLOBS:
                    raise DamagedImage(
                        f"{path} has more files than an image", next=f"tar --list --file {path}"
                    )
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DamagedImage(f"{path} cannot be read: {error}", next="docker save it again") from error

    def find(name: str) -> tarfile.TarInfo | None:
        member = members.get(name)
        if member is not None and member.issym():  # how older dockers save a layer that two images share
            member = members.get(normpath(join("/", dirname(name), member.linkname)).lstrip("/"))
        return member if member is not None and member.isreg() else None

    @contextmanager
    def opened(name: str) -> Iterator[IO[bytes]]:
        member = find(name)
        if member is None:
            raise DamagedImage(f"{path} lacks {name[:100]}", next="docker save it again")
        with path.open("rb") as file:
            file.seek(member.offset_data)
            yield cast("IO[bytes]", _Part(file, member.size))

    def size(name: str) -> int | None:
        member = find(name)
        return None if member is None else member.size

    return Blobs(opened, size)


class _Limited(io.FileIO):
    """`tarfile` reads extended headers whole, and a damaged one may claim any size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_DOCUMENT_BYTES:
            raise ValueError(f"a header claims {size:,} bytes")
        return super().read(size) or b""


class _Part:
    """The next bytes of a file, and not more."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
