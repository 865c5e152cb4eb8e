"""llama-swap's configuration."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.launches import read
from firesteel.reads.llama_swap import starts
from firesteel.reads.shell import NO_SPAN
from firesteel.reads.source_text import source_file
from firesteel.reads.yaml_nodes import parse_documents

FILE = Path(__file__).parent / "files" / "llama-swap.yaml"


def test_a_configuration(images: Images) -> None:
    coder, chat = read(FILE.read_text(), "config.yaml", images)
    assert coder.launch == Launch(
        name="coder",
        model="/models/coder.gguf",
        engine="llamacpp",
        flags={"port": "${PORT}", "ctx-size": "131072", "flash-attn": "on"},
        env={"CUDA_VISIBLE_DEVICES": "0", "LLAMA_ARG_THREADS": "8"},
        port=8080,
    )
    assert chat.launch == Launch(
        name="Qwen/Qwen3-8B",
        model="Qwen/Qwen3-8B",
        engine="vllm",
        version="0.24.0",
        flags={"max-model-len": "65536"},
        container=Container(
            image="vllm/vllm-openai:v0.24.0",
            gpus="all",
            publish=("${PORT}:8000",),
            mounts=(Mount("${env.HOME}/hf", "/cache/huggingface"),),
            options=(("init", None), ("rm", None), ("name", "chat")),
        ),
    )


def test_places(images: Images) -> None:
    """A flag from a macro stands in the macro; a word without one can be changed where it stands."""
    coder, chat = read(FILE.read_text(), "config.yaml", images)
    lines = {name: coder.locations[name].line for name in ("flag:ctx-size", "model", "flag:flash-attn")}
    assert lines == {"flag:ctx-size": 9, "model": 17, "flag:flash-attn": 19}
    assert coder.words["flag:ctx-size"][0].span == NO_SPAN
    text = FILE.read_text()
    assert text[slice(*chat.words["model"][0].span)] == "--model"
    assert text[slice(*chat.words["image"][0].span)] == "vllm/vllm-openai:v0.24.0"


def commands(text: str) -> list[list[str]]:
    (document,) = parse_documents(source_file(text, "config.yaml"))
    return [[word.text for word in start.arguments] for start in starts(document) or ()]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("a \\\n      b", ["a", "b"]),
        ("a\\\n      b", ["a", "b"]),
        ("# a\n      b # c", ["b"]),
        ("# ${lines} is a macro\n      b", ["b"]),
        ("a ${twice} ${PORT} ${nobody}", ["a", "1", "1", "${PORT}", "${nobody}"]),
        ("a ${itself}", ["a", "x", "${itself}"]),
        ("a '${MODEL_ID} b'", ["a", "m b"]),
    ],
)
def test_commands(command: str, expected: list[str]) -> None:
    macros = """macros: {one: 1, twice: '${one} ${one}', itself: 'x ${itself}', lines: "x\\ny", PORT: 1}\n"""
    assert commands(f"{macros}models:\n  m:\n    cmd: |\n      {command}\n") == [expected]


@settings(deadline=None)
@given(st.lists(st.text("ab-=/.", min_size=1, max_size=8), min_size=1, max_size=6))
def test_plain_words_are_split_as_a_shell_splits_them(words: list[str]) -> None:
    assert commands(f'models: {{m: {{cmd: "{" ".join(words)}"}}}}') == [shlex.split(" ".join(words))]


def test_merge_keys_and_anchors() -> None:
    text = "x: &x {cmd: vllm serve a}\nmodels: {m: {<<: *x, ttl: 1}}\n"
    assert commands(text) == [["vllm", "serve", "a"]]


@pytest.mark.parametrize("text", ["models: [a]", "models: {}", "models: {a: {model: b}}", "a: b", "- a"])
def test_other_files_are_not_of_this_format(text: str) -> None:
    (document,) = parse_documents(source_file(text, "config.yaml"))
    assert starts(document) is None


def test_an_unclosed_quote_has_its_position(images: Images) -> None:
    with pytest.raises(UsageError, match=r"config\.yaml:3:.*never closed"):
        read("models:\n  m:\n    cmd: vllm serve 'm\n", "config.yaml", images)


_SCALARS = st.sampled_from(
    ["vllm serve m", "${a}", "${b} ${a}", "'", "1", "[]", "{}", "null", "# x", "*y", "&y z"]
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("ab"), _SCALARS), st.dictionaries(st.sampled_from("mno"), _SCALARS))
def test_any_configuration_is_read_or_refused(macros: dict[str, str], models: dict[str, str]) -> None:
    lines = ["macros:", *(f"  {name}: {value}" for name, value in macros.items()), "models:"]
    for name, value in models.items():
        lines += [f"  {name}:", f"    cmd: {value}", f"    env: {value}", f"    macros: {value}"]
    with suppress(UsageError):
        read("\n".join(lines), "config.yaml", Images())


@pytest.mark.parametrize(
    "text",
    [
        "macros:\n" + "".join(f"  m{n}: x\n" for n in range(6_000))
        + "models:\n" + "".join(f"  n{n}: {{cmd: a}}\n" for n in range(6_000)),
        "macros:\n" + "".join(f"  m{n}: '{f'${{m{n + 1}}}' * 50}'\n" for n in range(9))
        + "models: {m: {cmd: 'vllm serve ${m0}'}}\n",
    ],
)  # fmt: skip
def test_a_bomb_ends(text: str) -> None:
    with suppress(UsageError):
        read(text, "config.yaml", Images())
