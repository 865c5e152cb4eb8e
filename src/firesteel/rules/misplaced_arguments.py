"""Misplaced arguments of `docker run`: options after the image, a model in place of a program, no GPU."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.engines.schema.releases import find_schema
from firesteel.engines.schema.symbols import AmbiguousFlag, resolve_flag
from firesteel.rules.context import NEWEST_KNOWN, Context, Match

_DOCKER_ONLY = frozenset({
    "d", "e", "env", "gpus", "ipc", "it", "name", "network", "p", "publish", "restart", "rm", "shm-size", "v",
    "volume",
})  # fmt: skip
"""Options of docker that no engine has; each is checked against the newest releases too."""
_GPU_OPTIONS = ("runtime", "device", "privileged")


def docker_options_after_image(context: Context) -> list[Match]:
    """`IMAGE model -p 8000:8000`: docker hands the option to the engine, which does not know it."""
    engine = context.launch.engine
    given = [name for name in context.launch.flags if name in _DOCKER_ONLY]
    options = {name: f"-{name}" if len(name) == 1 or name == "it" else f"--{name}" for name in given}
    if context.launch.container is None or not options or engine == "llamacpp":
        return []  # llama.cpp has short flags too: `-p` is a prompt
    newest = find_schema(engine, NEWEST_KNOWN[engine])
    if newest is None:
        return []
    return [
        Match(f"flag:{name}", typed, typed, name)
        for name, typed in options.items()
        if isinstance(found := resolve_flag(newest, typed), AmbiguousFlag) or found is None
    ]


def model_for_program(context: Context) -> list[Match]:
    """The image runs the command it is given, and that begins with a model or a flag."""
    container, image = context.launch.container, context.image
    if container is None or image is None or container.program or container.entrypoint is not None:
        return []
    if image.entrypoint != () or image.configured_by == "env" or "partial" in context.flaws:
        return []
    first = context.launch.model or "its flags"
    return [Match("image", f"{container.image} {first}", first, container.image)]


def no_gpu_asked_for(context: Context) -> list[Match]:
    """An image for a GPU, without an option that gives it one."""
    container, image = context.launch.container, context.image
    if container is None or image is None or not image.gpu or container.gpus or not context.launch.model:
        return []
    given = {name for name, _ in container.options}
    if given & set(_GPU_OPTIONS) or "NVIDIA_VISIBLE_DEVICES" in context.launch.env:
        return []
    return [Match("image", f"{container.image} without --gpus", container.image, container.image)]


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "docker-words-after-image": docker_options_after_image,
    "model-for-program": model_for_program,
    "no-gpu-asked-for": no_gpu_asked_for,
}
