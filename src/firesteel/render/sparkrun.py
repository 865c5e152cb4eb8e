"""Launch -> a recipe of sparkrun (v2); `reads.sparkrun` is the inverse.

The recipe carries the whole command as a template, so that nothing depends on which flags sparkrun has a name
for: `{model}`, `{port}`, `{host}` and, on several Sparks, `{tensor_parallel}` are filled in, all other braces
are doubled. sparkrun itself mounts the Hub's cache at `/cache/huggingface`, clears the image's entrypoint,
takes the host's network and tells the nodes of each other. On the host's network an open address is the whole
network's, so the engine listens on 127.0.0.1 unless the launch publishes wider.
Seen in sparkrun 0.4.2 (`core/recipe.py`, `utils/text.py`, `runtimes`), 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from firesteel import catalog, engines
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, Launch
from firesteel.render.docker import after_image, contained, is_script, quote
from firesteel.render.launch_facts import NOTHING, LaunchFacts, heading, is_by_name, pinned
from firesteel.render.yaml_text import Explained, document

HUB = "/cache/huggingface"
_HUB_HERE = "/hub"
_RUNTIMES: Mapping[EngineName, str] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama-cpp"}
_ITS_OWN = ("nnodes", "node-rank", "master-addr", "dist-init-addr")
"""Flags by which sparkrun makes several Sparks one."""


def sparkrun(launch: Launch, known: LaunchFacts = NOTHING) -> str:
    launch = sparkruns(contained(pinned(launch, known)))
    box = launch.container
    assert box is not None, "contained() gives one"
    recipe: dict[str, object] = {
        "recipe_version": "2",
        "name": launch.name,
        "model": launch.model,
        "runtime": _RUNTIMES[launch.engine],
        "container": box.image,
        "min_nodes": launch.sparks,
        "max_nodes": launch.sparks,
        "defaults": _defaults(launch),
    }
    env = {name: _variable(name, value, known) for name, value in launch.env.items()}
    if env:
        recipe["env"] = env
    if box.ipc:
        recipe["executor_config"] = {"ipc": box.ipc}
    recipe["command"] = _command(launch, box)
    return document(recipe, heading(launch, known, with_reasons=True))


def sparkruns(launch: Launch) -> Launch:
    """The launch as sparkrun starts it: its mount for ours, its address, its way of naming the nodes."""
    box = launch.container
    assert box is not None, "contained() gives one"
    if box.gpus is None:
        raise UsageError(
            f"sparkrun gives every container the GPU, and the image of {launch.name} has no use for it",
            next=f"firesteel render {launch.name} --as compose",
        )
    flags = {name: value for name, value in launch.flags.items() if name not in _ITS_OWN}
    flags.setdefault("host", "0.0.0.0" if _is_wide(box) else "127.0.0.1")
    env = {name: value.replace(_HUB_HERE, HUB, 1) for name, value in launch.env.items()}
    if env.get("HF_HOME") == HUB:
        del env["HF_HOME"]
    return replace(launch, flags=flags, env=env, container=box)


def _is_wide(box: Container) -> bool:
    return any(not each.startswith(("127.0.0.1:", "[::1]:")) for each in box.publish)


def _defaults(launch: Launch) -> dict[str, object]:
    found: dict[str, object] = {
        "port": launch.port,
        "host": Explained(
            launch.flags["host"], "sparkrun uses the host's network: a wider address is the whole network's"
        ),
    }
    if launch.sparks > 1:
        found["tensor_parallel"] = launch.sparks
    return found


def _variable(name: str, value: str, known: LaunchFacts) -> object:
    said = f"${name}" if is_by_name(name, value) else value
    return Explained(said, known.env_reasons[name]) if name in known.env_reasons else said


def _command(launch: Launch, box: Container) -> str:
    """A line a flag, ready for the shell that sparkrun starts."""
    holes = {"host": "{host}", "port": "{port}", "tensor-parallel-size": "{tensor_parallel}"}
    if launch.sparks == 1:
        del holes["tensor-parallel-size"]
    program = box.program if box.program else _program(launch, box)
    if is_script(program):
        words = [*engines.argv(launch)]
        return f"{_doubled(program[-1])} {' '.join(_doubled(quote(word)) for word in words)}\n"
    bare = replace(launch, container=replace(box, program=program))
    assert bare.container is not None
    first, *rest = after_image(bare, bare.container)
    model = tuple("{model}" if word == launch.model else _doubled(quote(word)) for word in first)
    lines = [" ".join(model)]
    for flag, *values in rest:
        hole = holes.get(flag.removeprefix("--"))
        said = [hole] if hole and len(values) == 1 else [_filled(value, launch.model) for value in values]
        lines.append(" ".join([flag, *said]))
    return " \\\n  ".join(lines) + "\n"


def _filled(word: str, model: str) -> str:
    return "{model}" if word == model else _doubled(quote(word))


def _program(launch: Launch, box: Container) -> tuple[str, ...]:
    """What the image would have started, for sparkrun clears its entrypoint."""
    image = catalog.identify(box.image, catalog.shipped().images)
    return (image.entrypoint if image else None) or engines.program(launch.engine)


def _doubled(text: str) -> str:
    return re.sub(r"[{}]", lambda brace: brace[0] * 2, text)
