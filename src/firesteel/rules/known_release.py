"""Flags, values and variables of a launch against the one release of its engine that it starts.

The release is that of an image that was inspected on this machine, or one whose sources are known and that
runs in the project's own image or as a process: a fork may have other flags. Every match says in which
release the name first or last existed. `releases.py` is for launches whose release is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from firesteel.catalog.image import is_upstream
from firesteel.engines.schema.history import version_key
from firesteel.engines.schema.releases import find_schema, known_versions, release_ranges
from firesteel.engines.schema.symbols import (
    AmbiguousFlag,
    Flag,
    ResolvedFlag,
    Schema,
    resolve_flag,
    resolve_key,
)
from firesteel.launch import FlagValue
from firesteel.rules.context import NEWEST_KNOWN, Context, Match, is_final, is_final_number
from firesteel.rules.flag_values import first_or_last
from firesteel.rules.releases import BUILD_VARIABLES, PREFIXES, own_flags, spellings

_FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TEMPLATE = re.compile(r"\{+[\s\w.-]*\}+|\[[\s\w.-]*\]")
"""`{spec}`: a placeholder of another tool."""
_INT = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|inf|nan", re.IGNORECASE)
_PLAIN_ARGUMENT = re.compile(r"[A-Za-z0-9][\w.,:/=-]*")


def _release(context: Context) -> Schema | None:
    own = context.image.schema if context.image else None
    if own is not None and own.engine == context.launch.engine:
        return own
    container = context.launch.container
    version = NEWEST_KNOWN[context.launch.engine] if context.is_assumed else context.launch.version
    if version is None or (container and not is_upstream(container.image)):
        return None
    if context.may_serve_images or context.is_own_build:
        return None
    learned = context.releases.get((context.launch.engine, version))
    known = learned or find_schema(context.launch.engine, version)
    return known if known and known.is_exact else None


def unknown_flags(context: Context) -> list[Match]:
    known = _release(context)
    return list(_flags_unknown_to(context, known)) if known else []


def _flags_unknown_to(context: Context, known: Schema) -> Iterator[Match]:
    for name in context.launch.flags.keys() - own_flags(context):
        if f"--{name}" in known.spellings:  # as nearly all are
            continue
        resolved = resolve_flag(known, f"--{name}")
        if resolved is None and any(
            spelling in known.spellings for spelling in spellings(known.engine, name)
        ):
            continue
        if resolved is None and _FLAG_NAME.fullmatch(name):
            reason = _availability(known, f"--{name}") or _similar_in_release(known, name)
            yield Match(f"flag:{name}", f"--{name}", name, f"{known.engine} {known.version}: {reason}")
        elif isinstance(resolved, AmbiguousFlag):
            reason = f"it may be any of {', '.join(resolved.spellings[:3])}"
            yield Match(f"flag:{name}", f"--{name}", name, reason)


def _similar_in_release(known: Schema, name: str) -> str:
    near = get_close_matches(name, known.flags, n=1, cutoff=0.75)
    return (
        f"did you mean `--{near[0]}`?"
        if near
        else f"no release since {known_versions(known.engine)[0]} had it"
    )


def stray_arguments(context: Context) -> list[Match]:
    """Arguments besides the model that the parser cannot place, when every flag before them is known."""
    known = _release(context)
    if known is None or known.engine == "llamacpp" or not context.launch.model:
        return []
    for name, given in context.launch.flags.items():
        resolved = resolve_flag(known, f"--{name}")
        if not isinstance(resolved, ResolvedFlag) or (given is True and resolved.flag.takes != "nothing"):
            return []  # the word may be its value
    words = (context.launch.model, *context.launch.extra)
    if any(re.search(r"[{}<>\[\]]", word) for word in words):
        return []  # a placeholder of several words
    plain = [argument for argument in context.launch.extra if _PLAIN_ARGUMENT.fullmatch(argument)]
    return [Match("program", f"`{argument}` stands alone", argument, argument) for argument in plain[:3]]


def refused_values(context: Context) -> list[Match]:
    """Values outside a closed set, and keys of a JSON flag that its config forbids."""
    known = _release(context)
    return list(_refused_values(context, known)) if known else []


def _refused_values(context: Context, known: Schema) -> Iterator[Match]:
    for name, given in context.launch.flags.items():
        flag = known.flags.get(name)
        if flag is None:
            continue
        text = given if isinstance(given, str) and flag.takes == "value" and is_final(given) else None
        if text is not None and not flag.value.accepts(text):
            reason = _availability(known, f"--{name}", text) or f"it takes {', '.join(flag.value.values[:8])}"
            yield Match(f"flag:{name}", f"--{name} {given}", f"--{name} {given}", reason)
        wrong = _wrong_kind(flag, given)
        if wrong:
            shown = f"--{name} {given}" if isinstance(given, str) else f"--{name}"
            yield Match(f"flag:{name}", shown.rstrip(), shown.rstrip(), wrong)
        if isinstance(given, dict):
            for json_key in given:
                if is_final(json_key) and resolve_key(known, name, (json_key,)) == "unknown":
                    reason = _availability(known, f"{flag.value.config}.{json_key}") or "no release had it"
                    shown = f'"{json_key}" in --{name}'
                    yield Match(f"flag:{name}", shown, shown, reason)


def _wrong_kind(flag: Flag, given: FlagValue) -> str:
    """Why the flag cannot take this value; empty when it may, or when the value is a placeholder."""
    if given is True and flag.takes in ("value", "many") and flag.value.kind != "bool":
        return "it takes a value, and none follows"
    if isinstance(given, str) and flag.takes == "nothing" and is_final(given):
        return "it takes no value"
    if not isinstance(given, str) or flag.value.values:
        return ""
    if flag.value.kind == "json" and flag.value.config and given.lstrip()[:1] in ("{", "["):
        return "" if re.search(r"[$`<]", given) or _TEMPLATE.fullmatch(given.strip()) else "this is not JSON"
    if not is_final_number(given):
        return ""
    if flag.value.kind == "int" and not _INT.fullmatch(given):
        return "it takes a whole number"
    if flag.value.kind == "float" and not _FLOAT.fullmatch(given):
        return "it takes a number"
    return ""


def unread_variables(context: Context) -> list[Match]:
    known = _release(context)
    if known is None:
        return []
    return [
        Match(f"env:{name}", name, name, _availability(known, name) or "no release read it")
        for name in context.launch.env
        if name.startswith(PREFIXES[known.engine])
        and name not in known.variables
        and name not in BUILD_VARIABLES
    ]


def _availability(known: Schema, symbol: str, value: str | None = None) -> str:
    """`last in 0.17.1`, `first in 0.26.0`, or empty when no release had it.

    A custom build may lack what its release has, and a release newer than all known ones may lack what the
    newest of those still had.
    """
    spans = release_ranges(known.engine, symbol, value)
    if not spans:
        return ""
    now, newest = version_key(known.version), known_versions(known.engine)[-1]
    for first, last in spans:
        if version_key(first) <= now and (last is None or now <= version_key(last)):
            is_newer = now > version_key(newest)
            return f"last in {newest}" if is_newer else f"in its release since {first}, not in this build"
    return first_or_last(spans)


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "unknown-flags": unknown_flags,
    "refused-values": refused_values,
    "unread-variables": unread_variables,
    "stray-words": stray_arguments,
}
