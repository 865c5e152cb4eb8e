"""Which machine does a text speak of: a Spark, another one, or none that it names?

Most launches in the world are written for an H200 or for eight GPUs, and what wedges a Spark is right there.
The nearest evidence counts: the image, then comments and sentences above the command, the headings around it,
the number of GPUs that it needs in one host, the hardware that a recipe lists, the path of the file, and last
what the rest of the document mentions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

from firesteel.launch import Launch, Spot
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.surroundings import Line, MachineKind, Surroundings
from firesteel.values import Value

SPARK_MEMORY_GB = 128
Evidence = tuple[MachineKind, str, int, str]
"""What a line names, as which kind of machine; its number and its text."""

_SPARK = re.compile(
    r"dgx[\s_-]*sparks?(?![a-z])|(?<![a-z0-9])(?:gb[-_]?10|sm_?121a?)(?![0-9a-z])", re.IGNORECASE
)
_SPARK_NAME = re.compile(r"(?<![a-z])sparks?(?![a-z])|gb10(?![0-9])", re.IGNORECASE)
"""In an image or a path, where no Apache Spark is meant."""
_OTHER = re.compile(
    r"""(?<![A-Za-z0-9])(?=[A-EGHIJLMNPRSTVXa-eghijlmnprstvx345])(?:   # their first letters: most end here
      (?i:  A100 | A800 | H100 | H200 | H800 | B100 | B200 | B300 | GB200 | GB300 | GH200 | V100 | L40S? | HGX
          | NVL\d{1,2} | (?:RTX|GeForce)[\s_-]?(?:PRO[\s_-]?)?\d{4}D? | [345]090D? | MI\d{3}[AX]?
          | Gaudi\s?\d? | HPU | TPU | GCU | DCU | MLU | MUSA
          | Trillium | Xeon | EPYC | ROCm | AMD | Ascend | XPU | NPU | Jetson | Hopper | Ampere
          | DGX[\s_-]*Station | (?:Intel|CPU)[\s_-](?:Arc|GPU|only|server|backend) | Strix[\s-]Halo
          | Mac\s?Studio | Apple\s?Silicon | Inferentia | Trainium
          | NVIDIA[\s_-](?:Tesla[\s_-])?(?:A10G? | A30 | A40 | H20 | L4 | T4 | P40?)
          | Azure | Google\s+Cloud | SageMaker | RunPod   # no cloud rents a GB10
          | [ag]\d-(?:standard|(?:high|mega|ultra)gpu)-\w+ | [pg]\d{1,2}[a-z]{0,2}\.\d{0,2}x?large )
      | A10G? | A30 | A40 | H20 | L4 | T4 | P40 | AWS | EC2 | EKS | GCP | GCE | GKE | AKS
    )(?![A-Za-z0-9])""",
    re.VERBOSE,
)
_OWN_BUILD = re.compile(
    r"(?:Gaudi|HPU|XPU|TPU|GCU|DCU|MLU|MUSA|Trillium|Ascend|NPU|Inferentia|Trainium)(?![a-z])", re.IGNORECASE
)
"""Accelerators for which engines are built from a fork or with a plugin."""
_OTHER_IMAGE = re.compile(r"rocm|xpu|[-/]tpu|gaudi|hpu|neuron|ascend|(?<![a-z])cpu(?![a-z])", re.IGNORECASE)
_OTHER_PATH = re.compile(
    r"(?<![a-z0-9])(?:station|rocm|amd|tpu|gaudi|xeon|cpu|jetson)(?![a-z0-9])", re.IGNORECASE
)
_OTHER_VARIABLES = re.compile(
    r"(?:HIP|ROCR)_VISIBLE_DEVICES\Z|VLLM_(?:ROCM|CPU|XPU|TPU|HPU)_|ASCEND_|HABANA_"
)
_REFUSED = re.compile(r"[\w.-]+\s*:\s*[\"']?(?:unsupported|untested|false|no)\b", re.IGNORECASE)
_VRAM = re.compile(r"vram_minimum_gb\"?:\s*(\d+)")
_RECIPE = re.compile(r"recipe_version\s*:")
"""sparkrun's and eugr's recipes: both tools start Sparks only."""
_SIZES = {
    "vllm": ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
    "sglang": ("tensor-parallel-size", "tp-size", "tp", "pp-size", "pipeline-parallel-size"),
    "llamacpp": (),
}
_SPREAD = {"distributed-executor-backend", "data-parallel-address", "data-parallel-size-local", "headless"}
"""With these the ranks may be on other hosts, and their number says nothing about one."""


class StatedMachine(Value):
    kind: MachineKind = "unsaid"
    what: str = ""
    """What the text calls it: `H200`, `8 GPUs in one host`."""
    spot: Spot | None = None

    @property
    def has_own_build(self) -> bool:
        """Its engine is no release of the project, and may have flags of its own."""
        return _OWN_BUILD.match(self.what) is not None


def find_machine(reading: ReadLaunch, path: str, around: Surroundings) -> StatedMachine:
    """The nearest evidence, or `unsaid`."""
    for kind, what, number, text in _evidence(reading, path, around):
        return StatedMachine(kind, what, Spot(path, number, text.strip()[:200], 1))
    return StatedMachine()


def _evidence(reading: ReadLaunch, path: str, around: Surroundings) -> Iterator[Evidence]:
    launch, spots = reading.launch, reading.spots
    line = reading.line
    model_line = spots["model"].line if "model" in spots else line
    own = around.lines[line - 1]
    if reading.hardware:
        yield ("spark" if _SPARK_NAME.search(reading.hardware) else "other"), reading.hardware, line, own
    image = launch.container.image if launch.container else ""
    if match := _SPARK_NAME.search(image):
        yield "spark", match[0], line, image
    elif match := _OTHER_IMAGE.search(image):
        yield "other", match[0], line, image
    is_guide = bool(around.prose) or around.is_in_value(line)
    if not is_guide:  # in a recipe a comment may be about any of its parts
        yield from _listed(around, model_line)
    yield from _named(around.above(line), around)
    foreign = next((name for name in launch.env if _OTHER_VARIABLES.match(name)), None)
    if foreign:
        yield "other", foreign, line, own
    if is_guide:
        yield from _listed(around, model_line)
    yield from _in_path(path)
    gpus = _gpus_in_one_host(launch)
    if gpus > 1:
        yield "other", f"{gpus} GPUs in one host", line, own
    yield from _mentioned(around)


@lru_cache(maxsize=1)  # for all launches of a text
def _mentioned(around: Surroundings) -> tuple[Evidence, ...]:
    """The first machine that the document mentions, where it mentions no Spark."""
    mentioned = _named(around.document, around)
    if not around.may_name_spark:
        return tuple(islice(mentioned, 1))
    found = tuple(mentioned)
    return () if any(kind == "spark" for kind, *_ in found) else found[:1]


def _named(lines: Iterable[Line], around: Surroundings) -> Iterator[Evidence]:
    """The lines that name a machine."""
    for number, text in lines:
        if text not in around.machines:  # a line may stand above many launches
            around.machines[text] = _machine_in(text, around.may_name_spark)
        if machine := around.machines[text]:
            yield *machine, number, text


def _machine_in(text: str, may_name_spark: bool = True) -> tuple[MachineKind, str] | None:
    """A text that names a Spark among others is about a Spark."""
    if may_name_spark and (match := _SPARK.search(text)):
        return "spark", match[0]
    match = _OTHER.search(text)
    return ("other", match[0]) if match else None


def _gpus_in_one_host(launch: Launch) -> int:
    """How many GPUs the launch needs in one host; 1 where that is not certain."""
    sizes = [launch.flags.get(name) for name in _SIZES[launch.engine]]
    ranks = 1
    for size in sizes:
        ranks *= _whole(size)
    nodes = launch.flags.get("nnodes")
    if _SPREAD & launch.flags.keys() or (nodes is not None and not str(nodes).isdigit()):
        ranks = 1
    listed = launch.env.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1
    gpus = (launch.container.gpus or "") if launch.container else ""
    asked = _whole(gpus) if gpus.isdigit() else gpus.count(",") + 1
    return max(-(-ranks // _whole(nodes)), listed, asked)


def _whole(size: object) -> int:
    return int(size) if isinstance(size, str) and re.fullmatch("[1-9][0-9]{0,3}", size) else 1


def _listed(around: Surroundings, model_line: int) -> Iterator[Evidence]:
    """The hardware that a recipe or manifest lists, and the memory that it asks for."""
    yield from _listed_hardware(around)
    sizes = around.lines_with("vram_minimum_gb")
    memory = [(abs(n - model_line), n, text) for n, text in sizes if _VRAM.search(text)]
    if memory:  # of several variants the one that has this model
        _, number, text = min(memory)
        size = next(_VRAM.finditer(text))[1]
        if int(size) > SPARK_MEMORY_GB:
            yield "other", f"at least {size} GB", number, text
    versions = around.lines_with("recipe_version")
    yield from (("spark", "recipe", n, text) for n, text in versions if _RECIPE.match(text))


@lru_cache(maxsize=1)
def _listed_hardware(around: Surroundings) -> tuple[Evidence, ...]:
    listed = [found for number, text in around.hardware for found in _named_parts(number, text)]
    return tuple(sorted(listed, key=lambda found: found[0] != "spark")[:1])


def _named_parts(number: int, text: str) -> Iterator[Evidence]:
    """`{h200: verified, dgx_spark_gb10: unsupported}` speaks of an H200 only."""
    for part in re.split(r"[,{}]", text):
        if not _REFUSED.match(part.strip()) and (machine := _machine_in(shown := part.replace("_", " "))):
            yield *machine, number, shown


def _in_path(path: str) -> Iterator[Evidence]:
    for part in reversed(path.split("/")):
        if match := _SPARK_NAME.search(part):
            yield "spark", match[0], 1, path
        elif match := _OTHER.search(part.replace("_", " ")) or _OTHER_PATH.search(part):
            yield "other", match[0], 1, path
