"""What a release itself says of a launch: flags it has not, keys it refuses, values it does not take,
variables that nobody reads.

Only for a release that was read from its sources, run in its own image or as a process: a fork may have
flags of its own. Every answer says since when or until when, which is what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from firesteel.engines.resolve import Ambiguous, key, resolve
from firesteel.engines.schema import lived, schema
from firesteel.engines.symbols import Schema
from firesteel.launch import EngineName
from firesteel.rules.scene import Scene, Sight

_UPSTREAM = ("vllm/vllm-openai:", "lmsysorg/sglang:", "ghcr.io/ggml-org/llama.cpp:")
_PREFIXES: dict[EngineName, str] = {"vllm": "VLLM_", "sglang": "SGLANG_", "llamacpp": "LLAMA_ARG_"}


def _release(scene: Scene) -> Schema | None:
    box, version = scene.launch.container, scene.launch.version
    if version is None or (box and not box.image.removeprefix("docker.io/").startswith(_UPSTREAM)):
        return None
    found = schema(scene.launch.engine, version)
    return found if found and found.is_exact else None


def unknown_flags(scene: Scene) -> list[Sight]:
    known = _release(scene)
    return list(_unknown_flags(scene, known)) if known else []


def _unknown_flags(scene: Scene, known: Schema) -> Iterator[Sight]:
    for name in scene.launch.flags:
        found = resolve(known, f"--{name}")
        if found is None:
            near = get_close_matches(name, known.flags, n=1, cutoff=0.75)
            why = _age(known, f"--{name}") or (
                f"did you mean `--{near[0]}`?" if near else "no release had it"
            )
            yield Sight(f"flag:{name}", f"--{name}", name, f"{known.engine} {known.version}: {why}")
        elif isinstance(found, Ambiguous):
            yield Sight(
                f"flag:{name}", f"--{name}", name, f"it may be any of {', '.join(found.spellings[:3])}"
            )


def refused_values(scene: Scene) -> list[Sight]:
    """Values outside a closed set, and keys of a JSON flag that its config forbids."""
    known = _release(scene)
    return list(_refused_values(scene, known)) if known else []


def _refused_values(scene: Scene, known: Schema) -> Iterator[Sight]:
    for name, given in scene.launch.flags.items():
        flag = known.flags.get(name)
        if flag is None:
            continue
        if isinstance(given, str) and flag.takes == "value" and not flag.value.accepts(given):
            why = _age(known, f"--{name}", given) or f"it takes {', '.join(flag.value.values[:8])}"
            yield Sight(f"flag:{name}", f"--{name} {given}", f"--{name} {given}", why)
        if isinstance(given, dict):
            for each in given:
                if key(known, name, (each,)) == "unknown":
                    why = _age(known, f"{flag.value.config}.{each}") or "no release had it"
                    yield Sight(f"flag:{name}", f'"{each}" in --{name}', f'"{each}" in --{name}', why)


def unread_variables(scene: Scene) -> list[Sight]:
    known = _release(scene)
    if known is None:
        return []
    return [
        Sight(f"env:{name}", name, name, _age(known, name) or "no release read it")
        for name in scene.launch.env
        if name.startswith(_PREFIXES[known.engine]) and name not in known.variables
    ]


def _age(known: Schema, symbol: str, value: str | None = None) -> str:
    """`last in 0.17.1`, `first in 0.26.0`, or nothing when no release had it."""
    spans = lived(known.engine, symbol, value)
    if not spans:
        return ""
    first, last = spans[0][0], spans[-1][1]
    return f"first in {first}" if last is None else f"last in {last}"
