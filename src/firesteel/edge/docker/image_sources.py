"""Reads an engine's sources out of a container image with `docker cp`; a Python engine is never run.

An unpublished image (a local build, a nightly, a fork) is the best evidence of the engine inside. A
container is created and never started; its package folder is streamed out as a tar, and only the files that a
learner wants are read; the container is always removed. The package is found through the image's own PATH,
else where images usually put it, else by searching every file name in the image.

llama.cpp has no sources in its image, so its server is run with `--version` and `--help`, without a network
and without a GPU. Nothing is pulled. Uses docker, or podman if docker is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any
from uuid import uuid4

from firesteel.edge.docker.containers import docker_unavailable, last_line
from firesteel.edge.programs.wheels import TooMuchText, read_members
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import EngineName
from firesteel.units import MIB
from firesteel.values import Value

_TIMEOUT_S = 60
_STREAM_TIMEOUT_S = 600
"""A search of all file names reads the whole image once: 20 GB and more."""
_MAX_OUTPUT_BYTES = 4 * MIB
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,400}")
_MARKER_FILES: Mapping[EngineName, str] = {
    "vllm": "vllm/engine/arg_utils.py",
    "sglang": "sglang/srt/server_args.py",
}
"""The file that identifies a Python engine; the first part of its path is the package."""
_PYTHONS = ("3.12", "3.11", "3.10", "3.13", "3.14")
_PREFIXES = ("/usr/local", "/usr", "/opt/venv", "/opt/conda", "/venv", "/app/.venv", "/workspace/.venv")
_CHECKOUTS = (
    "/sgl-workspace/sglang/python", "/workspace/vllm", "/workspace/sglang/python", "/vllm-workspace",
    "/opt/vllm", "/opt/sglang/python", "/app/vllm",
)  # fmt: skip
_BUILD = re.compile(r"^version: (?:(\d+) \(|\S+ \(build ([1-9]\d*),)", re.MULTILINE)
"""`version: 9000 (1a2b3c4)`; b11434 prints `version: 0.6.0-dev (build 11434, commit 1a2b3c4)`."""
_SERVERS = ("/app/llama-server", "/usr/local/bin/llama-server", "/usr/bin/llama-server", "/llama-server")


class InspectedContainerImage(Value):
    """An image on this machine, as `docker image inspect` describes it."""

    reference: str
    id: str
    digests: tuple[str, ...]
    """Every `sha256:...` that registries have it under, and its own id."""
    arch: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]
    folder: str
    """Its working directory."""


class PackageSources(Value):
    """An engine's package inside an image."""

    engine: EngineName
    root: str
    """The folder that holds the package."""
    files: Mapping[str, str]
    """Texts by path from the root."""


class LlamaServerInfo(Value):
    """What llama-server prints about itself."""

    path: str
    version: str
    help: str


class ContainerRuntime:
    """docker or podman through its command line; every command has a time limit."""

    def __init__(self, program: str) -> None:
        self.program = program

    def run(self, *arguments: str, timeout_s: float = _TIMEOUT_S) -> tuple[int, str]:
        """Exit code and output; killed at its time limit, or when it prints more than any answer has."""
        with self._started(arguments, timeout_s, subprocess.STDOUT) as (child, is_late):
            assert child.stdout is not None, "opened as a pipe"
            output = child.stdout.read(_MAX_OUTPUT_BYTES)
            if len(output) == _MAX_OUTPUT_BYTES:
                child.kill()
            code = child.wait()
        if is_late.is_set():
            raise FiresteelError(
                f"`{self.program} {arguments[0]}` did not answer in {timeout_s:.0f} s",
                next=f"{self.program} ps --all",
            )
        return code, output.decode(errors="replace")

    @contextmanager
    def stream(self, *arguments: str, timeout_s: float = _STREAM_TIMEOUT_S) -> Iterator[IO[bytes]]:
        """Its output while it runs; killed at its time limit, or when the caller has read enough."""
        with self._started(arguments, timeout_s, subprocess.DEVNULL) as (child, _):
            assert child.stdout is not None, "opened as a pipe"
            yield child.stdout

    @contextmanager
    def _started(
        self, arguments: tuple[str, ...], timeout_s: float, stderr: int
    ) -> Iterator[tuple[subprocess.Popen[bytes], threading.Event]]:
        is_late = threading.Event()
        argv = [self.program, *arguments]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr) as child:

            def stop() -> None:
                is_late.set()
                child.kill()

            timer = threading.Timer(timeout_s, stop)
            timer.start()
            try:
                yield child, is_late
            finally:
                timer.cancel()
                child.kill()


def find_container_runtime() -> ContainerRuntime:
    """docker, else podman; raises when neither is installed or it does not answer."""
    program = shutil.which("docker") or shutil.which("podman")
    if program is None:
        raise HostNotReady("neither docker nor podman is installed", next="sudo apt install docker.io")
    runtime = ContainerRuntime(PurePosixPath(program).name)
    code, output = runtime.run("version")
    if code:
        raise docker_unavailable(runtime.program, output)
    return runtime


def inspect(runtime: ContainerRuntime, reference: str) -> InspectedContainerImage:
    """The image on this machine; nothing is pulled."""
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"`{reference[:80]}` is not the name of an image", next="firesteel engine learn --image NAME:TAG"
        )
    code, output = runtime.run("image", "inspect", reference)
    if code:
        raise HostNotReady(f"{reference} is not on this machine", next=f"{runtime.program} pull {reference}")
    try:
        return _image(reference, json.loads(output)[0])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"`{runtime.program} image inspect {reference}` printed something unexpected",
            next=f"{runtime.program} image inspect {reference}",
        ) from error


def _image(reference: str, document: Mapping[str, Any]) -> InspectedContainerImage:
    config = document.get("Config") or {}
    id = f"sha256:{document['Id'].removeprefix('sha256:')}"
    digests = [digest.partition("@")[2] for digest in document.get("RepoDigests") or ()]
    variables = (variable.partition("=") for variable in config.get("Env") or ())
    return InspectedContainerImage(
        reference=reference,
        id=id,
        digests=tuple(dict.fromkeys([*filter(None, digests), id])),
        arch=str(document.get("Architecture") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        env={name: value for name, _, value in variables},
        folder=str(config.get("WorkingDir") or "/"),
    )


@contextmanager
def created_container(runtime: ContainerRuntime, image: InspectedContainerImage) -> Iterator[str]:
    """A container of the image that is never started, and removed afterwards."""
    name = f"firesteel-learn-{uuid4().hex[:12]}"
    try:
        code, output = runtime.run(
            "create", "--name", name, "--pull", "never", "--entrypoint", "/x", image.id, "x"
        )
        if code:
            raise FiresteelError(
                f"{runtime.program} could not create a container of {image.reference}: {last_line(output)}",
                next=f"{runtime.program} create {image.reference}",
            )
        yield name
    finally:
        runtime.run("rm", "--force", name)


def read_engine(
    runtime: ContainerRuntime,
    image: InspectedContainerImage,
    include: Mapping[EngineName, Callable[[str], bool]],
) -> PackageSources | LlamaServerInfo:
    """The engine in the image: the included files of its package, or what its server prints."""
    with created_container(runtime, image) as name:
        location = _find_package(runtime, name, image) or _find_server(runtime, name, image)
        location = location or _search(runtime, name)
        if location is None:
            raise FiresteelError(
                f"{image.reference} contains neither vLLM nor SGLang nor llama-server",
                next="firesteel engine learn ENGINE VERSION, if you know what it runs",
            )
        if isinstance(location, str):
            return _server_info(runtime, image, location)
        engine, root = location
        source = f"{name}:{root}/{_MARKER_FILES[engine].partition('/')[0]}"
        with runtime.stream("cp", *_follow(runtime), source, "-") as out, _tar(out) as archive:
            files = read_members(archive, lambda path: path.removeprefix("./"), include[engine])
        return PackageSources(engine, root, files)


def _find_package(
    runtime: ContainerRuntime, name: str, image: InspectedContainerImage
) -> tuple[EngineName, str] | None:
    for root in _roots(runtime, name, image):
        for engine, marker in _MARKER_FILES.items():
            if _exists(runtime, name, f"{root}/{marker}"):
                return engine, root
    return None


def _roots(runtime: ContainerRuntime, name: str, image: InspectedContainerImage) -> Iterator[str]:
    """Folders that may hold the package, in the order in which the image's own Python would look."""
    yield from [path for path in image.env.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    programs = image.env.get("PATH", "").split(":")
    own = [path.removesuffix("/bin") for path in programs if path.endswith("/bin")]
    for prefix in dict.fromkeys((image.env.get("VIRTUAL_ENV", ""), *own, *_PREFIXES)):
        for python in _PYTHONS if prefix.startswith("/") else ():
            if _exists(runtime, name, f"{prefix}/lib/python{python}"):
                yield f"{prefix}/lib/python{python}/dist-packages"
                yield f"{prefix}/lib/python{python}/site-packages"
    folder = image.folder.rstrip("/")
    yield from dict.fromkeys((*_CHECKOUTS, folder, f"{folder}/python"))


def _find_server(runtime: ContainerRuntime, name: str, image: InspectedContainerImage) -> str | None:
    started = [
        path for path in image.entrypoint[:1] if path.startswith("/") and path.endswith("llama-server")
    ]
    return next((path for path in (*started, *_SERVERS) if _exists(runtime, name, path)), None)


def _exists(runtime: ContainerRuntime, name: str, path: str) -> bool:
    """Whether copying it gives anything; only the first bytes are read."""
    with runtime.stream("cp", *_follow(runtime), f"{name}:{path}", "-", timeout_s=_TIMEOUT_S) as tar:
        return bool(tar.read(512))


def _follow(runtime: ContainerRuntime) -> tuple[str, ...]:
    """podman always follows links, docker only with an option."""
    return ("--follow-link",) if runtime.program == "docker" else ()


def _search(runtime: ContainerRuntime, name: str) -> tuple[EngineName, str] | str | None:
    """Searches every file name in the image. An installed package is preferred; two of them are an error."""
    packages: list[tuple[EngineName, str]] = []
    servers: list[str] = []
    with runtime.stream("export", name) as out, _tar(out) as archive:
        for member in archive:
            path = f"/{member.name}"
            packages += [
                (engine, path[: -len(marker) - 1])
                for engine, marker in _MARKER_FILES.items()
                if path.endswith(f"/{marker}")
            ]
            servers += [path] if path.endswith("/llama-server") and member.isfile() else []
    installed = [package for package in packages if package[1].endswith("-packages")] or packages
    if len(installed) > 1:
        raise FiresteelError(
            "the image contains more than one engine: "
            + ", ".join(f"{engine} in {root}" for engine, root in installed),
            next="firesteel engine learn ENGINE VERSION, for the one that it runs",
        )
    return installed[0] if installed else servers[0] if servers else None


@contextmanager
def _tar(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar read as a stream; it breaks off at the time limit, or when the image is damaged."""
    try:
        with tarfile.open(fileobj=out, mode="r|") as archive:
            yield archive
    except (TooMuchText, tarfile.TarError, EOFError) as error:
        raise FiresteelError(
            "the files of the image could not be read completely, or are larger than an engine's",
            next="try again when the machine is less busy",
        ) from error


def _server_info(runtime: ContainerRuntime, image: InspectedContainerImage, path: str) -> LlamaServerInfo:
    output = _run(runtime, image, path, "--version")
    match = _BUILD.search(output)
    if match is None:
        raise FiresteelError(
            f"`{path} --version` in {image.reference} names no build: {last_line(output)}",
            next=f"{runtime.program} run --rm --entrypoint {path} {image.reference} --version",
        )
    return LlamaServerInfo(path, match[1] or match[2], _run(runtime, image, path, "--help"))


def _run(runtime: ContainerRuntime, image: InspectedContainerImage, path: str, option: str) -> str:
    """Runs a program of the image with one option: no network, no GPU, and removed whatever it does."""
    name = f"firesteel-learn-{uuid4().hex[:12]}"
    options = ("--rm", "--name", name, "--pull", "never", "--network", "none", "--entrypoint", path)
    try:
        return runtime.run("run", *options, image.id, option)[1]
    finally:
        runtime.run("rm", "--force", name)
