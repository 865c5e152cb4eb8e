"""Flags, values and variables of a launch whose release is not known, against all known releases.

A name that no release ever had stops the server whatever is installed; one that some lack is worth a note
with since and until; and where one is gone before another came, no release takes both. Where the release is
known, it decides alone: `known_release.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import cache, lru_cache

from firesteel import shipped_data
from firesteel.catalog.image import is_preview, is_upstream
from firesteel.engines.engine import grammar
from firesteel.engines.flags import name_set
from firesteel.engines.schema.history import SymbolHistory, SymbolTable, version_key
from firesteel.engines.schema.releases import (
    flags_spelled,
    known_versions,
    newest_schema,
    release_ranges,
    shipped_history,
)
from firesteel.engines.schema.symbols import (
    AmbiguousFlag,
    ResolvedFlag,
    SymbolValue,
    resolve_flag,
)
from firesteel.launch import EngineName
from firesteel.rules.context import Context, Match, is_final
from firesteel.values import Value

_OTHER_PARSERS = frozenset({"omni", "config"})
"""Flags that hand the command line to a plugin, or take more flags from a file."""

_PARSERS = ("reasoning-parser", "tool-call-parser")
"""Open sets, but what a release registers is listed in full."""
_MOST_SLIPS = 2
"""Unknown flags in one launch that may be slips; more are a fork's, or another program's."""
_PLAIN_VALUE = re.compile(r"(?!(?:your|my)[_-])[\w.+:/-]+")
"""`[a|b]`, `$X` and `<x>` stand for something else."""
PREFIXES: dict[EngineName, str] = {"vllm": "VLLM_", "sglang": "SGLANG_", "llamacpp": "LLAMA_ARG_"}
BUILD_VARIABLES = name_set(
    "VLLM_BUILD_COMMIT VLLM_BUILD_PIPELINE VLLM_BUILD_TYPE VLLM_BUILD_URL VLLM_CUTLASS_SRC_DIR"
    " VLLM_DISABLE_SCCACHE VLLM_DOCKER_BUILD_CONTEXT VLLM_FLASH_ATTN_SRC_DIR VLLM_GPU_ARCHES VLLM_IMAGE_TAG"
    " VLLM_INSTALL_PUNICA_KERNELS VLLM_MAIN_CUDA_VERSION VLLM_MAX_SIZE_MB VLLM_MERGE_BASE_COMMIT"
    " VLLM_PRECOMPILED_WHEEL_COMMIT VLLM_PRECOMPILED_WHEEL_LOCATION VLLM_PRECOMPILED_WHEEL_VARIANT"
    " VLLM_PYTHON_EXECUTABLE VLLM_PYTHON_PATH VLLM_REQUIRE_RUST_FRONTEND VLLM_RVV_VLEN"
    " VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX VLLM_SKIP_SKINNY_GEMMS VLLM_TARGET_DEVICE VLLM_USE_PRECOMPILED"
    " VLLM_USE_PRECOMPILED_RUST VLLM_VERSION_OVERRIDE"
)
"""Read by vLLM's `setup.py`, CMake files and Dockerfile when it is built, and never by a server.
Source: https://github.com/vllm-project/vllm/blob/main/setup.py and `CMakeLists.txt`, seen 2026-11-16."""


class _Need(Value):
    key: str
    shown: str
    first: str
    last: str | None


def is_undecided(context: Context) -> bool:
    """The release is not known, and it is the project's own: a fork may have flags of its own."""
    container = context.launch.container
    return (
        context.version is None
        and not context.is_own_build
        and (container is None or (is_upstream(container.image) and not is_preview(container.image)))
        and not context.may_serve_images
        and not _OTHER_PARSERS & context.launch.flags.keys()
    )


def own_flags(context: Context) -> set[str]:
    """Flags that no schema lists: of every parser, and of the command `sglang serve` in front of it."""
    return {"help", "h", "version", *(("model-type",) if context.is_sglang_serve else ())}


@lru_cache(maxsize=4096)
def spellings(engine: EngineName, name: str) -> tuple[str, ...]:
    """What may stand in the text for the flag of a launch: long, short or negated, and its aliases."""
    aliases = [alias for alias, full in grammar(engine).aliases.items() if full == name]
    others = (spelling for alias in aliases for spelling in (f"-{alias}", f"--{alias}"))
    return (f"--{name}", f"-{name}", f"--no-{name}", *others)


def _flags_no_release_knows(context: Context) -> list[str]:
    """Flags that no known release has, nor takes as an abbreviation."""
    if not is_undecided(context):
        return []
    own, engine = own_flags(context), context.launch.engine
    return [
        name for name in context.launch.flags if name not in own and is_final(name) and _is_new(engine, name)
    ]


@lru_cache(maxsize=4096)
def _is_new(engine: EngineName, name: str) -> bool:
    """Whether no known release has the flag, nor takes the name for one."""
    is_known = any(release_ranges(engine, spelling) for spelling in spellings(engine, name))
    # What only older releases took as an abbreviation has no future.
    return not is_known and not isinstance(resolve_flag(newest_schema(engine), f"--{name}"), ResolvedFlag)


def flags_of_no_release(context: Context) -> list[Match]:
    """Flags that no release ever had. More than two of them are no slips."""
    engine = context.launch.engine
    names = [name for name in _flags_no_release_knows(context) if not _last_release(engine, name)]
    few = names if len(names) <= _MOST_SLIPS else []
    return [Match(f"flag:{name}", f"--{name}", name, _similar_in_newest(engine, name)) for name in few]


def flags_of_older_releases(context: Context) -> list[Match]:
    last = {name: _last_release(context.launch.engine, name) for name in _flags_no_release_knows(context)}
    return [Match(f"flag:{name}", f"--{name}", name, release) for name, release in last.items() if release]


def flags_of_a_fork(context: Context) -> list[Match]:
    """One match for all flags of an engine, or of another program, that is not known here."""
    unknown = _flags_no_release_knows(context)
    names = [f"--{name}" for name in unknown if not _last_release(context.launch.engine, name)]
    if len(names) <= _MOST_SLIPS:
        return []
    return [Match("program", ", ".join(names), str(len(names)), ", ".join(names[:6]))]


def _last_release(engine: EngineName, name: str) -> str:
    """The last release of a flag, or of one that it abbreviates, if that is older than all known releases."""
    older = _older_flags().get(engine, {})
    gone = older.get(name) or next((last for full, last in older.items() if full.startswith(name)), "")
    # Of several flags that begin with the name, the older releases may have had only one.
    is_ambiguous = isinstance(resolve_flag(newest_schema(engine), f"--{name}"), AmbiguousFlag)
    return gone or (known_versions(engine)[0] if is_ambiguous else "")


@cache
def _older_flags() -> dict[str, dict[str, str]]:
    return shipped_data.load("engines/older_flags.yaml", dict[str, dict[str, str]])


def _similar_in_newest(engine: EngineName, name: str) -> str:
    near = get_close_matches(name, newest_schema(engine).flags, n=1, cutoff=0.75)
    return (
        f"did you mean `--{near[0]}`?" if near else f"the oldest that is known is {known_versions(engine)[0]}"
    )


def values_of_no_release(context: Context) -> list[Match]:
    """Values outside the closed sets of all releases, and keys that every release's config forbids."""
    return list(_values_of_no_release(context)) if is_undecided(context) else []


def _values_of_no_release(context: Context) -> Iterator[Match]:
    engine = context.launch.engine
    history = shipped_history(engine)
    for name, given in context.launch.flags.items():
        flags = flags_spelled(engine, f"--{name}")
        if (
            flags
            and isinstance(given, str)
            and _PLAIN_VALUE.fullmatch(given)
            and not any(value.accepts(given) for value in _values(engine, f"--{name}"))
        ):
            known = [
                value for flag in flags for value, spans in flag.values.items() if spans[-1].last is None
            ]
            yield Match(
                f"flag:{name}", f"--{name} {given}", f"--{name} {given}", f"it takes {', '.join(known[:8])}"
            )
        for key in given if flags and isinstance(given, dict) else ():
            configs = _configs(flags)
            if is_final(key) and all(_is_refused(history.keys, config, key) for config in configs):
                names = [
                    path.partition(".")[2] for path in history.keys if path.startswith(f"{min(configs)}.")
                ]
                near = get_close_matches(key, names, n=1, cutoff=0.6)
                reason = f'did you mean "{near[0]}"?' if near else "no release had it"
                shown = f'"{key}" in --{name}'
                yield Match(f"flag:{name}", shown, shown, reason)


def _configs(flags: Iterable[SymbolHistory]) -> set[str]:
    """The classes that read the JSON value of these flags."""
    return {str(range_.facts.get("config", "")) for flag in flags for range_ in flag.ranges}


@cache
def _values(engine: EngineName, spelling: str) -> tuple[SymbolValue, ...]:
    """What any release takes after a flag."""
    taken = []
    for flag in flags_spelled(engine, spelling):
        is_single = all(range_.facts.get("takes", "value") == "value" for range_ in flag.ranges)
        folds = any(range_.facts.get("folds", False) for range_ in flag.ranges)
        is_open = not (_is_closed(flag) and is_single)
        taken.append(SymbolValue(values=tuple(flag.values), open=is_open, folds=folds))
    return tuple(taken)


def _is_closed(flag: SymbolHistory) -> bool:
    """Every release lists its values and takes no other."""
    return all(not range_.facts.get("open", True) for range_ in flag.ranges)


def _is_refused(keys: SymbolTable, config: str, key: str) -> bool:
    known = keys.get(config)
    is_strict = known is not None and all(range_.facts.get("strict", True) for range_ in known.ranges)
    return is_strict and f"{config}.{key}" not in keys


def variables_of_no_release(context: Context) -> list[Match]:
    if not is_undecided(context):
        return []
    history = shipped_history(context.launch.engine)
    return [
        Match(f"env:{name}", name, name, _similar_variable(name, history.variables))
        for name in context.launch.env
        if name.startswith(PREFIXES[context.launch.engine])
        and name not in history.variables
        and name not in BUILD_VARIABLES
    ]


def _similar_variable(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.85)
    return f"did you mean `{near[0]}`?" if near else "no release read it"


def build_variables(context: Context) -> list[Match]:
    named = [name for name in context.launch.env if name in BUILD_VARIABLES]
    return [Match(f"env:{name}", name, name) for name in named if not release_ranges("vllm", name)]


def releases_needed(context: Context) -> list[Match]:
    """One match: the releases that have all that the launch uses, where not all have."""
    needs = list(_needs(context)) if is_undecided(context) else []
    if not needs or _contradiction(needs):
        return []
    low = max(needs, key=lambda need: version_key(need.first))
    ends = [need.last for need in needs if need.last]
    span = f"{low.first} to {min(ends, key=version_key)}" if ends else f"{low.first} or newer"
    why = [f"{need.shown} {f'until {need.last}' if need.last else f'since {need.first}'}" for need in needs]
    return [Match(low.key, ", ".join(why[:6]), span, ", ".join(why[:6]))]


def no_common_release(context: Context) -> list[Match]:
    """Two parts of the launch of which one was gone before the other came."""
    pair = _contradiction(list(_needs(context))) if is_undecided(context) else None
    if pair is None:
        return []
    gone, came = pair
    reason = f"{gone.shown} is in none after {gone.last}, {came.shown} in none before {came.first}"
    return [Match(gone.key, f"{gone.shown}, {came.shown}", gone.shown, reason)]


def _contradiction(needs: list[_Need]) -> tuple[_Need, _Need] | None:
    for gone in needs:
        for came in needs:
            if gone.last and version_key(came.first) > version_key(gone.last):
                return gone, came
    return None


def _needs(context: Context) -> Iterator[_Need]:
    """Flags, values, keys and parsers that exist in an unbroken run of releases, but not in all."""
    engine = context.launch.engine
    oldest = known_versions(engine)[0]
    for name, given in context.launch.flags.items():
        spans = {f"`--{name}`": release_ranges(engine, f"--{name}")}
        if isinstance(given, str) and _is_listed(engine, name):
            spans[f"`--{name} {given}`"] = release_ranges(engine, f"--{name}", given)
        configs = _configs(flags_spelled(engine, f"--{name}")) if isinstance(given, dict) else set()
        for key in given if len(configs) == 1 and isinstance(given, dict) else ():
            spans[f'"{key}" in `--{name}`'] = release_ranges(engine, f"{min(configs)}.{key}")
        for shown, found in spans.items():
            if len(found) == 1 and (found[0][0] != oldest or found[0][1] is not None):
                yield _Need(f"flag:{name}", shown, *found[0])


@lru_cache(maxsize=4096)
def _is_listed(engine: EngineName, name: str) -> bool:
    """Whether all values of the flag are known."""
    flags = flags_spelled(engine, f"--{name}")
    return bool(flags) and (all(map(_is_closed, flags)) or name in _PARSERS)


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "flags-of-no-release": flags_of_no_release,
    "flags-of-older-releases": flags_of_older_releases,
    "flags-of-a-fork": flags_of_a_fork,
    "values-of-no-release": values_of_no_release,
    "variables-of-no-release": variables_of_no_release,
    "build-variables": build_variables,
    "releases-needed": releases_needed,
    "no-common-release": no_common_release,
}
