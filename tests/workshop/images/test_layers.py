"""Layers: what a container sees, and what damaged or hostile archives end in."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.workshop.images import layers as layers_module
from firesteel.workshop.images.layers import Counts, DamagedImage, Layer, visible_files
from tests.workshop.images.made_images import Entries, digest, layer


def stored(data: bytes, *, diff_id: str | None = None) -> Layer:
    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        yield io.BytesIO(data)

    return Layer("test", len(data), diff_id, opened)


def seen(*contents: Entries) -> dict[str, bytes]:
    made = [stored(layer(entries), diff_id=digest(layer(entries))) for entries in contents]
    return {file.path: file.read(100) for file in visible_files(made, Counts())}


def test_the_upper_layer_wins() -> None:
    assert seen({"a": b"old", "b": b"b"}, {"./a": b"new"}) == {"a": b"new", "b": b"b"}


def test_whiteouts_hide_lower_layers_and_not_their_own() -> None:
    assert seen({"d/x": b"1", "d/y": b"2", "e": b"3"}, {"d/.wh.x": b"", ".wh.e": b""}) == {"d/y": b"2"}
    assert seen({"d/x": b"1"}, {"d/.wh.x": b"", "d/x": b"2"}) == {"d/x": b"2"}
    assert seen({"d/x/y": b"1", "dx": b"2"}, {".wh.d": b""}) == {"dx": b"2"}


def test_an_opaque_directory_shows_only_its_own() -> None:
    assert seen({"d/x": b"1", "f": b"2"}, {"d/.wh..wh..opq": b"", "d/z": b"3"}) == {"d/z": b"3", "f": b"2"}


def test_a_file_replaces_a_directory_and_the_other_way_round() -> None:
    assert seen({"d/x": b"1"}, {"d": b"file"}) == {"d": b"file"}
    assert seen({"d": b"file"}, {"d": None, "d/x": b"1"}) == {"d/x": b"1"}


def applied(contents: list[dict[str, bytes | None]]) -> set[str]:
    """The same by the obvious way: unpack every layer over the one below, in memory."""
    files: set[str] = set()
    for entries in contents:
        lower = set(files)
        for path in entries:
            folder, _, name = path.rpartition("/")
            if name == ".wh..wh..opq":
                lower = {old for old in lower if not old.startswith(f"{folder}/" if folder else "")}
            elif name.startswith(".wh."):
                gone = "/".join(filter(None, (folder, name[4:])))
                lower = {old for old in lower if old != gone and not old.startswith(f"{gone}/")}
            elif entries[path] is None:
                lower.discard(path)
            else:
                lower = {old for old in lower if old != path and not old.startswith(f"{path}/")}
        own = {path for path, data in entries.items() if data is not None and ".wh." not in path}
        files = lower | own
    return files


NAMES = st.sampled_from(["a", "b", ".wh.a", ".wh.b", ".wh..wh..opq"])
PATHS = st.tuples(st.lists(st.sampled_from("ab"), max_size=2), NAMES).map(
    lambda parts: "/".join((*parts[0], parts[1]))
)


def consistent(entries: Mapping[str, bytes | None]) -> bool:
    """No path is a file and a directory in one layer: no builder writes that."""
    files = {path for path, data in entries.items() if data is not None}
    return not any(other.startswith(f"{path}/") for path in files for other in entries)


@settings(max_examples=300)
@given(
    st.lists(
        st.dictionaries(PATHS, st.sampled_from([b"x", b""]), max_size=4).filter(consistent),
        min_size=1,
        max_size=4,
    )
)
def test_the_files_are_those_of_unpacking_every_layer(contents: list[dict[str, bytes | None]]) -> None:
    assert set(seen(*contents)) == applied(contents)


def test_paths_out_of_the_root_are_counted_and_left_out() -> None:
    counts = Counts()
    data = layer({"../../etc/passwd": b"x", "/etc/motd": b"y", "a/../../b": b"z", "link": "../../../etc/ssh"})
    files = list(visible_files([stored(data)], counts))
    assert [file.path for file in files] == ["etc/motd", "link"]
    assert files[1].link == "../../../etc/ssh" and files[1].read(10) == b""
    assert counts.outside == 2 and counts.first_outside == "../../etc/passwd"


def read_all(*stored_layers: Layer) -> None:
    for file in visible_files(stored_layers, Counts()):
        file.read(10)


def test_damage_is_told() -> None:
    whole = layer({"a": b"x" * 5000, "b": b"y"})
    packed = gzip.compress(whole)
    for damaged in (
        whole[:700],
        whole[:5200],
        packed[:-20],
        packed[:100] + b"\0\0\0\0" + packed[104:],
        b"",
        b"no tar" * 200,
    ):
        with pytest.raises(DamagedImage):
            read_all(stored(damaged))
    with pytest.raises(DamagedImage, match="digest"):
        read_all(stored(whole, diff_id=digest(b"another")))


@settings(max_examples=200)
@given(st.data())
def test_damaged_layers_end_in_files_or_a_refusal(data: st.DataObject) -> None:
    content = bytearray(layer({"a/b": b"x" * 600, "c": b"y", "l": "a/b"}))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_all(stored(bytes(content[: data.draw(st.integers(0, len(content)))])))
    except FiresteelError:
        return


def test_a_header_that_claims_gigabytes_is_refused_before_it_is_read() -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 5 * 2**30
    bomb = header.tobuf() + bytes(10_000)
    with pytest.raises(DamagedImage, match=r"claims|empty header"):
        read_all(stored(bomb))


class Zeros(io.RawIOBase):
    """A layer of 50 GB of zeros in 50 MB, as gzip, made while it is read."""

    def __init__(self) -> None:
        member = tarfile.TarInfo("zeros")
        member.size = 50 * 10**9
        self._start = gzip.compress(member.tobuf())
        self._block = gzip.compress(bytes(2**20))

    def read(self, size: int = -1) -> bytes:
        while len(self._start) < size:
            self._start += self._block
        data, self._start = self._start[:size], self._start[size:]
        return data


def test_a_bomb_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "_EXPANSION_FROM_BYTES", 50 * 2**20)  # seconds of zlib otherwise

    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        yield Zeros()  # type: ignore[misc]  # a RawIOBase reads as IO[bytes] does

    tracemalloc.start()
    try:
        with pytest.raises(DamagedImage, match="expands"):
            read_all(Layer("bomb", None, None, opened))
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_many_files_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/image_inspect.py does it with a million; headers that are kept show in thousands."""
    count = 6_000
    data = layer({f"folder{index % 100}/file{index}": b"" for index in range(count)})
    tracemalloc.start()
    try:
        assert sum(1 for _ in visible_files([stored(data), stored(layer({"a": b""}))], Counts())) == count + 1
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(layers_module, "_MAX_FILES", 1000)
    with pytest.raises(DamagedImage, match="more than 1,000 files"):
        read_all(stored(data))


def test_zstd_is_read_and_its_damage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    files = {"a/b": b"x" * 100_000, "c": b"y"}
    pressed = zstandard.ZstdCompressor().compress(layer(files))
    assert {file.path: file.size for file in visible_files([stored(pressed)], Counts())} == {
        "a/b": 100_000,
        "c": 1,
    }
    for damaged in (pressed[:40], pressed[:20] + bytes(20) + pressed[40:], pressed[:4] + bytes(100)):
        with pytest.raises(DamagedImage):
            read_all(stored(damaged))
    monkeypatch.setattr(layers_module, "_EXPANSION_FROM_BYTES", 2**20)
    bomb = zstandard.ZstdCompressor().compress(layer({"zeros": bytes(16 * 2**20)}))
    with pytest.raises(DamagedImage, match="expands"):
        read_all(stored(bomb))


def test_zstd_without_its_package_is_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(FiresteelError, match="zstd") as caught:
        read_all(stored(b"\x28\xb5\x2f\xfd" + bytes(100)))
    assert "pip install zstandard" in caught.value.next
