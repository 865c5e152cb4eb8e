"""Model files of vllm-project/recipes.

What is expected here is what the site's own `command-synthesis.js` renders for the fixture; the reader was
held against it over all 173 files of the repository of 2026-08-21.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.reads import launches
from firesteel.reads.launches import read
from firesteel.reads.reader import LaunchReader
from firesteel.reads.source_text import source_file
from firesteel.reads.vllm_recipes import MAX_PARTS, starts
from firesteel.reads.yaml_nodes import parse_documents

FILE = Path(__file__).parent / "files" / "vllm-recipe.yaml"
TEXT = FILE.read_text()
HEAD, _, _ = TEXT.partition("guide:")


def commands(text: str) -> list[str]:
    (document,) = parse_documents(source_file(text, "a.yaml"))
    return [" ".join(word.text for word in start.arguments) for start in starts(document) or ()]


def test_every_variant_and_every_feature_that_is_off() -> None:
    common = "--trust-remote-code --max-num-seqs 64 --tensor-parallel-size 1 --max-num-batched-tokens 8192"
    tools = "--enable-auto-tool-choice --tool-call-parser hermes"
    flashinfer = "--attention-backend FLASHINFER"
    assert commands(TEXT)[:3] == [
        f"vllm serve org/A-Model {common} {flashinfer} {tools}",
        "org/A-Model-NVFP4 --trust-remote-code --kv-cache-dtype fp8 --max-num-seqs 8 --tensor-parallel-size 1"
        f' --max-num-batched-tokens 8192 {flashinfer} {tools} --speculative-config {{"method":"dspark"}}',
        f"vllm serve org/A-Model {common} {flashinfer} {tools}"
        ' --speculative-config {"method":"mtp","num_speculative_tokens":3}',
    ]


def test_sections_that_no_spark_gets() -> None:
    (document,) = parse_documents(source_file(TEXT, "a.yaml"))
    found = [start for start in starts(document) or () if start.hardware]
    assert [(start.hardware, " ".join(word.text for word in start.arguments[3:])) for start in found] == [
        ("variants.nvfp4.hardware_overrides.h100", "--trust-remote-code --max-num-seqs 512"),
        (
            "hardware_overrides.hopper",
            "--trust-remote-code --max-num-seqs 64 --attention-backend FLASHMLA",
        ),
    ]


def test_an_image_and_variables(images: Images) -> None:
    whole = source_file(TEXT, "models/org/A-Model.yaml")
    reader = LaunchReader(whole, images)
    for start in launches.starts(whole) or ():
        reader.start(start)
    plain, spark, *_ = reader.launches
    assert plain.launch.container is None
    assert plain.launch.env == {"VLLM_USE_DEEP_GEMM": "1"}
    container = spark.launch.container
    assert container and (container.image, container.gpus, container.ipc) == (
        "vllm/vllm-openai:v0.24.0",
        "all",
        "host",
    )
    assert (spark.launch.version, spark.launch.env) == ("0.24.0", {"VLLM_USE_DEEP_GEMM": "0"})
    lines = {name: spark.locations[name].line for name in ("image", "model", "flag:max-num-seqs")}
    assert lines == {"image": 37, "model": 30, "flag:max-num-seqs": 38}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:x", "vllm/vllm-openai:x"),
        ("{nvidia: a:1, amd: b:2}", "a:1"),
        ("{amd: b:2}", None),
        ("{cu129: a:1, cu130: a:2}", "a:2"),
        ("{nvidia: {cu129: a:1, cu130: a:2}}", "a:2"),
        ('""', None),
    ],
)
def test_the_image_for_an_nvidia_gpu(image: str, expected: str | None) -> None:
    text = f"meta: {{}}\nmodel: {{model_id: a/b, docker_image: {image}}}\nvariants: {{default: {{}}}}\n"
    (document,) = parse_documents(source_file(text, "a.yaml"))
    (start,) = starts(document) or ()
    assert (start.image.text if start.image else None) == expected


def test_another_engine_is_refused_by_name(images: Images) -> None:
    text = "meta: {}\nmodel: {model_id: a/b}\nvariants: {default: {}}\nomni: {tasks: [t2i]}\n"
    with pytest.raises(UsageError, match="vLLM-Omni"):
        read(text, "a.yaml", images)


@pytest.mark.parametrize("text", ["meta: a", "model: {model_id: a}", "variants: {}\nmodel: a\nmeta: b", "[]"])
def test_other_files_are_not_of_this_format(text: str) -> None:
    (document,) = parse_documents(source_file(text, "a.yaml"))
    assert starts(document) is None


_VALUES = st.sampled_from(
    ["a", "[a, --b]", "{a: b}", "{a: {b: [c]}}", "null", '{"": []}', "{default: {args: [x]}}"]
)
_KEYS = st.sampled_from(
    ["features", "opt_in_features", "hardware_overrides", "strategy_overrides", "hardware_opt_in_features"]
)


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES), _VALUES, _VALUES)
def test_any_file_is_read_or_refused(pairs: dict[str, str], variants: str, model: str) -> None:
    lines = [f"{name}: {value}" for name, value in pairs.items()]
    text = "\n".join(
        ["meta: {}", f"model: {{model_id: a/b, base_args: {model}}}", f"variants: {variants}", *lines]
    )
    with suppress(UsageError):
        read(text, "a.yaml", Images())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"variants: {{{', '.join(f'v{n}: {{}}' for n in range(MAX_PARTS + 1))}}}", "variants or features"),
        (
            "variants: {" + ", ".join(f"v{n}: {{}}" for n in range(MAX_PARTS)) + "}\n"
            "hardware_overrides: {blackwell: {extra_args: [" + "x, " * 5_000 + "x]}}",
            "arguments",
        ),
    ],
)  # fmt: skip
def test_a_bomb_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        commands(f"meta: {{}}\nmodel: {{model_id: a/b}}\n{text}\n")
