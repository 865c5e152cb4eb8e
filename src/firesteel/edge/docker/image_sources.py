"""The engine's sources out of a container image, by `docker cp`: nothing of a Python engine is ever run.

An image that nobody published (a local build, a nightly, a fork) says best itself which engine it holds. A
container is made from it and never started; its package folder is streamed out as a tar, of which only the
text that a learner wants is kept; the container is removed however this ends. Where the package lies is told
by the image's own PATH, else by where images put it, else by a look at every file name in the image.

llama.cpp has no sources in its image, so its server is asked: `--version` and `--help`, without a network
and without a GPU. Nothing is pulled. docker, or podman where there is no docker.
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
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any
from uuid import uuid4

from firesteel.edge.embedded.wheels import TooMuchText, read_members
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import EngineName
from firesteel.units import MIB

_TIMEOUT_S = 60
_STREAM_PATIENCE_S = 600
"""A look at every file name reads the whole image once: 20 GB and more."""
_MAX_SAID_BYTES = 4 * MIB
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,400}")
_MARKS: Mapping[EngineName, str] = {
    "vllm": "vllm/engine/arg_utils.py",
    "sglang": "sglang/srt/server_args.py",
}
"""The file by which each Python engine is known; the first part is the package."""
_PYTHONS = ("3.12", "3.11", "3.10", "3.13", "3.14")
_PREFIXES = ("/usr/local", "/usr", "/opt/venv", "/opt/conda", "/venv", "/app/.venv", "/workspace/.venv")
_CHECKOUTS = (
    "/sgl-workspace/sglang/python", "/workspace/vllm", "/workspace/sglang/python", "/vllm-workspace",
    "/opt/vllm", "/opt/sglang/python", "/app/vllm",
)  # fmt: skip
_BUILD = re.compile(r"^version: (?:(\d+) \(|\S+ \(build ([1-9]\d*),)", re.MULTILINE)
"""`version: 9000 (1a2b3c4)`; in b11434 already `version: 0.6.0-dev (build 11434, commit 1a2b3c4)`."""
_SERVERS = ("/app/llama-server", "/usr/local/bin/llama-server", "/usr/bin/llama-server", "/llama-server")


@dataclass(frozen=True, slots=True)
class InspectedContainerImage:
    """An image that is here, as its `inspect` tells it."""

    reference: str
    id: str
    digests: tuple[str, ...]
    """Every `sha256:...` under which a registry has it, and its own id."""
    arch: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]
    folder: str
    """Where its programs start."""


@dataclass(frozen=True, slots=True)
class PackageSources:
    """An engine's package inside an image."""

    engine: EngineName
    root: str
    """The folder that holds the package."""
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LlamaServerInfo:
    """What llama-server says of itself."""

    path: str
    version: str
    help: str


class ContainerRuntime:
    """docker or podman, by its command line; all that is asked of it ends in bounded time."""

    def __init__(self, program: str) -> None:
        self.program = program

    def ask(self, *words: str, patience_s: float = _TIMEOUT_S) -> tuple[int, str]:
        """Exit code and what it said; killed when its time is over, and at a size that no answer has."""
        with self._started(words, patience_s, subprocess.STDOUT) as (child, late):
            assert child.stdout is not None, "a pipe was asked for"
            said = child.stdout.read(_MAX_SAID_BYTES)
            if len(said) == _MAX_SAID_BYTES:
                child.kill()
            code = child.wait()
        if late.is_set():
            raise FiresteelError(
                f"`{self.program} {words[0]}` gave no answer in {patience_s:.0f} s",
                next=f"{self.program} ps --all",
            )
        return code, said.decode(errors="replace")

    @contextmanager
    def stream(self, *words: str, patience_s: float = _STREAM_PATIENCE_S) -> Iterator[IO[bytes]]:
        """What it writes, as it comes; killed when its time is over or when no more is wanted."""
        with self._started(words, patience_s, subprocess.DEVNULL) as (child, _):
            assert child.stdout is not None, "a pipe was asked for"
            yield child.stdout

    @contextmanager
    def _started(
        self, words: tuple[str, ...], patience_s: float, errors: int
    ) -> Iterator[tuple[subprocess.Popen[bytes], threading.Event]]:
        late = threading.Event()
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen([self.program, *words], stdin=nothing, stdout=pipe, stderr=errors) as child:

            def stop() -> None:
                late.set()
                child.kill()

            watch = threading.Timer(patience_s, stop)
            watch.start()
            try:
                yield child, late
            finally:
                watch.cancel()
                child.kill()


def find_container_runtime() -> ContainerRuntime:
    """docker, else podman; raises when neither is there or it does not answer."""
    program = shutil.which("docker") or shutil.which("podman")
    if program is None:
        raise HostNotReady("neither docker nor podman is installed", next="sudo apt install docker.io")
    runtime = ContainerRuntime(PurePosixPath(program).name)
    code, said = runtime.ask("version")
    if code == 0:
        return runtime
    if "permission denied" in said.lower():
        raise HostNotReady(
            f"{runtime.program} refuses you: you are not in its group",
            next="sudo usermod -aG docker $USER, then log in again",
        )
    raise HostNotReady(
        f"{runtime.program} does not answer: {_last(said)}", next=f"sudo systemctl start {runtime.program}"
    )


def inspect(runtime: ContainerRuntime, reference: str) -> InspectedContainerImage:
    """The image as it lies here; nothing is pulled."""
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(f"`{reference[:80]}` is not an image", next="firesteel learn --image NAME:TAG")
    code, said = runtime.ask("image", "inspect", reference)
    if code:
        raise HostNotReady(f"{reference} is not on this machine", next=f"{runtime.program} pull {reference}")
    try:
        return _box(reference, json.loads(said)[0])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"`{runtime.program} image inspect {reference}` gave an answer that is not understood",
            next=f"{runtime.program} image inspect {reference}",
        ) from error


def _box(reference: str, told: Mapping[str, Any]) -> InspectedContainerImage:
    config = told.get("Config") or {}
    number = told["Id"] if told["Id"].startswith("sha256:") else f"sha256:{told['Id']}"
    digests = [each.partition("@")[2] for each in told.get("RepoDigests") or ()]
    pairs = (each.partition("=") for each in config.get("Env") or ())
    return InspectedContainerImage(
        reference=reference,
        id=number,
        digests=tuple(dict.fromkeys([*filter(None, digests), number])),
        arch=str(told.get("Architecture") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        env={name: value for name, _, value in pairs},
        folder=str(config.get("WorkingDir") or "/"),
    )


@contextmanager
def _container(runtime: ContainerRuntime, box: InspectedContainerImage) -> Iterator[str]:
    """A container of the image that is never started, gone afterwards."""
    name = f"firesteel-learn-{uuid4().hex[:12]}"
    try:
        code, said = runtime.ask(
            "create", "--name", name, "--pull", "never", "--entrypoint", "/x", box.id, "x"
        )
        if code:
            raise FiresteelError(
                f"{runtime.program} could not make a container of {box.reference}: {_last(said)}",
                next=f"{runtime.program} create {box.reference}",
            )
        yield name
    finally:
        runtime.ask("rm", "--force", name)


def read_engine(
    runtime: ContainerRuntime,
    box: InspectedContainerImage,
    wanted: Mapping[EngineName, Callable[[str], bool]],
) -> PackageSources | LlamaServerInfo:
    """The engine that is in the image: the wanted text of its package, or what its server says."""
    with _container(runtime, box) as name:
        place = _find_tree(runtime, name, box) or _find_server(runtime, name, box)
        place = place or _search(runtime, name)
        if place is None:
            raise FiresteelError(
                f"{box.reference} holds neither vLLM nor SGLang nor llama-server",
                next="firesteel learn ENGINE VERSION, if you know what it runs",
            )
        if isinstance(place, str):
            return _ask_server(runtime, box, place)
        engine, root = place
        return PackageSources(engine, root, _package(runtime, name, engine, root, wanted[engine]))


def _find_tree(
    runtime: ContainerRuntime, name: str, box: InspectedContainerImage
) -> tuple[EngineName, str] | None:
    for root in _roots(runtime, name, box):
        for engine, mark in _MARKS.items():
            if _exists(runtime, name, f"{root}/{mark}"):
                return engine, root
    return None


def _roots(runtime: ContainerRuntime, name: str, box: InspectedContainerImage) -> Iterator[str]:
    """Folders that may hold the package, in the order in which the image's own Python would look."""
    paths = [path for path in box.env.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    yield from paths
    ours = [path.removesuffix("/bin") for path in box.env.get("PATH", "").split(":") if path.endswith("/bin")]
    for prefix in dict.fromkeys((box.env.get("VIRTUAL_ENV", ""), *ours, *_PREFIXES)):
        for python in _PYTHONS if prefix.startswith("/") else ():
            if _exists(runtime, name, f"{prefix}/lib/python{python}"):
                yield f"{prefix}/lib/python{python}/dist-packages"
                yield f"{prefix}/lib/python{python}/site-packages"
    here = box.folder.rstrip("/")
    yield from dict.fromkeys((*_CHECKOUTS, here, f"{here}/python"))


def _find_server(runtime: ContainerRuntime, name: str, box: InspectedContainerImage) -> str | None:
    started = [word for word in box.entrypoint[:1] if word.startswith("/") and word.endswith("llama-server")]
    return next((path for path in (*started, *_SERVERS) if _exists(runtime, name, path)), None)


def _exists(runtime: ContainerRuntime, name: str, path: str) -> bool:
    """Whether anything comes out when it is copied; no more than its first bytes are read."""
    with runtime.stream("cp", *_follow(runtime), f"{name}:{path}", "-", patience_s=_TIMEOUT_S) as tar:
        return bool(tar.read(512))


def _follow(runtime: ContainerRuntime) -> tuple[str, ...]:
    """Links are followed: by podman always, by docker when told."""
    return ("--follow-link",) if runtime.program == "docker" else ()


def _search(runtime: ContainerRuntime, name: str) -> tuple[EngineName, str] | str | None:
    """Every file name in the image. Of several packages the installed one is meant; two of these are one too
    many to choose from."""
    found: list[tuple[EngineName, str]] = []
    servers: list[str] = []
    with runtime.stream("export", name) as out, _tar(out) as archive:
        for member in archive:
            path = f"/{member.name}"
            found += [
                (engine, path[: -len(mark) - 1])
                for engine, mark in _MARKS.items()
                if path.endswith(f"/{mark}")
            ]
            servers += [path] if path.endswith("/llama-server") and member.isfile() else []
    installed = [each for each in found if each[1].endswith("-packages")] or found
    if len(installed) > 1:
        raise FiresteelError(
            "the image holds more than one engine: "
            + ", ".join(f"{engine} in {root}" for engine, root in installed),
            next="firesteel learn ENGINE VERSION, for the one that it runs",
        )
    return installed[0] if installed else servers[0] if servers else None


def _package(
    runtime: ContainerRuntime, name: str, engine: EngineName, root: str, wanted: Callable[[str], bool]
) -> dict[str, str]:
    """The wanted files of the package, by their path from its root."""
    package = _MARKS[engine].partition("/")[0]
    words = ("cp", *_follow(runtime), f"{name}:{root}/{package}", "-")
    with runtime.stream(*words) as out, _tar(out) as archive:
        return read_members(archive, lambda path: path.removeprefix("./"), wanted)


@contextmanager
def _tar(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar as it streams by; one that breaks off was cut by its time limit or by a damaged image."""
    try:
        with tarfile.open(fileobj=out, mode="r|") as archive:
            yield archive
    except (TooMuchText, tarfile.TarError, EOFError) as error:
        raise FiresteelError(
            "the files of the image could not be read to their end, or are more than an engine has",
            next="try again when the machine is less busy",
        ) from error


def _ask_server(runtime: ContainerRuntime, box: InspectedContainerImage, path: str) -> LlamaServerInfo:
    said = _run(runtime, box, path, "--version")
    match = _BUILD.search(said)
    if match is None:
        raise FiresteelError(
            f"`{path} --version` in {box.reference} names no build: {_last(said)}",
            next=f"{runtime.program} run --rm --entrypoint {path} {box.reference} --version",
        )
    return LlamaServerInfo(path, match[1] or match[2], _run(runtime, box, path, "--help"))


def _run(runtime: ContainerRuntime, box: InspectedContainerImage, path: str, word: str) -> str:
    """One short question to a program of the image: no network, no GPU, and gone whatever it does."""
    name = f"firesteel-learn-{uuid4().hex[:12]}"
    words = ("run", "--rm", "--name", name, "--pull", "never", "--network", "none", "--entrypoint", path)
    try:
        return runtime.ask(*words, box.id, word)[1]
    finally:
        runtime.ask("rm", "--force", name)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
