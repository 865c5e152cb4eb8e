"""`image inspect`: opens an image, reads its files once, and reports its contents and its problems on a GB10.

Each problem has what was read and what to do instead:

    stop   the container does not start, or answers with garbage
    warn   it starts, and is slower or fails later
    note   worth knowing
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

from firesteel.catalog.catalog import Catalog
from firesteel.catalog.image import ImageInspection, ImageProblem, with_inspections
from firesteel.catalog.launches import from_recipe
from firesteel.edge.home import Home, write_text
from firesteel.edge.records import inspections_folder
from firesteel.launch import Ask
from firesteel.rules.checker import Finding, check
from firesteel.rules.rule import SEVERITY, Level
from firesteel.values import Value, plain, replace
from firesteel.workshop.images.contents import GpuLibrary, ImageContents, read_contents
from firesteel.workshop.images.layers import Counts, ImageFile, visible_files
from firesteel.workshop.images.report import ImageReport, engine_kernels, inspection, make_report
from firesteel.workshop.images.sources import OpenedImage

_TRITON = "https://github.com/triton-lang/triton/issues/10331"
_CUTLASS = "https://github.com/NVIDIA/cutlass/blob/main/CHANGELOG.md"
_COMPATIBILITY = "https://docs.nvidia.com/cuda/blackwell-compatibility-guide/"
_KERNEL_LESS = "https://github.com/vllm-project/vllm/pull/49904"
_LAYERS = "https://github.com/opencontainers/image-spec/blob/main/layer.md"


def with_problems(report: ImageReport, contents: ImageContents, counts: Counts) -> ImageReport:
    found = (
        *_processor(report),
        *_gpu_code(report),
        *_kernels_missing(report),
        *_old_runtime(report, contents),
        *_triton(report, contents),
        *_cutlass(report, contents),
        *_two_versions(report),
        *_outside(counts),
    )
    return replace(report, problems=tuple(sorted(found, key=lambda problem: SEVERITY[problem.level])))


def _processor(report: ImageReport) -> Iterator[ImageProblem]:
    if report.architecture and report.architecture != "arm64":
        others = [name for name in report.platforms if name.endswith("/arm64")]
        yield ImageProblem(
            "wrong-processor",
            "stop",
            f"the image is for {report.architecture}; a Spark is arm64 and says `exec format error`",
            f"architecture {report.architecture} in its config",
            "--platform linux/arm64" if others else "an arm64 tag of the same release",
            "https://docs.docker.com/build/building/multi-platform/",
        )


def _gpu_code(report: ImageReport) -> Iterator[ImageProblem]:
    kernels = engine_kernels(report.gpu_libraries)
    others = [library for library in report.gpu_libraries if library not in kernels]
    attention = [library for library in others if _ATTENTION.search(library.path)]
    rest = [library for library in others if library not in attention]
    yield from _lacking(
        kernels, "engine-lacks-gb10", "stop",
        "the engine's own library has no code for a GB10: it fails, or another path answers with garbage",
    )  # fmt: skip
    yield from _lacking(
        attention, "attention-lacks-gb10", "warn",
        "a package of attention kernels is for another GPU: it fails, or gives wrong results in silence",
    )  # fmt: skip
    yield from _lacking(
        rest, "library-lacks-gb10", "note",
        "a library is for other GPUs only; engines carry such ones and choose by the GPU",
    )  # fmt: skip
    yield from _lacking(
        kernels, "engine-needs-jit", "warn",
        "the engine's own library has only PTX for a GB10: the driver compiles it for minutes at first",
        verdict="after a JIT",
    )  # fmt: skip


_ATTENTION = re.compile(r"-packages/(?:flash_attn|flashinfer|xformers|sageattention)[^/]*(?:/|\.so$)")
"""Other packages that the engine calls on any GPU."""


def _lacking(
    libraries: Sequence[GpuLibrary], check: str, level: Level, says: str, verdict: str = "not at all"
) -> Iterator[ImageProblem]:
    found = [library for library in libraries if library.on_gb10 == verdict]
    if found:
        code = ", ".join((*found[0].machine, *found[0].ptx))
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield ImageProblem(
            check,
            level,
            says,
            f"{found[0].path}: {code}{more}",
            "nothing, unless a log names it"
            if level == "note"
            else "an image built for sm_120, sm_120f or sm_121a (CUDA 13): docs/images.md lists releases",
            _COMPATIBILITY,
        )


def _kernels_missing(report: ImageReport) -> Iterator[ImageProblem]:
    """A vLLM that was built without its kernels imports, and fails at the first request."""
    is_for_gpu = report.cuda is not None and "cpu" not in (report.version or "")
    if (
        report.engine == "vllm"
        and is_for_gpu
        and report.is_complete
        and not engine_kernels(report.gpu_libraries)
    ):
        yield ImageProblem(
            "engine-without-kernels",
            "stop",
            "vLLM is inside without its CUDA kernels: the build dropped every architecture in silence",
            "no vllm/_C*.so with GPU code",
            "build with TORCH_CUDA_ARCH_LIST=12.0 on CUDA 13; vLLM 0.27 and later refuse such a build",
            _KERNEL_LESS,
        )


def _old_runtime(report: ImageReport, contents: ImageContents) -> Iterator[ImageProblem]:
    """CUDA 12 libraries in a CUDA 13 image: flash-attn's wheels are the usual ones."""
    if report.cuda is None or not report.cuda.version.startswith("13"):
        return
    users = [path for path, runtime in contents.cuda_users if runtime == "libcudart.so.12"]
    if not users:
        return
    has_it = any(name.startswith("libcudart.so.12") for name in contents.cuda_runtimes)
    yield ImageProblem(
        "cuda12-library-in-cuda13",
        "note" if has_it else "stop" if not report.unread_layers else "warn",
        "loads libcudart.so.12 in a CUDA 13 image"
        + (": two runtimes in one process" if has_it else ", which is not there: importing it fails"),
        f"{users[0]}{f', and {len(users) - 1} more' if len(users) > 1 else ''}",
        "pip uninstall flash-attn, or a build for CUDA 13",
        "https://github.com/Dao-AILab/flash-attention/issues",
    )


def _version(report: ImageReport, name: str) -> Version | None:
    component = report.component(name)
    try:
        return Version(component.version) if component else None
    except InvalidVersion:
        return None


def _triton(report: ImageReport, contents: ImageContents) -> Iterator[ImageProblem]:
    version, env = _version(report, "triton"), report.start.env
    if version is None:
        return
    is_old = version < Version("3.6")
    variable = "TRITON_PTXAS_PATH" if is_old else "TRITON_PTXAS_BLACKWELL_PATH"
    if is_old and variable not in env:
        yield ImageProblem(
            "triton-ptxas-too-old",
            "warn",
            f"Triton {version} brings a ptxas that does not know sm_121a: kernels fail to compile",
            f"triton {version}, no {variable} in the image",
            f"-e {variable}=/usr/local/cuda/bin/ptxas",
            _TRITON,
        )
    if not is_old and "TRITON_PTXAS_PATH" in env and variable not in env:
        yield ImageProblem(
            "triton-ptxas-ignored",
            "note",
            f"TRITON_PTXAS_PATH has no effect on a GB10: Triton {version} uses its own ptxas-blackwell there",
            f"env TRITON_PTXAS_PATH={env['TRITON_PTXAS_PATH']}",
            f"nothing, or -e {variable}=/usr/local/cuda/bin/ptxas for another one",
            _TRITON,
        )
    path = env.get(variable, "")
    # `/usr/local/cuda` is a link to the versioned folder, and links are not followed: the name must be there.
    if (
        path
        and report.is_complete
        and not any(f"/{found}".endswith("/bin/ptxas") for found in contents.programs)
    ):
        yield ImageProblem(
            "triton-ptxas-absent",
            "stop",
            f"{variable} points to a ptxas, and the image has none",
            f"env {variable}={path}",
            f"-e {variable}= (empty), or an image with the CUDA toolkit",
            _TRITON,
        )


def _cutlass(report: ImageReport, contents: ImageContents) -> Iterator[ImageProblem]:
    version = _version(report, "cutlass-dsl")
    if version is None or version >= Version("4.5.0"):
        return
    if contents.cutlass_archs and {"sm_121a", "sm_121f"} & set(contents.cutlass_archs):
        return  # patched
    archs = ", ".join(contents.cutlass_archs or ()) or "not read"
    yield ImageProblem(
        "cutlass-dsl-without-sm121",
        "warn",
        f"CUTLASS DSL {version} refuses to make block-scaled (FP4) kernels for sm_121a",
        f"admissible_archs: {archs}",
        "pip install 'nvidia-cutlass-dsl>=4.5.0', which admits it; CUTE_DSL_ARCH=sm_121a is the hint",
        _CUTLASS,
    )


def _two_versions(report: ImageReport) -> Iterator[ImageProblem]:
    for name in ("torch", "vllm", "sglang", "flashinfer", "transformers", "llama.cpp"):
        found = [component for component in report.components if component.name == name]
        if len(found) > 1:
            yield ImageProblem(
                "two-versions",
                "warn",
                f"{name} is there in {len(found)} versions; PATH and PYTHONPATH decide which one runs",
                ", ".join(f"{component.version} in {component.how}" for component in found[:3]),
                "remove one",
                "https://packaging.python.org/en/latest/specifications/recording-installed-packages/",
            )


def _outside(counts: Counts) -> Iterator[ImageProblem]:
    if counts.outside:
        yield ImageProblem(
            "paths-outside-root",
            "stop",
            f"{counts.outside:,} entries of its layers lead out of the image's root: no builder does that",
            counts.first_outside,
            "do not load this image",
            _LAYERS,
        )


# --- the inspection ---

_PROGRESS_EVERY = 2_000


def inspect_image(
    opened: OpenedImage, scratch: Path, on_files: Callable[[int], None] = lambda files: None
) -> ImageReport:
    """Reads every layer that was opened. `scratch`: a folder for large libraries while they are read."""
    counts = Counts()
    files = _counted(visible_files(opened.layers, counts), on_files)
    contents = read_contents(files, scratch)
    report = make_report(opened, contents, counts, date.today().isoformat())
    return with_problems(report, contents, counts)


def _counted(files: Iterator[ImageFile], on_files: Callable[[int], None]) -> Iterator[ImageFile]:
    for index, file in enumerate(files):
        if index % _PROGRESS_EVERY == 0:
            on_files(index)
        yield file


def save_inspection(home: Home, report: ImageReport) -> Path | None:
    """Kept by digest, for `check`, `plan` and `up`; None when the image has none, or was read in part."""
    if not report.digests or not report.is_complete:
        return None
    path = inspections_folder(home) / f"{report.digests[0].replace(':', '-')}.json"
    write_text(path, json.dumps(plain(inspection(report)), indent=1) + "\n")
    return path


class RecipeVerdict(Value):
    """Whether the image can run a recipe of the catalog."""

    recipe: str
    model: str
    can_run: bool
    stops: tuple[str, ...]
    """The rules that stop it: `rule: what it says`."""
    warnings: tuple[str, ...]


def judge_recipes(report: ImageReport, catalog: Catalog) -> tuple[RecipeVerdict, ...]:
    """Every recipe for the engine inside, as if it named this image, under the rules for a GB10."""
    found = inspection(report)
    if found.engine is None:
        return ()
    reference = report.reference if re.fullmatch(r"[\w./:@-]+", report.reference) else "image"
    learned = replace(found, reference=reference)
    return tuple(
        _judge(name, catalog, learned)
        for name, recipe in sorted(catalog.recipes.items())
        if recipe.engine == found.engine and catalog.images.named[recipe.image].reference
    )


def _judge(name: str, catalog: Catalog, found: ImageInspection) -> RecipeVerdict:
    recipe = catalog.recipes[name]
    named = replace(catalog.images.named[recipe.image], reference=found.reference)
    images = replace(catalog.images, named={**catalog.images.named, recipe.image: named})
    images = with_inspections(images, [found])
    launch = from_recipe(replace(catalog, images=images), recipe, Ask(recipe.name))
    findings = check(launch, hardware="gb10", images=images)
    stops = _texts([finding for finding in findings if finding.level == "stop"])
    warnings = _texts([finding for finding in findings if finding.level == "warn"])
    return RecipeVerdict(recipe.name, recipe.model, not stops, stops, warnings)


def _texts(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.rule}: {finding.says}" for finding in findings)
