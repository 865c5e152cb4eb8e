"""Why a launch that was read may not be one, or not of the engine that it seems to be of.

A stop must be proved. Where the text itself leaves a doubt (it shows the command as a mistake, it is a
fixture of tests, nobody knows what the script in front does, it speaks of a fork of the engine) it is a
warning.
"""

from __future__ import annotations

import re

from firesteel.catalog.image import is_upstream
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.surroundings import Surroundings

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
"""`llama-cpp-turboquant`: a checkout of llama.cpp under a name of its own."""
_NO_RELEASE = re.compile(
    r"\bforks?\b|\bnightly\b|\bunreleased\b|\bpull/\d+|\bPR\s*\#?\d{3,}|\b(?:dev|feature)\s+branch\b",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"\$\{\w+:?-[^{}\n]*llama-server[^{}\n]*\}")
_COMMENT = re.compile(r"\s*(?:#|//|<!--)")
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


def find_doubt(reading: ReadLaunch, path: str, around: Surroundings) -> str:
    """Why this may be no launch that somebody means to run as it stands; empty: nothing says so."""
    if _FIXTURE.search(path.rpartition("/")[0]):
        return "the path says that this is a fixture of tests"
    if _HISTORY.search(path):
        return "a list of changes speaks of other releases"
    if path.lower().endswith(_OTHER_SHELL):
        return "this is another shell's script, read as a POSIX one's"
    if path.lower().endswith(_PROSE) and not around.is_guide:
        return "the file has no block of code, and this may be a sentence"
    wrong = _shown_as_wrong(reading, around)
    return f"the text seems to show it as a mistake: {wrong}" if wrong else ""


def may_be_fork(reading: ReadLaunch, around: Surroundings) -> bool:
    """Whether something says that the engine is no release: the folder of its program, a sentence or comment
    above it, or a text about a fork of the engine."""
    container = reading.launch.container
    if container is not None and is_upstream(container.image):
        return False
    program = reading.words.get("program", ())
    folders = program[0].text.split("/")[:-1] if program else []
    return (
        any(_OTHER_FOLDER.match(folder) for folder in folders)
        or any(_NO_RELEASE.search(text) for _, text in around.above(reading.first_line))
        or around.mentions(_FORKS[reading.launch.engine])
    )


def chooses_program(around: Surroundings) -> bool:
    """`${LLAMA_SERVER:-llama-server}`: whoever starts the script may set another build."""
    return _CHOSEN.search(around.file.text) is not None


def may_have_more_flags(reading: ReadLaunch) -> str:
    """The word of the command that may stand for any flags: `$EXTRA`, `"$@"`, `...`; empty: there is none."""
    return next((word for word in reading.launch.extra if _MORE.match(word)), "")


def _shown_as_wrong(reading: ReadLaunch, around: Surroundings) -> str:
    """The sentence or the comment right above the command, or at the end of its first line."""
    number = reading.first_line
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
        if not (_COMMENT.match(text) or number in around.prose):
            break
        if _SHOWN_AS_WRONG.search(text):
            return text.strip(" \t#*>-")[:80]
        if number in around.prose:
            break
        number -= 1
    return ""
