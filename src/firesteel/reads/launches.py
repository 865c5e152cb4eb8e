"""Text -> launches: the commands in it that start an engine, each with the places of its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from firesteel import engines
from firesteel.catalog import Image, Images, container_name, identify
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, FlagValue, Launch, Spot
from firesteel.reads import docker, fences, programs, shell
from firesteel.reads.shell import Line, Word

MAX_SPOT = 200
"""A place shows its line up to this many characters."""
MAX_LAUNCHES = 500
_MENTIONS = re.compile(r"\bvllm\b|llama-server|llama\s+serve|sglang|\b(docker|podman|nerdctl)\s")
_STARTS = re.compile(r"vllm\s+serve|llama-server|launch_server|\b(docker|podman|nerdctl)\s+run")
_PORT_INSIDE = re.compile(r"(?:.*:)?([0-9]{1,5})(?:/tcp)?\Z")
_DEPTH = 3
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a script or Markdown file with one"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A launch, and where its parts stand: `image`, `program`, `model`, `flag:NAME`, `env:NAME`,
    `option:NAME`."""

    launch: Launch
    spots: Mapping[str, Spot]


def read(text: str, path: str, images: Images) -> tuple[Reading, ...]:
    """Every launch in a command line, a script or a Markdown guide; at least one, or UsageError."""
    source = shell.normal(text, path)
    reader = _Reader(path, source.split("\n"), images)
    blocks = fences.blocks(source)
    problem = UsageError(f"{path} holds no command that starts an engine", next=_ACCEPTED)
    for first, block in ((1, source),) if blocks is None else blocks:
        try:
            lines = shell.split(block, path, first) if _MENTIONS.search(block) else ()
        except UsageError as error:  # a guide may have one odd block among good ones
            problem = error if _STARTS.search(block) else problem
        else:
            reader.read(lines)
    if not reader.found:
        raise problem
    return tuple(reader.found)


@dataclass(frozen=True, slots=True)
class _Started:
    """The engine that a command starts, and the words it is given."""

    engine: EngineName
    program: tuple[str, ...]
    args: tuple[Word, ...]
    first: Word | None = None
    env: Mapping[str, Word] | None = None


class _Reader:
    """Walks commands in order: what is exported by one is there for the next."""

    def __init__(self, path: str, source: Sequence[str], images: Images) -> None:
        self.path, self.source, self.images = path, source, images
        self.found: list[Reading] = []
        self.exported: dict[str, Word] = {}

    def read(self, lines: Sequence[Line], depth: int = 0) -> None:
        for line in lines:
            if len(self.found) > MAX_LAUNCHES:
                raise UsageError(
                    f"{self.path} holds more than {MAX_LAUNCHES} launches", next="give it in smaller parts"
                )
            self.exported.update(_exports(line))
            what = programs.find(line.texts)
            if what is None:
                continue
            kind, index = what
            if kind == "container":
                self.found += self.contained(line, index)
            elif kind == "engine":
                self.found.append(self.bare(line, index))
            elif depth < _DEPTH:
                script = line.words[index + (programs.script_at(line.texts[index:]) or 0)]
                self.read(self.inside(script), depth + 1)

    def inside(self, script: Word) -> tuple[Line, ...]:
        """The commands of a quoted script, on the lines where they stand in the source."""
        try:
            lines = shell.split(script.text, self.path, script.line)
        except UsageError:
            return ()
        at = script.line
        placed = []
        for line in lines:
            words = []
            for word in line.words:
                at = self.line_of(script.text[word.start : word.end], at)
                words.append(replace(word, line=at))
            placed.append(Line(tuple(words), line.env))
        return tuple(placed)

    def line_of(self, text: str, start: int, look: int = 60) -> int:
        """The line at or after `start` that holds `text`; a double-quoted script has lost its line ends."""
        for number in range(start, min(start + look, len(self.source) + 1)):
            if text in self.source[number - 1]:
                return number
        return start

    def bare(self, line: Line, index: int) -> Reading:
        """`vllm serve ...` on the host itself."""
        program = programs.engine_at(line.texts, index)
        assert program is not None, "find() saw it"
        end = index + program.words
        env = {**self.exported, **line.env}
        started = _Started(program.engine, line.texts[index:end], line.words[end:], line.words[index])
        return self.reading(started, {name: word.text for name, word in env.items()}, env)

    def contained(self, line: Line, index: int) -> Iterator[Reading]:
        """`docker run ... IMAGE ...`; nothing when the container starts no engine."""
        after = programs.container_run_at(line.texts, index) or 0
        given, at = docker.options(line.words[after:])
        image_at = after + at
        if image_at >= len(line.words):
            return
        image, rest = line.words[image_at], line.words[image_at + 1 :]
        known = identify(image.text, self.images)
        started = self.started(image.text, known, given, rest)
        if started is None:
            return
        box = docker.container(image.text, given, started.program)
        inner = started.env or {}
        env = {**docker.environment(given), **{name: word.text for name, word in inner.items()}}
        places = {name: word for option in given for name, word in _option_places(option)}
        places |= {f"env:{name}": word for name, word in inner.items()} | {"image": image}
        version = known.version if known and known.engine == started.engine else None
        yield self.reading(started, env, {}, box, version, places)

    def started(
        self, image: str, known: Image | None, given: Sequence[docker.Given], rest: Sequence[Word]
    ) -> _Started | None:
        """What runs inside: the words after the image, after `--entrypoint` or the image's own."""
        typed = next((option.value for option in reversed(given) if option.name == "entrypoint"), None)
        before = (typed,) if typed else ()
        words = (*before, *(word.text for word in rest))
        first = rest[0] if rest else None
        program = programs.engine_at(words)
        if program:
            taken = program.words - len(before)
            return _Started(program.engine, words[len(before) : program.words], tuple(rest[taken:]), first)
        script = programs.script_at(words)
        inside = self.scripted(words[len(before) : script], rest[script - len(before)]) if script else None
        if inside:
            return inside
        engine = known.engine if known else _hint(image)
        if engine is None or typed is not None or not _takes_arguments(known, words):
            return None
        said = _said_after_entrypoint(engine, words)
        return _Started(engine, said, tuple(rest[len(said) :]), first)

    def scripted(self, shell_words: tuple[str, ...], script: Word) -> _Started | None:
        """`bash -lc "pip install x && vllm serve ..."`: the program is the shell and all up to the engine."""
        exported: dict[str, Word] = {}
        for line in self.inside(script):
            exported.update(_exports(line))
            what = programs.find(line.texts)
            program = programs.engine_at(line.texts, what[1]) if what else None
            if what is None or program is None:
                continue
            end = what[1] + program.words
            prelude = script.text[: line.words[end - 1].end]
            env = {**exported, **line.env}
            return _Started(program.engine, (*shell_words, prelude), line.words[end:], script, env)
        return None

    def reading(
        self,
        started: _Started,
        env: Mapping[str, str],
        env_places: Mapping[str, Word],
        box: Container | None = None,
        version: str | None = None,
        places: Mapping[str, Word] | None = None,
    ) -> Reading:
        words = tuple(word.text for word in started.args)
        parsed = engines.parse(started.engine, words, contained=box is not None)
        at = {
            ("model" if name == "model" else f"flag:{name}"): started.args[i] for name, i in parsed.at.items()
        }
        at |= {f"env:{name}": word for name, word in env_places.items()} | dict(places or {})
        if started.first or "image" in at:
            at["program"] = started.first or at["image"]
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
            extra=parsed.extra,
        )
        return Reading(launch, {key: self.spot(word) for key, word in at.items()})

    def spot(self, word: Word) -> Spot:
        line = self.source[word.line - 1].strip().removesuffix("\\").rstrip()
        return Spot(self.path, word.line, line[:MAX_SPOT])


def _exports(line: Line) -> dict[str, Word]:
    if line.texts[:1] != ("export",):
        return {}
    pairs = ((word.text.partition("="), word) for word in line.words[1:])
    return {name: replace(word, text=value) for (name, equals, value), word in pairs if equals}


def _option_places(option: docker.Given) -> Iterator[tuple[str, Word]]:
    yield f"option:{option.name}", option.word
    if option.name == "env" and option.value:
        yield f"env:{option.value.partition('=')[0]}", option.word


def _hint(image: str) -> EngineName | None:
    """The engine that an unknown image's name speaks of."""
    hints: Mapping[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "llama": "llamacpp"}
    return next((engine for hint, engine in hints.items() if hint in image.lower()), None)


def _takes_arguments(known: Image | None, words: Sequence[str]) -> bool:
    """Whether the image's own entrypoint gets these words as an engine's arguments."""
    if known is not None:
        return bool(known.entrypoint)
    return not words or words[0].startswith("-") or ("/" in words[0] and not programs.is_shell(words[0]))


def _said_after_entrypoint(engine: EngineName, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words that were meant to be a program, and that an engine's own entrypoint takes for arguments."""
    if words and programs.is_shell(words[0]):
        return words
    return words[:1] if engine == "vllm" and words[:1] in (("vllm",), ("serve",)) else ()


def _first_name(engine: EngineName, parsed: engines.Parsed) -> str:
    """The first of several names: vLLM takes a list of them, llama.cpp commas."""
    names = parsed.flags.get(engines.grammar(engine).name)
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


def _host(engine: EngineName, parsed: engines.Parsed, box: Container | None) -> Mapping[str, FlagValue]:
    """SGLang that is told nothing listens on 127.0.0.1, also where that means that nobody can reach it."""
    if engine == "sglang" and box is not None and "host" not in parsed.at:
        return {**parsed.flags, "host": "127.0.0.1"}
    return parsed.flags


def _published_port(box: Container | None) -> int | None:
    match = _PORT_INSIDE.match(box.publish[0]) if box and len(box.publish) == 1 else None
    return int(match[1]) if match and 0 < int(match[1]) < 2**16 else None
