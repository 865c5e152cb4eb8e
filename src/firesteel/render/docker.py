"""Launch -> `docker run`: one list of words, run as it is or printed to paste.

The printed form must survive a shell, and yet let it do its part: `~/` at the start of a word and plain
`$NAME`, `${NAME}`, `$(pwd)`, `$(id -u)`, `$(id -g)` are left for the shell to fill in; all else is quoted.
An environment variable whose value is `$ITSELF` is passed on by name, so no secret is ever printed.
`reads.read` is the inverse.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import takewhile

from firesteel import catalog, engines
from firesteel.catalog import SWITCHES, Image, container_name
from firesteel.command import Command
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, Launch, Mount
from firesteel.launch_pipeline import in_container
from firesteel.render.launch_facts import LaunchFacts, comments, heading, is_by_name, key_asked_for, pinned
from firesteel.units import GIB, KIB, MIB

Group = tuple[str, ...]
"""Words that belong on one line."""

_OFFICIAL: Mapping[EngineName, str] = {
    "vllm": "vllm/vllm-openai:v{version}",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp:server",
    "sglang": "lmsysorg/sglang:v{version}",
}
EXPANDS = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Za-z_]\w*|\$\((?:pwd|id -u|id -g)\)")
ENGINE_JSON = re.compile(r"[\[{]")


def docker(launch: Launch, known: LaunchFacts | None = None) -> str:
    """A `docker run` to paste, an option a line. A child process is shown in its official image.

    A shell takes no comment between the lines of a command, so what is known stands before it.
    """
    if known:
        launch = pinned(launch, known)
    head = (
        "".join(f"{line}\n" for line in comments(heading(launch, known, with_reasons=True))) if known else ""
    )
    about = "" if launch.container else _explain(launch)
    lines = groups(contained(launch), detach=True)
    key = key_asked_for(launch)
    about += f': "${{{key}:?export it first}}" && \\\n' if key else ""
    return head + about + " \\\n  ".join(" ".join(quote(word) for word in group) for group in lines) + "\n"


def docker_argv(launch: Launch, *, detach: bool = True) -> Command:
    """The same words, to run without a shell; whoever runs them puts the user's home in place of `~`."""
    lines = groups(contained(launch), detach=detach)
    return Command(tuple(word for group in lines for word in group))


def contained(launch: Launch) -> Launch:
    """The launch in a container; a child process moves into the official image of its engine."""
    return launch if launch.container else in_container(launch, _official(launch))


def _official(launch: Launch) -> Image:
    """The image that the engine's makers publish, of the launch's own version where tags have one."""
    reference = _OFFICIAL[launch.engine].format(version=launch.version)
    image = catalog.identify(reference, catalog.shipped().images)
    if image is None:
        about = f"{launch.engine} version is {launch.version or 'not known'}"
        raise UsageError(
            f"no image is known for `{launch.name}`: its {about}",
            next="give a `docker run` line, or a recipe with an image",
        )
    return image


def _explain(launch: Launch) -> str:
    program = " ".join(engines.program(launch.engine))
    return f"# firesteel runs this as a child process (`{program}`); here it is in the official image\n"


def groups(launch: Launch, *, detach: bool) -> list[Group]:
    """The words of a launch in a container, as they belong together on lines."""
    box = launch.container
    assert box is not None, "contained() gives one"
    named = dict(box.options).get("name")
    start = ("docker", "run", "-d") if detach else ("docker", "run")
    found: list[Group] = [start if named else (*start, "--name", container_name(launch.name))]
    found.append(("--label", f"firesteel={launch.name}"))
    found += [("--label", f"{name}={value}") for name, value in box.labels.items()]
    found += _options(box)
    found += [
        ("-e", name if is_by_name(name, value) else f"{name}={value}") for name, value in launch.env.items()
    ]
    if box.entrypoint is not None:
        found.append((f"--entrypoint={box.entrypoint}",))
    first, *rest = after_image(launch, box)
    return [*found, (box.image,), first] if is_script(box.program) else [*found, (box.image, *first), *rest]


def _options(box: Container) -> list[Group]:
    shm = None if box.shm_bytes is None else docker_size(box.shm_bytes)
    single = {
        "gpus": box.gpus, "ipc": box.ipc, "shm-size": shm, "network": box.network, "restart": box.restart,
    }  # fmt: skip
    groups: list[Group] = [(f"--{name}", value) for name, value in single.items() if value is not None]
    groups += [("-p", published) for published in box.publish]
    groups += [_mount(mount) for mount in box.mounts]
    return [*groups, *(_option(name, value) for name, value in box.options)]


def _option(name: str, value: str | None) -> Group:
    if value is None:
        return (f"--{name}",)
    return (f"--{name}={value}",) if name in SWITCHES else (f"--{name}", value)


def docker_size(count: int) -> str:
    """Bytes as docker takes them: `16g`."""
    for unit, letter in ((GIB, "g"), (MIB, "m"), (KIB, "k")):
        if count and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def _mount(mount: Mount) -> Group:
    """`-v`, or `--mount` where a colon in a path would be taken for a separator."""
    if ":" not in mount.source + mount.target:
        return ("-v", f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    kind = "bind" if mount.source[:1] in ("/", ".", "~", "$") else "volume"
    fields = [f"type={kind}", f"source={mount.source}", f"target={mount.target}"]
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow([*fields, "readonly"] if mount.read_only else fields)
    return ("--mount", row.getvalue())


def after_image(launch: Launch, box: Container) -> list[Group]:
    """Program and model, then the engine's flags, each with its value; a shell's script is one word."""
    words = engines.argv(launch)
    if is_script(box.program):
        script = f"{box.program[-1]} {shlex.join(words)}"
        return [(*box.program[:-1], script)]
    loose = tuple(takewhile(lambda word: not word.startswith("--"), words))
    return [(*box.program, *loose), *_by_flag(words[len(loose) :])]


def is_script(program: tuple[str, ...]) -> bool:
    """`bash -lc "... vllm serve"`: what comes before the last word ends in the option that takes a script."""
    return len(program) > 1 and re.fullmatch(r"-[a-z]*c", program[-2]) is not None


def has_script(launch: Launch) -> bool:
    """Its flags stand inside one word, where no comment can."""
    return launch.container is not None and is_script(launch.container.program)


def _by_flag(words: Iterable[str]) -> list[Group]:
    """A new line before every word that starts with two dashes."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return [tuple(group) for group in groups]


def quote(word: str) -> str:
    """A word for a shell: quoted, but for what the shell is meant to fill in."""
    home, rest = ("~/", word[2:]) if word.startswith("~/") else ("", word)
    if not rest and home:
        return home
    if not EXPANDS.search(rest) or ENGINE_JSON.match(rest):
        return home + shlex.quote(rest)
    pieces = re.split(f"({EXPANDS.pattern})", rest)
    inside = (piece if odd % 2 else re.sub(r'([\\"$`])', r"\\\1", piece) for odd, piece in enumerate(pieces))
    return f'{home}"{"".join(inside)}"'
