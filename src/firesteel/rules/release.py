"""What a release itself says of a launch: flags it has not, keys it refuses, values it does not take,
variables that nobody reads.

Only for an image that was itself read on this machine, or for a release that was read from its sources and
runs in its makers' own image or as a process: a fork may have flags of its own. Every answer says since when
or until when, which is what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from firesteel.catalog.image import is_upstream
from firesteel.engines.chronicle import order
from firesteel.engines.resolve import Ambiguous, key, resolve
from firesteel.engines.schema import lived, schema, versions
from firesteel.engines.symbols import Schema
from firesteel.launch import EngineName
from firesteel.rules.scene import Scene, Sight

_PREFIXES: dict[EngineName, str] = {"vllm": "VLLM_", "sglang": "SGLANG_", "llamacpp": "LLAMA_ARG_"}


def _release(scene: Scene) -> Schema | None:
    own = scene.image.schema if scene.image else None
    if own is not None and own.engine == scene.launch.engine:
        return own
    box, version = scene.launch.container, scene.launch.version
    if version is None or (box and not is_upstream(box.image)):
        return None
    learned = scene.releases.get((scene.launch.engine, version))
    found = learned or schema(scene.launch.engine, version)
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
    """`last in 0.17.1`, `first in 0.26.0`, or nothing when no release had it.

    A build of one's own may lack what its release has, and a release newer than all that ship may have lost
    what the newest of these still had.
    """
    spans = lived(known.engine, symbol, value)
    if not spans:
        return ""
    now, newest = order(known.version), versions(known.engine)[-1]
    for first, last in spans:
        if order(first) <= now and (last is None or now <= order(last)):
            return (
                f"last in {newest}"
                if now > order(newest)
                else f"in its release since {first}, not in this build"
            )
    first, last = spans[0][0], spans[-1][1]
    return f"first in {first}" if last is None else f"last in {last}"
