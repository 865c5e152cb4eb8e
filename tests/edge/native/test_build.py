"""A build that is killed: `firesteel engine build` with programs that stand for cmake and the compilers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge.host import process
from firesteel.edge.native import build as engine_build

_CMAKE = """#!/bin/sh
case "$1" in
--build) sh -c 'echo $$ > {pid}; sleep 600; true' ;;
esac
"""


def _wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_folder_is_a_source_where_git_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(engine_build._digest_of(tmp_path)) == 64


def test_kill_9_leaves_no_compiler(tmp_path: Path) -> None:
    """Another build would otherwise work beside it in the same folder."""
    tools, source, pid = tmp_path / "tools", tmp_path / "llama.cpp", tmp_path / "pid"
    for folder in (tools, source / "ggml"):
        folder.mkdir(parents=True)
    (source / "CMakeLists.txt").touch()
    for name in ("cmake", "c++", "ninja"):
        (tools / name).write_text(_CMAKE.format(pid=pid))
        (tools / name).chmod(0o755)
    words = ("engine", "build", "llamacpp", "--cpu", "--source", str(source))
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "FIRESTEEL_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    build = subprocess.Popen([sys.executable, "-P", "-m", "firesteel", *words], env=environment)
    try:
        _wait_until("a compiler", lambda: pid.exists() and bool(pid.read_text().strip()))
        compiler = process.find(int(pid.read_text()))
        assert compiler
    finally:
        build.kill()
        build.wait()
    _wait_until("no compiler", lambda: not process.is_alive(compiler))
