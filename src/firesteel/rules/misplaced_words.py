"""Words in the wrong place around an image: options of docker behind it, a model where a program should be,
and no GPU asked for at all."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.engines.schema.releases import find_schema
from firesteel.engines.schema.resolve import AmbiguousFlag, resolve_flag
from firesteel.rules.context import NEWEST_KNOWN, Context, Match

_DOCKER_ONLY = frozenset({
    "d", "e", "env", "gpus", "ipc", "it", "name", "network", "p", "publish", "restart", "rm", "shm-size", "v",
    "volume",
})  # fmt: skip
"""Options that docker has and no engine does; each is held against the newest releases too."""
_GPU_OPTIONS = ("runtime", "device", "privileged")


def docker_words_after_image(scene: Context) -> list[Match]:
    """`IMAGE model -p 8000:8000`: docker hands the option to the engine, which does not know it."""
    engine = scene.launch.engine
    meant = {name: _typed(name) for name in scene.launch.flags if name in _DOCKER_ONLY}
    if scene.launch.container is None or not meant or engine == "llamacpp":
        return []  # llama.cpp has short flags of its own: `-p` is a prompt
    newest = find_schema(engine, NEWEST_KNOWN[engine])
    if newest is None:
        return []
    return [
        Match(f"flag:{name}", typed, typed, name)
        for name, typed in meant.items()
        if isinstance(found := resolve_flag(newest, typed), AmbiguousFlag) or found is None
    ]


def _typed(name: str) -> str:
    return f"-{name}" if len(name) == 1 or name == "it" else f"--{name}"


def model_for_program(scene: Context) -> list[Match]:
    """The image runs the words it is given, and the first of them is a model or a flag."""
    box, image = scene.launch.container, scene.image
    if box is None or image is None or box.program or box.entrypoint is not None:
        return []
    if image.entrypoint != () or image.configured_by == "env":
        return []
    said = scene.launch.model or "its flags"
    return [Match("image", f"{box.image} {said}", said, box.image)]


def no_gpu_asked_for(scene: Context) -> list[Match]:
    """An image for the GPU, and nothing that would give it one."""
    box, image = scene.launch.container, scene.image
    if box is None or image is None or not image.gpu or box.gpus or not scene.launch.model:
        return []
    given = {name for name, _ in box.options}
    if given & set(_GPU_OPTIONS) or "NVIDIA_VISIBLE_DEVICES" in scene.launch.env:
        return []
    return [Match("image", f"{box.image} without --gpus", box.image, box.image)]


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "docker-words-after-image": docker_words_after_image,
    "model-for-program": model_for_program,
    "no-gpu-asked-for": no_gpu_asked_for,
}
