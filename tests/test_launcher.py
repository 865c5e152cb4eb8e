"""`./firesteel` and scripts/make-venv in a copy: first run, second run, interrupted, bare host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firesteel.hosts.cluster.elsewhere import PARTS
from tests.needs import skip_elsewhere

ROOT = Path(__file__).parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that `--on NODE` copies to a node, which installs from them, in a folder with a space."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for part in PARTS:
        (folder / part).parent.mkdir(exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """All that is on the PATH: what every Debian has, and not uv or Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "readlink", "cmp", "dirname", "mkdir", "rm", "cp", "id", "grep", "tail"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return folder


def run(
    copy: Path, *words: str, tools: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """With `tools`, only the programs there, and nothing in the home."""
    bare = {"PATH": str(tools), "HOME": str(copy.parent), "FIRESTEEL_PYTHON": ""} if tools else {}
    return subprocess.run(
        [str(copy / "firesteel"), *words],
        cwd="/",
        env={**os.environ, **bare, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.real
def test_first_run_interrupted_without_an_index_and_complete_then_a_second(copy: Path, tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    first = subprocess.Popen(
        [str(copy / "firesteel"), "--version"],
        cwd="/",
        env={**os.environ, "PATH": str(tools), "HOME": str(tools)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert first.stderr is not None and "first run" in first.stderr.readline()
    while not list((copy / ".venv").glob("lib/*/site-packages/pip/_vendor")):
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not (copy / ".venv" / "installed-from").exists()
    # With Debian's wheel of pip, the record that it is installed comes before the last of its files.
    subprocess.run([copy / ".venv" / "bin" / "python", "-m", "ensurepip"], capture_output=True, check=True)
    for part in (copy / ".venv").glob("lib/*/site-packages/pip/_vendor/urllib3/util/wait.py"):
        part.unlink()

    dead = {
        "PIP_INDEX_URL": "http://127.0.0.1:1/x",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
    }
    failed = run(copy, "--version", tools=tools, env=dead)
    assert failed.returncode == 5
    assert "pip could not install" in failed.stderr and "next: check the network" in failed.stderr

    again = run(copy, "--version", tools=tools)
    assert again.returncode == 0 and again.stdout.startswith("firesteel, version"), again.stderr
    assert "first run" in again.stderr

    link = copy.parent / "elsewhere"
    link.symlink_to(copy / "firesteel")
    poisoned = copy.parent / "cloned from somebody"
    poisoned.mkdir()
    for module in ("click", "subprocess", "signal", "firesteel"):
        (poisoned / f"{module}.py").write_text("raise SystemExit('code from the current folder ran')")
    third = subprocess.run([str(link), "--version"], cwd=poisoned, capture_output=True, text=True, check=True)
    assert third.stdout == again.stdout and third.stderr == ""
    hint = subprocess.run([str(link), "down", "x"], cwd=poisoned, capture_output=True, text=True, check=False)
    assert f"next: {link} up" in hint.stderr


@pytest.mark.real
def test_uv_installs_and_a_python_that_went_away_is_replaced(copy: Path, tools: Path) -> None:
    """uv locks `.venv/.lock` itself: it waited ten minutes for the lock of the script that had started it."""
    uv = Path(sys.executable).with_name("uv")
    words = "pip install --quiet --dry-run --no-deps click --target"
    dry = [str(uv), *words.split(), str(tools), "--python", sys.executable]
    asked = subprocess.run(dry, capture_output=True, text=True, check=False)
    if asked.returncode:  # it reads neither pip's settings nor the system's certificates
        skip_elsewhere(f"uv reaches no package index: {asked.stderr.splitlines()[0]}")
    (tools / "uv").symlink_to(uv)
    bare = tools.parent / "python-without-venv"
    script(bare, f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    (tools / "python3").symlink_to(bare)
    first = run(copy, "--version", tools=tools)
    assert first.returncode == 0 and first.stdout.startswith("firesteel, version"), first.stderr
    installed = copy / ".venv/bin/python"
    assert installed.exists() and not (copy / ".venv/bin/pip").exists()

    installed.unlink()
    installed.symlink_to("/usr/bin/python3.99")
    second = run(copy, "--version", tools=tools)
    assert second.stdout == first.stdout and "first run" in second.stderr, second.stderr


def test_the_name_in_messages_is_one_to_type(copy: Path) -> None:
    """From the PATH its bare name, else the path that was typed, in quotes where a shell needs them."""
    (copy / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(copy / "requirements" / "run.txt", copy / ".venv" / "installed-from")
    script(copy / ".venv" / "bin" / "python", '#!/bin/sh\necho "$FIRESTEEL_COMMAND"\n')
    bin = copy.parent / "own bin"
    bin.mkdir()
    (bin / "firesteel").symlink_to(copy / "firesteel")

    def name(*words: str | Path) -> str:
        env = {"PATH": f"{bin}:{os.environ['PATH']}"}
        ran = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    assert name("sh", "-c", "firesteel") == name(bin / "firesteel") == "firesteel"
    assert name("./firesteel") == "./firesteel"
    assert name(copy / "firesteel") == f"'{copy / 'firesteel'}'"


def test_a_host_without_python(copy: Path, tools: Path) -> None:
    ran = run(copy, "--version", tools=tools)
    assert ran.returncode == 5 and "Python 3.11 or newer is needed" in ran.stderr
    assert ran.stderr.endswith("next: curl -LsSf https://astral.sh/uv/install.sh | sh\n")
    script(tools / "apt-get", "#!/bin/sh\n")
    script(tools / "id", "#!/bin/sh\necho 1000\n")
    ran = run(copy, "--version", tools=tools)
    assert ran.returncode == 5 and ran.stderr.endswith("next: sudo apt-get install -y python3-venv\n")


def test_a_python_that_is_too_old_or_has_no_venv(copy: Path, tools: Path) -> None:
    script(tools / "python3", "#!/bin/sh\nexit 1\n")
    script(tools / "apt-get", "#!/bin/sh\n")  # it would bring the same old Python
    ran = run(copy, tools=tools)
    assert ran.returncode == 5
    assert ran.stderr.endswith("next: curl -LsSf https://astral.sh/uv/install.sh | sh\n")
    script(tools / "python3", '#!/bin/sh\ncase "$2" in *version*) exit 0;; esac\nexit 1\n')
    script(tools / "id", "#!/bin/sh\necho 0\n")
    ran = run(copy, tools=tools)
    assert ran.returncode == 5 and "has no venv and pip" in ran.stderr
    assert ran.stderr.endswith("next: apt-get install -y python3-venv\n")


def script(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
