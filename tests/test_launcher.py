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

ROOT = Path(__file__).parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that a clone has and the launcher needs, in a folder with a blank in its name."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "firesteel"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("src", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(copy: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(copy / "firesteel"), *words],
        cwd="/",
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.real
def test_first_run_interrupted_without_an_index_and_complete_then_a_second(copy: Path) -> None:
    first = subprocess.Popen(
        [str(copy / "firesteel"), "--version"],
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert first.stderr is not None and "first run" in first.stderr.readline()
    time.sleep(1)  # somewhere in the middle of it
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not (copy / ".venv" / "installed-from").exists()

    dead = {
        "PIP_INDEX_URL": "http://127.0.0.1:1/x",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
    }
    failed = run(copy, "--version", env=dead)
    assert failed.returncode == 5
    assert "pip could not install" in failed.stderr and "next: check the network" in failed.stderr

    again = run(copy, "--version")
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


def test_a_host_without_python(copy: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "readlink", "cmp", "dirname", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    ran = run(copy, "--version", env={"PATH": str(tools), "FIRESTEEL_PYTHON": ""})
    assert ran.returncode == 5
    assert "Python 3.11 or newer is needed" in ran.stderr and "next: install it" in ran.stderr


def test_a_python_that_is_too_old_or_has_no_venv(copy: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "readlink", "cmp", "dirname", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert run(copy, env={"PATH": str(tools), "FIRESTEEL_PYTHON": ""}).returncode == 5
    old.write_text('#!/bin/sh\ncase "$2" in *version*) exit 0;; esac\nexit 1\n')
    ran = run(copy, env={"PATH": str(tools), "FIRESTEEL_PYTHON": ""})
    assert ran.returncode == 5 and "has no venv and pip" in ran.stderr
    assert "next: sudo apt install python3-venv, or install uv" in ran.stderr


UV = """#!/bin/sh
printf '%s\\n' "$*" >>"$UV_LOG"
case "$1 $2" in
    "python find") [ -n "$UV_FINDS" ] && printf '%s\\n' "$UV_FINDS" ;;
    venv*) for folder; do :; done; mkdir -p "$folder/bin" && cp "$UV_PYTHON" "$folder/bin/python" ;;
esac
"""
"""A stand-in: writes down how it was called, and makes an environment that runs the Python of this test."""


@pytest.mark.parametrize("has_python", [True, False])
def test_uv_where_venv_or_python_is_missing(copy: Path, tmp_path: Path, has_python: bool) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "readlink", "cmp", "dirname", "mkdir", "rm", "cp"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    script(tools / "uv", UV)
    script(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    bare = tmp_path / "python-without-venv"
    script(bare, f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    if has_python:
        (tools / "python3").symlink_to(bare)
    log = tmp_path / "uv.log"
    env = {"PATH": str(tools), "FIRESTEEL_PYTHON": "", "UV_LOG": str(log), "UV_PYTHON": f"{tmp_path}/python"}
    ran = run(copy, "--version", env={**env, "UV_FINDS": "" if has_python else str(bare)})
    assert ran.returncode == 0 and ran.stdout.startswith("firesteel, version"), ran.stderr
    calls = log.read_text().splitlines()
    assert calls[-2].startswith("venv ") and calls[-2].endswith(f" {copy}/.venv")
    assert calls[-1] == f"pip install --python {copy}/.venv/bin/python --editable {copy}"
    assert run(copy, "--version", env=env).stderr == "" and len(log.read_text().splitlines()) == len(calls)


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
