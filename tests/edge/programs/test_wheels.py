"""What the embedded engine needs of the system is looked for before anything is fetched.

Sources are read out of archives of any kind, and never more than a release can have.
"""

from __future__ import annotations

import ctypes.util
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge import learned_engines
from firesteel.edge.home import Home
from firesteel.edge.programs.wheels import SYSTEM_LIBRARIES, read_sdist, read_wheel, require_libraries
from firesteel.engines.diagnosis import diagnose
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError, HostNotReady


def test_a_missing_library_is_told_with_its_package() -> None:
    with pytest.raises(HostNotReady, match=r"needs libnowhere\.so\.7, which this system lacks") as missing:
        require_libraries({"libc.so.6": "libc6", "libnowhere.so.7": "libnowhere7"})
    assert missing.value.next == "sudo apt install libnowhere7"


def test_up_looks_for_it_before_the_download(tmp_path: Path) -> None:
    """In a mount namespace in which the library is an empty file."""
    library = next((path for path in Path("/usr/lib").glob("*/libgomp.so.1")), None)
    if os.geteuid() != 0 or library is None or not ctypes.util.find_library("gomp"):
        pytest.skip("needs root, and libgomp in /usr/lib")
    hide = f'mount --bind /dev/null {library} && exec "$@"'
    up = [sys.executable, "-m", "firesteel", "up", "smollm2"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *up],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FIRESTEEL_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert "needs libgomp.so.1" in done.stderr and "sudo apt install libgomp1" in done.stderr
    assert "pull" not in done.stderr and not (tmp_path / "engines").exists()


def test_the_engines_own_words_lead_to_the_package() -> None:
    """As its log had it on a bare Debian for ARM64."""
    log = (
        "Traceback (most recent call last):\n"
        '  File "/firesteel/src/firesteel/edge/embedded/server.py", line 176, in <module>\n'
        "    sys.exit(main(sys.argv[1:]))\n"
        "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory\n"
    )
    cause = diagnose(log, "llamacpp").cause
    assert cause is not None and cause.next == "sudo apt install libgomp1" and cause.is_host
    assert "Ray" not in cause.says + cause.next and "fastsafetensors" not in cause.says + cause.next


def test_the_packages_are_debians() -> None:
    assert SYSTEM_LIBRARIES["libgomp.so.1"] == "libgomp1"


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
