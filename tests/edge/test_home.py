from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.home import (
    Home,
    Locked,
    find_home,
    is_locked,
    is_path,
    lock,
    require_disk_space,
    writable_folder,
    write_text,
)
from firesteel.errors import HostNotReady


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"FIRESTEEL_HOME": "/srv/fs", "HOME": "/h"}, "/srv/fs"),
        ({"XDG_DATA_HOME": "/h/data", "HOME": "/h"}, "/h/data/firesteel"),
        ({"HOME": "/h"}, "/h/.local/share/firesteel"),
    ],
)
def test_find_home(environ: dict[str, str], root: str) -> None:
    assert find_home(environ).root == Path(root)


def test_files_are_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]


def test_a_lock_held_elsewhere_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_locked(path)
    program = (
        "import sys; from pathlib import Path; from firesteel.edge.home import lock; "
        "l = lock(Path(sys.argv[1])); l.__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert is_locked(path)
        with pytest.raises(Locked), lock(path):
            pass
        holder.kill()
    assert not is_locked(path)


def test_a_full_disk_is_an_error_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(HostNotReady, match="needs 8388608") as refused:
        require_disk_space(tmp_path / "not" / "there", 2**63, "the model")
    assert "FIRESTEEL_HOME=" in refused.value.next


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written"), (errno.EACCES, "cannot be written")],
)
def test_disk_errors_become_readable(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(HostNotReady, match=message), writable_folder(tmp_path):
        raise OSError(number, "no")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd"), writable_folder(tmp_path):
        raise OSError(errno.EIO, "odd")


def test_catalog_files(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.catalog_files() == []
    write_text(home.catalog / "recipes" / "mine.yaml", "model: x")
    assert home.catalog_files() == [(str(home.catalog / "recipes" / "mine.yaml"), "model: x")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./x", True),
        ("/x", True),
        ("~/x", True),
        ("x.gguf", True),
        ("org/name", False),
        ("smollm2", False),
        ("x" * 5000, False),
    ],
)
def test_a_name_means_something_on_disk(name: str, expected: bool) -> None:
    assert is_path(name) is expected
