"""Commands -> launches: walks commands in order and reads those that start an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from firesteel import engines
from firesteel.catalog import Image, Images, container_name, identify, other_image
from firesteel.dataclass import dataclass
from firesteel.errors import UsageError
from firesteel.hub_id import is_hub_id
from firesteel.launch import Container, EngineName, FlagValue, Launch, Spot
from firesteel.reads import docker, programs, shell, variables
from firesteel.reads.engine_start import EngineStart
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import SourceFile, SourceText

MAX_SPOT = 200
"""Characters of a line that a spot shows."""
MAX_LAUNCHES = 500
_CONTAINER_PORT = re.compile(r"(?:.*:)?([0-9]{1,5})(?:/tcp)?\Z")
_WRONG_DASH = re.compile("[\u2010-\u2015\u2212]{1,2}[a-z]")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/vllm-workspace/|/sgl-workspace/")
"""Where an image has its engine: a mount there replaces it."""
_CHANGES_ENGINE = re.compile(
    r"install\s[^&;|\n]*\b(?:vllm|sglang)|install\s[^&;|\n]*(?:-e|--editable)\s|git\s+(?:apply|checkout)|\bpatch\s"
)
_ELLIPSES = ("...", "\u2026")
_MAX_NESTED = 3
"""How deep scripts may contain scripts."""

Words = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class ReadLaunch:
    """A launch, and the position of its parts: `image`, `program`, `model`, `flag:NAME`, `env:NAME`,
    `option:NAME`; and `flaw:NAME` where the text itself is broken: a `blank` after a backslash, flags `lost`
    behind the end of the command, a `dash` that is not a hyphen."""

    launch: Launch
    spots: Mapping[str, Spot]
    words: Mapping[str, Words] = field(default_factory=dict)
    """The words of each part, for a fix to change."""
    hardware: str = ""
    """The machine whose section of a recipe this is from."""
    minimum: Word | None = None
    """The oldest release that a recipe allows."""


@dataclass(frozen=True, slots=True)
class _EngineCommand:
    """The engine that a command starts, and its arguments."""

    engine: EngineName
    program: tuple[str, ...]
    args: Words
    program_words: Words = ()
    """The words that name the program; the first is its position."""
    env: Mapping[str, Word] = field(default_factory=dict)
    installed: str | None = None
    """The version that a script installs before it starts the engine."""


class LaunchReader:
    """Collects the launches of a file. A variable that one command exports is set for the next."""

    def __init__(self, file: SourceFile, images: Images) -> None:
        self.file, self.images = file, images
        self.launches: list[ReadLaunch] = []
        self.exported: dict[str, Words] = {}
        self.installed: dict[EngineName, str] = {}

    def read(self, commands: Sequence[ShellCommand], depth: int = 0) -> None:
        """Read the commands of a script."""
        known = variables.find_values(commands)
        last: int | None = None
        for command in (variables.expand(command, known, self.file) for command in commands):
            self._check_limit()
            count = len(self.launches)
            # No command begins with a dash: this is the rest of one that ended too early.
            is_lost_flag = command.texts[:1] != ("-",) and "".join(command.texts[:1]).startswith("-")
            if is_lost_flag and last is not None:
                self._add_flaw(last, "lost", command.words[0])
            else:
                self._read_command(command, depth)
            last = len(self.launches) - 1 if len(self.launches) > count else None

    def start(self, start: EngineStart) -> None:
        """Read what a file describes."""
        self._check_limit()
        count = len(self.launches)
        if start.image is None:
            self.exported = {name: (word,) for name, word in start.env.items()}
            self._read_command(ShellCommand(start.arguments), 0)
        else:
            self.launches += self._container_launch(start.image, start.options, start.arguments)
        self.launches[count:] = [
            replace(reading, hardware=start.hardware, minimum=start.minimum)
            for reading in self.launches[count:]
        ]

    def _check_limit(self) -> None:
        if len(self.launches) > MAX_LAUNCHES:
            raise UsageError(f"{self.file.path} has more than {MAX_LAUNCHES} launches", next="split the file")

    def _add_flaw(self, index: int, name: str, word: Word) -> None:
        launch = self.launches[index]
        spots = {**launch.spots, f"flaw:{name}": self._spot(word)}
        self.launches[index] = replace(launch, spots=spots, words={**launch.words, f"flaw:{name}": (word,)})

    def _read_command(self, command: ShellCommand, depth: int) -> None:
        self.exported.update(_exports(command))
        self.installed.update([pair] if (pair := programs.installed(command.texts)) else [])
        for word in command.env.values():
            if depth < _MAX_NESTED and word.text.startswith("$(") and word.text.endswith(")"):
                self.read(self._split(word.content.part(2, len(word.text) - 1)), depth + 1)
        program = programs.find(command.texts)
        if program is None:
            return
        kind, index = program
        count = len(self.launches)
        if kind == "container":
            first = programs.container_run_at(command.texts, index) or 0
            options, image = docker.parse_options(command.words[first:])
            if first + image < len(command.words):
                arguments = command.words[first + image + 1 :]
                self.launches += self._container_launch(command.words[first + image], options, arguments)
        elif kind == "engine":
            self.launches.append(self._process_launch(command, index))
        elif depth < _MAX_NESTED:
            script = command.words[index + (programs.script_at(command.texts[index:]) or 0)]
            self.read(self._split(script.content), depth + 1)
        if command.broken and len(self.launches) > count:
            self._add_flaw(count, "blank", command.broken)

    def _split(self, script: SourceText) -> tuple[ShellCommand, ...]:
        try:
            return shell.split(script, self.file)
        except UsageError:
            return ()

    def _process_launch(self, command: ShellCommand, index: int) -> ReadLaunch:
        """`vllm serve ...` on the host itself."""
        program = programs.engine_at(command.texts, index)
        assert program is not None, "programs.find() recognized it"
        end = index + program.length
        env = {**self.exported, **{name: (word,) for name, word in command.env.items()}}
        ellipses = tuple(word for word in command.words[:index] if word.text in _ELLIPSES)
        engine = _EngineCommand(
            program.engine,
            command.texts[index:end],
            (*command.words[end:], *ellipses),
            command.words[index:end],
        )
        texts = {name: words[-1].text for name, words in env.items()}
        return self._launch(engine, texts, _env_words(env), version=self.installed.get(program.engine))

    def _container_launch(
        self, image: Word, options: Sequence[docker.DockerOption], arguments: Sequence[Word]
    ) -> Iterator[ReadLaunch]:
        """`docker run ... IMAGE ...`; nothing when the container starts no engine."""
        known = identify(image.text, self.images)
        engine = self._engine_in_container(image.text, known, options, arguments)
        if engine is None:
            return
        container = docker.build_container(image.text, options, engine.program)
        env = {**docker.environment(options), **{name: word.text for name, word in engine.env.items()}}
        words = {key: option.words for option in options for key in _option_keys(option)}
        words |= _env_words({name: (word,) for name, word in engine.env.items()}) | {"image": (image,)}
        version = known.version if known and known.engine == engine.engine else None
        if _replaces_engine(container):
            version = engine.installed
        yield self._launch(engine, env, words, container, version)

    def _engine_in_container(
        self,
        image: str,
        known: Image | None,
        options: Sequence[docker.DockerOption],
        arguments: Sequence[Word],
    ) -> _EngineCommand | None:
        """The engine that the arguments, `--entrypoint` or the image's own entrypoint start."""
        entrypoint = next((option.value for option in reversed(options) if option.name == "entrypoint"), None)
        before = (entrypoint,) if entrypoint else ()
        texts = (*before, *(word.text for word in arguments))
        program = programs.engine_at(texts)
        if program:
            taken = program.length - len(before)
            program_words = tuple(arguments[: max(taken, 1)])
            names = texts[len(before) : program.length]
            return _EngineCommand(program.engine, names, tuple(arguments[taken:]), program_words)
        index = programs.script_at(texts)
        if index:
            env = {name: (word,) for name, word in docker.environment_words(options).items()}
            script = arguments[index - len(before)]
            engine_command = self._engine_in_script(texts[len(before) : index], script, env)
            if engine_command:
                return engine_command
        engine = known.engine if known else None if other_image(image, self.images) else _guess_engine(image)
        if engine is None or entrypoint is not None or not _takes_arguments(known, texts):
            return None
        names = _mistaken_program(engine, texts)
        program_words = tuple(arguments[: max(len(names), 1)])
        return _EngineCommand(engine, names, tuple(arguments[len(names) :]), program_words)

    def _engine_in_script(
        self, shell_words: tuple[str, ...], script: Word, env: variables.Values
    ) -> _EngineCommand | None:
        """`bash -lc "pip install x && vllm serve ..."`: the program is the shell and everything up to the
        engine."""
        exported: dict[str, Words] = {}
        commands = self._split(script.content)
        known = {**variables.without_secrets(env), **variables.find_values(commands)}
        installed: dict[EngineName, str] = {}
        for command in (variables.expand(command, known, self.file) for command in commands):
            exported.update(_exports(command))
            installed.update([pair] if (pair := programs.installed(command.texts)) else [])
            found = programs.find(command.texts)
            program = programs.engine_at(command.texts, found[1]) if found else None
            if found is None or program is None:
                continue
            end = found[1] + program.length
            return _EngineCommand(
                program.engine,
                (*shell_words, script.text[: command.words[end - 1].end]),
                command.words[end:],
                (script,),
                {**{name: words[-1] for name, words in exported.items()}, **command.env},
                installed.get(program.engine),
            )
        return None

    def _launch(
        self,
        command: _EngineCommand,
        env: Mapping[str, str],
        words: Mapping[str, Words],
        container: Container | None = None,
        version: str | None = None,
    ) -> ReadLaunch:
        texts = tuple(word.text for word in command.args)
        parsed = engines.parse_argv(command.engine, texts, contained=container is not None)
        words = {**words, **_flag_words(command.args, parsed)}
        if command.program_words or "image" in words:
            words["program"] = command.program_words or words["image"]
        wrong_dash = next((word for word in command.args if _WRONG_DASH.match(word.text)), None)
        if wrong_dash:
            words["flaw:dash"] = (wrong_dash,)
        served_name = parsed.name or _first_name(command.engine, parsed) or parsed.model
        name, container = _name(served_name, container)
        launch = Launch(
            name=name,
            model=parsed.model,
            engine=command.engine,
            version=version,
            flags=_with_default_host(command.engine, parsed, container),
            env=env,
            port=parsed.port or _published_port(container) or engines.default_port(command.engine),
            container=container,
            sparks=_sparks(parsed.flags.get("nnodes")),
            extra=parsed.extra,
        )
        return ReadLaunch(launch, {key: self._spot(part[0]) for key, part in words.items()}, words)

    def _spot(self, word: Word) -> Spot:
        line = self.file.line(word.line).strip().removesuffix("\\").rstrip()
        return Spot(self.file.path, word.line, line[:MAX_SPOT], word.column)


def _replaces_engine(container: Container) -> bool:
    """The engine is not the image's own: a script installs or patches one, or a mount covers it."""
    program = container.program
    is_script = len(program) > 1 and programs.is_shell(program[0])
    is_script |= bool(container.entrypoint and programs.is_shell(container.entrypoint) and program)
    is_mounted = any(_PACKAGES.search(f"{mount.target}/") for mount in container.mounts)
    return is_mounted or bool(is_script and _CHANGES_ENGINE.search(program[-1]))


def _sparks(nodes: object) -> int:
    """A node is one Spark; a value that is not a small number is ignored."""
    return int(nodes) if isinstance(nodes, str) and re.fullmatch("[1-9][0-9]?", nodes) else 1


def _exports(command: ShellCommand) -> dict[str, Words]:
    """`export A=b`: with a single variable `export` belongs to its words, so that a fix removes both."""
    if command.texts[:1] != ("export",):
        return {}
    export = command.words[:1] if len(command.words) == 2 else ()
    return {name: (*export, word) for name, word in variables.assigned(command.words[1:]).items()}


def _env_words(env: Mapping[str, Words]) -> dict[str, Words]:
    return {f"env:{name}": words for name, words in env.items()}


def _flag_words(args: Words, parsed: engines.ParsedCommandLine) -> dict[str, Words]:
    words = {
        f"flag:{name}": args[index : parsed.ends.get(name, index + 1)]
        for name, index in parsed.starts.items()
    }
    if "model" in parsed.starts:
        words["model"] = args[parsed.starts["model"] :][:1]
        words.pop("flag:model", None)
    return words


def _option_keys(option: docker.DockerOption) -> Iterator[str]:
    yield f"option:{option.name}"
    if option.name == "env" and option.value:
        yield f"env:{option.value.partition('=')[0]}"


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


def _mistaken_program(engine: EngineName, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that were meant as a program, but that the entrypoint of the engine takes for arguments."""
    if words and programs.is_shell(words[0]):
        return words
    return words[:1] if engine == "vllm" and words[:1] in (("vllm",), ("serve",)) else ()


def _first_name(engine: EngineName, parsed: engines.ParsedCommandLine) -> str:
    """The first of several names: vLLM takes a list of them, llama.cpp a comma-separated string."""
    names = parsed.flags.get(engines.grammar(engine).name_flag)
    if isinstance(names, str):
        return names.partition(",")[0]
    return str(names[0]) if isinstance(names, list) and names else ""


def _name(served_name: str, container: Container | None) -> tuple[str, Container | None]:
    """The name of the launch. firesteel's own label comes first; it and the container name derived from it
    are then removed, since rendering adds them again."""
    if container is None:
        return served_name, container
    label = container.labels.get("firesteel")
    if label is None:
        return served_name or dict(container.options).get("name") or "", container
    labels = {name: value for name, value in container.labels.items() if name != "firesteel"}
    options = tuple(option for option in container.options if option != ("name", container_name(label)))
    return label, replace(container, labels=labels, options=options)


def _with_default_host(
    engine: EngineName, parsed: engines.ParsedCommandLine, container: Container | None
) -> Mapping[str, FlagValue]:
    """SGLang listens on 127.0.0.1 by default, also in a container, where nobody can reach it."""
    if engine == "sglang" and container is not None and "host" not in parsed.starts:
        return {**parsed.flags, "host": "127.0.0.1"}
    return parsed.flags


def _published_port(container: Container | None) -> int | None:
    published = container.publish if container else ()
    match = _CONTAINER_PORT.match(published[0]) if len(published) == 1 else None
    return int(match[1]) if match and 0 < int(match[1]) < 2**16 else None
