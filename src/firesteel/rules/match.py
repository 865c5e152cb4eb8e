"""Does a rule hold here? Matchers are held against a scene one by one; those that look at something
say what they saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache

from packaging.specifiers import SpecifierSet

from firesteel import engines
from firesteel.catalog import is_upstream, plain_reference
from firesteel.engines import compact_json
from firesteel.launch import FlagValue, Launch
from firesteel.reads import is_shell
from firesteel.rules.context import NEWEST_KNOWN, Context, Match, as_number, as_text, is_final
from firesteel.rules.predicates import PREDICATES
from firesteel.rules.rule import Rule, When

_MISSING = object()
_SHOWN = 160


def matches(rule: Rule, scene: Context) -> tuple[Match, ...]:
    """What the rule sees; nothing when it does not hold."""
    found = _look(rule.when, scene)
    if not found or not all(_look(more, scene) for more in rule.also):
        return ()
    return () if any(_look(out, scene, is_doubted=True) for out in rule.unless) else tuple(found)


def _look(when: When, scene: Context, is_doubted: bool = False) -> list[Match]:
    """What these matchers see, the most telling one's sights; nothing unless all of them hold.

    Of a value that is yet to be filled in nobody can tell whether it is another one. A rule does not hold by
    it, and what lets a launch off (`is_doubted`) does.
    """
    if not _in_scope(when, scene):
        return []
    looked = [list(found) for found in _looks(when, scene, is_doubted)]
    if not all(looked):
        return []
    model = scene.launch.model
    return looked[0] if looked else [Match("model", model, "model", model)]


def _looks(when: When, scene: Context, is_doubted: bool) -> Iterator[Iterable[Match]]:
    """One entry for every matcher that looks at something, the most telling first."""
    if when.flag:
        yield _flags(when, scene, is_doubted)
    if when.env:
        yield _environment(when.env, scene.launch)
    if when.extra:
        yield _extra(when.extra, scene.launch)
    if when.option:
        yield _options(when.option, scene.launch)
    if when.restart or when.shm_above is not None:
        yield _box(when, scene.launch)
    if when.predicate:
        yield PREDICATES[when.predicate](scene)
    if when.after_entrypoint:
        yield _after_entrypoint(when.after_entrypoint, scene)
    if when.flaw:
        yield [Match(f"flaw:{when.flaw}", "")] if when.flaw in scene.flaws else []
    if when.absent:
        yield _absent(when.absent, scene.launch)
    if when.image or when.image_lacks:
        yield _image(when, scene)


def _in_scope(when: When, scene: Context) -> bool:
    launch, box = scene.launch, scene.launch.container
    return (
        when.engine in (None, launch.engine)
        and when.hardware in (None, scene.hardware)
        and when.container in (None, box is not None)
        and (when.known_image is None or (box is not None and (scene.image is not None) == when.known_image))
        and (when.version is None or _holds(when.version, scene))
        and (when.model is None or _any_like(when.model, launch.model))
        and (when.network is None or (box is not None and box.network in when.network))
        and (when.upstream is None or (box is not None and is_upstream(box.image) == when.upstream))
    )


@cache
def _specifiers(text: str) -> SpecifierSet:
    return SpecifierSet(text)


def _holds(text: str, scene: Context) -> bool:
    """An unknown version may be in any range that begins somewhere and has not ended yet."""
    version, specifiers = scene.version, _specifiers(text)
    if version is None:
        has_no_end = all(each.operator in (">", ">=", "!=") for each in specifiers)
        return has_no_end and specifiers.contains(NEWEST_KNOWN[scene.launch.engine])
    return specifiers.contains(version, prereleases=True)


def _any_like(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)


def _flags(when: When, scene: Context, is_doubted: bool) -> Iterator[Match]:
    flags = scene.flags
    for name in when.flag or ():
        if name not in flags:
            continue
        value: object = flags[name]
        if when.key:
            value = _inside(value, when.key)
        if value is not _MISSING and _value_fits(when, value, is_doubted):
            typed = _typed(scene.launch, name, when.key)
            yield Match(f"flag:{typed}", _shown(scene.launch, typed, when.key, value), name, _plain(value))


def _typed(launch: Launch, name: str, key: str | None) -> str:
    """The flag that stands in the launch: this one, or the shortcut that says the same."""
    short = [
        (about, short)
        for short, about in engines.grammar(launch.engine).shortcuts.items()
        if short in launch.flags and about[0] == name
    ]
    exact = dict(short).get((name, key or ""))
    return exact or (name if name in launch.flags else short[0][1])


def _inside(value: object, key: str) -> object:
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _value_fits(when: When, value: object, is_doubted: bool) -> bool:
    text, number = as_text(value).lower(), as_number(value)
    return (
        when.bare in (None, value is True)
        and (when.value is None or text in _lower(when.value))
        and (when.other_than is None or _is_other(when.other_than, text, is_doubted))
        and (when.above is None or (number is not None and number > when.above))
        and (when.up_to is None or (number is not None and number <= when.up_to))
        and (when.number is None or (_is_final(value) and (number is not None) == when.number))
    )


def _is_other(known: Iterable[str], text: str, is_doubted: bool) -> bool:
    return text not in _lower(known) and (is_doubted or is_final(text))


def _is_final(value: object) -> bool:
    """Text that neither a shell (`$UTIL`) nor a reader (`<UTIL>`) has yet to fill in."""
    return isinstance(value, str) and is_final(value)


def _lower(texts: Iterable[str]) -> set[str]:
    return {text.lower() for text in texts}


def _plain(value: object) -> str:
    return compact_json(value) if isinstance(value, dict | list) else as_text(value)


def _shown(launch: Launch, name: str, key: str | None, value: object) -> str:
    given: FlagValue = launch.flags[name]
    if key and isinstance(given, dict):
        return f"--{name} with {compact_json(key)}: {compact_json(value)}"[:_SHOWN]
    return " ".join(engines.format_flag(launch.engine, name, given))[:_SHOWN]


def _environment(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    for name, value in launch.env.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            typed = f"{name}={value}" if value != f"${name}" else name
            yield Match(f"env:{name}", f"-e {typed}" if launch.container else typed, name, value)


def _extra(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    for word in launch.extra:
        if _any_like(patterns, word):
            yield Match("program", word[:_SHOWN], word, word)


def _options(names: Iterable[str], launch: Launch) -> Iterator[Match]:
    for name, value in launch.container.options if launch.container else ():
        if name in names:
            saw = f"--{name}" if value is None else f"--{name} {value}"
            yield Match(f"option:{name}", saw, name, value or "")


def _box(when: When, launch: Launch) -> Iterator[Match]:
    box = launch.container
    if box and when.restart and box.restart in when.restart:
        yield Match("option:restart", f"--restart {box.restart}", "restart", box.restart or "")
    if box and when.shm_above is not None and (box.shm_bytes or 0) > when.shm_above:
        size = f"{(box.shm_bytes or 0) / 2**30:g}g"
        yield Match("option:shm-size", f"--shm-size {size}", "shm-size", size)


def _after_entrypoint(what: str, scene: Context) -> Iterator[Match]:
    box, image = scene.launch.container, scene.image
    if box is None or image is None or not image.entrypoint or box.entrypoint is not None or not box.program:
        return
    shell = is_shell(box.program[0])
    if shell == (what == "shell"):
        program = box.program[:2] if shell else box.program
        model = "..." if shell else scene.launch.model
        yield Match("program", " ".join((box.image, *program, model)).strip(), " ".join(program), box.image)


def _absent(name: str, launch: Launch) -> Iterator[Match]:
    if name not in launch.flags and launch.model and not {"...", "\u2026"} & set(launch.extra):
        yield Match("program", f"no --{name}", name)


def _image(when: When, scene: Context) -> Iterator[Match]:
    box = scene.launch.container
    if box is None or (when.image and not _any_like(when.image, plain_reference(box.image))):
        return
    known = scene.image.sm if scene.image else None
    if when.image_lacks and (known is None or when.image_lacks in known):
        return
    yield Match("image", box.image, "image", box.image)
