"""Which engine a container starts: by its arguments, by `--entrypoint`, by the image's own entrypoint.

An image that nobody knows is taken for an engine's by its name, or by its arguments: flags that only one
engine has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from firesteel.catalog.image import Image, Images, identify, other_image
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import ResolvedFlag, Schema, resolve_flag
from firesteel.errors import UsageError
from firesteel.launch import EngineName, is_hub_id
from firesteel.reads import docker, programs, shell, variables
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.values import Value

Words = tuple[Word, ...]

_WRAPPERS = frozenset(
    {"env", "exec", "numactl", "taskset", "nice", "stdbuf", "time", "tini", "dumb-init", "uv", "uvx", "nsys",
     "ncu", "opentelemetry-instrument", "gosu", "sudo", "setpriv", "with-contenv"}
)  # fmt: skip
"""Programs that start the program after their own options."""
_TOOLS_IMAGE = re.compile(r"llama\.cpp:(?:full|light)")
"""Images of llama.cpp whose entrypoint is no server, but `llama-cli` or a script that knows `--server`.
Seen in ggml-org/llama.cpp `.devops/tools.sh` and `.devops/cuda.Dockerfile`, 2026-11-16."""
_MODEL_FLAGS = ("--model", "--model-path", "-m", "-hf", "--hf-repo")


class EngineCommand(Value):
    """The engine that a command starts, and its arguments."""

    engine: EngineName
    program: tuple[str, ...]
    args: Words
    program_words: Words = ()
    """The words that name the program; the first is its position."""
    env: Mapping[str, Word] = {}
    installed: str | None = None
    """The version that a script installs before it starts the engine."""


def engine_in_container(
    image: str,
    images: Images,
    options: Sequence[docker.DockerOption],
    arguments: Sequence[Word],
    file: SourceFile,
) -> EngineCommand | None:
    """None: the container starts no engine, or nothing says which."""
    entrypoint = next((option.value for option in reversed(options) if option.name == "entrypoint"), None)
    before = (entrypoint,) if entrypoint else ()
    texts = (*before, *(word.text for word in arguments))
    start, program = _program(texts)
    if program:
        taken = start + program.length - len(before)
        names = texts[len(before) : start + program.length]
        return EngineCommand(
            program.engine, names, tuple(arguments[taken:]), tuple(arguments[: max(taken, 1)])
        )
    index = programs.script_at(texts)
    if index:
        env = {name: (word,) for name, word in docker.environment_words(options).items()}
        script = arguments[index - len(before)]
        engine_command = engine_in_script(texts[len(before) : index], script, env, file)
        if engine_command:
            return engine_command
    if entrypoint is not None:
        return None
    if _TOOLS_IMAGE.search(image):
        is_server = texts[:1] in (("--server",), ("-s",))
        rest = tuple(arguments[1:])
        return EngineCommand("llamacpp", texts[:1], rest, tuple(arguments[:1])) if is_server else None
    known = identify(image, images)
    if known is None and other_image(image, images):
        return None
    engine = known.engine if known else _guess_engine(image)
    if engine is None or not _takes_arguments(known, texts):
        engine = None if known else _engine_of_flags(texts)
    if engine is None:
        return None
    names = _mistaken_program(engine, texts)
    program_words = tuple(arguments[: max(len(names), 1)])
    return EngineCommand(engine, names, tuple(arguments[len(names) :]), program_words)


def _program(texts: Sequence[str]) -> tuple[int, programs.Program | None]:
    """The engine's program, and the index of its first word: 0, or behind `numactl` and its like."""
    if texts and programs.base_name(texts[0]) in _WRAPPERS:
        found = programs.find(texts)
        if found and found[0] == "engine":
            return found[1], programs.engine_at(texts, found[1])
    return 0, programs.engine_at(texts)


def engine_in_script(
    shell_words: tuple[str, ...], script: Word, env: variables.Values, file: SourceFile
) -> EngineCommand | None:
    """`bash -lc "pip install x && vllm serve ..."`: the program is the shell and everything up to the
    engine."""
    exported: dict[str, Words] = {}
    commands = split_script(script.content, file)
    known = {**variables.without_secrets(env), **variables.find_values(commands)}
    installed: dict[EngineName, str] = {}
    for command in (variables.expand(command, known, file) for command in commands):
        exported.update(exports(command))
        installed.update([pair] if (pair := programs.installed(command.texts)) else [])
        found = programs.find(command.texts)
        program = programs.engine_at(command.texts, found[1]) if found else None
        if found is None or program is None:
            continue
        end = found[1] + program.length
        return EngineCommand(
            program.engine,
            (*shell_words, script.text[: command.words[end - 1].end]),
            command.words[end:],
            (script,),
            {**{name: words[-1] for name, words in exported.items()}, **command.env},
            installed.get(program.engine),
        )
    return None


def split_script(script: SourceText, file: SourceFile) -> tuple[ShellCommand, ...]:
    try:
        return shell.split(script, file)
    except UsageError:
        return ()


def exports(command: ShellCommand) -> dict[str, Words]:
    """`export A=b`: with a single variable `export` belongs to its words, so that a fix removes both."""
    if not command.words or command.words[0].text != "export":
        return {}
    export = command.words[:1] if len(command.words) == 2 else ()
    return {name: (*export, word) for name, word in variables.assigned(command.words[1:]).items()}


def _guess_engine(image: str) -> EngineName | None:
    """The engine that the name of an unknown image mentions."""
    hints: Mapping[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "llama": "llamacpp"}
    words = re.split(r"[^a-z0-9]+|(?<=vllm)|(?<=sglang)", image.lower())
    return next(
        (engine for hint, engine in hints.items() if any(word.startswith(hint) for word in words)), None
    )


def _takes_arguments(known: Image | None, words: Sequence[str]) -> bool:
    """Whether the image's own entrypoint starts an engine, with these words as its arguments."""
    if known is not None:
        if not words:
            return bool(known.entrypoint) or known.configured_by == "env"
        looks_like_model = known.entrypoint == () and is_hub_id(words[0])
        return bool(known.entrypoint) or words[0].startswith("-") or looks_like_model
    return not words or words[0].startswith("-") or ("/" in words[0] and not programs.is_shell(words[0]))


def _engine_of_flags(words: Sequence[str]) -> EngineName | None:
    """The only engine whose newest release has all of these flags; they must name a model and more. A letter
    (`-b`) says nothing, since every program has some."""
    rest = words[1:] if words and words[0] == "serve" else words
    flags = [word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)]
    has_model = any(flag in _MODEL_FLAGS for flag in flags) or _may_be_model(rest[0] if rest else "")
    if not has_model or not any(flag.startswith("--") for flag in set(flags) - set(_MODEL_FLAGS)):
        return None
    fitting = [
        engine
        for engine in _ENGINES
        if (schema := _newest_schema(engine))
        and all(isinstance(resolve_flag(schema, flag), ResolvedFlag) for flag in flags)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _may_be_model(word: str) -> bool:
    return is_hub_id(word) or variables.is_variable(word)


_ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")


@cache
def _newest_schema(engine: EngineName) -> Schema | None:
    return find_schema(engine, known_versions(engine)[-1])


def _mistaken_program(engine: EngineName, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that were meant as a program, but that the entrypoint of the engine takes for arguments."""
    if words and programs.is_shell(words[0]):
        return words
    return words[:1] if engine == "vllm" and words[:1] in (("vllm",), ("serve",)) else ()
