"""Which part of an image a file belongs to, and whether a server needs it. Decided by its path alone.

What is inside an image, read from its files in one pass: packages, GPU code, size by part.

    contents = read_contents(visible_files(layers, counts), scratch)

Each fact keeps the path that shows it. A library that is too large for memory lies in an unnamed file in
`scratch` while its tables are read.
"""

from __future__ import annotations

import json
import mmap
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from firesteel.facts import gpu_code as elf
from firesteel.units import GIB, MIB
from firesteel.values import Value
from firesteel.workshop.images.layers import ImageFile

_PACKAGE = re.compile(r"(?:site|dist)-packages/(?P<name>[^/]+)(?P<below>/[^/]+)?")
_PARTS = (
    (re.compile(r"usr/local/cuda(-[\d.]+)?/|opt/nvidia/"), "CUDA toolkit"),
    (re.compile(r"(usr/)?lib(64)?/|usr/local/lib/"), "system libraries"),
    (re.compile(r"(usr/(local/)?)?s?bin/"), "programs"),
    (re.compile(r"usr/share/"), "shared files"),
)
_WASTE = (
    (re.compile(r"var/lib/apt/lists/|var/cache/apt/"), "apt lists: rm -rf /var/lib/apt/lists/*"),
    (re.compile(r"root/\.cache/|home/[^/]+/\.cache/|tmp/"), "caches: pip --no-cache-dir, or a cache mount"),
    (re.compile(r".*/nsight[^/]*/|opt/nvidia/nsight"), "profilers (Nsight)"),
    (re.compile(r"usr/share/(doc|man|info)/"), "documentation"),
    (re.compile(r"(.*/)?\.git/"), "git history"),
    (re.compile(r".*\.a$"), "static libraries: only a compiler needs them"),
)


def part_of(path: str) -> str:
    """`torch`, `nvidia/cublas`, `CUDA toolkit`, `system libraries`, `programs`, `/workspace` ..."""
    if match := _PACKAGE.search(path):
        name = match["name"].partition("-")[0].removesuffix(".libs")
        return f"nvidia{match['below'] or ''}" if name == "nvidia" else name
    for pattern, part in _PARTS:
        if pattern.match(path):
            return part
    head, slash, _ = path.partition("/")
    return f"/{head}" if slash else "/"


def waste_of(path: str) -> str | None:
    return next((what for pattern, what in _WASTE if pattern.match(path)), None)


GB10 = "12.1"
_MAX_LIBRARY_BYTES = 8 * GIB
_IN_MEMORY_BYTES = 16 * MIB
_PIECE = MIB
_MAX_TEXT_BYTES = 2 * MIB
_MAX_LISTED = 20_000
"""Of packages, libraries and links each: an image made to fill memory has more."""
_METADATA = re.compile(
    r"(?:^|.*/)(?P<name>[A-Za-z0-9][\w.]*?)-(?P<version>\d[^/-]*)(?:-[^/]*)?\.(?:dist-info/METADATA|egg-info/PKG-INFO)"
)
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_VERSIONED = re.compile(r"(?:^|/)lib(?P<name>cudart|nccl)\.so\.(?P<version>\d+(?:\.\d+)+)$")
_CUDA_VERSION = re.compile(r"(?:^|/)usr/local/cuda(?:-[\d.]+)?/version\.json$")
_CUTLASS_OPERATIONS = re.compile(r"nvidia_cutlass_dsl/.*/nvgpu/.*mma\.py$|cutlass/cute/nvgpu/.*mma\.py$")
_LLAMA = re.compile(r"(?:^|/)(?:llama-server|libllama-(?:common|server-impl)\.so(?:\.\d+)*)$")


class Component(Value):
    """Something with a version."""

    name: str
    version: str
    how: str
    """How it is known: a path in the image, or the part of its config."""


class GpuLibrary(Value):
    path: str
    bytes: int
    machine: tuple[str, ...]
    """`sm_121a`: machine code for this chip."""
    ptx: tuple[str, ...]
    """`compute_90`: code that the driver compiles for any newer chip."""

    on_gb10: str
    """`as it is`, `after a JIT` or `not at all`."""

    def runs_on(self, compute_capability: str) -> str:
        return elf.GpuCode(self.machine, self.ptx).runs_on(compute_capability)


class Part(Value):
    name: str
    bytes: int
    files: int


class ImageContents(Value):
    components: tuple[Component, ...]
    gpu_libraries: tuple[GpuLibrary, ...]
    """The largest first."""
    cuda_users: tuple[tuple[str, str], ...]
    """Library, and the CUDA runtime that it loads: (`.../flash_attn_2_cuda.so`, `libcudart.so.12`)."""
    cuda_runtimes: tuple[str, ...]
    """The `libcudart.so.*` that are there."""
    programs: frozenset[str]
    """Compilers of PTX: paths that end in `ptxas` or `ptxas-blackwell`."""
    cutlass_archs: tuple[str, ...] | None
    """The architectures that CUTLASS DSL's operations name; None: no such file."""
    os_name: str | None
    parts: tuple[Part, ...]
    """The largest first."""
    waste: tuple[Part, ...]
    """What no server needs."""
    files: int
    bytes: int
    unreadable: tuple[str, ...]
    """Libraries that could not be read, and why."""


def read_contents(files: Iterable[ImageFile], scratch: Path) -> ImageContents:
    reader = _ContentsReader(scratch)
    for file in files:
        reader.take(file)
    return reader.result()


class _ContentsReader:
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._components: dict[tuple[str, str], Component] = {}
        self._gpu: list[GpuLibrary] = []
        self._cuda_users: list[tuple[str, str]] = []
        self._cudarts: set[str] = set()
        self._programs: set[str] = set()
        self._cutlass: set[str] | None = None
        self._os_name: str | None = None
        self._parts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._waste: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._files = 0
        self._bytes = 0
        self._unreadable: list[str] = []

    def take(self, file: ImageFile) -> None:
        self._files += 1
        self._bytes += file.size
        _add(self._parts[part_of(file.path)], file.size)
        if waste := waste_of(file.path):
            _add(self._waste[waste], file.size)
        self._take_name(file)
        if file.link is None:
            self._take_text(file)
            is_library = _LIBRARY.search(file.path) is not None
            if is_library or (file.is_program and file.size > 4096):
                self._take_library(file)

    def _take_name(self, file: ImageFile) -> None:
        path = file.path
        if match := _METADATA.fullmatch(path):
            self._add(match["name"].lower().replace("_", "-"), match["version"], path)
        elif match := _VERSIONED.search(path):
            name = {"cudart": "cuda-runtime", "nccl": "nccl"}[match["name"]]
            self._add(name, match["version"], path)
        name = path.rpartition("/")[2]
        if name.startswith("libcudart.so"):
            self._cudarts.add(name)
        elif name in ("ptxas", "ptxas-blackwell"):
            self._programs.add(path)
        elif re.fullmatch(r"python3\.\d+", name) and "/bin/" in f"/{path}":
            self._add("python", name.removeprefix("python"), path)

    def _take_text(self, file: ImageFile) -> None:
        path = file.path
        if path in ("etc/os-release", "usr/lib/os-release"):
            text = file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
            match = re.search(r'^PRETTY_NAME="?([^"\n]{1,100})', text, re.MULTILINE)
            self._os_name = match[1] if match else self._os_name
        elif _CUDA_VERSION.search(path):
            try:
                document = json.loads(file.read(_MAX_TEXT_BYTES))
                self._add("cuda", str(document["cuda"]["version"])[:40], path)
            except (ValueError, LookupError, TypeError):
                return
        elif _CUTLASS_OPERATIONS.search(path):
            text = file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
            if "admissible_archs" in text:
                found = re.findall(r"\bsm_\d{2,3}[af]?\b", text.replace("Arch.", ""))
                self._cutlass = (self._cutlass or set()) | set(found)

    def _take_library(self, file: ImageFile) -> None:
        if file.size > _MAX_LIBRARY_BYTES or len(self._gpu) > _MAX_LISTED:
            self._unreadable.append(f"{file.path}: {file.size:,} bytes")
            return
        with _mapped(file, self._scratch) as data:
            if data is None:
                return
            try:
                code, needed = elf.gpu_code(data), elf.needed_libraries(data)
                build = elf.exported_int(data, "LLAMA_BUILD_NUMBER") if _LLAMA.search(file.path) else None
            except elf.NotElf as error:
                self._unreadable.append(f"{file.path}: {error}")
                return
        if code.machine or code.ptx:
            on_gb10 = code.runs_on(GB10)
            self._gpu.append(GpuLibrary(file.path, file.size, code.machine, code.ptx, on_gb10))
        self._cuda_users += [(file.path, name) for name in needed if name.startswith("libcudart.so.")]
        if build:
            self._add("llama.cpp", f"b{build}", file.path)

    def _add(self, name: str, version: str, how: str) -> None:
        if len(self._components) < _MAX_LISTED:
            self._components.setdefault((name, version), Component(name, version, how))

    def result(self) -> ImageContents:
        return ImageContents(
            components=tuple(
                sorted(self._components.values(), key=lambda found: (found.name, found.version))
            ),
            gpu_libraries=tuple(sorted(self._gpu, key=lambda found: (-found.bytes, found.path))),
            cuda_users=tuple(sorted(self._cuda_users)),
            cuda_runtimes=tuple(sorted(self._cudarts)),
            programs=frozenset(self._programs),
            cutlass_archs=None if self._cutlass is None else tuple(sorted(self._cutlass)),
            os_name=self._os_name,
            parts=_sorted(self._parts),
            waste=_sorted(self._waste),
            files=self._files,
            bytes=self._bytes,
            unreadable=tuple(self._unreadable[:100]),
        )


def _add(count: list[int], size: int) -> None:
    count[0] += size
    count[1] += 1


def _sorted(parts: dict[str, list[int]]) -> tuple[Part, ...]:
    found = [Part(name, size, files) for name, (size, files) in parts.items()]
    return tuple(sorted(found, key=lambda part: (-part.bytes, part.name)))


@contextmanager
def _mapped(file: ImageFile, scratch: Path) -> Iterator[elf.Buffer | None]:
    """The whole file when it is ELF, else None; a large one through a file that has no name."""
    stream = file.open()
    start = stream.read(_PIECE)
    if start[:4] != b"\x7fELF":
        yield None
        return
    if file.size <= _IN_MEMORY_BYTES:
        yield start + stream.read()
        return
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=scratch) as copy:
        while start:
            copy.write(start)
            start = stream.read(_PIECE)
        copy.flush()
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
