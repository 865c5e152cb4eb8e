from __future__ import annotations

import argparse

import pytest

from firesteel.engines.schema.releases import newest_schema
from firesteel.engines.schema.symbols import (
    AmbiguousFlag,
    Config,
    Flag,
    ResolvedFlag,
    Schema,
    SymbolValue,
    resolve_flag,
    resolve_key,
)
from firesteel.launch import EngineName

VLLM = Schema(
    "vllm",
    "1.0",
    {
        flag.name: flag
        for flag in (
            Flag("help", SymbolValue(), "optional", ("-h",)),
            Flag("host"),
            Flag("quantization", SymbolValue(), aliases=("-q",)),
            Flag("tensor-parallel-size", SymbolValue("int"), aliases=("-tp",)),
            Flag("kv-cache-memory-bytes", SymbolValue("size")),
            Flag("kv-cache-dtype", SymbolValue("str", ("auto", "fp8"), open=False)),
            Flag("enable-lora", SymbolValue("bool"), "nothing", negatives=("--no-enable-lora",)),
            Flag("compilation-config", SymbolValue("json", config="CompilationConfig"), aliases=("-cc",)),
            Flag("hf-overrides", SymbolValue("json")),
        )
    },
    {
        "CompilationConfig": Config(
            "CompilationConfig",
            {
                "mode": SymbolValue("int"),
                "custom_ops": SymbolValue("json"),
                "pass_config": SymbolValue("json", config="PassConfig"),
            },
        ),
        "PassConfig": Config("PassConfig", {"fuse": SymbolValue("bool")}, strict=False),
    },
)
LLAMACPP = Schema("llamacpp", "9000", {"ctx-size": Flag("ctx-size", SymbolValue("int"), aliases=("-c",))})


@pytest.mark.parametrize(
    ("argument", "name", "negative", "keys", "abbreviated"),
    [
        ("--host", "host", False, (), False),
        ("--kv_cache_dtype", "kv-cache-dtype", False, (), False),
        ("--kv-cache-dtype=fp8", "kv-cache-dtype", False, (), False),
        ("--kv-cache-mem", "kv-cache-memory-bytes", False, (), True),
        ("--no-enable-lora", "enable-lora", True, (), False),
        ("--no-en", "enable-lora", True, (), True),
        ("-tp", "tensor-parallel-size", False, (), False),
        ("-t", "tensor-parallel-size", False, (), True),
        ("-qfp8", "quantization", False, (), False),
        ("--compilation-config.mode", "compilation-config", False, ("mode",), False),
        (
            "--compilation_config.pass_config.fuse=true",
            "compilation-config",
            False,
            ("pass_config", "fuse"),
            False,
        ),
        ("--compilation-config.custom_ops+", "compilation-config", False, ("custom_ops",), False),
        ("-cc.mode", "compilation-config", False, ("mode",), False),
    ],
)
def test_arguments_that_mean_a_flag(
    argument: str, name: str, negative: bool, keys: tuple[str, ...], abbreviated: bool
) -> None:
    found = resolve_flag(VLLM, argument)
    assert isinstance(found, ResolvedFlag)
    assert (found.flag.name, found.negative, found.keys, found.abbreviated) == (
        name,
        negative,
        keys,
        abbreviated,
    )


def test_an_abbreviation_that_fits_two_flags() -> None:
    assert resolve_flag(VLLM, "--kv-cache") == AmbiguousFlag(("--kv-cache-memory-bytes", "--kv-cache-dtype"))
    assert isinstance(resolve_flag(VLLM, "--h"), AmbiguousFlag)


@pytest.mark.parametrize("argument", ["--swap-space", "--host-name", "--", "-", "-z", "--no-host"])
def test_words_that_mean_nothing(argument: str) -> None:
    assert resolve_flag(VLLM, argument) is None


def test_llamacpp_takes_no_abbreviations() -> None:
    assert isinstance(resolve_flag(LLAMACPP, "--ctx_size"), ResolvedFlag)
    assert isinstance(resolve_flag(LLAMACPP, "-c"), ResolvedFlag)
    assert resolve_flag(LLAMACPP, "--ctx") is None


def test_keys_of_json_flags() -> None:
    assert resolve_key(VLLM, "compilation-config", ("mode",)) == SymbolValue("int")
    assert resolve_key(VLLM, "compilation-config", ("level",)) == "unknown"
    assert resolve_key(VLLM, "compilation-config", ("pass_config", "fuse")) == SymbolValue("bool")
    assert resolve_key(VLLM, "compilation-config", ("pass_config", "other")) == "ignored"
    assert resolve_key(VLLM, "hf-overrides", ("rope_scaling", "factor")) == "free"


def twin(schema: Schema) -> argparse.ArgumentParser:
    """A real parser with the same spellings; every flag notes the spelling that it was reached by."""
    parser = argparse.ArgumentParser(add_help=False)
    for flag in schema.flags.values():
        for says_no, spellings in ((False, flag.spellings), (True, flag.negatives)):
            if spellings:
                name = f"{flag.name} {says_no}"
                parser.add_argument(*spellings, dest=name, action="store_const", const=name)
    return parser


def reached(parser: argparse.ArgumentParser, argument: str) -> str | None:
    """What argparse makes of one word: a flag, `ambiguous`, or None."""
    try:
        found, _ = parser.parse_known_args([argument])
    except SystemExit:
        return "ambiguous"
    return next((value for value in vars(found).values() if value), None)


def ours(schema: Schema, argument: str) -> str | None:
    found = resolve_flag(schema, argument)
    if isinstance(found, AmbiguousFlag):
        return "ambiguous"
    return f"{found.flag.name} {found.negative}" if found else None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_abbreviations_as_argparse_has_them(engine: EngineName, capsys: pytest.CaptureFixture[str]) -> None:
    known = newest_schema(engine)
    parser = twin(known)
    spellings = [spelling for flag in known.flags.values() for spelling in (*flag.spellings, *flag.negatives)]
    arguments = {
        spelling[: max(4, len(spelling) - cut)] for spelling in spellings[::5] for cut in (0, 1, 4, 9)
    }
    differ = {
        argument: (ours(known, argument), reached(parser, argument))
        for argument in arguments
        if argument.startswith("--") and ours(known, argument) != reached(parser, argument)
    }
    assert differ == {}
