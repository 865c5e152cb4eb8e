"""Text -> launches: recognize the format of a file by its content, and read every launch in it.

Every format has a function `starts`; for YAML it takes a document, and returns None for one that is not of
its format. Scripts, blocks of guides and texts inside of YAML are read as shell commands.

No launch is lost silently: the text is searched line by line for words that start engines, and a line
that no launch came from is reported with the reason (`not_read`). `mentions` are flags, variables and images
in the sentences and tables of a guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Location
from firesteel.reads import dockerfile, make, markdown, nomad, shell, systemd, variables
from firesteel.reads.docker import EngineStart
from firesteel.reads.reader import MAX_LOCATION_CHARS, LaunchReader, ReadLaunch
from firesteel.reads.source_text import SourceFile, SourceText, source_file
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.reads.yaml_nodes import Node


_MENTIONS_ENGINE = re.compile(r"(?i:vllm|llama[-_]server|llama\s+serve|sglang)|\b(?:docker|podman|nerdctl)\s")
_SCRIPT_VALUE = re.compile(r"(?:^\s*-\s+|\b(?:run|script|setup|bash|shell)\s*:\s*)\|[+-]?\d?\s*$")
"""The line above a script in YAML, which keeps its line ends. After `>` they are joined."""
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a file with one: a script, a Markdown guide, a compose file, a manifest, a unit, a recipe"
)


def read(text: str, path: str, images: Images) -> tuple[ReadLaunch, ...]:
    """Every launch in a command line or a file; UsageError if there is none."""
    reader = scan(source_file(text, path), images)
    if not reader.launches:
        raise reader.problem or no_launch_error(path)
    return tuple(reader.launches)


def no_launch_error(path: str) -> UsageError:
    return UsageError(f"{path} has no command that starts an engine", next=_ACCEPTED)


def scan(file: SourceFile, images: Images) -> LaunchReader:
    """Read every launch of a file; `not_read` then finds what may be one but could not be read."""
    try:
        blocks = _blocks(file)
    except UsageError as error:
        reader = LaunchReader(file, images)
        reader.problem = error
        return reader
    reader = LaunchReader(file, images, is_script=blocks == (("", None),) and not is_yaml(file))
    for language, block in blocks:
        reader.problem = _read_block(reader, language, block) or reader.problem
    return reader


def _blocks(file: SourceFile) -> tuple[tuple[str, SourceText | None], ...]:
    """The parts of a file that are read one by one: None stands for the whole file."""
    if is_yaml(file):
        return (("", None),)
    if file.path.lower().endswith(".ipynb"):
        return markdown.notebook_blocks(file)
    if kind := make.kind(file.path):
        return (("bash", make.shell_text(file, kind)),)
    is_rst = file.path.lower().endswith(".rst")
    blocks = markdown.literal_blocks(file.whole) if is_rst else markdown.blocks(file.whole)
    return blocks if blocks is not None else (("", None),)


def _read_block(reader: LaunchReader, language: str, block: SourceText | None) -> UsageError | None:
    """A file, or a block of a guide. The error of an unreadable block is returned: others may be readable."""
    source = block or reader.file.whole
    try:
        documents = parse_yaml(reader.file, block)
        if documents is not None:
            starts = yaml_starts(reader.file, block, documents)
        else:
            starts = text_starts(reader.file, source)
    except UsageError as error:
        return error
    for start in starts or ():
        reader.start(start)
    if not _mentions_engine(source.text):
        return None
    count = len(reader.launches)
    if documents is not None:
        _read_embedded(reader, documents)
    if starts is None and len(reader.launches) == count and language in markdown.SHELLS:
        is_script = block is None and not reader.file.path.lower().endswith(markdown.GUIDES)
        return _read_shell(reader, source, is_for_shell=is_script or language in markdown.MARKED_SHELLS)
    return None


def _mentions_engine(text: str) -> bool:
    return "vllm" in text or "sglang" in text or _MENTIONS_ENGINE.search(text) is not None


def _read_embedded(reader: LaunchReader, documents: Iterable[Node]) -> None:
    """Guides and scripts in values of a YAML file, where no launch of its own format was read."""
    ranges = [launch.lines for launch in reader.launches]
    for text in embedded_texts(documents):
        if not _mentions_engine(text.text):
            continue
        first, last = (reader.file.place(text.at(offset))[0] for offset in (0, max(len(text.text) - 1, 0)))
        if any(a <= last and first <= b for a, b in ranges):
            continue
        blocks = markdown.blocks(text)
        if blocks is None and markdown.starts_command(text.text):
            blocks = (("", text),)
        is_script = _SCRIPT_VALUE.search(reader.file.line(max(first - 1, 1))) is not None
        for language, inner in blocks or ():
            if language in markdown.SHELLS:
                _read_shell(reader, inner, is_for_shell=is_script or language in markdown.MARKED_SHELLS)


def _read_shell(reader: LaunchReader, source: SourceText, *, is_for_shell: bool = False) -> UsageError | None:
    reader.is_for_shell = is_for_shell
    source = shell.blank_out_comments(source)
    for body, is_read in variables.heredoc_bodies(source):
        found = starts(reader.file, body)
        if found is not None:
            for start in found:
                reader.start(start)
            source = variables.blank_out_heredoc(source, is_read)
    commands, problem = shell.split_leniently(source, reader.file)
    reader.read(commands)
    return problem


_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(
    r"(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:---\s*\n|(?:-[^\S\n]+)?[A-Za-z_][\w.-]*:(?:[^\S\n]|\n))"
)


def is_yaml(file: SourceFile) -> bool:
    """By its name. Markdown fences inside its values are then not fences."""
    return bool(_YAML_NAME.match(file.path))


def starts(file: SourceFile, block: SourceText | None = None) -> tuple[EngineStart, ...] | None:
    """What a file of a known format starts, or a block of a guide; None for any other text."""
    documents = parse_yaml(file, block)
    if documents is None:
        return text_starts(file, block or file.whole)
    return yaml_starts(file, block, documents)


def parse_yaml(file: SourceFile, block: SourceText | None = None) -> tuple[Node, ...] | None:
    """The documents of a YAML file, or of a block; None for other text. UsageError for a file that is called
    YAML and is not."""
    is_named = block is None and is_yaml(file)
    source = block or file.whole
    if not is_named and not _YAML_START.match(source.text):
        return None
    # They load PyYAML, which takes as long to import as a command takes to check.
    from firesteel.reads import kubernetes
    from firesteel.reads.yaml_nodes import parse_documents

    if is_named and kubernetes.is_template(source):
        source = kubernetes.filled_template(file)
    try:
        return parse_documents(file, source)
    except UsageError:
        if is_named:
            raise
        return None


def text_starts(file: SourceFile, source: SourceText) -> tuple[EngineStart, ...] | None:
    readers = (systemd.starts, dockerfile.starts, nomad.starts)
    return next((found for read in readers if (found := read(file, source)) is not None), None)


def yaml_starts(
    file: SourceFile, block: SourceText | None, documents: Iterable[Node]
) -> tuple[EngineStart, ...] | None:
    from firesteel.reads import compose, kubernetes, llama_swap, recipe, sparkrun, vllm_recipes, workflows

    readers = (
        compose.starts, kubernetes.starts, llama_swap.starts, recipe.starts, sparkrun.starts,
        vllm_recipes.starts, workflows.starts, kubernetes.chart_starts,
    )  # fmt: skip
    read = [next((s for reader in readers if (s := reader(node)) is not None), None) for node in documents]
    known = [starts for starts in read if starts is not None]
    is_named = block is None and is_yaml(file)
    return tuple(start for starts in known for start in starts) if known or is_named else None


def embedded_texts(documents: Iterable[Node]) -> Iterator[SourceText]:
    """The texts in YAML that may be a guide or a script: several lines, or the start of a command."""
    nodes = list(documents)
    while nodes:
        node = nodes.pop()
        text = node.text
        if text is not None and ("\n" in text or markdown.starts_command(text)):
            yield node.content
        nodes += (*node.list_items(), *(value for _, value in node.items()))


MAX_NOT_READ = 50
_WORD = r"""["',\s\[\]\\]+"""
"""Between words: blanks, or the quotes and commas of a list."""
_ENGINES = (
    (
        "vLLM",
        re.compile(rf"\bvllm{_WORD}serve{_WORD}[\w./$<{{-]|\bvllm\.entrypoints\.openai\.api_server{_WORD}-"),
    ),
    ("llama.cpp", re.compile(rf"(?<![\w-])llama-server{_WORD}-")),
    ("SGLang", re.compile(rf"\bsglang{_WORD}serve{_WORD}[\w./$<{{-]|\bsglang\.launch_server{_WORD}-")),
)
_CONTAINER = re.compile(r"\b(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|create)\b")
_ARGUMENTS = r":\S{1,300}\s+(?:-|[\w.-]+/[\w.-]+|\$)"
"""After the name of an image: its tag, and a flag or a model. A shell there starts no engine."""
_IMAGES = (
    (
        "vLLM",
        re.compile(
            rf"\bvllm[\w./-]{{0,200}}{_ARGUMENTS}|\s--(?:gpu-memory-utilization|max-model-len|max-num-seqs)\b"
        ),
    ),
    ("SGLang", re.compile(rf"\bsglang[\w./-]{{0,200}}{_ARGUMENTS}|\s--mem-fraction-static\b")),
    ("llama.cpp", re.compile(rf"\bllama\.?cpp[\w./-]{{0,200}}{_ARGUMENTS}|\s--(?:n-gpu-layers|ctx-size)\b")),
)
_MAY_START = re.compile(
    r"vllm|llama-server|sglang|(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|create)"
)
_WORDS = ("vllm", "llama-server", "sglang", "docker", "podman", "nerdctl")
"""One of which every line has that starts an engine."""
_COMMENT = re.compile(r"\s*(?:#|//|;|<!--|\*|REM\b|\.\. )")
_NOT_STARTING = re.compile(
    r"""(?:^|[\s;&|("'`@])(?:echo|printf|[ep]?grep|pkill|killall|pgrep|kill|ps|which|command\s+-v|man|pip3?|curl|cp|mv|ln|
        chmod|rm|tail|less|journalctl|test|ExecStop|ExecReload|pip|apt|brew|cargo|def|class|import|from|return|name|description
        |title)\b""",
    re.VERBOSE,
)
_HELP = re.compile(r"(?:^|\s)(?:--help|-h|--version)\b")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\{\{[^}]*\}\}")


class NotRead(Value):
    location: Location
    engine: str
    """`vLLM`, or `an engine` where that is not clear."""
    why: str


class _Line(Value):
    """A line with those that it continues on."""

    text: str
    first: int
    last: int
    language: str | None = None
    """Of the fenced block that it stands in."""


def not_read(reader: LaunchReader) -> tuple[NotRead, ...]:
    """Every line that looks like a launch and that no launch came from; and the files that launches lack."""
    file, problem = reader.file, reader.problem
    absent = [
        NotRead(_location(file, word.line, word.column), "an engine", f"{what}, and that file is not at hand")
        for word, what in reader.missing
    ]
    is_reported = problem is not None and is_yaml(file)  # the whole file is not read, and its error says so
    if is_reported or not _MAY_START.search(file.text):
        return tuple(absent)
    ranges = [launch.lines for launch in reader.launches]
    found = (
        NotRead(_location(file, line.first), engine, _why_not_read(line, problem))
        for line in _command_lines(file)
        if (engine := _engine_started_by(line.text))
        and not any(first <= line.last and line.first <= last for first, last in ranges)
    )
    return (*absent, *islice(found, MAX_NOT_READ))


def _location(file: SourceFile, line: int, column: int = 1) -> Location:
    return Location(file.path, line, file.line(line).strip()[:MAX_LOCATION_CHARS], column)


def _command_lines(file: SourceFile) -> Iterator[_Line]:
    """The lines that may start an engine; in a guide those of its blocks."""
    is_guide = not is_yaml(file) and markdown.is_markdown(file)
    numbered = (
        ((number, line, language) for number, line, language in markdown.code_lines(file))
        if is_guide
        else ((number, line, None) for number, line in enumerate(file.text.split("\n"), start=1))
    )
    words = [word for word in _WORDS if word in file.text]
    texts: list[str] = []
    first = 0
    for number, line, language in numbered:
        first = first if texts else number
        line = line.rstrip()
        texts.append(line.removesuffix("\\"))
        if not line.endswith("\\") or len(texts) > 200:
            text = "\n".join(texts)
            if any(word in text for word in words):
                yield _Line(text, first, number, language)
            texts = []


def _engine_started_by(text: str) -> str | None:
    """The engine that a line seems to start."""
    if not _MAY_START.search(text) or _COMMENT.match(text) or _HELP.search(text):
        return None
    for engine, pattern in _ENGINES:
        match = pattern.search(text)
        if match and not _NOT_STARTING.search(text, 0, match.start()):
            return engine
    container = _CONTAINER.search(text)
    if container is None or _NOT_STARTING.search(text, 0, container.start()):
        return None
    return next((engine for engine, pattern in _IMAGES if pattern.search(text, container.end())), None)


def _why_not_read(line: _Line, problem: UsageError | None) -> str:
    if problem:
        return problem.what
    if line.language is not None and line.language not in markdown.SHELLS:
        return f"the block is marked `{line.language}`, and is in no format that is known"
    variable = _VARIABLE.search(line.text)
    if variable:
        return f"`{variable[0][:60]}` is set outside this text"
    return "this is not a command, or not in a format that is known"


MAX_MENTIONS = 2000
_NAME = re.compile(
    r"""(?<![\w-])--(?P<flag>[a-z][a-z0-9_.-]*[a-z0-9])(?:[ =](?P<value>[\w.]+))?
      | (?<![\w.])(?P<variable>(?:VLLM|SGLANG|LLAMA_ARG|NCCL)_[A-Z0-9_]+)(?:=(?P<setting>[\w.,:-]+))?
      | (?<![\w./:-])(?P<image>[a-z0-9.-]+(?:/[a-z0-9._-]+)+:[A-Za-z0-9_][\w.-]*)(?![\w/:])""",
    re.VERBOSE,
)
_TEXTS = (".txt", ".text")


class Mention(Value):
    key: str
    """`flag:NAME`, `env:NAME` or `image:REFERENCE`."""
    location: Location
    value: str = ""
    """What follows a flag or a variable: `0.95`."""


def mentions(file: SourceFile) -> tuple[Mention, ...]:
    """What sentences and tables outside fenced blocks mention; nothing when the text is neither a guide nor
    plain text."""
    if not file.path.lower().endswith(_TEXTS) and not markdown.is_markdown(file):
        return ()
    return tuple(islice(_mentions(file), MAX_MENTIONS))


def _mentions(file: SourceFile) -> Iterator[Mention]:
    for number, line in markdown.prose(file):
        if "--" not in line and "_" not in line and ("/" not in line or ":" not in line):
            continue  # no name is without these
        for name in _NAME.finditer(line):
            location = Location(
                file.path, number, name[0].strip(" .,")[:MAX_LOCATION_CHARS], name.start() + 1
            )
            if name["image"]:
                yield Mention(f"image:{name['image'].rstrip('.')}", location)
            elif name["variable"]:
                yield Mention(f"env:{name['variable']}", location, (name["setting"] or "").rstrip(".,"))
            else:
                flag = name["flag"].replace("_", "-").partition(".")[0]
                yield Mention(f"flag:{flag}", location, (name["value"] or "").rstrip("."))
