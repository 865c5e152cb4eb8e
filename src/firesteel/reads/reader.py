"""Commands -> launches: walks commands in order and reads those that start an engine.

What a command names in other files counts as well: `--env-file`, and the `--config FILE` of vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Container as Names
from collections.abc import Iterator, Mapping, Sequence

from firesteel.catalog.image import Images, identify
from firesteel.engines.engine import default_port, format_flag, grammar, parse_argv
from firesteel.engines.flags import ParsedCommandLine
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, FlagValue, Launch, Location, container_name
from firesteel.reads import docker, programs, variables
from firesteel.reads.docker import EngineStart
from firesteel.reads.programs import exports, find_engine, run_the_next, split_script
from firesteel.reads.shell import GLUED, ShellCommand, Word, unglued
from firesteel.reads.source_text import SourceFile, parse_env_file
from firesteel.reads.template import implied_word
from firesteel.values import Value, replace

MAX_LOCATION_CHARS = 200
"""Characters of a line that a location shows."""
MAX_LAUNCHES = 500
_CONTAINER_PORT = re.compile(r"(?:.*:)?([0-9]{1,5})(?:/tcp)?\Z")
_WRONG_DASH = re.compile("[\u2010-\u2015\u2212]{1,2}[a-z]")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/vllm-workspace/|/sgl-workspace/")
"""Where an image has its engine: a mount there replaces it."""
_SOURCE_TREE = re.compile(r"(?:^|[/:])(?:vllm|sglang)(?:/python)?/?(?::|$)")
"""A checkout in PYTHONPATH: Python imports it in place of what is installed."""
_CHANGES_ENGINE = re.compile(
    r"install\s[^&;|\n]*\b(?:vllm|sglang)|install\s[^&;|\n]*(?:-e|--editable)\s|git\s+(?:apply|checkout)|\bpatch\s"
)
_MAY_SKIP = re.compile(
    r"^[^\S\n]*(?:if|elif|else|case|for|while|until|function|\w+\s*\(\))|\b(?:docker|podman)\s+(?:rm|stop|kill|compose)\b",
    re.MULTILINE,
)
"""A script that may not run all of its commands, or that stops what it started."""
_FLAG = re.compile(r"--?[A-Za-z]")
_ELLIPSES = ("...", "\u2026")
_MAX_NESTED = 3
"""How deep scripts may contain scripts."""

Words = tuple[Word, ...]


class ReadLaunch(Value):
    """A launch, and the position of its parts: `image`, `program`, `model`, `flag:NAME`, `env:NAME`,
    `option:NAME`; and `flaw:NAME` where the text itself is broken: a `blank` after a backslash, flags `lost`
    behind the end of the command or `apart` from it where perhaps no shell reads them, a `dash` that is not a
    hyphen, a flag `glued` to its value as one word; or where a chart adds words of its own: `partial`."""

    launch: Launch
    locations: Mapping[str, Location]
    words: Mapping[str, Words] = {}
    """The words of each part, for a fix to change."""
    hardware: str = ""
    """The machine whose section of a recipe this is from."""
    minimum: Word | None = None
    """The oldest release that a recipe allows."""
    is_own_build: bool = False
    """The engine is not a release: patched, from a source tree, or in a container that is not seen here."""
    runs_with: str = ""
    """Launches of a text with the same name here run at the same time; empty: not known."""
    uncertainty: str = ""
    """Why this may not be what its words say; empty: nothing is unclear. See `stated.find_uncertainty`."""

    @property
    def line(self) -> int:
        """Where its program or its image stands."""
        place = self.locations.get("program") or self.locations.get("image")
        return (
            place.line if place else min((location.line for location in self.locations.values()), default=1)
        )

    @property
    def first_line(self) -> int:
        """Where its command begins; a variable may be exported long before."""
        own = (words[0].line for key, words in self.words.items() if words and not key.startswith("env:"))
        return min(own, default=self.line)

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line that it stands on."""
        lines = [word.line for words in self.words.values() for word in words] or [0]
        return min(lines), max(lines)


class LaunchReader:
    """Collects the launches of a file. A variable that one command exports is set for the next."""

    def __init__(self, file: SourceFile, images: Images, *, is_script: bool = False) -> None:
        self.file, self.images = file, images
        self.runs_all = is_script and not _MAY_SKIP.search(file.text)
        self.launches: list[ReadLaunch] = []
        self.exported: dict[str, Words] = {}
        self.installed: dict[EngineName, str] = {}
        self.is_exec = False
        """Inside of a script for `docker exec`."""
        self.is_for_shell = True
        """A shell reads the text as it stands: it is a script, or a block that is marked as one."""
        self.missing: list[tuple[Word, str]] = []
        """Files that launches depend on and that are not at hand, with what is lost."""
        self.problem: UsageError | None = None
        """The last error among parts of the file that cannot be read."""

    def read(self, commands: Sequence[ShellCommand], depth: int = 0) -> None:
        """Read the commands of a script."""
        known = variables.find_values(commands)
        last: int | None = None
        end: Word | None = None
        for command in variables.without_arrays(commands, known):
            if not command.words and not command.env:  # a parenthesis
                last = None
                continue
            command = variables.expand(command, known, self.file)
            self._check_limit()
            count = len(self.launches)
            # No command begins with a dash: this is the rest of one that ended too early.
            is_lost_flag = bool(command.words) and _FLAG.match(command.words[0].text) is not None
            if is_lost_flag and last is not None and end and self._continues(end, command.words[0]):
                self._add_flaw(last, self._cut_off(last, end, command.words[0]), command.words[0])
            else:
                self._read_command(command, depth)
            last = len(self.launches) - 1 if len(self.launches) > count else None
            end = command.words[-1] if command.words else None

    def _continues(self, last: Word, flag: Word) -> bool:
        """Whether the flag was meant to belong to the command before it: it stands on the next line, or
        behind a backslash that a comment made useless. Guides also show flags on their own."""
        between = self.file.text[last.span[1] : flag.span[0]]
        return between.count("\n") == 1 or "\\" in between

    def _cut_off(self, index: int, last: Word, flag: Word) -> str:
        """`lost` where a shell reads the lines, as backslashes show; else, and below dots, `apart`."""
        lines = map(self.file.line, range(self.launches[index].first_line, flag.line))
        is_for_shell = self.is_for_shell or any(line.rstrip().endswith("\\") for line in lines)
        return "lost" if is_for_shell and self.file.line(last.line).strip() not in _ELLIPSES else "apart"

    def start(self, start: EngineStart) -> None:
        """Read what a file describes."""
        self._check_limit()
        count = len(self.launches)
        if start.missing:
            self.missing.append((start.missing, f"the service extends `{start.missing.text}`"))
        if start.image is None:
            before, self.exported = self.exported, {name: (word,) for name, word in start.env.items()}
            self._read_command(ShellCommand(start.arguments), 0)
            self.exported = before
        else:
            self.launches += self._container_launch(start, start.image)
        self.launches[count:] = [
            replace(
                launch,
                hardware=start.hardware,
                minimum=start.minimum,
                runs_with=start.runs_with or launch.runs_with,
            )
            for launch in self.launches[count:]
        ]
        if start.is_partial and start.image:
            for index in range(count, len(self.launches)):
                self._add_flaw(index, "partial", start.image)

    def _check_limit(self) -> None:
        if len(self.launches) > MAX_LAUNCHES:
            raise UsageError(f"{self.file.path} has more than {MAX_LAUNCHES} launches", next="split the file")

    def _add_flaw(self, index: int, name: str, word: Word) -> None:
        launch = self.launches[index]
        locations = {**launch.locations, f"flaw:{name}": self._location(word)}
        self.launches[index] = replace(
            launch, locations=locations, words={**launch.words, f"flaw:{name}": (word,)}
        )

    def _read_command(self, command: ShellCommand, depth: int) -> None:
        texts = command.texts
        self.exported.update(exports(command))
        self.installed.update([pair] if (pair := programs.installed_engine(texts)) else [])
        for word in command.env.values():
            if depth < _MAX_NESTED and word.text.startswith("$(") and word.text.endswith(")"):
                self.read(split_script(word.content.part(2, len(word.text) - 1), self.file), depth + 1)
        kind, index = programs.find(texts) or ("", 0)
        if not kind:
            return
        count = len(self.launches)
        if kind == "container":
            first = programs.container_run_at(texts, index) or 0
            self.launches += self._container_run(command.words[first:])
        elif kind == "engine":
            self.launches.append(self._process_launch(command, index))
        elif depth < _MAX_NESTED:
            script = command.words[index + (programs.script_at(texts[index:]) or 0)]
            before, self.is_exec = self.is_exec, self.is_exec or programs.is_exec(texts[:index])
            self.read(split_script(script.content, self.file), depth + 1)
            self.is_exec = before
        if command.broken and len(self.launches) > count:
            self._add_flaw(count, "blank", command.broken)
        if not run_the_next(texts[:index]):
            why = f"what `{texts[0][:40]}` does with it is not known"
            self.launches[count:] = [
                replace(launch, uncertainty=why, is_own_build=True) for launch in self.launches[count:]
            ]

    def _container_run(self, words: Words) -> Iterator[ReadLaunch]:
        """The words after `docker run`. `$EXTRA` in front of the image may be options or nothing: it is the
        image only where an engine follows it."""
        options, image = docker.parse_options(words)
        while image < len(words):
            is_detached = self.runs_all and any(option.name == "detach" for option in options)
            launches = tuple(
                replace(launch, runs_with="script" if is_detached else "")
                for launch in self._container_launch(
                    EngineStart(words[image + 1 :], options=options), words[image]
                )
            )
            if launches or not variables.is_variable(words[image].text):
                yield from launches
                return
            more, next_image = docker.parse_options(words[image + 1 :])
            options, image = (*options, *more), image + 1 + next_image

    def _process_launch(self, command: ShellCommand, index: int) -> ReadLaunch:
        """`vllm serve ...` on the host itself."""
        program = programs.engine_at(command.texts, index)
        assert program is not None, "programs.find() recognized it"
        end = index + program.length
        env = {**self.exported, **{name: (word,) for name, word in command.env.items()}}
        ellipses = tuple(word for word in command.words[:index] if word.text in _ELLIPSES)
        start = EngineStart(
            (*command.words[end:], *ellipses),
            engine=program.engine,
            program=command.texts[index:end],
            program_words=command.words[index:end],
        )
        texts = {name: words[-1].text for name, words in env.items()}
        version = self.installed.get(program.engine)
        launch = self._launch(start, program.engine, texts, _env_words(env), version=version)
        is_exec = self.is_exec or programs.is_exec(command.texts[:index])
        # `"$LLAMA_SERVER" -m FILE`: the variable chooses the build.
        is_chosen = programs.is_chosen(command.texts[index])
        is_unseen = is_exec or is_chosen or _SOURCE_TREE.search(texts.get("PYTHONPATH", ""))
        return replace(launch, is_own_build=version is None and bool(is_unseen))

    def _container_launch(self, start: EngineStart, image: Word) -> Iterator[ReadLaunch]:
        """`docker run ... IMAGE ...`; nothing when the container starts no engine."""
        options = (*self._env_files(start.options), *start.options)
        known = identify(image.text, self.images)
        found = find_engine(replace(start, options=options), image.text, self.images, self.file)
        if found is None or found.engine is None:
            return
        container = docker.build_container(image.text, options, found.program)
        env = {**docker.environment(options), **{name: word.text for name, word in found.env.items()}}
        words = {key: option.words for option in options for key in _option_keys(option)}
        words |= _env_words({name: (word,) for name, word in found.env.items()}) | {"image": (image,)}
        version = known.version if known and known.engine == found.engine else None
        is_own_build = _SOURCE_TREE.search(env.get("PYTHONPATH", "")) is not None
        if _replaces_engine(container):
            version = found.installed
            is_own_build = version is None
        # An unknown image may listen where its port is published; others listen where their flags say.
        is_default = known is not None and known.configured_by != "env"
        published = None if is_default else _published_port(container)
        launch = self._launch(found, found.engine, env, words, container, version, published)
        yield replace(launch, is_own_build=is_own_build)

    def _env_files(self, options: Sequence[docker.DockerOption]) -> Iterator[docker.DockerOption]:
        """`--env-file`: its variables, with the position of the option."""
        for option in options:
            file = self.file.sibling(option.value) if option.name == "env-file" and option.value else None
            for name, value in parse_env_file(file.text).items() if file else ():
                yield docker.DockerOption("env", f"{name}={value}", option.following or option.word)

    def _with_config(self, words: Words, engine: EngineName, container: Container | None) -> Words:
        """`--config FILE`: its keys are flags, unless the command line also has them."""
        texts = tuple(word.text for word in words)
        if engine == "llamacpp" or not any(text.startswith("--config") for text in texts):
            return words
        parsed = parse_argv(engine, texts, contained=container is not None)
        path, index = parsed.flags.get("config"), parsed.starts.get("config", 0)
        if not isinstance(path, str):
            return words
        near = words[index]
        name = host_path(path, container)
        file = self.file.sibling(name)
        if file is None:
            self.missing.append((near, f"the flags in `{path}`"))
            return words
        given = {*parsed.flags, *parsed.starts}
        more = config_arguments(file, engine, given)
        return (*words, *(implied_word(text, near) for text in more))

    def _launch(
        self,
        start: EngineStart,
        engine: EngineName,
        env: Mapping[str, str],
        words: Mapping[str, Words],
        container: Container | None = None,
        version: str | None = None,
        published: int | None = None,
    ) -> ReadLaunch:
        arguments = self._with_config(start.arguments, engine, container)
        args = tuple(part for word in arguments for part in unglued(word))
        texts = tuple(word.text for word in args)
        parsed = parse_argv(engine, texts, contained=container is not None)
        words = {**words, **_flag_words(args, parsed)}
        if start.program_words or "image" in words:
            words["program"] = start.program_words or words["image"]
        wrong_dash = next((word for word in arguments if _WRONG_DASH.match(word.text)), None)
        if wrong_dash:
            words["flaw:dash"] = (wrong_dash,)
        glued = next((word for word in arguments if GLUED.match(word.text)), None)
        if glued:
            words["flaw:glued"] = (glued,)
        served_name = parsed.name or _first_name(engine, parsed) or parsed.model
        name, container = _name(served_name, container)
        launch = Launch(
            name=name,
            model=parsed.model,
            engine=engine,
            version=version,
            flags=_with_default_host(engine, parsed, container),
            env=env,
            port=parsed.port or published or default_port(engine),
            container=container,
            sparks=_sparks(parsed.flags.get("nnodes")),
            extra=parsed.extra,
        )
        return ReadLaunch(launch, {key: self._location(part[0]) for key, part in words.items()}, words)

    def _location(self, word: Word) -> Location:
        line = self.file.line(word.line).strip().removesuffix("\\").rstrip()
        return Location(self.file.path, word.line, line[:MAX_LOCATION_CHARS], word.column)


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


def _env_words(env: Mapping[str, Words]) -> dict[str, Words]:
    return {f"env:{name}": words for name, words in env.items()}


def _flag_words(args: Words, parsed: ParsedCommandLine) -> dict[str, Words]:
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


def _first_name(engine: EngineName, parsed: ParsedCommandLine) -> str:
    """The first of several names: vLLM takes a list of them, llama.cpp a comma-separated string."""
    names = parsed.flags.get(grammar(engine).name_flag)
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
    engine: EngineName, parsed: ParsedCommandLine, container: Container | None
) -> Mapping[str, FlagValue]:
    """SGLang listens on 127.0.0.1 by default, also in a container, where no client can reach it. An image
    that is given no arguments may start anything."""
    if engine == "sglang" and container is not None and parsed.starts and "host" not in parsed.starts:
        return {**parsed.flags, "host": "127.0.0.1"}
    return parsed.flags


def _published_port(container: Container | None) -> int | None:
    published = container.publish if container else ()
    match = _CONTAINER_PORT.match(published[0]) if len(published) == 1 else None
    return int(match[1]) if match and 0 < int(match[1]) < 2**16 else None


def host_path(path: str, container: Container | None) -> str:
    """Where a file that a container sees is on the host; its own name where no mount has it."""
    for mount in container.mounts if container else ():
        if path == mount.target:
            return mount.source
        if path.startswith(f"{mount.target.rstrip('/')}/"):
            return f"{mount.source.rstrip('/')}/{path[len(mount.target.rstrip('/')) + 1 :]}"
    return path


def config_arguments(file: SourceFile, engine: EngineName, given: Names[str]) -> Iterator[str]:
    """The arguments that the file stands for, without those that are given; none where it is not YAML.

    A key is a flag, a list or a mapping its JSON, `true` a switch. The command line wins over the file.
    Seen in vLLM `utils/argparse_utils.py` (`load_config_file`) and SGLang `server_args_config_parser.py`,
    2026-11-16.
    """
    from firesteel.reads.yaml_nodes import parse_documents  # PyYAML, which few launches need

    try:
        documents = parse_documents(file)
    except UsageError:
        return
    for document in documents[:1]:
        for key, node in document.items():
            name = key.replace("_", "-")
            value = node.plain_value()
            if name in given or value is None:
                continue
            if name in ("model-tag", "model") and isinstance(value, str):
                if "model" not in given:
                    yield from ("--model", value)
                continue
            known = value if isinstance(value, str | bool | dict | list) else str(value)
            yield from format_flag(engine, name, known)
