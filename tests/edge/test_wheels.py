from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge.embedded.wheels import read_sdist, read_wheel
from firesteel.edge.files import learned_engines
from firesteel.edge.files.home import Home
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError


def is_python(path: str) -> bool:
    return path.endswith(".py")


def test_only_wanted_members_of_a_wheel_are_read(tmp_path: Path) -> None:
    path = tmp_path / "one.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("a/b.py", "x = 'é'\n")
        wheel.writestr("a/c.so", b"\x00" * 100)
    assert read_wheel(path, is_python) == {"a/b.py": "x = 'é'\n"}


def test_paths_in_an_sdist_lose_their_first_folder(tmp_path: Path) -> None:
    path = tmp_path / "one.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("one-1.0/a/b.py", "one-1.0/a/c.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"x=1\n"))
    assert read_sdist(path, is_python) == {"a/b.py": "x=1\n"}


@pytest.mark.parametrize("read", [read_wheel, read_sdist])
def test_what_is_not_an_archive_is_refused(
    tmp_path: Path, read: Callable[[Path, Callable[[str], bool]], dict[str, str]]
) -> None:
    path = tmp_path / "page.whl"
    path.write_text("<html>sign in</html>")
    with pytest.raises(FiresteelError, match=r"page\.whl is not an archive of sources"):
        read(path, is_python)


def test_learned_releases_are_saved_and_read_back(tmp_path: Path) -> None:
    home = Home(tmp_path)
    mine = Schema("vllm", "0.99.0", {"port": Flag("port", SymbolValue("int"))})
    path = learned_engines.save_schema(home, mine)
    assert path == tmp_path / "engines-data/vllm/0.99.0.json"
    releases = learned_engines.learned_releases(home, "vllm")
    assert known_versions("vllm", releases)[-1] == "0.99.0"
    assert find_schema("vllm", "0.99.0", releases) == mine
    assert learned_engines.learned_releases(home, "sglang") == ()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "engines-data/vllm/1.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(FiresteelError, match=r"1\.json is not what firesteel wrote"):
        learned_engines.learned_releases(Home(tmp_path), "vllm")
