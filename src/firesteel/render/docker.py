"""Launch -> `docker run`: one list of arguments, to run as it is or to print for pasting.

In the printed form the shell still expands `~/` at the start of a word and plain `$NAME`, `${NAME}`,
`$(pwd)`, `$(id -u)`, `$(id -g)`; everything else is quoted. An environment variable whose value is `$ITSELF`
is passed on by name, so no secret is ever printed. `reads.read` is the inverse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import cycle, takewhile

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Image, identify
from firesteel.catalog.launches import in_container
from firesteel.engines import engine
from firesteel.engines.engine import argv
from firesteel.errors import UsageError
from firesteel.launch import SWITCHES, Command, Container, EngineName, Launch, container_name
from firesteel.reads.docker import docker_size, mount_argument
from firesteel.render.launch_facts import (
    LaunchFacts,
    comments,
    heading,
    host_folders,
    is_passed_through,
    pin,
    required_key,
    warm_notes,
)

Group = tuple[str, ...]
"""Arguments that belong on one line."""

_OFFICIAL: Mapping[EngineName, str] = {
    "vllm": "vllm/vllm-openai:v{version}",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp:server",
    "sglang": "lmsysorg/sglang:v{version}",
}
SHELL_EXPANSION = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Za-z_]\w*|\$\((?:pwd|id -u|id -g)\)")
ENGINE_JSON = re.compile(r"[\[{]")


def docker(launch: Launch, facts: LaunchFacts | None = None) -> str:
    """A `docker run` to paste, one option on each line. A child process is shown in its official image.

    A shell allows no comment between the lines of a command, so all comments come before it.
    """
    if facts:
        launch = pin(launch, facts)
    head = (
        "".join(f"{line}\n" for line in comments(heading(launch, facts, with_reasons=True))) if facts else ""
    )
    if not launch.container:
        program = " ".join(engine.program(launch.engine))
        head += f"# firesteel runs this as a child process (`{program}`); this is its official image\n"
    launch = containerized(launch)
    lines = argument_groups(launch, detach=True)
    key, folders = required_key(launch), host_folders(launch)
    if facts:
        head += "".join(f"{line}\n" for line in comments(warm_notes(launch)))
    head += f': "${{{key}:?export it first}}" && \\\n' if key else ""
    head += f"mkdir -p {' '.join(map(quote, folders))} && \\\n" if folders else ""
    return head + " \\\n  ".join(" ".join(quote(word) for word in group) for group in lines) + "\n"


def docker_argv(launch: Launch, *, detach: bool = True) -> Command:
    """The same arguments, to run without a shell; the caller replaces `~` by the user's home."""
    lines = argument_groups(containerized(launch), detach=detach)
    return Command(tuple(word for group in lines for word in group))


def containerized(launch: Launch) -> Launch:
    """The launch in a container; a child process moves into the official image of its engine."""
    return launch if launch.container else in_container(launch, _official(launch))


def _official(launch: Launch) -> Image:
    """The image that the engine's project publishes, of the launch's version where tags have one."""
    reference = _OFFICIAL[launch.engine].format(version=launch.version)
    image = identify(reference, shipped().images)
    if image is None:
        version = launch.version or "of unknown version"
        raise UsageError(
            f"no image is known for `{launch.name}`, which runs {launch.engine} {version}",
            next="give a `docker run` line, or a recipe with an image",
        )
    return image


def container_of(launch: Launch) -> Container:
    """The container of a launch that is `containerized`."""
    assert launch.container is not None
    return launch.container


def argument_groups(launch: Launch, *, detach: bool) -> list[Group]:
    """The arguments of `docker run`, grouped by line."""
    container = container_of(launch)
    has_name = "name" in dict(container.options)
    start = ("docker", "run", "-d") if detach else ("docker", "run")
    groups: list[Group] = [start if has_name else (*start, "--name", container_name(launch.name))]
    groups.append(("--label", f"firesteel={launch.name}"))
    groups += [("--label", f"{name}={value}") for name, value in container.labels.items()]
    groups += _options(container)
    groups += [
        ("-e", name if is_passed_through(name, value) else f"{name}={value}")
        for name, value in launch.env.items()
    ]
    if container.entrypoint is not None:
        groups.append((f"--entrypoint={container.entrypoint}",))
    first, *rest = container_arguments(launch, container)
    return (
        [*groups, (container.image,), first]
        if is_script(container.program)
        else [*groups, (container.image, *first), *rest]
    )


def _options(container: Container) -> list[Group]:
    shm = None if container.shm_bytes is None else docker_size(container.shm_bytes)
    single = {
        "gpus": container.gpus,
        "ipc": container.ipc,
        "shm-size": shm,
        "network": container.network,
        "restart": container.restart,
    }
    groups: list[Group] = [(f"--{name}", value) for name, value in single.items() if value is not None]
    groups += [("-p", published) for published in container.publish]
    mounts = map(mount_argument, container.mounts)
    groups += [("-v" if name == "volume" else "--mount", value) for name, value in mounts]
    return [*groups, *(_option(name, value) for name, value in container.options)]


def _option(name: str, value: str | None) -> Group:
    if value is None:
        return (f"--{name}",)
    return (f"--{name}={value}",) if name in SWITCHES else (f"--{name}", value)


def container_arguments(launch: Launch, container: Container) -> list[Group]:
    """The arguments after the image: program and model, then the flags with their values. A shell's script
    is one argument."""
    words = argv(launch)
    if is_script(container.program):
        script = f"{container.program[-1]} {shlex.join(words)}"
        return [(*container.program[:-1], script)]
    positional = tuple(takewhile(lambda word: not word.startswith("--"), words))
    return [(*container.program, *positional), *_by_flag(words[len(positional) :])]


def is_script(program: tuple[str, ...]) -> bool:
    """`bash -lc "... vllm serve"`: the last argument but one is the option that takes a script."""
    return len(program) > 1 and re.fullmatch(r"-[a-z]*c", program[-2]) is not None


def has_script(launch: Launch) -> bool:
    """Its flags are inside one argument, where no comment is possible."""
    return launch.container is not None and is_script(launch.container.program)


def _by_flag(words: Iterable[str]) -> list[Group]:
    """A new line before every argument that starts with two dashes."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return [tuple(group) for group in groups]


def quote(word: str) -> str:
    """Quote an argument for a shell, except what the shell is meant to expand."""
    home, rest = ("~/", word[2:]) if word.startswith("~/") else ("", word)
    if not rest and home:
        return home
    if not SHELL_EXPANSION.search(rest) or ENGINE_JSON.match(rest):
        return home + shlex.quote(rest)
    pieces = re.split(f"({SHELL_EXPANSION.pattern})", rest)
    quoted = (
        piece if is_expansion else re.sub(r'([\\"$`])', r"\\\1", piece)
        for piece, is_expansion in zip(pieces, cycle((False, True)), strict=False)
    )
    return f'{home}"{"".join(quoted)}"'
