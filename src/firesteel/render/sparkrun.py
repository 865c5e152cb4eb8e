"""Launch -> a recipe of sparkrun (v2); `reads.sparkrun` is the inverse.

The recipe has the whole command as a template, so that it does not depend on the flags that sparkrun knows:
`{model}`, `{port}`, `{host}` and, on several Sparks, `{tensor_parallel}` are placeholders, all other braces
are doubled. sparkrun itself mounts the Hub's cache at `/cache/huggingface`, clears the image's entrypoint,
uses the host's network and sets the addresses of the nodes. On the host's network anyone can reach an open
port, so the engine listens on 127.0.0.1 unless the launch publishes its port on another address.
Seen in sparkrun 0.4.2 (`core/recipe.py`, `utils/text.py`, `runtimes`), 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines import engine
from firesteel.engines.engine import argv
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, Launch
from firesteel.render.docker import container_arguments, container_of, containerized, is_script, quote
from firesteel.render.launch_facts import NO_FACTS, LaunchFacts, heading, is_passed_through, pin
from firesteel.render.yaml_text import Explained, document, explain
from firesteel.values import replace

HUB = "/cache/huggingface"
_CATALOG_HUB = "/hub"
_RUNTIMES: Mapping[EngineName, str] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama-cpp"}
_NODE_FLAGS = ("nnodes", "node-rank", "master-addr", "dist-init-addr")
"""Flags that sparkrun sets itself for several Sparks."""


def sparkrun(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    launch = for_sparkrun(containerized(pin(launch, facts)))
    container = container_of(launch)
    recipe: dict[str, object] = {
        "recipe_version": "2",
        "name": launch.name,
        "model": launch.model,
        "runtime": _RUNTIMES[launch.engine],
        "container": container.image,
        "min_nodes": launch.sparks,
        "max_nodes": launch.sparks,
        "defaults": _defaults(launch),
    }
    if launch.env:
        recipe["env"] = {
            name: explain(
                f"${name}" if is_passed_through(name, value) else value, facts.env_reasons.get(name)
            )
            for name, value in launch.env.items()
        }
    if container.ipc:
        recipe["executor_config"] = {"ipc": container.ipc}
    recipe["command"] = _command(launch, container)
    return document(recipe, heading(launch, facts, with_reasons=True))


def for_sparkrun(launch: Launch) -> Launch:
    """The launch as sparkrun starts it: with its mount of the cache, its address, and its node flags."""
    container = container_of(launch)
    if container.gpus is None:
        raise UsageError(
            f"sparkrun gives every container the GPU, and the image of {launch.name} does not use one",
            next=f"firesteel render {launch.name} --as compose",
        )
    flags = {name: value for name, value in launch.flags.items() if name not in _NODE_FLAGS}
    is_public = any(not port.startswith(("127.0.0.1:", "[::1]:")) for port in container.publish)
    flags.setdefault("host", "0.0.0.0" if is_public else "127.0.0.1")
    env = {name: value.replace(_CATALOG_HUB, HUB, 1) for name, value in launch.env.items()}
    if env.get("HF_HOME") == HUB:
        del env["HF_HOME"]
    return replace(launch, flags=flags, env=env, container=container)


def _defaults(launch: Launch) -> dict[str, object]:
    why = "sparkrun uses the host's network: on any other address the whole network can reach it"
    defaults: dict[str, object] = {"port": launch.port, "host": Explained(launch.flags["host"], why)}
    if launch.sparks > 1:
        defaults["tensor_parallel"] = launch.sparks
    return defaults


def _command(launch: Launch, container: Container) -> str:
    """One flag on each line, quoted for the shell that sparkrun starts."""
    placeholders = {"--host": "{host}", "--port": "{port}"}
    if launch.sparks > 1:
        placeholders["--tensor-parallel-size"] = "{tensor_parallel}"
    program = container.program or _entrypoint(launch, container)
    if is_script(program):
        arguments = " ".join(_double_braces(quote(word)) for word in argv(launch))
        return f"{_double_braces(program[-1])} {arguments}\n"
    lines = []
    for first, *values in container_arguments(launch, replace(container, program=program)):
        if first in placeholders and len(values) == 1:
            lines.append(f"{first} {placeholders[first]}")
        else:
            words = (first, *values)
            lines.append(
                " ".join("{model}" if w == launch.model else _double_braces(quote(w)) for w in words)
            )
    return " \\\n  ".join(lines) + "\n"


def _entrypoint(launch: Launch, container: Container) -> tuple[str, ...]:
    """The image's own entrypoint, which sparkrun clears."""
    image = identify(container.image, shipped().images)
    return (image.entrypoint if image else None) or engine.program(launch.engine)


def _double_braces(text: str) -> str:
    return re.sub(r"[{}]", lambda brace: brace[0] * 2, text)
