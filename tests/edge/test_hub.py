"""Fetching from a Hub server on loopback: files arrive complete and correct, or an error says why."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from firesteel.edge.home import Home
from firesteel.edge.hub import cache, client
from firesteel.edge.hub.cache import Store
from firesteel.edge.hub.files import DigestResult, HubFile, Listing, TransferProgress, check_listing
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from tests.edge import hub_server
from tests.edge.hub_server import COMMIT, SIGNED, Trouble

NAME = "org/model"
TOKEN = "hf_never_show_this_one"
WEIGHTS = random.Random(1).randbytes(3_000_000)
FILES = {
    "config.json": b'{"a": 1}',
    "empty.txt": b"",
    "model.safetensors": WEIGHTS,
    "sub/extra.bin": b"x" * 9,
}


@pytest.fixture
def served() -> Iterator[hub_server.Hub]:
    with hub_server.serving() as hub:
        hub.add(NAME, dict(FILES))
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", tmp_path / "records")


async def _fetch(served: hub_server.Hub, store: Store, token: str | None = None) -> list[TransferProgress]:
    hub = client.Hub(served.url, token)
    listing = await client.list_files(hub, NAME, "main")
    return [progress async for progress in client.fetch(hub, store, listing, listing.files)]


def _path(store: Store, path: str) -> Path:
    return store.snapshot(NAME, COMMIT) / path


# --- the store ---


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h", "HOME": "/u"}, "/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/h", "HOME": "/u"}, "/c"),
        ({"HF_HOME": "/h", "FIRESTEEL_HOME": "/fs", "HOME": "/u"}, "/h/hub"),
        ({"FIRESTEEL_HOME": "/fs", "HOME": "/u"}, "/fs/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/u"}, "/x/huggingface/hub"),
        ({"HOME": "/u"}, "/u/.cache/huggingface/hub"),
    ],
)
def test_find_store(environ: dict[str, str], root: str) -> None:
    assert cache.find_store(Home(Path("/fs")), environ).root == Path(root)
    if "FIRESTEEL_HOME" in environ:
        return
    argv = [sys.executable, "-c", "from huggingface_hub.constants import HF_HUB_CACHE as c; print(c)"]
    theirs = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.strip()
    assert theirs == root


@pytest.mark.parametrize("name", ["org", "../etc/x", "a/b/c", "org/..", "a--b/c", "org/na me", "/a/b", ""])
def test_a_name_that_is_not_a_repository_has_no_folder(store: Store, name: str) -> None:
    with pytest.raises(UsageError):
        store.folder(name)


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/passwd", "a/../../x", "", "a\0b"),
        *(".", "./a", "a/./b", "a//b", "a/"),
        *("a\nb", "\x1b[2Ja", "a\x7f", "a\x9b", "a\u2028b", "a\ud800"),
        *("a" * 256, "é" * 128, "a/" + "b" * 256 + "/c", "a/" * 600 + "b", "a" * 10_000_000),
    ],
    ids=lambda path: ascii(path[:20]),
)
def test_an_unsafe_or_too_long_path_is_refused(path: str) -> None:
    with pytest.raises(FiresteelError, match="cannot be stored") as caught:
        check_listing(Listing(NAME, COMMIT, (HubFile(path, 1, "0" * 40),)))
    assert caught.value.what.isprintable() and len(caught.value.what) < 1000 and caught.value.next


@pytest.mark.parametrize(
    "path", ["a" * 255, "é" * 127, "..a", ".gitattributes", "a b/重み.txt", "a/" * 500 + "b"]
)
def test_an_unusual_path_is_accepted(store: Store, path: str) -> None:
    file = HubFile(path, 1, "0" * 40)
    listing = Listing(NAME, COMMIT, (file,))
    check_listing(listing)
    cache.link(store, listing, file)
    assert store.path(listing, file).is_symlink()


@pytest.mark.parametrize(
    "two",
    [
        (HubFile("a", 1, "0" * 40), HubFile("a", 1, "1" * 40)),
        (HubFile("a", 1, "0" * 40), HubFile("a/b/c", 1, "1" * 40)),
        (HubFile("a", 1, "0" * 40), HubFile("b", 2, "0" * 40)),
    ],
    ids=["same path", "a file and a folder", "one digest and two sizes"],
)
def test_conflicting_files_are_refused(two: tuple[HubFile, HubFile]) -> None:
    between = HubFile("a!", 1, "2" * 40), HubFile("a.b", 1, "3" * 40)
    for files in ((*two, *between), (*between, *two[::-1])):
        with pytest.raises(FiresteelError, match="cannot be stored"):
            check_listing(Listing(NAME, COMMIT, files))


async def test_a_name_that_is_too_long_is_refused_before_the_fetch(
    served: hub_server.Hub, store: Store
) -> None:
    served.repositories[NAME].files["a" * 300] = b"x"
    with pytest.raises(FiresteelError, match="too long"):
        await _fetch(served, store)
    assert served.sent_bytes == 0 and not store.root.exists()


def test_a_link_that_cannot_be_created_leaves_nothing_behind(store: Store) -> None:
    file = HubFile("config.json", 1, "0" * 40)
    listing = Listing(NAME, COMMIT, (file,))
    (store.path(listing, file) / "in the way").mkdir(parents=True)
    with pytest.raises(HostNotReady, match=r"config\.json cannot be created"):
        cache.link(store, listing, file)
    assert list(store.snapshot(NAME, COMMIT).iterdir()) == [store.path(listing, file)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": [{"path": 1}]}', "[" * 100_000])
def test_a_damaged_record_is_ignored(store: Store, text: str) -> None:
    record = store.records / "models--org--model" / f"{COMMIT}.json"
    record.parent.mkdir(parents=True)
    record.write_text(text)
    assert cache.cached_listing(store, NAME, COMMIT) is None


# --- fetching ---


async def test_files_arrive_where_huggingface_hub_looks_for_them(
    served: hub_server.Hub, store: Store
) -> None:
    served.page_files = 2
    progress = await _fetch(served, store)
    assert progress[-1].done_bytes == progress[-1].total_bytes == sum(map(len, FILES.values()))
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    cache.save_listing(store, listing, "main")
    program = f"""
from huggingface_hub import hf_hub_download, snapshot_download
for path in {list(FILES)!r}:
    print(hf_hub_download({NAME!r}, path, cache_dir={str(store.root)!r}))
print(snapshot_download({NAME!r}, cache_dir={str(store.root)!r}))
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    ).stdout.split()
    assert [Path(path).read_bytes() for path in printed[:-1]] == list(FILES.values())
    assert printed[-1] == str(store.snapshot(NAME, COMMIT))


async def test_files_that_huggingface_hub_fetched_are_used(served: hub_server.Hub, store: Store) -> None:
    folder = str(store.root)
    program = f"from huggingface_hub import snapshot_download as s; s({NAME!r}, cache_dir={folder!r})"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **served.environ()}, check=True)
    served.forget()
    listing = cache.cached_listing(store, NAME, "main")
    assert listing is not None and listing.commit == COMMIT
    assert all(cache.is_present(store, listing, file) for file in listing.files)
    assert {file.path: file.bytes for file in listing.files} == {k: len(v) for k, v in FILES.items()}
    assert await _damaged(store, listing, listing.files) == [] and served.log == []


async def test_a_broken_connection_is_resumed(served: hub_server.Hub, store: Store) -> None:
    served.repositories[NAME].trouble["model.safetensors"] = Trouble(breaks_after=2_200_000)
    await _fetch(served, store)
    assert _path(store, "model.safetensors").read_bytes() == WEIGHTS
    assert served.sent["model.safetensors"] < len(WEIGHTS) + 2**20  # at most one piece is fetched twice


async def test_a_server_without_ranges_starts_over(served: hub_server.Hub, store: Store) -> None:
    served.repositories[NAME].trouble["model.safetensors"] = Trouble(breaks_after=2_200_000, no_ranges=True)
    progress = await _fetch(served, store)
    assert _path(store, "model.safetensors").read_bytes() == WEIGHTS
    assert progress[-1].done_bytes == progress[-1].total_bytes


async def test_an_earlier_part_is_not_fetched_again(served: hub_server.Hub, store: Store) -> None:
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    file = next(file for file in listing.files if file.path == "model.safetensors")
    part = store.part(NAME, file)
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS[:2_500_000])
    await _fetch(served, store)
    assert served.sent["model.safetensors"] == 500_000
    assert _path(store, "model.safetensors").read_bytes() == WEIGHTS and not part.exists()


@pytest.mark.parametrize("part", [b"y" * 2_500_000, b"y" * 3_000_000, b"y" * 3_500_000])
async def test_a_part_with_wrong_bytes_is_discarded(
    served: hub_server.Hub, store: Store, part: bytes
) -> None:
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    file = next(file for file in listing.files if file.path == "model.safetensors")
    path = store.part(NAME, file)
    path.parent.mkdir(parents=True)
    path.write_bytes(part)
    await _fetch(served, store)
    assert _path(store, "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("longer", [0, 10])
async def test_wrong_bytes_are_fetched_again(
    served: hub_server.Hub, store: Store, path: str, longer: int
) -> None:
    wrong = b"z" * (len(FILES[path]) + longer)
    served.repositories[NAME].trouble[path] = Trouble(instead=wrong)
    await _fetch(served, store)
    assert _path(store, path).read_bytes() == FILES[path]


async def test_wrong_bytes_of_a_file_that_the_library_fetches_are_fetched_again(
    served: hub_server.Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As files over 50 GB are; the library itself takes any bytes of the right size."""
    monkeypatch.setattr(client, "_is_too_large", lambda file: file.path == "model.safetensors")
    trouble = Trouble(instead=bytes(len(WEIGHTS)))
    served.repositories[NAME].trouble["model.safetensors"] = trouble
    await _fetch(served, store)
    assert trouble.instead is None and served.sent["model.safetensors"] == 2 * len(WEIGHTS)
    assert _path(store, "model.safetensors").read_bytes() == WEIGHTS


async def test_wrong_bytes_every_time_are_an_error(served: hub_server.Hub, store: Store) -> None:
    wrong = b"z" * len(WEIGHTS)
    served.repositories[NAME].trouble["model.safetensors"] = Trouble(instead=wrong, every_time=True)
    with pytest.raises(FiresteelError, match="a digest other than the Hub lists"):
        await _fetch(served, store)
    assert not _path(store, "model.safetensors").exists()
    assert served.sent["model.safetensors"] == 2 * len(WEIGHTS)


async def test_a_corrupted_file_is_found(served: hub_server.Hub, store: Store) -> None:
    await _fetch(served, store)
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    assert _unread(store, listing) == [*FILES]
    cache.verified_files(store, NAME).mark(cache.stored_files(store, listing, listing.files))
    assert _unread(store, listing) == []
    blob = _path(store, "model.safetensors").resolve()
    with blob.open("r+b") as file:
        file.seek(1000)
        file.write(b"\0\0\0")
    assert _unread(store, listing) == ["model.safetensors"]
    assert await _damaged(store, listing, listing.files) == ["model.safetensors"]


async def test_what_is_remembered_of_a_file(served: hub_server.Hub, store: Store) -> None:
    """Size, time, inode and the first MiB: damage further inside needs all bytes to be read."""
    await _fetch(served, store)
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    blob = _path(store, "model.safetensors").resolve()
    for place, unread in ((2_000_000, []), (1000, ["model.safetensors"])):
        assert await _damaged(store, listing, listing.files) == [] and _unread(store, listing) == []
        _flip(blob, place)
        assert _unread(store, listing) == unread
        assert await _damaged(store, listing, listing.files) == ["model.safetensors"]
        assert _unread(store, listing) == ["model.safetensors"]  # and it is no longer taken for intact
        _flip(blob, place)
    copy = blob.with_name("copy")
    await _damaged(store, listing, listing.files)
    copy.write_bytes(WEIGHTS)
    os.utime(copy, ns=(blob.stat().st_atime_ns, blob.stat().st_mtime_ns))
    copy.replace(blob)
    assert _unread(store, listing) == ["model.safetensors"]


async def test_a_file_written_while_it_is_read_is_not_taken_for_intact(
    served: hub_server.Hub, store: Store
) -> None:
    await _fetch(served, store)
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    files = cache.stored_files(store, listing, listing.files)
    async for progress in cache.verified_files(store, NAME).compare(files):
        if isinstance(progress, TransferProgress) and progress.done_bytes == progress.total_bytes:
            os.utime(_path(store, "model.safetensors"), (1, 1))
    assert _unread(store, listing) == ["model.safetensors"]


def _flip(path: Path, place: int) -> None:
    """Changes a byte; size and time stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _unread(store: Store, listing: Listing) -> list[str]:
    files = cache.stored_files(store, listing, listing.files)
    return [stored.file.path for stored in cache.verified_files(store, NAME).unread(files)]


async def _damaged(store: Store, listing: Listing, files: Iterable[HubFile]) -> list[str]:
    stored = cache.stored_files(store, listing, files)
    results = [result async for result in cache.verified_files(store, NAME).compare(stored)]
    assert isinstance(results[-1], DigestResult)
    return [stored.file.path for stored in results[-1].damaged]


async def test_the_same_bytes_in_another_commit_are_not_fetched(served: hub_server.Hub, store: Store) -> None:
    await _fetch(served, store)
    served.forget()
    served.repositories[NAME].commit = "f" * 40
    await _fetch(served, store)
    assert served.sent_bytes == 0
    assert (store.snapshot(NAME, "f" * 40) / "model.safetensors").read_bytes() == WEIGHTS


async def test_the_same_bytes_under_many_names_are_fetched_once(served: hub_server.Hub, store: Store) -> None:
    slow = Trouble(bytes_per_s=10_000_000)  # so that two fetches, were there two, would meet
    same = {f"{folder}model.safetensors": WEIGHTS for folder in ("", "sub/", "sub/again/", "other/")}
    files = {**same, "a/__init__.py": b"", "b/__init__.py": b"", "config.json": b"{}", "copy.json": b"{}"}
    served.add(NAME, files, trouble=dict.fromkeys(same, slow))
    progress = await _fetch(served, store)
    assert {path: _path(store, path).read_bytes() for path in files} == files
    assert served.sent_bytes == len(WEIGHTS) + len(b"{}")
    assert progress[-1].done_bytes == progress[-1].total_bytes == len(WEIGHTS) + len(b"{}")
    assert not list(store.folder(NAME).rglob(f"*{cache.PART}"))


async def test_a_fetch_stops_with_its_reader(served: hub_server.Hub, store: Store) -> None:
    served.repositories[NAME].trouble["model.safetensors"] = Trouble(bytes_per_s=1_000_000)
    hub = client.Hub(served.url)
    listing = await client.list_files(hub, NAME, "main")
    fetching = client.fetch(hub, store, listing, listing.files)
    first = await anext(fetching)
    assert isinstance(fetching, AsyncGenerator)
    await fetching.aclose()
    assert first.done_bytes < first.total_bytes
    for _ in range(1000):
        if not served.sending:
            break
        await asyncio.sleep(0.01)
    assert served.sent["model.safetensors"] < len(WEIGHTS) and not served.sending


def test_progress_says_rate_and_what_is_left() -> None:
    assert str(TransferProgress(2**30, 3 * 2**30, 2**28)) == "1.0 GiB of 3.0 GiB, 256.0 MiB/s, 8.0 s left"
    assert str(TransferProgress(0, 3 * 2**30)) == "0 B of 3.0 GiB"


async def test_a_complete_snapshot_is_local(served: hub_server.Hub, store: Store) -> None:
    assert cache.local_snapshot(store, NAME) is None
    await _fetch(served, store)
    assert cache.local_snapshot(store, NAME) is None  # no branch points to it yet
    listing = await client.list_files(client.Hub(served.url), NAME, "main")
    cache.save_listing(store, listing, "main")
    assert cache.local_snapshot(store, NAME) == store.snapshot(NAME, COMMIT)
    _path(store, "model.safetensors").unlink()
    assert cache.local_snapshot(store, NAME) is None


# --- tokens and refusals ---


async def test_the_token_goes_to_the_hub_alone(served: hub_server.Hub, store: Store) -> None:
    served.repositories[NAME].gated, served.repositories[NAME].readers = True, (TOKEN,)
    await _fetch(served, store, TOKEN)
    assert {request.token for request in served.log if request.at_store} == {None}
    assert {request.token for request in served.log if not request.at_store} == {TOKEN}
    assert TOKEN not in repr(client.Hub(served.url, TOKEN))


async def _refusal(served: hub_server.Hub, token: str | None, name: str, revision: str) -> FiresteelError:
    hub = client.Hub(served.url, token)
    with pytest.raises(FiresteelError) as caught:
        listing = await client.list_files(hub, name, revision)
        await client.require_access(hub, listing, listing.files[0])
    for text in (caught.value.what, caught.value.next):
        assert TOKEN not in text and SIGNED not in text
    return caught.value


async def test_refusals_say_what_to_type(served: hub_server.Hub) -> None:
    served.add("org/gated", dict(FILES), gated=True)
    no_token = await _refusal(served, None, "org/gated", "main")
    assert isinstance(no_token, HostNotReady) and "gated" in no_token.what
    assert f"{served.url}/org/gated" in no_token.next and "HF_TOKEN" in no_token.next
    not_yet = await _refusal(served, TOKEN, "org/gated", "main")
    assert "your token may not" in not_yet.what and "accept its licence" in not_yet.next
    missing = await _refusal(served, None, "org/nothing", "main")
    assert isinstance(missing, UsageError) and "org/nothing" in missing.what
    revision = await _refusal(served, None, NAME, "v9")
    assert isinstance(revision, UsageError) and "no revision `v9`" in revision.what


async def test_a_file_that_is_gone_is_named(served: hub_server.Hub, store: Store) -> None:
    hub = client.Hub(served.url)
    listing = await client.list_files(hub, NAME, "main")
    del served.repositories[NAME].files["config.json"]
    with pytest.raises(FiresteelError, match=r"no file config\.json"):
        _ = [progress async for progress in client.fetch(hub, store, listing, listing.files)]


async def test_no_server() -> None:
    with pytest.raises(FiresteelError, match="cannot be reached"):
        await client.list_files(client.Hub("http://127.0.0.1:9"), NAME, "main")


async def test_another_server_at_the_address(served: hub_server.Hub) -> None:
    with pytest.raises(FiresteelError):
        await client.list_files(client.Hub(f"{served.url}/elsewhere"), NAME, "main")


def test_an_endpoint_with_a_password_is_not_shown() -> None:
    hub = client.find_hub({"HF_ENDPOINT": "https://me:secret@mirror.example:8443/", "HF_TOKEN": TOKEN})
    assert hub.page == "https://mirror.example:8443"
    with pytest.raises(UsageError):
        client.find_hub({"HF_ENDPOINT": "file:///etc/passwd"})


# --- checks before a fetch ---


def test_a_full_disk_is_found_before_the_fetch(store: Store) -> None:
    with pytest.raises(HostNotReady, match=r"needs 8192\.0 TiB more") as caught:
        cache.require_space(store, 2**53, NAME)
    assert "HF_HOME" in caught.value.next


def test_folders_of_another_user_are_noticed() -> None:
    """A container that ran as root left them; we run as `nobody`, who may not write there."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    with TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        folder = Path(root, "models--org--model")
        (folder / "blobs").mkdir(parents=True)
        program = f"""
import os
from pathlib import Path
from firesteel.edge.hub import cache
from firesteel.errors import HostNotReady
os.setgid(65534); os.setuid(65534)
try:
    cache.require_permission(cache.Store(Path({root!r}), Path('/n')), {NAME!r})
except HostNotReady as error:
    print(error.what); print(error.next)
"""
        argv = [sys.executable, "-c", program]
        lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        assert "belongs to root: a container that ran as root left it" in lines[0]
        assert lines[1] == f"sudo chown -R 65534:65534 {folder}"


def test_own_folders_are_fine(store: Store) -> None:
    cache.require_permission(store, NAME)
    (store.folder(NAME) / "blobs").mkdir(parents=True)
    cache.require_permission(store, NAME)
