"""What looks like the start of an engine and was not read: a launch is never lost in silence.

The text is searched for the words that start engines, line by line, whatever its format; a line that no
launch came from is reported with the reason. Comments, `echo`, `--help` and programs that stop or search
for an engine start none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from firesteel.errors import UsageError
from firesteel.launch import Spot
from firesteel.reads import formats, markdown
from firesteel.reads.reader import MAX_SPOT, ReadLaunch
from firesteel.reads.shell import Word
from firesteel.reads.source_text import SourceFile
from firesteel.values import Value

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
    spot: Spot
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


def not_read(
    file: SourceFile,
    launches: Sequence[ReadLaunch],
    problem: UsageError | None,
    missing: Sequence[tuple[Word, str]] = (),
) -> tuple[NotRead, ...]:
    """Every place that looks like a launch and is none of these launches; and what they lack."""
    absent = [
        NotRead(_spot(file, word.line, word.column), "an engine", f"{what}, and that file is not at hand")
        for word, what in missing
    ]
    is_told = problem is not None and formats.is_yaml(
        file
    )  # the whole file is not read, and its error says so
    if is_told or not _MAY_START.search(file.text):
        return tuple(absent)
    ranges = [launch.lines for launch in launches]
    found = (
        NotRead(_spot(file, line.first), engine, _reason(file, line, problem))
        for line in _lines(file)
        if (engine := _engine(line.text))
        and not any(first <= line.last and line.first <= last for first, last in ranges)
    )
    return (*absent, *islice(found, MAX_NOT_READ))


def _spot(file: SourceFile, line: int, column: int = 1) -> Spot:
    return Spot(file.path, line, file.line(line).strip()[:MAX_SPOT], column)


def _lines(file: SourceFile) -> Iterator[_Line]:
    """The lines that may start an engine; in a guide those of its blocks."""
    is_guide = not formats.is_yaml(file) and markdown.is_markdown(file)
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


def _engine(text: str) -> str | None:
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


def _reason(file: SourceFile, line: _Line, problem: UsageError | None) -> str:
    if problem:
        return problem.what
    if line.language is not None and line.language not in markdown.SHELLS:
        return f"the block is marked `{line.language}`, and is in no format that is known"
    variable = _VARIABLE.search(line.text)
    if variable:
        return f"`{variable[0][:60]}` is set outside this text"
    return "this is not a command, or not in a format that is known"
