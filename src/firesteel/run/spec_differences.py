"""What differs between a service that runs and the one that is asked for, in the engine's own words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firesteel.run.service import ServiceSpec

_MAX_SHOWN = 4


def differences(running: ServiceSpec, wanted: ServiceSpec) -> str:
    """`--ctx-size 4096, not 1024; --port 8000, not 8001`"""
    found = list(_differences(running, wanted))
    more = [f"{len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    return "; ".join([*found[:_MAX_SHOWN], *more]) or "it was planned by another version of firesteel"


def _differences(running: ServiceSpec, wanted: ServiceSpec) -> Iterator[str]:
    yield from _changed(_flags(running.start), _flags(wanted.start))
    if running.is_guarded_by_key != wanted.is_guarded_by_key:
        yield "it asks for a key" if running.is_guarded_by_key else "it asks for no key"
    elif running.listen != wanted.listen:
        yield f"it listens on {running.listen}, not {wanted.listen}"
    yield from _changed(running.env, wanted.env)


def _changed(running: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for name in [*running, *(name for name in wanted if name not in running)]:
        one, other = running.get(name), wanted.get(name)
        if one == other:
            continue
        if other is None:
            yield f"it has {name} {one}".rstrip()
        elif one is None:
            yield f"it lacks {name} {other}".rstrip()
        else:
            yield f"{name} {one}, not {other}"


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag -> value, as engines and docker take them; words that belong to no flag are left out."""
    flags: dict[str, str] = {}
    for index, word in enumerate(argv):
        if word.startswith("-") and not word.lstrip("-").isdigit():
            name, equals, value = word.partition("=")
            following = argv[index + 1] if index + 1 < len(argv) else "-"
            value = value if equals else "" if following.startswith("-") else following
            flags[name] = f"{flags[name]} {value}" if name in flags else value
    return flags
