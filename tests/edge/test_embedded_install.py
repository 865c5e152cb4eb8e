"""What the embedded engine needs of the system is looked for before anything is fetched."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.embedded.install import SYSTEM_LIBRARIES, require_libraries
from firesteel.engines.diagnosis import diagnose
from firesteel.errors import HostNotReady


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
