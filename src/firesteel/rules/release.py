"""What a release itself says of a launch: flags it has not, keys it refuses, values it does not take,
variables that nobody reads.

Only for an image that was itself read on this machine, or for a release that was read from its sources and
runs in its makers' own image or as a process: a fork may have flags of its own. Every answer says since when
or until when, which is what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from firesteel.catalog.image import is_upstream
from firesteel.engines.schema.history import version_key
from firesteel.engines.schema.releases import find_schema, known_versions, release_ranges
from firesteel.engines.schema.resolve import AmbiguousFlag, resolve_flag, resolve_key
from firesteel.engines.schema.symbols import Flag, Schema
from firesteel.launch import EngineName, FlagValue
from firesteel.rules.context import NEWEST_KNOWN, Context, Match, is_final

_FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HOLE = re.compile(r"\{+[\s\w.-]*\}+|\[[\s\w.-]*\]")
"""`{spec}`: what another tool has yet to fill in."""
_INT = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|inf|nan", re.IGNORECASE)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9][\w.,:/=-]*")
_PREFIXES: dict[EngineName, str] = {"vllm": "VLLM_", "sglang": "SGLANG_", "llamacpp": "LLAMA_ARG_"}


def _release(scene: Context) -> Schema | None:
    own = scene.image.schema if scene.image else None
    if own is not None and own.engine == scene.launch.engine:
        return own
    box = scene.launch.container
    version = NEWEST_KNOWN[scene.launch.engine] if scene.is_assumed else scene.launch.version
    if version is None or (box and not is_upstream(box.image)):
        return None
    if box and box.program[:2] == ("sglang", "serve"):
        return None  # it hands models that are no LLMs to another parser
    learned = scene.releases.get((scene.launch.engine, version))
    found = learned or find_schema(scene.launch.engine, version)
    return found if found and found.is_exact else None


def unknown_flags(scene: Context) -> list[Match]:
    known = _release(scene)
    return list(_unknown_flags(scene, known)) if known else []


def _unknown_flags(scene: Context, known: Schema) -> Iterator[Match]:
    for name in scene.launch.flags.keys() - {"help", "version"}:
        found = resolve_flag(known, f"--{name}")
        if found is None and _FLAG_NAME.fullmatch(name):
            near = get_close_matches(name, known.flags, n=1, cutoff=0.75)
            why = _age(known, f"--{name}") or (
                f"did you mean `--{near[0]}`?"
                if near
                else f"no release since {known_versions(known.engine)[0]} had it"
            )
            yield Match(f"flag:{name}", f"--{name}", name, f"{known.engine} {known.version}: {why}")
        elif isinstance(found, AmbiguousFlag):
            yield Match(
                f"flag:{name}", f"--{name}", name, f"it may be any of {', '.join(found.spellings[:3])}"
            )


def misspelt_flags(scene: Context) -> list[Match]:
    """Where no version is known: flags that no release ever had, and that are close to one of the newest."""
    box, engine = scene.launch.container, scene.launch.engine
    if scene.version is not None or (box and not is_upstream(box.image)):
        return []
    newest = find_schema(engine, NEWEST_KNOWN[engine])
    found = []
    for name in scene.launch.flags if newest else ():
        if newest is None or resolve_flag(newest, f"--{name}") or release_ranges(engine, f"--{name}"):
            continue
        near = get_close_matches(name, newest.flags, n=1, cutoff=0.85)
        found += [Match(f"flag:{name}", f"--{name}", name, near[0])] if near else []
    return found


def stray_words(scene: Context) -> list[Match]:
    """Words beside the model that the parser has no place for, where every flag before them is known."""
    known = _release(scene)
    if known is None or known.engine == "llamacpp" or not scene.launch.model:
        return []
    if any(resolve_flag(known, f"--{name}") is None for name in scene.launch.flags):
        return []
    plain = [word for word in scene.launch.extra if _PLAIN_WORD.fullmatch(word)]
    return [Match("program", f"`{word}` stands alone", word, word) for word in plain[:3]]


def refused_values(scene: Context) -> list[Match]:
    """Values outside a closed set, and keys of a JSON flag that its config forbids."""
    known = _release(scene)
    return list(_refused_values(scene, known)) if known else []


def _refused_values(scene: Context, known: Schema) -> Iterator[Match]:
    for name, given in scene.launch.flags.items():
        flag = known.flags.get(name)
        if flag is None:
            continue
        text = given if isinstance(given, str) and flag.takes == "value" and is_final(given) else None
        if text is not None and not flag.value.accepts(text):
            why = _age(known, f"--{name}", text) or f"it takes {', '.join(flag.value.values[:8])}"
            yield Match(f"flag:{name}", f"--{name} {given}", f"--{name} {given}", why)
        wrong = _wrong_kind(flag, given)
        if wrong:
            shown = given if isinstance(given, str) else ""
            yield Match(f"flag:{name}", f"--{name} {shown}".rstrip(), f"--{name} {shown}".rstrip(), wrong)
        if isinstance(given, dict):
            for each in given:
                if is_final(each) and resolve_key(known, name, (each,)) == "unknown":
                    why = _age(known, f"{flag.value.config}.{each}") or "no release had it"
                    yield Match(f"flag:{name}", f'"{each}" in --{name}', f'"{each}" in --{name}', why)


def _wrong_kind(flag: Flag, given: FlagValue) -> str:
    """Why a value cannot be what the flag takes; nothing when it may be, or a shell has yet to fill it in."""
    if given is True and flag.takes in ("value", "many") and flag.value.kind != "bool":
        return "it takes a value, and none follows"
    if isinstance(given, str) and flag.takes == "nothing" and is_final(given):
        return "it takes no value"
    if not isinstance(given, str) or flag.value.values:
        return ""
    if flag.value.kind == "json" and flag.value.config and given.lstrip()[:1] in ("{", "["):
        return "" if re.search(r"[$`<]", given) or _HOLE.fullmatch(given.strip()) else "this is not JSON"
    if not is_final(given):
        return ""
    if flag.value.kind == "int" and not _INT.fullmatch(given):
        return "it takes a whole number"
    if flag.value.kind == "float" and not _FLOAT.fullmatch(given):
        return "it takes a number"
    return ""


def unread_variables(scene: Context) -> list[Match]:
    known = _release(scene)
    if known is None:
        return []
    return [
        Match(f"env:{name}", name, name, _age(known, name) or "no release read it")
        for name in scene.launch.env
        if name.startswith(_PREFIXES[known.engine]) and name not in known.variables
    ]


def _age(known: Schema, symbol: str, value: str | None = None) -> str:
    """`last in 0.17.1`, `first in 0.26.0`, or nothing when no release had it.

    A build of one's own may lack what its release has, and a release newer than all that ship may have lost
    what the newest of these still had.
    """
    spans = release_ranges(known.engine, symbol, value)
    if not spans:
        return ""
    now, newest = version_key(known.version), known_versions(known.engine)[-1]
    for first, last in spans:
        if version_key(first) <= now and (last is None or now <= version_key(last)):
            return (
                f"last in {newest}"
                if now > version_key(newest)
                else f"in its release since {first}, not in this build"
            )
    first, last = spans[0][0], spans[-1][1]
    return f"first in {first}" if last is None else f"last in {last}"
