"""What a release accepts is never stopped as unknown: every spelling of every flag of it, with each value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firesteel.engines.engine import parse_argv
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import Flag, Schema
from firesteel.launch import EngineName, Launch
from firesteel.rules import known_release, releases
from firesteel.rules.context import Context, Match
from firesteel.values import replace

ENGINES: tuple[EngineName, ...] = ("llamacpp", "sglang", "vllm")
MODEL = {"llamacpp": ("-m", "m.gguf"), "sglang": ("--model-path", "org/m"), "vllm": ("org/m",)}
SAMPLES = {"int": "4", "size": "4", "float": "0.5", "json": "{}", "bool": "true", "str": "x"}


def _releases() -> Iterator[tuple[EngineName, str]]:
    for engine in ENGINES:
        versions = known_versions(engine)
        yield from (
            (engine, version) for version in (versions[0], versions[len(versions) // 2], versions[-1])
        )


def _arguments(flag: Flag) -> Iterator[tuple[str, ...]]:
    if flag.takes == "nothing":
        yield from ((spelling,) for spelling in (*flag.spellings, *flag.negatives))
        return
    values = flag.value.values or (SAMPLES[flag.value.kind],)
    yield from ((spelling, values[0]) for spelling in flag.spellings)
    yield from ((flag.spellings[-1], value) for value in values)


def _launch(schema: Schema, arguments: tuple[str, ...]) -> Launch:
    parsed = parse_argv(schema.engine, (*MODEL[schema.engine], *arguments))
    return Launch(
        name="m", model=parsed.model, engine=schema.engine, flags=parsed.flags, port=8000, extra=parsed.extra
    )


def _stops(launch: Launch, version: str) -> list[Match]:
    unknown = Context(launch, None, None)
    known = Context(replace(launch, version=version), None, None)
    return [
        *releases.flags_of_no_release(unknown),
        *releases.values_of_no_release(unknown),
        *releases.no_common_release(unknown),
        *known_release.unknown_flags(known),
        *known_release.refused_values(known),
        *known_release.stray_arguments(known),
    ]


@pytest.mark.parametrize(("engine", "version"), list(_releases()))
def test_what_a_release_has_is_not_unknown(engine: EngineName, version: str) -> None:
    schema = find_schema(engine, version)
    assert schema is not None
    wrong = {
        " ".join(arguments): found
        for flag in schema.flags.values()
        if flag.name != "model"
        for arguments in _arguments(flag)
        if (found := _stops(_launch(schema, arguments), version))
    }
    assert not wrong


@pytest.mark.parametrize("engine", ENGINES)
def test_flags_of_one_release_are_no_contradiction(engine: EngineName) -> None:
    """Whatever aliases they are written with, and one renamed flag may keep its old name."""
    schema = find_schema(engine, known_versions(engine)[-1])
    assert schema is not None
    arguments = [argument for flag in schema.flags.values() for argument in list(_arguments(flag))[-1]]
    context = Context(_launch(schema, tuple(arguments)), None, None)
    assert releases.no_common_release(context) == []


def test_a_renamed_flag_takes_its_values_under_the_old_name() -> None:
    text = ("-m", "m.gguf", "--cache-type-k-draft", "q4_0", "--spec-draft-n-max", "2")
    parsed = parse_argv("llamacpp", text)
    launch = Launch(name="m", model="m.gguf", engine="llamacpp", flags=parsed.flags, port=8080)
    assert releases.no_common_release(Context(launch, None, None)) == []
