"""Commands -> launches: walks commands in order and keeps those that start an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firesteel import engines
from firesteel.catalog import Image, Images, container_name, identify, other_image
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, FlagValue, Launch, Spot
from firesteel.reads import docker, programs, shell, variables
from firesteel.reads.container_start import EngineStart
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import Passage, SourceFile

MAX_SPOT = 200
"""A place shows its line up to this many characters."""
MAX_LAUNCHES = 500
_PORT_INSIDE = re.compile(r"(?:.*:)?([0-9]{1,5})(?:/tcp)?\Z")
_WRONG_DASH = re.compile("[\u2010-\u2015\u2212]{1,2}[a-z]")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/vllm-workspace/|/sgl-workspace/")
"""Where an image keeps its engine: a mount there replaces it."""
_CHANGES_ENGINE = re.compile(
    r"install\s[^&;|\n]*\b(?:vllm|sglang)|install\s[^&;|\n]*(?:-e|--editable)\s|git\s+(?:apply|checkout)|\bpatch\s"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ELLIPSES = ("...", "\u2026")
_DEPTH = 3

Words = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class ReadLaunch:
    """A launch, and where its parts stand: `image`, `program`, `model`, `flag:NAME`, `env:NAME`,
    `option:NAME`; and `flaw:NAME` where the text itself is broken: a `blank` after a backslash, flags `lost`
    behind the command's end, a `dash` that is none."""

    launch: Launch
    spots: Mapping[str, Spot]
    words: Mapping[str, Words] = field(default_factory=dict)
    """The words that say each part, for whoever wants to change them."""


@dataclass(frozen=True, slots=True)
class _Started:
    """The engine that a command starts, and the words it is given."""

    engine: EngineName
    program: tuple[str, ...]
    args: Words
    said: Words = ()
    """The words that name the program; the first stands for the whole."""
    env: Mapping[str, Word] = field(default_factory=dict)
    installed: str | None = None
    """The version that a script installs before it starts the engine."""


class LaunchReader:
    """What is exported by one command is there for the next."""

    def __init__(self, page: SourceFile, images: Images) -> None:
        self.page, self.images = page, images
        self.found: list[ReadLaunch] = []
        self.exported: dict[str, Words] = {}
        self.installed: dict[EngineName, str] = {}

    def read(self, lines: Sequence[ShellCommand], depth: int = 0) -> None:
        """The commands of a script."""
        known = variables.values(lines)
        last: int | None = None
        for line in (variables.expand(line, known, self.page) for line in lines):
            self._bound()
            before = len(self.found)
            if line.words and _is_tail(line.words[0]) and last is not None:
                self._flaw(last, "lost", line.words[0])
            else:
                self._command(line, depth)
            last = len(self.found) - 1 if len(self.found) > before else None

    def start(self, start: EngineStart) -> None:
        """What a file describes."""
        self._bound()
        if start.image is None:
            self.exported = {name: (word,) for name, word in start.env.items()}
            self._command(ShellCommand(start.words), 0)
        else:
            self.found += self._contained(start.image, start.given, start.words)

    def _bound(self) -> None:
        if len(self.found) > MAX_LAUNCHES:
            raise UsageError(
                f"{self.page.path} holds more than {MAX_LAUNCHES} launches", next="give it in smaller parts"
            )

    def _flaw(self, index: int, name: str, word: Word) -> None:
        reading = self.found[index]
        spots = {**reading.spots, f"flaw:{name}": self._spot(word)}
        self.found[index] = replace(reading, spots=spots, words={**reading.words, f"flaw:{name}": (word,)})

    def _command(self, line: ShellCommand, depth: int) -> None:
        self.exported.update(_exports(line))
        self.installed.update([pair] if (pair := programs.installed(line.texts)) else [])
        for word in line.env.values():
            if depth < _DEPTH and word.text.startswith("$(") and word.text.endswith(")"):
                self.read(self._inside_passage(word.inside.part(2, len(word.text) - 1)), depth + 1)
        what = programs.find(line.texts)
        if what is None:
            return
        kind, index = what
        before = len(self.found)
        if kind == "container":
            after = programs.container_run_at(line.texts, index) or 0
            given, at = docker.options(line.words[after:])
            if after + at < len(line.words):
                image, rest = line.words[after + at], line.words[after + at + 1 :]
                self.found += self._contained(image, given, rest)
        elif kind == "engine":
            self.found.append(self._bare(line, index))
        elif depth < _DEPTH:
            script = line.words[index + (programs.script_at(line.texts[index:]) or 0)]
            self.read(self._inside(script), depth + 1)
        if line.broken and len(self.found) > before:
            self._flaw(before, "blank", line.broken)

    def _inside(self, script: Word) -> tuple[ShellCommand, ...]:
        """The commands of a quoted script."""
        return self._inside_passage(script.inside)

    def _inside_passage(self, passage: Passage) -> tuple[ShellCommand, ...]:
        try:
            return shell.split(passage, self.page)
        except UsageError:
            return ()

    def _bare(self, line: ShellCommand, index: int) -> ReadLaunch:
        """`vllm serve ...` on the host itself."""
        program = programs.engine_at(line.texts, index)
        assert program is not None, "find() saw it"
        end = index + program.words
        env = {**self.exported, **{name: (word,) for name, word in line.env.items()}}
        cut = tuple(word for word in line.words[:index] if word.text in _ELLIPSES)
        said = line.words[index:end]
        started = _Started(program.engine, line.texts[index:end], (*line.words[end:], *cut), said)
        texts = {name: words[-1].text for name, words in env.items()}
        version = self.installed.get(program.engine)
        return self._reading(started, texts, _env_words(env), version=version)

    def _contained(
        self, image: Word, given: Sequence[docker.DockerOption], rest: Sequence[Word]
    ) -> Iterator[ReadLaunch]:
        """`docker run ... IMAGE ...`; nothing when the container starts no engine."""
        known = identify(image.text, self.images)
        started = self._started(image.text, known, given, rest)
        if started is None:
            return
        box = docker.container(image.text, given, started.program)
        env = {**docker.environment(given), **{name: word.text for name, word in started.env.items()}}
        places = {name: option.words for option in given for name in _option_places(option)}
        places |= _env_words({name: (word,) for name, word in started.env.items()}) | {"image": (image,)}
        version = known.version if known and known.engine == started.engine else None
        if _is_replaced(box):
            version = started.installed
        yield self._reading(started, env, places, box, version)

    def _started(
        self, image: str, known: Image | None, given: Sequence[docker.DockerOption], rest: Sequence[Word]
    ) -> _Started | None:
        """What runs inside: the words after the image, after `--entrypoint` or the image's own."""
        typed = next((option.value for option in reversed(given) if option.name == "entrypoint"), None)
        before = (typed,) if typed else ()
        words = (*before, *(word.text for word in rest))
        program = programs.engine_at(words)
        if program:
            taken = program.words - len(before)
            said = tuple(rest[: max(taken, 1)])
            return _Started(program.engine, words[len(before) : program.words], tuple(rest[taken:]), said)
        script = programs.script_at(words)
        env = {name: (word,) for name, word in docker.environment_words(given).items()}
        inside = (
            self._scripted(words[len(before) : script], rest[script - len(before)], env) if script else None
        )
        if inside:
            return inside
        engine = known.engine if known else None if other_image(image, self.images) else _hint(image)
        if engine is None or typed is not None or not _takes_arguments(known, words):
            return None
        program_words = _said_after_entrypoint(engine, words)
        said = tuple(rest[: max(len(program_words), 1)])
        return _Started(engine, program_words, tuple(rest[len(program_words) :]), said)

    def _scripted(
        self, shell_words: tuple[str, ...], script: Word, around: variables.Values
    ) -> _Started | None:
        """`bash -lc "pip install x && vllm serve ..."`: the program is the shell and all up to the engine."""
        exported: dict[str, Words] = {}
        lines = self._inside(script)
        known = {**variables.told(around), **variables.values(lines)}
        installed: dict[EngineName, str] = {}
        for line in (variables.expand(line, known, self.page) for line in lines):
            exported.update(_exports(line))
            installed.update([pair] if (pair := programs.installed(line.texts)) else [])
            what = programs.find(line.texts)
            program = programs.engine_at(line.texts, what[1]) if what else None
            if what is None or program is None:
                continue
            end = what[1] + program.words
            prelude = script.text[: line.words[end - 1].end]
            env = {**{name: words[-1] for name, words in exported.items()}, **line.env}
            version = installed.get(program.engine)
            words = (*shell_words, prelude)
            return _Started(program.engine, words, line.words[end:], (script,), env, version)
        return None

    def _reading(
        self,
        started: _Started,
        env: Mapping[str, str],
        places: Mapping[str, Words],
        box: Container | None = None,
        version: str | None = None,
    ) -> ReadLaunch:
        texts = tuple(word.text for word in started.args)
        parsed = engines.parse_argv(started.engine, texts, contained=box is not None)
        at = {**places, **_flag_words(started.args, parsed)}
        if started.said or "image" in at:
            at["program"] = started.said or at["image"]
        wrong = next((word for word in started.args if _WRONG_DASH.match(word.text)), None)
        if wrong:
            at["flaw:dash"] = (wrong,)
        name, box = _name(parsed.name or _first_name(started.engine, parsed) or parsed.model, box)
        launch = Launch(
            name=name,
            model=parsed.model,
            engine=started.engine,
            version=version,
            flags=_host(started.engine, parsed, box),
            env=env,
            port=parsed.port or _published_port(box) or engines.default_port(started.engine),
            container=box,
            sparks=_sparks(parsed.flags.get("nnodes")),
            extra=parsed.extra,
        )
        return ReadLaunch(launch, {key: self._spot(words[0]) for key, words in at.items()}, at)

    def _spot(self, word: Word) -> Spot:
        line = self.page.line(word.line).strip().removesuffix("\\").rstrip()
        return Spot(self.page.path, word.line, line[:MAX_SPOT], word.column)


def _is_replaced(box: Container) -> bool:
    """The engine that runs is not the image's own: a script installs or patches it, or a mount covers it."""
    script = box.program[-1] if len(box.program) > 1 and programs.is_shell(box.program[0]) else ""
    if box.entrypoint and programs.is_shell(box.entrypoint) and box.program:
        script = box.program[-1]
    mounted = any(_PACKAGES.search(f"{mount.target}/") for mount in box.mounts)
    return mounted or bool(_CHANGES_ENGINE.search(script))


def _sparks(nodes: object) -> int:
    """A machine is one Spark; a word that is no small number says nothing."""
    return int(nodes) if isinstance(nodes, str) and re.fullmatch("[1-9][0-9]?", nodes) else 1


def _is_tail(word: Word) -> bool:
    """No command begins with a dash: this is the rest of one that ended too early."""
    return word.text.startswith("--") or (word.text.startswith("-") and len(word.text) > 1)


def _exports(line: ShellCommand) -> dict[str, Words]:
    """`export A=b`: the whole line says it when it says nothing else."""
    if line.texts[:1] != ("export",):
        return {}
    alone = line.words[:1] if len(line.words) == 2 else ()
    pairs = ((word.text.partition("="), word) for word in line.words[1:])
    return {name: (*alone, word.after(len(name) + 1)) for (name, equals, _), word in pairs if equals}


def _env_words(env: Mapping[str, Words]) -> dict[str, Words]:
    return {f"env:{name}": words for name, words in env.items()}


def _flag_words(args: Words, parsed: engines.ParsedCommandLine) -> dict[str, Words]:
    found = {f"flag:{name}": args[at : parsed.ends.get(name, at + 1)] for name, at in parsed.starts.items()}
    if "model" in parsed.starts:
        found["model"] = args[parsed.starts["model"] :][:1]
        found.pop("flag:model", None)
    return found


def _option_places(option: docker.DockerOption) -> Iterator[str]:
    yield f"option:{option.name}"
    if option.name == "env" and option.value:
        yield f"env:{option.value.partition('=')[0]}"


def _hint(image: str) -> EngineName | None:
    """The engine that an unknown image's name speaks of."""
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
        looks_like_model = known.entrypoint == () and bool(_HUB_ID.fullmatch(words[0]))
        return bool(known.entrypoint) or words[0].startswith("-") or looks_like_model
    return not words or words[0].startswith("-") or ("/" in words[0] and not programs.is_shell(words[0]))


def _said_after_entrypoint(engine: EngineName, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words that were meant to be a program, and that an engine's own entrypoint takes for arguments."""
    if words and programs.is_shell(words[0]):
        return words
    return words[:1] if engine == "vllm" and words[:1] in (("vllm",), ("serve",)) else ()


def _first_name(engine: EngineName, parsed: engines.ParsedCommandLine) -> str:
    """The first of several names: vLLM takes a list of them, llama.cpp commas."""
    names = parsed.flags.get(engines.grammar(engine).name_flag)
    if isinstance(names, str):
        return names.partition(",")[0]
    return str(names[0]) if isinstance(names, list) and names else ""


def _name(said: str, box: Container | None) -> tuple[str, Container | None]:
    """What users call it. firesteel's own label says it first; the label and the container name that
    were made from it are not kept."""
    if box is None:
        return said, box
    ours = box.labels.get("firesteel")
    if ours is None:
        return said or dict(box.options).get("name") or "", box
    labels = {name: value for name, value in box.labels.items() if name != "firesteel"}
    kept = tuple(option for option in box.options if option != ("name", container_name(ours)))
    return ours, replace(box, labels=labels, options=kept)


def _host(
    engine: EngineName, parsed: engines.ParsedCommandLine, box: Container | None
) -> Mapping[str, FlagValue]:
    """SGLang that is told nothing listens on 127.0.0.1, also where that means that nobody can reach it."""
    if engine == "sglang" and box is not None and "host" not in parsed.starts:
        return {**parsed.flags, "host": "127.0.0.1"}
    return parsed.flags


def _published_port(box: Container | None) -> int | None:
    match = _PORT_INSIDE.match(box.publish[0]) if box and len(box.publish) == 1 else None
    return int(match[1]) if match and 0 < int(match[1]) < 2**16 else None
