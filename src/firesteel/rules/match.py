"""Match a rule against a context.

A rule has a set of matchers. Some only decide whether it applies (engine, version, hardware); the others also
return the part of the launch that they matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase, translate
from functools import cache

from packaging.version import Version

from firesteel.catalog.image import is_upstream
from firesteel.engines.engine import format_flag, grammar
from firesteel.engines.flags import compact_json, name_set
from firesteel.launch import FlagValue, Launch, plain_reference
from firesteel.reads.programs import is_shell
from firesteel.rules.context import (
    NEWEST_KNOWN,
    Context,
    Match,
    as_number,
    as_text,
    is_final,
    is_final_number,
)
from firesteel.rules.predicates import PREDICATES
from firesteel.rules.rule import Rule, When
from firesteel.version_range import has_no_end, is_in_range

_LITERAL = re.compile(r"[^*?[]+")
_MISSING = object()
_MAX_SHOWN = 160


def matches(rule: Rule, context: Context) -> tuple[Match, ...]:
    """What the rule matches; empty when it does not apply."""
    when, launch = rule.when, context.launch
    # Most rules end here, at little cost.
    if when.across or (when.engine and when.engine != launch.engine):
        return ()
    if when.flag and context.flags.keys().isdisjoint(when.flag):
        return ()
    found = _match(rule.when, context)
    if not found or not all(_match(when, context) for when in rule.also):
        return ()
    is_exempt = any(_match(when, context, accept_placeholders=True) for when in rule.unless)
    return () if is_exempt else tuple(found)


def _match(when: When, context: Context, accept_placeholders: bool = False) -> list[Match]:
    """What the most specific of these matchers found; empty unless all of them match.

    A placeholder (`$DTYPE`) may stand for any value, so it never makes a rule apply, and it does make an
    exception (`unless`) apply: `accept_placeholders`.
    """
    has_scope, matchers = _plan(when.given)
    if has_scope and not _in_scope(when, context):
        return []
    most_specific: list[Match] = []
    for matcher in matchers:
        if not (found := list(matcher(when, context, accept_placeholders))):
            return []
        most_specific = most_specific or found
    model = context.launch.model
    return most_specific or [Match("model", model, "model", model)]


@cache
def _plan(given: frozenset[str]) -> tuple[bool, tuple[_Matcher, ...]]:
    """Whether matchers of scope are given, and the others, the most specific first."""
    return bool(given & _SCOPE), tuple(matcher for names, matcher in _MATCHERS if given & names)


def _in_scope(when: When, context: Context) -> bool:
    launch, container = context.launch, context.launch.container
    return (
        when.engine in (None, launch.engine)
        and when.hardware in (None, context.hardware)
        and when.container in (None, container is not None)
        and (
            when.known_image is None
            or (container is not None and (context.image is not None) == when.known_image)
        )
        and (when.version is None or _version_matches(when.version, context))
        and (when.model is None or _matches_any(when.model, launch.model))
        and (when.network is None or (container is not None and container.network in when.network))
        and (
            when.upstream is None or (container is not None and is_upstream(container.image) == when.upstream)
        )
    )


def _version_matches(text: str, context: Context) -> bool:
    """An unknown version may be in any range without an upper end that includes the newest version."""
    if context.version is None:
        return has_no_end(text) and is_in_range(Version(NEWEST_KNOWN[context.launch.engine]), text)
    return is_in_range(context.version, text)


def _matches_any(patterns: Iterable[str], text: str) -> bool:
    return any(_fits(text.lower(), pattern.lower()) for pattern in patterns)


def _fits(text: str, pattern: str) -> bool:
    """Without the first literal part nothing can match, and no regular expression has to be compiled."""
    literal = _LITERAL.search(pattern)
    return (literal is None or literal[0] in text) and fnmatchcase(text, pattern)


def _flags(when: When, context: Context, accept_placeholders: bool) -> Iterator[Match]:
    flags = context.flags
    for name in when.flag or ():
        if name not in flags:
            continue
        value: object = flags[name]
        if when.key:
            value = _inside(value, when.key)
        if value is not _MISSING and _value_matches(when, value, accept_placeholders):
            typed = _typed(context.launch, name, when.key)
            plain = compact_json(value) if isinstance(value, dict | list) else as_text(value)
            yield Match(f"flag:{typed}", _shown(context.launch, typed, when.key, value), name, plain)


def _typed(launch: Launch, name: str, key: str | None) -> str:
    """The flag as given in the launch: this one, or a shortcut for it."""
    shortcuts = [
        (target, short)
        for short, target in grammar(launch.engine).shortcuts.items()
        if short in launch.flags and target[0] == name
    ]
    exact = dict(shortcuts).get((name, key or ""))
    return exact or (name if name in launch.flags else shortcuts[0][1])


def _inside(value: object, key: str) -> object:
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _value_matches(when: When, value: object, accept_placeholders: bool) -> bool:
    text, number = as_text(value).lower(), as_number(value)
    return (
        when.bare in (None, value is True)
        and (when.value is None or text in _lower(when.value))
        and (
            when.other_than is None
            or (text not in _lower(when.other_than) and (accept_placeholders or is_final(text)))
        )
        and (when.above is None or (number is not None and number > when.above))
        and (when.up_to is None or (number is not None and number <= when.up_to))
        and (
            when.number is None
            or (isinstance(value, str) and is_final_number(value) and (number is not None) == when.number)
        )
    )


def _lower(texts: Iterable[str]) -> set[str]:
    return {text.lower() for text in texts}


def _shown(launch: Launch, name: str, key: str | None, value: object) -> str:
    given: FlagValue = launch.flags[name]
    if key and isinstance(given, dict):
        return f"--{name} with {compact_json(key)}: {compact_json(value)}"[:_MAX_SHOWN]
    return " ".join(format_flag(launch.engine, name, given))[:_MAX_SHOWN]


def _environment(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    is_meant = _any_of(tuple(patterns)).match
    for name, value in launch.env.items():
        if is_meant(name):
            typed = f"{name}={value}" if value != f"${name}" else name
            yield Match(f"env:{name}", f"-e {typed}" if launch.container else typed, name, value)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


def _extra(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    for argument in launch.extra:
        if _matches_any(patterns, argument):
            yield Match("program", argument[:_MAX_SHOWN], argument, argument)


def _options(names: Iterable[str], launch: Launch) -> Iterator[Match]:
    for name, value in launch.container.options if launch.container else ():
        if name in names:
            shown = f"--{name}" if value is None else f"--{name} {value}"
            yield Match(f"option:{name}", shown, name, value or "")


def _container(when: When, launch: Launch) -> Iterator[Match]:
    container = launch.container
    if container and when.restart and container.restart in when.restart:
        yield Match("option:restart", f"--restart {container.restart}", "restart", container.restart or "")
    if container and when.shm_above is not None and (container.shm_bytes or 0) > when.shm_above:
        size = f"{(container.shm_bytes or 0) / 2**30:g}g"
        yield Match("option:shm-size", f"--shm-size {size}", "shm-size", size)


def _after_entrypoint(what: str, context: Context) -> Iterator[Match]:
    container, image = context.launch.container, context.image
    if (
        container is None
        or image is None
        or not image.entrypoint
        or container.entrypoint is not None
        or not container.program
    ):
        return
    shell = is_shell(container.program[0])
    if shell == (what == "shell"):
        program = container.program[:2] if shell else container.program
        model = "..." if shell else context.launch.model
        shown = " ".join((container.image, *program, model)).strip()
        yield Match("program", shown, " ".join(program), container.image)


def _absent(name: str, launch: Launch) -> Iterator[Match]:
    if name not in launch.flags and launch.model and not {"...", "\u2026"} & set(launch.extra):
        yield Match("program", f"no --{name}", name)


def _image(when: When, context: Context) -> Iterator[Match]:
    container = context.launch.container
    if container is None or (when.image and not _matches_any(when.image, plain_reference(container.image))):
        return
    known = context.image.sm if context.image else None
    if when.image_lacks and (known is None or when.image_lacks in known):
        return
    yield Match("image", container.image, "image", container.image)


_Matcher = Callable[[When, Context, bool], Iterable[Match]]
_SCOPE = name_set("engine version hardware model container network known_image upstream")
_MATCHERS: tuple[tuple[frozenset[str], _Matcher], ...] = (
    (name_set("flag"), _flags),
    (name_set("env"), lambda when, context, _: _environment(when.env or (), context.launch)),
    (name_set("extra"), lambda when, context, _: _extra(when.extra or (), context.launch)),
    (name_set("option"), lambda when, context, _: _options(when.option or (), context.launch)),
    (name_set("restart shm_above"), lambda when, context, _: _container(when, context.launch)),
    (name_set("predicate"), lambda when, context, _: PREDICATES[when.predicate or ""](context)),
    (
        name_set("after_entrypoint"),
        lambda when, context, _: _after_entrypoint(when.after_entrypoint or "", context),
    ),
    (
        name_set("flaw"),
        lambda when, context, _: [Match(f"flaw:{when.flaw}", "")] if when.flaw in context.flaws else [],
    ),
    (name_set("absent"), lambda when, context, _: _absent(when.absent or "", context.launch)),
    (name_set("image image_lacks"), lambda when, context, _: _image(when, context)),
)
"""Those that return matches, the most specific first."""
