"""What a text says about a launch outside its command: its machine, its release, and what makes it uncertain.

`NearbyText` are the comments, the paragraph and the headings above a command. Most launches in the world
are written for an H200 or for eight GPUs, and what wedges a Spark is right there, so `find_machine` looks for
the machine that a text speaks of; `find_release` for the engine's release where the command does not say it.
The nearest statement counts. A stop must be certain: if the text itself leaves it uncertain
(`find_uncertainty`, `may_be_fork`), it is a warning.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, cached_property, lru_cache
from itertools import islice, takewhile
from typing import Literal

from firesteel.catalog.image import is_upstream
from firesteel.engines.schema.history import version_key
from firesteel.engines.schema.releases import known_versions
from firesteel.launch import EngineName, Launch, Location
from firesteel.reads import markdown
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.source_text import SourceFile
from firesteel.values import Value

Line = tuple[int, str]
"""A line's number and its text."""
MachineKind = Literal["spark", "other", "unsaid"]
_HEADING = re.compile(r"\s{0,3}(#{1,6})\s+\S")
_COMMENT = re.compile(r"\s*(?:#|//|<!--)\s?(?!!)")
_TRAILING = re.compile(r"\s#\s.*")
_TEXT_VALUE = re.compile(r"[\w-]+:\s*[|>]")
_HARDWARE_KEY = re.compile(
    r"""(?<![\w./-])["']?
        (?=[\w./-]*(?:hardware|accelerator|gpu[._-]?(?:product|type|model|name|family)
            |node_?selector|instance[_-]?type|machine))
        (?P<key>[\w./-]++)["']?\s*+:\s*(?P<value>.*)""",
    re.VERBOSE | re.IGNORECASE,
)
_HARDWARE_WORDS = ("hardware", "accelerator", "gpu", "selector", "instance", "machine")
"""One of which every such key has."""
_GPU_LINE = re.compile(r"\s*GPU\s*:?\s+\S")
"""A line of an environment that a guide lists in a block."""
_NOT_HARDWARE = re.compile(r"overrides|strategy_hardware|opt_in", re.IGNORECASE)
_FORK = re.compile(
    r"(?:git\s+clone|git\+|_REPO\w{0,40}=)[^\n]{0,200}?[:/](?!vllm-project/|sgl-project/|ggml-org/|ggerganov/)"
    r"[\w.-]{1,100}/(?P<engine>vllm|sglang|llama\.cpp)(?:\.git)?(?![\w/-])"
)
"""A source of the engine that is not its project's own."""
_NEAR = 25
"""Lines of text above a block that belong to it."""


class NearbyText:
    """The text around commands.

    A guide says around a command, not in it, which machine and which release it is for. `above` gives the
    lines that may say so, the nearest first: comments of the same script or block, the text between this
    block and the one before it, then the headings that enclose it.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.lines = file.text.split("\n")
        self._mentions: dict[re.Pattern[str], bool] = {}
        self.machines: dict[str, tuple[MachineKind, str] | None] = {}
        """Lines that were searched for machines: see `find_machine`."""
        self._lines_with: dict[str, list[Line]] = {}
        self.is_guide = markdown.blocks(file.whole) is not None and not file.path.endswith((".yaml", ".yml"))
        self.prose = dict(markdown.prose(file)) if self.is_guide else {}
        """The lines outside the blocks of a guide; empty for any other file."""
        self.headings = {
            number: len(match[1]) for number, text in self.prose.items() if (match := _HEADING.match(text))
        }

    def above(self, number: int) -> Iterator[Line]:
        """Lines that may say what the command at this line is for, the nearest first."""
        trailing = _TRAILING.search(self.lines[number - 1])
        if trailing:
            yield number, trailing[0]
        number -= 1
        if not self.prose:
            above = bisect_right(self._comments, number, key=lambda found: found[0])
            yield from reversed(self._comments[:above])
            return
        while number > 0 and number not in self.prose:
            text = self.lines[number - 1]
            if markdown.is_fence(text):
                break
            if _COMMENT.match(text):
                yield number, text
            number -= 1
        yield from self._guide_above(number)

    def _guide_above(self, number: int) -> Iterator[Line]:
        end = max(number - _NEAR, 0)
        number -= number not in self.prose  # the opening fence itself
        while number > end and number in self.prose and number not in self.headings:
            yield number, self.prose[number]
            number -= 1
        level = 7
        for heading in sorted((line for line in self.headings if line <= number), reverse=True):
            if self.headings[heading] < level:
                level = self.headings[heading]
                yield heading, self.prose[heading]

    def builds_fork(self, engine: EngineName) -> bool:
        """Whether the text, or a Dockerfile in or above its folder, fetches a fork of the engine."""
        return {"llamacpp": "llama.cpp"}.get(engine, engine) in self._forks

    @cached_property
    def _forks(self) -> frozenset[str]:
        images = filter(None, (self.file.sibling(f"{up}Dockerfile") for up in ("", "../", "../../")))
        texts = (self.file.text, *(image.text for image in images))
        return frozenset(fork["engine"] for text in texts for fork in _FORK.finditer(text))

    def lines_with(self, word: str) -> list[Line]:
        """The lines that contain it, in lower or upper case; searched once for all launches."""
        if word not in self._lines_with:
            found = (index for index, text in enumerate(self._lower_lines) if word in text)
            self._lines_with[word] = [(index + 1, self.lines[index]) for index in found]
        return self._lines_with[word]

    @cached_property
    def _lower_lines(self) -> list[str]:
        return self.file.text.lower().split("\n")

    @cached_property
    def may_name_spark(self) -> bool:
        """Whether the text has what every name of a Spark has: most do not, and need no pattern."""
        text = self.file.text.lower()
        return any(part in text for part in ("spark", "gb10", "gb-10", "gb_10", "121"))

    def mentions(self, pattern: re.Pattern[str]) -> bool:
        """Whether the text does, or a README in its folder or above; searched once for all its launches."""
        if pattern not in self._mentions:
            guides = filter(None, (self.file.sibling(f"{up}README.md") for up in ("", "../", "../../")))
            texts = (self.file.text, *(guide.text for guide in guides))
            self._mentions[pattern] = any(pattern.search(text) for text in texts)
        return self._mentions[pattern]

    def is_in_value(self, number: int) -> bool:
        """Whether the line belongs to a text that is the value of a key: `guide: |` of a recipe."""
        while number > 0 and (not self.lines[number - 1].strip() or self.lines[number - 1][0].isspace()):
            number -= 1
        return number > 0 and _TEXT_VALUE.match(self.lines[number - 1]) is not None

    @property
    def document(self) -> Iterator[Line]:
        """The text of a guide, or the comments of any other file, from its beginning."""
        if not self.prose:
            yield from self._comments
            return
        yield from self.prose.items()
        yield from ((number, text) for number, text in self.lines_with("gpu") if _GPU_LINE.match(text))

    @cached_property
    def _comments(self) -> list[Line]:
        return [(number, text) for number, text in enumerate(self.lines, 1) if _COMMENT.match(text)]

    @cached_property
    def hardware(self) -> list[Line]:
        """The values of keys such as `hardware`, on their line or indented below it; and those of the chart
        that a template belongs to."""
        values = self.file.sibling("../values.yaml") if ".Values" in self.file.text else None
        of_chart = _hardware(values.text.split("\n")) if values else ()
        return [*_hardware(self.lines), *((1, text) for _, text in of_chart)]


def _hardware(lines: list[str]) -> list[Line]:
    found: list[Line] = []
    indent: int | None = None
    text = "\n".join(lines).lower()
    words = [word for word in _HARDWARE_WORDS if word in text]
    if not words:
        return found
    for number, text in enumerate(lines, 1):
        depth = len(text) - len(text.lstrip())
        if indent is not None and text.strip():
            if depth > indent:
                found.append((number, text))
                continue
            indent = None
        lower = text.lower() if ":" in text else ""
        key = _HARDWARE_KEY.search(text) if lower and any(word in lower for word in words) else None
        if key and not _NOT_HARDWARE.search(key["key"]):
            found.append((number, key["value"].partition("}")[0]))
            indent = depth
    return found


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
    location: Location | None = None

    @property
    def has_own_build(self) -> bool:
        """Its engine is not a release of the project, and may have other flags."""
        return _OWN_BUILD.match(self.what) is not None


def find_machine(parsed: ReadLaunch, path: str, around: NearbyText) -> StatedMachine:
    """The nearest evidence, or `unsaid`.

    First the image, then comments and sentences above the command, the headings around it, the number of GPUs
    that it needs in one host, the hardware that a recipe lists, the path of the file, and last what the rest
    of the document mentions.
    """
    for kind, what, number, text in _evidence(parsed, path, around):
        return StatedMachine(kind, what, Location(path, number, text.strip()[:200], 1))
    return StatedMachine()


def _evidence(parsed: ReadLaunch, path: str, around: NearbyText) -> Iterator[Evidence]:
    launch, locations = parsed.launch, parsed.locations
    line = parsed.line
    model_line = locations["model"].line if "model" in locations else line
    own = around.lines[line - 1]
    if parsed.hardware:
        yield ("spark" if _SPARK_NAME.search(parsed.hardware) else "other"), parsed.hardware, line, own
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
def _mentioned(around: NearbyText) -> tuple[Evidence, ...]:
    """The first machine that the document mentions, where it mentions no Spark."""
    mentioned = _named(around.document, around)
    if not around.may_name_spark:
        return tuple(islice(mentioned, 1))
    found = tuple(mentioned)
    return () if any(kind == "spark" for kind, *_ in found) else found[:1]


def _named(lines: Iterable[Line], around: NearbyText) -> Iterator[Evidence]:
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


def _listed(around: NearbyText, model_line: int) -> Iterator[Evidence]:
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
def _listed_hardware(around: NearbyText) -> tuple[Evidence, ...]:
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


_NUMBER = r"v?(?P<{0}>\d{{1,3}}\.\d{{1,3}}(?:\.\d{{1,3}})?(?:\.?post\d+)?)(?![\w.]*\d)"
_SECTION_HEADING = re.compile(r"\s*#{2,6}\s")
_NAMES: dict[EngineName, str] = {"vllm": "vllm", "sglang": "sglang"}


class StatedRelease(Value):
    """The known releases at the ends of what the text allows; equal: it names one."""

    low: str
    high: str
    location: Location
    is_minimum_of_recipe: bool = False


def find_release(parsed: ReadLaunch, path: str, around: NearbyText) -> StatedRelease | None:
    """The nearest statement about the engine of a launch.

    A recipe has `min_vllm_version`, a guide a line with `pip install "vllm>=0.12"`, an image's tag or a
    sentence ("needs vLLM 0.12 or newer"). What says "at least" allows every later release, so such a launch
    must work with both ends of the range.
    """
    engine = parsed.launch.engine
    if engine not in _NAMES:
        return None
    if (minimum := parsed.minimum) is not None:
        version = re.fullmatch(_NUMBER.format("low"), minimum.text)  # `nightly` is none
        ends = _known_ends(engine, version["low"], None) if version else None
        place = Location(path, minimum.line, minimum.text, minimum.column)
        return StatedRelease(*ends, place, is_minimum_of_recipe=True) if ends else None
    for number, text, low, high, is_key in _statements(engine, parsed.line, around):
        ends = _known_ends(engine, low, high)
        if ends:
            return StatedRelease(*ends, Location(path, number, text.strip()[:200], 1), is_key)
    return None


def _statements(
    engine: EngineName, line: int, around: NearbyText
) -> Iterator[tuple[int, str, str, str | None, bool]]:
    """(line, text, lowest, highest or None, whether a key of a recipe says so), the nearest first."""
    first, end = 1, len(around.lines)
    if around.is_in_value(line):  # a guide in a recipe installs what its own section says
        is_heading = (_SECTION_HEADING.match(around.lines[number - 1]) for number in range(line, 0, -1))
        first = line + 1 - sum(1 for _ in takewhile(lambda heading: heading is None, is_heading))
        end = line
    keys, pins = _stated(engine, around)
    for number, text, match in _nearest(keys, first, line, end):
        is_minimum = bool(match["min"] or match["least"])
        high = None if is_minimum or match["sign"] else match["low"]
        yield number, text, match["low"], high, is_minimum
    near = (found for found in around.above(line) if found[0] >= first)
    yield from ((*found, False) for found in _in_sentences(_patterns(engine)[2], near))
    for number, text, match in _nearest(pins, first, line, end):
        low, high = _pinned(match)
        # In a guide an image is another way to start it, and a sentence may be about anything.
        if low and not (around.prose and (match["tag"] or number in around.prose)):
            yield number, text, low, high, False


_Found = tuple[int, str, re.Match[str]]


@lru_cache(maxsize=2)  # for all launches of a text
def _stated(engine: EngineName, around: NearbyText) -> tuple[list[_Found], list[_Found]]:
    """The lines with a version of the engine: as a key, and as a requirement or tag."""
    named = around.lines_with(_NAMES[engine])
    keys, pins, _ = _patterns(engine)
    keyed = (found for found in named if ":" in found[1] and "version" in found[1].lower())
    signed = (found for found in named if any(sign in found[1] for sign in ("=", ">", "/")))
    return (
        [(number, text, match) for number, text in keyed if (match := keys.search(text))],
        [(number, text, match) for number, text in signed if (match := pins.search(text))],
    )


def _nearest(found: list[_Found], first: int, line: int, end: int) -> Iterator[_Found]:
    """Upwards from the line, then downwards, between the first and the last line."""
    yield from (each for each in reversed(found) if first <= each[0] <= line)
    yield from (each for each in found if line < each[0] <= end)


def _in_sentences(
    pattern: re.Pattern[str], lines: Iterable[Line]
) -> Iterator[tuple[int, str, str, str | None]]:
    for number, text in lines:
        if match := pattern.search(text):
            yield number, text, match["after"] or match["before"] or match["plus"], None


def _pinned(match: re.Match[str]) -> tuple[str | None, str | None]:
    if match["tag"]:
        return match["tag"], match["tag"]
    if match["sign"] in ("==", "==="):
        return match["low"], match["low"]
    if match["sign"] in (">=", "~=", ">"):
        return match["low"], None
    return None, None


@cache
def _patterns(engine: EngineName) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    name, low = _NAMES[engine], _NUMBER.format("low")
    image = {"vllm": r"vllm/vllm-openai", "sglang": r"lmsysorg/sglang"}[name]
    keys = rf"""(?<!\w)(?P<min>min(?:imum)?[_-]?)?{name}[_-]?(?P<least>min[_-]?)?version["']?\s*:\s*["']?
        (?P<sign>>=|~=)?\s*{low}"""
    pins = rf"""(?<![\w/.-]){name}(?:\[[\w,-]*\])?\s?(?P<sign>===?|>=|~=|>)\s?{low}
        | {image}:{_NUMBER.format("tag")}"""
    sentences = rf"""(?<![\w/.-]){name}\s*(?:version\s*)?(?:>=|\u2265)\s*{_NUMBER.format("after")}
        | (?:requires?|needs?|at\ least|use)\s+(?:at\ least\s+)?{name}\s+(?:version\s+)?
          {_NUMBER.format("before")}
        | (?<![\w/.-]){name}\s+(?:version\s+)?{_NUMBER.format("plus")}\s*
          (?:\+|or\ (?:newer|later|higher|above)|and\ (?:newer|later|higher|above))"""
    flags = re.VERBOSE | re.IGNORECASE
    return re.compile(keys, flags), re.compile(pins, flags), re.compile(sentences, flags)


def _known_ends(engine: EngineName, low: str, high: str | None) -> tuple[str, str] | None:
    """The oldest and the newest known release in the range; None: there is none."""
    inside = [
        version
        for version in known_versions(engine)
        if version_key(version) >= version_key(low)
        and (high is None or version_key(version)[: high.count(".") + 1] <= version_key(high))
    ]
    return (inside[0], inside[-1]) if inside else None


_FIXTURE = re.compile(
    r"(?:^|/)(?:test[_-]?data|(?:__)?fixtures?(?:__)?|__snapshots__|golden|broken|invalid)(?:/|$)",
    re.IGNORECASE,
)
_HISTORY = re.compile(r"(?:^|/)(?:change[_-]?log|release[_-]?notes|history)[\w.-]*$", re.IGNORECASE)
_OTHER_SHELL = (".ps1", ".bat", ".cmd")
_PROSE = (".md", ".mdx", ".markdown", ".txt")
_SHOWN_AS_WRONG = re.compile(
    r"""[\u274c\u2717\u2718\u26d4] | \U0001f6ab
      | \b(?:wrong|incorrect|anti-?pattern|bad(?:\s+example)?\s*[:)\]] | \#\s*bad\b)
      | \b(?:do\s+not|don'?t|never)\s+(?:do|use|run|write)\b | \bnot\s+like\s+this\b
      | \b(?:this|which|it)\s+(?:fails|will\s+fail|breaks|is\s+broken|crashes)\b
      | \b(?:does\s+not|doesn'?t|won'?t|will\s+not)\s+(?:work|start)\b
      | \u4e0d\u8981 | \u9519\u8bef""",
    re.VERBOSE | re.IGNORECASE,
)
_MORE = re.compile(r"\$|\.\.\.|\u2026|\{\{|\[")
_OTHER_FOLDER = re.compile(
    r"""[\w.-]*llama[._-]?cpp
        (?!(?:[-_.](?:b?\d[\w.]*|master|main|latest|build|bin|src|cuda\w*|vulkan|rocm|hip|metal|cpu|server
            |release|upstream|official))*\Z)""",
    re.VERBOSE | re.IGNORECASE,
)
"""`llama-cpp-turboquant`: a checkout of llama.cpp under another name."""
_NO_RELEASE = re.compile(
    r"\bforks?\b|\bnightly\b|\bunreleased\b|\bpull/\d+|\bPR\s*\#?\d{3,}|\b(?:dev|feature)\s+branch\b",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"\$\{\w+:?-[^{}\n]*llama-server[^{}\n]*\}")
_ANY_COMMENT = re.compile(r"\s*(?:#|//|<!--)")
_FORKS = {
    engine: re.compile(
        rf"""\bfork(?:ed|s)?\s+(?:of|from)\s+(?:the\s+)?`?{name}
           | {name}`?(?:'s)?[\s-]{{1,20}}(?:[\w.-]{{1,40}}\s+){{0,2}}fork\b | \bik_{name}
           | {name}(?:\[[\w,]*\])?==[\w.]*dev\d | {name}:[\w.-]*\bpr-\d | /whl/pr/
           | \b(?:patched|customi?[sz]?e?d?|modified|our(?:\s+own)?)\s+(?:build\s+of\s+)?`?{name}
           | github\.com[:/](?!{owners})[\w.-]+/[\w.-]*{name}[\w.-]*""",
        re.VERBOSE | re.IGNORECASE,
    )
    for engine, name, owners in (
        ("vllm", "vllm", "vllm-project/"),
        ("sglang", "sglang", "sgl-project/|lm-sys/"),
        ("llamacpp", r"llama[._-]?cpp", "ggml-org/|ggerganov/|abetlen/"),
    )
}
"""A text that speaks of a fork may start it, with flags of its own."""


def find_uncertainty(parsed: ReadLaunch, path: str, around: NearbyText) -> str:
    """Why this may not be a launch to run as it stands; empty: nothing says so."""
    if _FIXTURE.search(path.rpartition("/")[0]):
        return "the path says that this is a fixture of tests"
    if _HISTORY.search(path):
        return "a list of changes speaks of other releases"
    if path.lower().endswith(_OTHER_SHELL):
        return "this is another shell's script, read as a POSIX one's"
    if path.lower().endswith(_PROSE) and not around.is_guide:
        return "the file has no block of code, and this may be a sentence"
    wrong = _shown_as_wrong(parsed, around)
    return f"the text seems to show it as a mistake: {wrong}" if wrong else ""


def may_be_fork(parsed: ReadLaunch, around: NearbyText) -> bool:
    """Whether something says that the engine is not a release: the folder of its program, a sentence or
    comment above it, or a text about a fork of the engine."""
    container = parsed.launch.container
    if container is not None and is_upstream(container.image):
        return False
    program = parsed.words.get("program", ())
    folders = program[0].text.split("/")[:-1] if program else []
    return (
        any(_OTHER_FOLDER.match(folder) for folder in folders)
        or any(_NO_RELEASE.search(text) for _, text in around.above(parsed.first_line))
        or around.mentions(_FORKS[parsed.launch.engine])
    )


def chooses_program(around: NearbyText) -> bool:
    """`${LLAMA_SERVER:-llama-server}`: the environment may choose another build."""
    return _CHOSEN.search(around.file.text) is not None


def may_have_more_flags(parsed: ReadLaunch) -> str:
    """The word of the command that may stand for any flags: `$EXTRA`, `"$@"`, `...`; empty: there is none."""
    return next((word for word in parsed.launch.extra if _MORE.match(word)), "")


def _shown_as_wrong(parsed: ReadLaunch, around: NearbyText) -> str:
    """The sentence or the comment right above the command, or at the end of its first line."""
    number = parsed.first_line
    _, mark, trailing = around.lines[number - 1].partition(" #")
    if mark and _SHOWN_AS_WRONG.search(trailing):
        return trailing.strip()[:80]
    number -= 1
    lines = around.lines
    while number > 0 and (
        not lines[number - 1].strip() or lines[number - 1].lstrip().startswith(("```", "~~~"))
    ):
        number -= 1
    while number > 0 and lines[number - 1].strip():
        text = lines[number - 1]
        if not (_ANY_COMMENT.match(text) or number in around.prose):
            break
        if _SHOWN_AS_WRONG.search(text):
            return text.strip(" \t#*>-")[:80]
        if number in around.prose:
            break
        number -= 1
    return ""
