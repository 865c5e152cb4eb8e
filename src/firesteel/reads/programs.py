"""Recognizes commands that start an engine: `vllm serve`, `llama-server`, `python3 -m sglang.launch_server`,
`docker run` and its like, or a shell with one of these in its script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from firesteel.launch import EngineName
from firesteel.reads.leading_words import run_the_next
from firesteel.values import Value

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


def installed(words: Sequence[str]) -> tuple[EngineName, str] | None:
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


def _program_name(word: str) -> str:
    named = _NAMED_BY.match(word)
    return named[1].lower().replace("_", "-") if named else base_name(word)


def engine_at(words: Sequence[str], index: int = 0) -> Program | None:
    """The engine that starts at this word."""
    name, following = _program_name(_word(words, index)), _word(words, index + 1)
    if "ik_llama" in _word(words, index):
        return None  # a fork with flags of its own
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
        return False  # nobody gives a service two words for a name
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
