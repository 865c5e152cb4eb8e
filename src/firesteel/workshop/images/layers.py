"""The files of an image, read from its layers as streams. Nothing is unpacked; no link is ever followed.

    for file in visible_files(layers):      # bottom layer first, as manifests list them
        file.path, file.size, file.read(limit)

Layers are read from the top down: what an upper layer has, replaced or deleted (`.wh.NAME`, `.wh..wh..opq`)
is known before a lower one is read, so one pass is enough and hidden files are never read. Of upper
layers only a hash of each path is kept. The uncompressed bytes of every layer are compared with the digest in
the image's config.

An archive may claim anything. Headers are limited, a layer may not expand without end, and a path that leads
out of the root is counted and left out.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, cast

from firesteel.errors import FiresteelError
from firesteel.units import GIB, MIB
from firesteel.values import Value

_MAX_HEADER_BYTES = 16 * MIB
"""Of one read by `tarfile`, which reads extended headers whole: a header may claim gigabytes."""
_MAX_EXPANSION = 250
_EXPANSION_FROM_BYTES = GIB
"""Real layers shrink to a third, a few to a fiftieth; gzip alone can do 1,032 to 1 with zeros."""
_MAX_FILES = 5_000_000
_PIECE = MIB
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DAMAGE = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, gzip.BadGzipFile)


class DamagedImage(FiresteelError):
    """The image cannot be read to its end, or is not what its digests say."""

    kind = "damaged image"


class Layer(Value):
    name: str
    """Its digest, or what else identifies it in a message."""
    stored_bytes: int | None
    """As stored, mostly compressed; None for a stream of unknown length."""
    diff_id: str | None
    """The digest of its uncompressed bytes."""
    open: Callable[[], AbstractContextManager[IO[bytes]]]


class ImageFile(Value):
    path: str
    """Without a leading slash."""
    size: int
    layer: int
    is_program: bool
    link: str | None
    """The target of a symbolic or hard link, as written."""
    open: Callable[[], IO[bytes]]
    """Only until the next file is asked for."""

    def read(self, limit: int) -> bytes:
        return b"" if self.link is not None else self.open().read(limit)


class Counts:
    """What was seen on the way."""

    def __init__(self) -> None:
        self.entries = 0
        self.outside = 0
        """Entries whose paths lead out of the root."""
        self.first_outside = ""
        self.layer_bytes: dict[int, int] = {}
        """Uncompressed, by layer."""


def visible_files(layers: Sequence[Layer], counts: Counts) -> Iterator[ImageFile]:
    """Every file and link that a container would see; raises DamagedImage."""
    hidden = _Hidden()
    for index in reversed(range(len(layers))):
        with _opened(layers[index]) as reader:
            for member in _members(reader, layers[index]):
                counts.entries += 1
                if counts.entries > _MAX_FILES:
                    raise DamagedImage(
                        f"the image has more than {_MAX_FILES:,} files", next="docker image inspect IMAGE"
                    )
                path = _inside(member.name)
                if path is None:
                    counts.outside += 1
                    counts.first_outside = counts.first_outside or member.name[:200]
                elif hidden.takes(path, member.isdir(), is_last=index == 0):
                    yield _image_file(reader, member, path, index, layers[index])
            reader.finish(layers[index])
            counts.layer_bytes[index] = reader.position
        hidden.end_layer()


def _inside(name: str) -> str | None:
    """The path below the root; None when it leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts else "/".join(parts)


def _image_file(
    reader: _LayerReader, member: tarfile.TarInfo, path: str, index: int, layer: Layer
) -> ImageFile:
    def content() -> IO[bytes]:
        raw = reader.archive.extractfile(member) if member.isreg() else None
        return cast("IO[bytes]", _Content(raw or io.BytesIO(), layer))

    is_link = member.issym() or member.islnk()
    return ImageFile(
        path,
        member.size if member.isreg() else 0,
        index,
        bool(member.mode & 0o111) and member.isreg(),
        member.linkname if is_link else None,
        content,
    )


class _Content:
    """The bytes of one file; damage found here also names the layer."""

    def __init__(self, raw: IO[bytes], layer: Layer) -> None:
        self._raw = raw
        self._layer = layer

    def read(self, size: int = -1) -> bytes:
        with _damage_named(self._layer):
            return self._raw.read(size)


class _Hidden:
    """Which paths of lower layers a container does not see; hashes of paths, 64 bits each."""

    def __init__(self) -> None:
        self._covering: set[int] = set()
        """Files and whiteouts: hide their path and all below it."""
        self._opaque: set[int] = set()
        """Directories of which lower layers show nothing."""
        self._directories: set[int] = set()
        """Hide a file of that name."""
        self._next: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        """Of the layer that is being read: a whiteout does not hide what its own layer has."""

    def takes(self, path: str, is_directory: bool, is_last: bool) -> bool:
        """Notes the entry, and says whether it is a file that a container sees."""
        folder, _, name = path.rpartition("/")
        covering, opaque, directories = self._next
        if name == _OPAQUE:
            opaque.add(hash(folder))
            return False
        if name.startswith(_WHITEOUT):
            covering.add(hash(f"{folder}/{name[len(_WHITEOUT) :]}" if folder else name[len(_WHITEOUT) :]))
            return False
        if not is_last:
            (directories if is_directory else covering).add(hash(path))
        return not is_directory and not self._hides(path)

    def _hides(self, path: str) -> bool:
        if not (self._covering or self._opaque or self._directories):
            return False
        if hash(path) in self._directories or hash(path) in self._covering or hash("") in self._opaque:
            return True
        end = path.rfind("/")
        while end > 0:
            folder = hash(path[:end])
            if folder in self._covering or folder in self._opaque:
                return True
            end = path.rfind("/", 0, end)
        return False

    def end_layer(self) -> None:
        covering, opaque, directories = self._next
        self._covering |= covering
        self._opaque |= opaque
        self._directories |= directories
        self._next = (set(), set(), set())


class _LayerReader:
    """The uncompressed bytes of a layer, as `tarfile` wants them: seeks forward by reading.

    Counts and hashes all that passes, and refuses what no layer needs.
    """

    def __init__(self, raw: IO[bytes], stored: _Counted) -> None:
        self._raw = raw
        self._stored = stored
        self._digest = hashlib.sha256()
        self.position = 0
        self.last_block = b""
        self.archive: tarfile.TarFile

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _MAX_HEADER_BYTES:
            raise DamagedImage(
                f"a header in the layer claims {size:,} bytes", next="pull or save the image again"
            )
        parts: list[bytes] = []
        missing = size
        while missing and (piece := self._raw.read(missing)):
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        self.position += len(data)
        self._digest.update(data)
        if size == tarfile.BLOCKSIZE:
            self.last_block = data
        stored = self._stored.count
        if self.position > _EXPANSION_FROM_BYTES and self.position > stored * _MAX_EXPANSION:
            raise DamagedImage(
                f"a layer of {stored:,} bytes expands to more than {self.position:,}: no engine does that",
                next="do not load this image",
            )
        return data

    def tell(self) -> int:
        return self.position

    def seek(self, position: int) -> None:
        if position < self.position:
            raise ValueError("the archive points back into itself")
        while self.position < position:
            if not self.read(min(_PIECE, position - self.position)):
                raise EOFError("the layer ends in the middle of a file")

    def finish(self, layer: Layer) -> None:
        """Reads what follows the archive's end, and compares the digest."""
        is_complete = len(self.last_block) == tarfile.BLOCKSIZE and not any(self.last_block)
        with _damage_named(layer):
            while self.read(_PIECE):
                pass
        found = f"sha256:{self._digest.hexdigest()}"
        if layer.diff_id and found != layer.diff_id:
            raise DamagedImage(
                f"layer {layer.name[:80]} is damaged: its bytes have the digest {found[:19]}..., and the "
                f"image's config says {layer.diff_id[:19]}...",
                next="pull or save the image again",
            )
        if not layer.diff_id and not is_complete:
            raise DamagedImage(f"{layer.name[:80]} breaks off", next="try again")


class _Counted:
    """Counts the bytes as they are stored."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._start = b""
        self.count = 0

    def peek(self, size: int) -> bytes:
        while len(self._start) < size and (piece := self._raw.read(size - len(self._start))):
            self._start += piece
        return self._start

    def read(self, size: int = -1) -> bytes:
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
        else:
            data = self._raw.read(size)
        self.count += len(data)
        return data


@contextmanager
def _opened(layer: Layer) -> Iterator[_LayerReader]:
    with layer.open() as raw, _damage_named(layer):
        stored = _Counted(raw)
        reader = _LayerReader(_uncompressed(stored), stored)
        reader.archive = tarfile.TarFile(fileobj=cast("IO[bytes]", reader), mode="r", errorlevel=0)
        yield reader


def _uncompressed(stored: _Counted) -> IO[bytes]:
    start = stored.peek(4)
    if start[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=cast("IO[bytes]", stored)))
    if start == b"\x28\xb5\x2f\xfd":
        return _zstd(stored)
    return cast("IO[bytes]", stored)


def _zstd(stored: _Counted) -> IO[bytes]:
    """By the `zstandard` package, where it is installed: most images have no such layer."""
    try:
        import zstandard
    except ImportError:
        raise FiresteelError(
            "a layer is compressed with zstd, and the package that reads it is not installed",
            next=f"{sys.executable} -m pip install zstandard, or docker pull it and inspect that",
        ) from None
    # A frame may ask for gigabytes as its window; the command line tool also stops at 128 MiB.
    decompressor = zstandard.ZstdDecompressor(max_window_size=128 * MIB)
    reader = decompressor.stream_reader(cast("IO[bytes]", stored), read_across_frames=True)
    return cast("IO[bytes]", _Zstd(reader, zstandard.ZstdError))


class _Zstd:
    """Its errors are none of Python's own."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self._reader, self._error = reader, error

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._reader.read(size))
        except self._error as error:
            raise ValueError(str(error)) from error


def _members(reader: _LayerReader, layer: Layer) -> Iterator[tarfile.TarInfo]:
    while True:
        with _damage_named(layer):
            member = reader.archive.next()
        if member is None:
            return
        # Or it keeps every header: a gigabyte for a million files. Its type has no name for the list.
        cast("Any", reader.archive).members.clear()
        yield member


@contextmanager
def _damage_named(layer: Layer) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DamagedImage(
            f"layer {layer.name[:80]} cannot be read: {error}", next="pull or save the image again"
        ) from error
