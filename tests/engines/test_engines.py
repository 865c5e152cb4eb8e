"""A launch that is written as arguments and parsed again is the same launch."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.engines.engine import (
    ServedCapacity,
    argv,
    default_port,
    expand_shortcuts,
    parse_argv,
    program,
    served_capacity,
    size_flags,
)
from firesteel.engines.engine import grammar as engine_grammar
from firesteel.engines.flags import Grammar
from firesteel.launch import Container, EngineName, FlagValue, Launch

ENGINES: tuple[EngineName, ...] = ("vllm", "llamacpp", "sglang")
CONTAINER = Container(image="box")
TEXT = string.printable + "é✓\x00\u2028"
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=80)

names = (
    st.text(string.ascii_lowercase + string.digits + "-", min_size=2, max_size=20)
    .filter(lambda name: name[0].isalpha() and not name.startswith("no-"))
    .filter(
        lambda name: (
            name not in {"host", "port", "model", "model-path", "hf-repo", "alias", "served-model-name"}
        )
    )
)
plain = st.text(TEXT, max_size=30).filter(lambda text: text[:1] not in ("-", "{", "["))
numbers = st.integers(-1000, 10**9).map(str) | st.floats(-1, 1, allow_nan=False).map(lambda f: f"{f:.3f}")
leaves: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(TEXT, max_size=10)
)
json_values: st.SearchStrategy[FlagValue] = st.dictionaries(
    st.text(TEXT, max_size=8), leaves | st.lists(leaves, max_size=3), max_size=4
) | st.lists(leaves, max_size=4)


def abbreviates(grammar: Grammar, name: str) -> bool:
    """Whether the name would be read back as a longer flag."""
    return any(known.startswith(name) for known in grammar.abbreviable - {name})


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    engine = draw(st.sampled_from(ENGINES))
    grammar = engine_grammar(engine)
    flags: dict[str, FlagValue] = {}
    whole = names.filter(lambda name: name not in grammar.aliases and not abbreviates(grammar, name))
    for name in draw(st.lists(whole, max_size=8, unique=True)):
        if name in grammar.switches:
            flags[name] = draw(st.booleans())
        else:
            flags[name] = draw(st.one_of(plain, numbers, st.booleans(), json_values))
    models = ["org/model", "/models/model.gguf", "org/repo-GGUF:Q4_K_M", "./here/a b.gguf"]
    return Launch(
        name=draw(st.sampled_from(["served", "org/model"])),
        model=draw(st.sampled_from(models)),
        engine=engine,
        flags=flags,
        port=draw(st.integers(1, 2**16 - 1)),
        container=draw(st.sampled_from([None, CONTAINER])),
    )


@calm
@given(launches())
def test_parse_is_the_inverse_of_argv(launch: Launch) -> None:
    parsed = parse_argv(launch.engine, argv(launch), contained=launch.container is not None)
    assert (parsed.model, parsed.port, dict(parsed.flags)) == (launch.model, launch.port, dict(launch.flags))
    assert (parsed.name or parsed.model) == launch.name
    assert parsed.extra == ()


@calm
@given(st.sampled_from(ENGINES), st.lists(st.text(TEXT, max_size=12), max_size=20), st.booleans())
def test_parse_takes_any_arguments(engine: EngineName, arguments: list[str], contained: bool) -> None:
    parse_argv(engine, arguments, contained=contained)


@calm
@given(st.sampled_from(ENGINES), st.integers(1, 2**20), st.integers(1, 256))
def test_served_capacity_is_the_inverse_of_size_flags(engine: EngineName, context: int, users: int) -> None:
    launch = Launch("m", "org/m", engine, flags=size_flags(engine, context, users))
    assert served_capacity(launch) == ServedCapacity(context, users)


def test_the_arguments_of_each_engine() -> None:
    flags: dict[str, FlagValue] = {"a": "1", "b": True, "c": False, "d": {"x": [1, None]}, "e": "-v"}
    arguments = {
        engine: argv(Launch("chat", "org/m", engine, flags=flags, port=9, container=CONTAINER))
        for engine in ENGINES
    }
    tail = ("--a", "1", "--b", "--no-c", "--d", '{"x":[1,null]}')
    address = ("--host", "0.0.0.0", "--port", "9")
    assert arguments["vllm"] == ("org/m", *address, "--served-model-name", "chat", *tail, "--e=-v")
    assert arguments["llamacpp"] == ("--hf-repo", "org/m", *address, "--alias", "chat", *tail, "--e", "-v")
    assert arguments["sglang"][:2] == ("--model-path", "org/m")


def test_the_address_depends_on_the_container() -> None:
    child = Launch("m", "/m.gguf", "llamacpp")
    assert argv(child)[:4] == ("--model", "/m.gguf", "--host", "127.0.0.1")
    typed = Launch("m", "m", "vllm", flags={"host": "10.0.0.1"}, container=CONTAINER)
    assert argv(typed) == ("m", "--port", "8000", "--host", "10.0.0.1")


def test_programs_and_ports() -> None:
    assert [program(engine) for engine in ENGINES] == [
        ("vllm", "serve"),
        ("llama-server",),
        ("python3", "-m", "sglang.launch_server"),
    ]
    assert [default_port(engine) for engine in ENGINES] == [8000, 8080, 30000]


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        ("vllm", {"max-model-len": "128k", "max-num-seqs": "4"}, (128_000, 4)),
        ("vllm", {"max-model-len": "128K"}, (131_072, None)),
        ("vllm", {"max-model-len": "auto", "max-num-seqs": "9" * 40}, (None, None)),
        ("vllm", {"max-model-len": "-1"}, (None, None)),
        ("llamacpp", {"ctx-size": "8192"}, (8192, None)),
        ("llamacpp", {"ctx-size": "8192", "parallel": "4"}, (2048, 4)),
        ("llamacpp", {"ctx-size": "8192", "parallel": "4", "kv-unified": True}, (8192, 4)),
        ("llamacpp", {"ctx-size": "0", "parallel": "-1"}, (None, None)),
        ("sglang", {"context-length": "4096"}, (4096, None)),
        ("sglang", {"context-length": True}, (None, None)),
    ],
)
def test_the_capacity_of_lines_in_the_wild(
    engine: EngineName, flags: dict[str, FlagValue], expected: tuple[int | None, int | None]
) -> None:
    assert served_capacity(Launch("m", "m", engine, flags=flags)) == ServedCapacity(*expected)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"spec-method": "mtp", "spec-tokens": "5"}, {"method": "mtp", "num_speculative_tokens": "5"}),
        ({"speculative-config": {"method": "mtp"}, "spec-tokens": "5"}, None),
        ({"speculative-config": "$CONFIG", "spec-tokens": "5"}, "$CONFIG"),
        ({"seed": "1"}, "absent"),
    ],
)
def test_shortcuts_are_expanded(flags: dict[str, FlagValue], expected: object) -> None:
    expanded = expand_shortcuts(Launch("m", "m", "vllm", flags=flags))
    assert expanded.get("speculative-config", "absent") == (
        {"method": "mtp", "num_speculative_tokens": "5"} if expected is None else expected
    )
    assert flags.items() <= expanded.items() or "speculative-config" in flags


def test_deep_json_stays_text() -> None:
    deep = "[" * 100_000
    assert parse_argv("vllm", ("m", "--hf-overrides", deep)).flags == {"hf-overrides": deep}
    assert json.loads(argv(Launch("m", "m", "vllm", flags={"x": {"é": 1}}))[-1]) == {"é": 1}
