"""Recognizes commands that start an engine: `vllm serve`, `llama-server`, `python3 -m sglang.launch_server`,
`docker run` and its like, or a shell with one of these in its script.

`sudo -u llm nohup llama-server` starts a server, `systemctl restart llama-server` and `cmake --target
llama-server` do not, and which build `./launch-cluster.sh exec vllm serve` runs is not known. So the
programs that run another one are listed, each with the words that it takes first. Which engine a container
starts is decided by its arguments, by `--entrypoint`, then by the image's own entrypoint.
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
from firesteel.reads import docker, shell, variables
from firesteel.reads.docker import EngineStart
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.values import Value, replace

_MODULES: dict[str, EngineName] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
}
_SHELLS = {"bash", "sh", "zsh", "dash"}
_SSH_VALUES = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""Options of ssh that take a value."""
_PYTHON = re.compile(r"python(3(\.\d+)?)?\Z|\$\{?\w+\}?\Z")
"""An interpreter, or a variable that may name one: `"$PYTHON" -m vllm.entrypoints...`."""
_NAMED_BY = re.compile(r"\$\{?\w*?(VLLM|SGLANG|LLAMA_SERVER)(_BIN|_EXE|_CMD|_PATH)?\}?\Z")
"""A variable whose name says which program it is: `"$LLAMA_SERVER" -m FILE`, `$VLLM_BIN serve MODEL`."""
_SCRIPT_OPTION = re.compile(r"-[a-z]*c\Z")
_NOT_STARTING = frozenset({
    "echo", "printf", "grep", "egrep", "pgrep", "which", "man", "pip", "pip3", "cat", "alias", "find", "ls",
    "cp", "mv", "rm",
})  # fmt: skip
_PROSE = re.compile(r"[A-Za-z]")
"""llama-server takes flags only."""
_LOOK_AHEAD = 24
_STARTING = ("vllm", "sglang", "llama", "docker", "podman", "nerdctl", "sh", "eval", "tmux")
"""One of which every command has that starts something: an engine, a container, a script."""
_INSTALLERS = frozenset({"pip", "pip3", "uv", "uvx", "pipx"})
_PACKAGES: dict[str, EngineName] = {"vllm": "vllm", "sglang": "sglang"}
_BUILD = re.compile(r"b(\d{4,6})")
_PINNED = re.compile(r"(vllm|sglang)(?:\[[\w,-]*\])?==(\d+\.\d+[\w.]*)")

_DOCKER_SWITCHES = frozenset({"-D", "--debug", "--tls", "--tlsverify", "--remote", "-r"})
"""Global options of docker and podman that take no value."""
CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl", "nvidia-docker"})


class Program(Value):
    engine: EngineName
    length: int
    """How many words name it."""


def base_name(word: str) -> str:
    return word.rpartition("/")[2]


def is_shell(word: str) -> bool:
    return base_name(word) in _SHELLS


def _word(words: Sequence[str], index: int) -> str:
    return words[index] if index < len(words) else ""


def installed_engine(words: Sequence[str]) -> tuple[EngineName, str] | None:
    """The engine and version that a command installs: `pip install vllm==0.12.0`."""
    if words[:2] == ("git", "checkout") and len(words) > 2 and (build := _BUILD.fullmatch(words[2])):
        return "llamacpp", build[1]
    if not any(base_name(word) in _INSTALLERS for word in words[:4]):
        return None
    pinned = next((match for word in words if (match := _PINNED.fullmatch(word))), None)
    return (_PACKAGES[pinned[1]], pinned[2]) if pinned else None


def is_chosen(word: str) -> bool:
    """Whether a variable without a known value names the program."""
    return _NAMED_BY.match(word) is not None


def engine_at(words: Sequence[str], index: int = 0) -> Program | None:
    """The engine that starts at this word."""
    word, following = _word(words, index), _word(words, index + 1)
    named = _NAMED_BY.match(word)
    name = named[1].lower().replace("_", "-") if named else base_name(word)
    if "ik_llama" in word:
        return None  # a fork with other flags
    if name == "llama-server":
        return Program("llamacpp", 1)
    if name == "llama" and following in ("serve", "server"):
        return Program("llamacpp", 2)
    if name == "vllm" and following == "serve":
        return Program("vllm", 2)
    if name == "sglang" and following == "serve":
        return Program("sglang", 2)
    if _PYTHON.match(name):
        # The installed `vllm` is a script: python3 /usr/local/bin/vllm serve
        script = engine_at(words, index + 1) if "/" in following else None
        return Program(script.engine, script.length + 1) if script else _module_at(words, index)
    return None


def _module_at(words: Sequence[str], index: int) -> Program | None:
    """`python3 -u -m module`, and `serve` after vLLM's own command line."""
    for option in range(index + 1, min(index + 4, len(words) - 1)):
        if words[option] != "-m":
            continue
        engine = _MODULES.get(words[option + 1])
        if engine is None:
            return None
        is_command_line = words[option + 1].endswith("cli.main")  # of which `bench serve` is a client
        if is_command_line and _word(words, option + 2) != "serve":
            return None
        return Program(engine, option + 2 - index + is_command_line)
    return None


def script_at(words: Sequence[str]) -> int | None:
    """The index of the script in `bash -lc SCRIPT` or `ssh host SCRIPT`."""
    if words and base_name(words[0]) == "ssh":
        return _remote_script_at(words)
    if words and words[0] == "eval":
        return 1 if len(words) == 2 else None
    if words and base_name(words[0]) == "tmux":
        return len(words) - 1 if " " in words[-1] else None
    if words and is_shell(words[0]):
        for index in range(1, min(len(words) - 1, 4)):
            if _SCRIPT_OPTION.match(words[index]):
                rest = range(index + 1, len(words))
                return next((after for after in rest if not words[after].startswith("-")), None)
    return None


def _remote_script_at(words: Sequence[str]) -> int | None:
    """The script after the host, where that is one quoted word."""
    index = 1
    while _word(words, index).startswith("-"):
        letters = words[index][1:]
        first = next((position for position, letter in enumerate(letters) if letter in _SSH_VALUES), None)
        index += 2 if first == len(letters) - 1 else 1  # its value is the next word, or the rest of this one
    return index + 1 if len(words) == index + 2 else None


def container_run_at(words: Sequence[str], index: int) -> int | None:
    """The index of the first word after `docker run`."""
    if base_name(words[index]) not in CONTAINER_TOOLS:
        return None
    after = index + 1
    while _word(words, after).startswith("-"):
        after += 1 if "=" in words[after] or words[after] in _DOCKER_SWITCHES else 2
    if _word(words, after) == "container":
        after += 1
    return after + 1 if _word(words, after) in ("run", "create") else None


def is_exec(words: Sequence[str]) -> bool:
    """`docker exec -it NAME`, `kubectl exec POD --`: what follows runs in a running container."""
    tools = CONTAINER_TOOLS | {"docker-compose", "kubectl", "oc"}
    return any(base_name(tool) in tools and "exec" in words[i + 1 : i + 5] for i, tool in enumerate(words))


def _is_only_named(words: Sequence[str], index: int, program: Program) -> bool:
    """`systemctl restart llama-server`, and a sentence that begins with `llama-server accepts`."""
    if program.length > 1:
        return False  # the name of a service is one word
    return _PROSE.match(_word(words, index + 1)) is not None or not run_the_next(words[:index])


def find(words: Sequence[str]) -> tuple[str, int] | None:
    """What a command starts and at which word: `container`, `engine` or `script`.

    `sudo`, `env`, `time`, `ssh host` and the like may stand in front; a command that only mentions an engine
    (`echo vllm serve`) starts none. `ssh host 'vllm serve ...'` is a script.
    """
    words = words[: _LOOK_AHEAD + 6]
    text = " ".join(words).lower()
    if not any(name in text for name in _STARTING):
        return None
    if base_name(words[0]) in _NOT_STARTING:
        return None
    for index in range(min(len(words), _LOOK_AHEAD)):
        if container_run_at(words, index) is not None:
            return "container", index
        program = engine_at(words, index)
        if program is not None and not _is_only_named(words, index, program):
            return "engine", index
        if script_at(words[index:]) is not None:
            return "script", index
    return None


_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "builtin"})
_TRACE = re.compile(r"\++\Z|\$\Z|%\Z|>\Z")
"""What a shell prints in front of a command: a prompt, or `+` of `set -x`."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$")
_ANY = "*"
_RUNNERS: dict[str, tuple[int, str]] = {
    "sudo": (0, "ugCDhprtTU"), "doas": (0, "uC"), "env": (0, "uCS"), "nohup": (0, ""), "exec": (0, "a"),
    "command": (0, ""), "eval": (0, ""), "time": (0, "fo"), "setsid": (0, ""), "nice": (0, "n"),
    "ionice": (0, "cnp"), "chrt": (1, ""), "taskset": (1, ""), "numactl": (0, _ANY), "timeout": (1, "ks"),
    "stdbuf": (0, "ioe"), "unbuffer": (0, ""), "flock": (1, "wE"), "caffeinate": (0, ""),
    "uv": (2, _ANY), "uvx": (0, _ANY), "pipx": (1, _ANY), "poetry": (1, _ANY), "pdm": (1, _ANY),
    "hatch": (1, _ANY), "pixi": (1, _ANY), "conda": (1, _ANY), "mamba": (1, _ANY), "micromamba": (1, _ANY),
    "nsys": (1, _ANY), "ncu": (0, _ANY), "rocprof": (0, _ANY), "rocprofv3": (0, _ANY), "perf": (1, _ANY),
    "strace": (0, _ANY), "gdb": (0, _ANY), "valgrind": (0, _ANY), "py-spy": (1, _ANY),
    "srun": (0, _ANY), "mpirun": (0, _ANY), "mpiexec": (0, _ANY), "torchrun": (0, _ANY),
    "ssh": (1, _ANY), "sshpass": (0, _ANY), "apptainer": (2, _ANY), "singularity": (2, _ANY),
    "tini": (0, "pesg"), "dumb-init": (0, ""), "gosu": (1, ""), "su-exec": (1, ""), "runuser": (1, _ANY),
    "setpriv": (0, _ANY), "chroot": (1, _ANY), "with-contenv": (0, ""), "opentelemetry-instrument": (0, _ANY),
    "systemd-run": (0, _ANY), "systemd-cat": (0, _ANY), "systemd-inhibit": (0, _ANY), "screen": (0, _ANY),
    "tmux": (1, _ANY), "nix": (2, _ANY), "wsl": (0, _ANY), "xvfb-run": (0, _ANY),
}  # fmt: skip
"""How many words each takes before the program, and the letters of options that take a value."""
_NEED_THEIR_WORDS = frozenset({"ssh", "timeout", "flock", "gosu", "su-exec"})
"""Without these words they do not run what follows, but take it for them."""
_WITH_VALUE = frozenset({
    "--user", "--group", "--env", "--env-file", "--workdir", "--name", "--namespace", "--container",
    "--context", "--entrypoint", "--file", "--project-name", "--volume", "--publish", "--kill-after",
    "--chdir",
})  # fmt: skip
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl", "docker-compose", "podman-compose"})
_PODS = frozenset({"kubectl", "oc"})


def run_the_next(words: Sequence[str]) -> bool:
    """Whether these words only run what follows them."""
    index = 0
    while index < len(words):
        name = words[index].rpartition("/")[2]
        if name in _KEYWORDS or _TRACE.match(name) or _ASSIGNMENT.match(name) or _VARIABLE.match(name):
            index += 1
        elif name in _CONTAINER_TOOLS | _PODS:
            own = _words_of_container_tool(words[index + 1 :])
            index, missing = _after(words, index + 1, own or 0, "cefnpuvw")
            if own is None or missing:  # `docker exec llama-server ls`
                return False
        elif name in _RUNNERS and not _only_asks(name, words[index + 1 :]):
            index, missing = _after(words, index + 1, *_RUNNERS[name])
            if missing and name in _NEED_THEIR_WORDS:
                return False
        else:
            return False
    return True


def _only_asks(name: str, following: Sequence[str]) -> bool:
    """`command -v llama-server` says where it is."""
    return name == "command" and bool(following) and following[0] in ("-v", "-V")


def _words_of_container_tool(following: Sequence[str]) -> int | None:
    """`exec NAME`, `compose run SERVICE`: what follows runs in that container. Others only look at one."""
    plain = [word for word in following if not word.startswith("-")][:4]
    if plain[:1] == ["compose"]:
        return 3 if {"exec", "run"} & set(plain[1:]) else None
    return 2 if {"exec", "run"} & set(plain) else None


def _after(words: Sequence[str], index: int, own: int, letters: str) -> tuple[int, int]:
    """The index after the options of a program and after its own words, and how many of these are missing."""
    while index < len(words):
        word = words[index]
        if word == "--":
            return index + 1, own
        if word.startswith("-") and len(word) > 1:
            is_named = word in _WITH_VALUE if word.startswith("--") else word[-1] in letters
            takes_value = "=" not in word and (letters == _ANY or is_named)
            is_value = takes_value and index + 1 < len(words) and not words[index + 1].startswith("-")
            index += 2 if is_value else 1
        elif _ASSIGNMENT.match(word) or _VARIABLE.match(word) or word[:1].isdigit():
            own -= not _ASSIGNMENT.match(word) and own > 0
            index += 1
        elif own:
            own -= 1
            index += 1
        else:
            break
    return index, own


Words = tuple[Word, ...]

_WRAPPERS = frozenset(
    {"env", "exec", "numactl", "taskset", "nice", "stdbuf", "time", "tini", "dumb-init", "uv", "uvx", "nsys",
     "ncu", "opentelemetry-instrument", "gosu", "sudo", "setpriv", "with-contenv"}
)  # fmt: skip
"""Programs that start the program after their own options."""
_TOOLS_IMAGE = re.compile(r"llama\.cpp:(?:full|light)")
"""Images of llama.cpp whose entrypoint is not a server, but `llama-cli` or a script that knows `--server`.
Seen in ggml-org/llama.cpp `.devops/tools.sh` and `.devops/cuda.Dockerfile`, 2026-11-16."""
_MODEL_FLAGS = ("--model", "--model-path", "-m", "-hf", "--hf-repo")


def find_engine(start: EngineStart, image: str, images: Images, file: SourceFile) -> EngineStart | None:
    """The start of a container with its engine, program and the engine's own arguments. None: it starts no
    engine, or nothing says which.

    An unknown image is taken for an engine's by its name, or by its arguments: flags that only one engine
    has.
    """
    arguments = start.arguments
    values = (option.value for option in reversed(start.options) if option.name == "entrypoint")
    entrypoint = next(values, None)
    before = (entrypoint,) if entrypoint else ()
    texts = (*before, *(word.text for word in arguments))
    first, program = _program(texts)
    if program:
        taken = first + program.length - len(before)
        names = texts[len(before) : first + program.length]
        return _with_engine(start, program.engine, names, taken, max(taken, 1))
    index = script_at(texts)
    if index:
        env = {name: (word,) for name, word in docker.environment_words(start.options).items()}
        script = arguments[index - len(before)]
        in_script = engine_in_script(start, texts[len(before) : index], script, env, file)
        if in_script:
            return in_script
    if entrypoint is not None:
        return None
    if _TOOLS_IMAGE.search(image):
        is_server = texts[:1] in (("--server",), ("-s",))
        return _with_engine(start, "llamacpp", texts[:1], 1, 1) if is_server else None
    known = identify(image, images)
    if known is None and other_image(image, images):
        return None
    engine = known.engine if known else _guess_engine(image)
    if engine is None or not _takes_arguments(known, texts):
        engine = None if known else _engine_of_flags(texts)
    if engine is None:
        return None
    # Words that were meant as a program, but that the entrypoint of the engine takes for arguments.
    mistaken: tuple[str, ...] = ()
    if texts and is_shell(texts[0]):
        mistaken = texts
    elif engine == "vllm" and texts[:1] in (("vllm",), ("serve",)):
        mistaken = texts[:1]
    return _with_engine(start, engine, mistaken, len(mistaken), max(len(mistaken), 1))


def _with_engine(
    start: EngineStart, engine: EngineName, program: tuple[str, ...], taken: int, named: int
) -> EngineStart:
    """The start without the first arguments, which name the program; `named` of them stand for it."""
    arguments, words = start.arguments[taken:], start.arguments[:named]
    return replace(start, engine=engine, program=program, arguments=arguments, program_words=words)


def _program(texts: Sequence[str]) -> tuple[int, Program | None]:
    """The engine's program, and the index of its first word: 0, or behind `numactl` and its like."""
    if texts and base_name(texts[0]) in _WRAPPERS:
        found = find(texts)
        if found and found[0] == "engine":
            return found[1], engine_at(texts, found[1])
    return 0, engine_at(texts)


def engine_in_script(
    start: EngineStart, shell_words: tuple[str, ...], script: Word, env: variables.Values, file: SourceFile
) -> EngineStart | None:
    """`bash -lc "pip install x && vllm serve ..."`: the program is the shell and everything up to the
    engine."""
    exported: dict[str, Words] = {}
    commands = split_script(script.content, file)
    known = {**variables.without_secrets(env), **variables.find_values(commands)}
    installed: dict[EngineName, str] = {}
    for command in (variables.expand(command, known, file) for command in commands):
        exported.update(exports(command))
        installed.update([pair] if (pair := installed_engine(command.texts)) else [])
        found = find(command.texts)
        program = engine_at(command.texts, found[1]) if found else None
        if found is None or program is None:
            continue
        end = found[1] + program.length
        return replace(
            start,
            engine=program.engine,
            program=(*shell_words, script.text[: command.words[end - 1].end]),
            arguments=command.words[end:],
            program_words=(script,),
            env={**{name: words[-1] for name, words in exported.items()}, **command.env},
            installed=installed.get(program.engine),
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
    return not words or words[0].startswith("-") or ("/" in words[0] and not is_shell(words[0]))


def _engine_of_flags(words: Sequence[str]) -> EngineName | None:
    """The only engine whose newest release has all of these flags; they must name a model and more. A letter
    (`-b`) says nothing, since every program has some."""
    rest = words[1:] if words and words[0] == "serve" else words
    flags = [word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)]
    first = rest[0] if rest else ""
    may_be_model = is_hub_id(first) or variables.is_variable(first)
    has_model = may_be_model or any(flag in _MODEL_FLAGS for flag in flags)
    if not has_model or not any(flag.startswith("--") for flag in set(flags) - set(_MODEL_FLAGS)):
        return None
    fitting = [
        engine
        for engine in _ENGINES
        if (schema := _newest_schema(engine))
        and all(isinstance(resolve_flag(schema, flag), ResolvedFlag) for flag in flags)
    ]
    return fitting[0] if len(fitting) == 1 else None


_ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")


@cache
def _newest_schema(engine: EngineName) -> Schema | None:
    return find_schema(engine, known_versions(engine)[-1])
