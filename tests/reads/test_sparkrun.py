"""Recipes of sparkrun and of eugr's spark-vllm-docker."""

from __future__ import annotations

import string
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.launches import read
from firesteel.reads.shell import NO_SPAN
from firesteel.reads.source_text import source_file
from firesteel.reads.sparkrun import starts
from firesteel.reads.yaml_nodes import parse_documents
from firesteel.units import GIB

FILES = Path(__file__).parent / "files"
HUB = "~/.cache/huggingface"


def test_a_sparkrun_recipe(images: Images) -> None:
    (reading,) = read((FILES / "sparkrun.yaml").read_text(), "recipe.yaml", images)
    model = "nvidia/Qwen3.6-35B-A3B-NVFP4"
    assert reading.launch == Launch(
        name=model,
        model=model,
        engine="vllm",
        version="0.24.0",
        flags={
            "tensor-parallel-size": "1",
            "gpu-memory-utilization": "0.8",
            "speculative-config": {"method": "eagle3", "model": "org/draft"},
            "reasoning-parser": "{reasoning_parser}",
        },
        env={
            "HF_HOME": "/cache/huggingface",
            "RAY_memory_monitor_refresh_ms": "0",
            "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
            "HF_TOKEN": "$HF_TOKEN",
            "OMP_NUM_THREADS": "4",
        },
        container=Container(
            image="vllm/vllm-openai:v0.24.0",
            entrypoint="",
            program=("vllm", "serve"),
            gpus="all",
            shm_bytes=10 * GIB,
            network="host",
            restart="unless-stopped",
            mounts=(Mount(HUB, "/cache/huggingface"),),
            options=(("device", "/dev/infiniband"),),
        ),
    )


def test_places(images: Images) -> None:
    text = (FILES / "sparkrun.yaml").read_text()
    (reading,) = read(text, "recipe.yaml", images)
    lines = {
        "image": 5, "option:restart": 13, "env:VLLM_MARLIN_USE_ATOMIC_ADD": 25, "model": 3,
        "env:OMP_NUM_THREADS": 29, "flag:gpu-memory-utilization": 32, "flag:speculative-config": 33,
    }  # fmt: skip
    assert {name: reading.locations[name].line for name in lines} == lines
    flag, value = reading.words["flag:gpu-memory-utilization"]
    assert (text[slice(*flag.span)], value.line, value.span) == ("--gpu-memory-utilization", 20, NO_SPAN)


def test_an_eugr_recipe(images: Images) -> None:
    (reading,) = read((FILES / "eugr.yaml").read_text(), "recipe.yaml", images)
    launch = reading.launch
    assert (launch.engine, launch.model, launch.version) == ("vllm", "deepseek-ai/DeepSeek-V4-Flash", None)
    assert launch.flags == {
        "tensor-parallel-size": "2",
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
        "nnodes": "2",
        "node-rank": "0",
        "master-addr": "{head_ip}",
    }
    assert launch.env == {"RAY_memory_monitor_refresh_ms": "0", "VLLM_USE_DEEP_GEMM": "0"}
    container = launch.container
    assert container and (container.image, container.entrypoint, container.ipc) == ("vllm-node", "", "host")


def command(template: str, defaults: str = "{}", version: str = "2") -> list[str]:
    text = f'recipe_version: "{version}"\nmodel: org/m\ndefaults: {defaults}\ncommand: |\n'
    text += "".join(f"  {line}\n" for line in dedent(template).splitlines())
    (document,) = parse_documents(source_file(text, "recipe.yaml"))
    return [word.text for start in starts(document) or () for word in start.arguments]


@pytest.mark.parametrize(
    ("template", "defaults", "expected"),
    [
        ("vllm serve {model}", "{}", ["vllm", "serve", "org/m"]),
        ("vllm serve {model}", "{model: other}", ["vllm", "serve", "other"]),
        ("vllm serve m {a}", "{a: '--x 1'}", ["vllm", "serve", "m", "--x", "1"]),
        ("vllm serve m {a}", "{a: null}", ["vllm", "serve", "m", "{a}"]),
        ("vllm serve m '{a}'", "{a: '{b}', b: '{a}'}", ["vllm", "serve", "m", "{a}"]),
        ('vllm serve m \'{"a":{"b":1}}\'', "{}", ["vllm", "serve", "m", '{"a":{"b":1}}']),
        ("vllm serve m '{{\"a\":{b}}}'", "{b: 1}", ["vllm", "serve", "m", '{"a":1}']),
        ('vllm serve \'{"a":{"b":{"c":1}}}\'', "{}", ["vllm", "serve", '{"a":{"b":{"c":1}}}']),
        ("pip install x\nA=1 exec vllm serve m", "{}", ["vllm", "serve", "m"]),
        ("M=org/x\nvllm serve $M", "{}", ["vllm", "serve", "org/x"]),
    ],
)
def test_templates(template: str, defaults: str, expected: list[str]) -> None:
    """As sparkrun 0.4.2 renders them, and bash splits what it renders."""
    assert command(template, defaults) == expected


_NAMES = st.sampled_from(["a", "b", "max_len"])
_PIECES = st.lists(
    st.one_of(_NAMES.map("{{{}}}".format), st.sampled_from(['{{"k":', "}}", "x", "-", "1"])), max_size=6
)


@settings(deadline=None)
@given(_PIECES)
def test_doubled_braces_are_what_str_format_makes_of_them(pieces: list[str]) -> None:
    """eugr's `run-recipe.py` fills its templates with `str.format`."""
    template = "{{" + "".join(pieces) + "}}"
    values = {"a": "1", "b": "two", "max_len": "3"}
    try:
        expected = template.format(**values)
        list(string.Formatter().parse(template))
    except (ValueError, KeyError, IndexError):
        return
    assert command(f"vllm serve '{template}'", "{a: 1, b: two, max_len: 3}", "1")[2:] == [expected]


@pytest.mark.parametrize(
    ("runtime", "defaults", "expected"),
    [
        (
            "vllm",
            "{port: 81, tensor_parallel: 1, max_model_len: 9, enforce_eager: true, trust_remote_code: no}",
            "vllm serve org/m --port 81 -tp 1 --max-model-len 9 --enforce-eager",
        ),
        ("vllm", "{async_scheduling: false, nobody_knows: 1}", "vllm serve org/m --no-async-scheduling"),
        (
            "sglang",
            "{host: 0.0.0.0, gpu_memory_utilization: 0.8, max_model_len: 4096, disable_radix_cache: yes}",
            "sglang serve --model-path org/m --host 0.0.0.0 --mem-fraction-static 0.8 --context-length 4096"
            " --disable-radix-cache",
        ),
        (
            "llama-cpp",
            "{ctx_size: 8192, n_gpu_layers: 99, jinja: true, served_model_name: x}",
            "llama-server -hf org/m --ctx-size 8192 --n-gpu-layers 99 --jinja --alias x",
        ),
    ],
)
def test_a_recipe_without_a_command(runtime: str, defaults: str, expected: str) -> None:
    """As sparkrun 0.4.2's runtimes make one, but for the order of the flags."""
    text = f"model: org/m\ncontainer: x\nruntime: {runtime}\ndefaults: {defaults}\n"
    (document,) = parse_documents(source_file(text, "recipe.yaml"))
    (start,) = starts(document) or ()
    assert " ".join(word.text for word in start.arguments) == expected


def test_another_runtime_starts_nothing_we_read(images: Images) -> None:
    with pytest.raises(UsageError, match="no command that starts an engine"):
        read("model: a/b\ncontainer: c\nruntime: trtllm\ncommand: trtllm-serve a/b\n", "recipe.yaml", images)


def test_executor_config_overrides_the_defaults(images: Images) -> None:
    text = """
        recipe_version: "2"
        model: org/m
        runtime: sglang
        container: lmsysorg/sglang:v0.5.6
        executor_config: {ipc: host, network: bridge, privileged: true, volumes: [/a:/b]}
        defaults: {tensor_parallel: 2}
        command: python3 -m sglang.launch_server --model-path {model}
    """
    (reading,) = read(dedent(text), "recipe.yaml", images)
    container = reading.launch.container
    assert container and (container.ipc, container.network, container.shm_bytes, container.gpus) == (
        "host",
        "bridge",
        None,
        "all",
    )
    assert Mount("/a", "/b") in container.mounts
    assert ("privileged", None) in container.options
    assert reading.launch.flags["dist-init-addr"] == "{head_ip}:25000"


def test_a_flag_that_is_lost_is_not_read() -> None:
    """A shell ends the command at a comment, whatever comes before it."""
    assert command("vllm serve m \\\n  # --a \\\n  --b 1") == ["vllm", "serve", "m"]


@pytest.mark.parametrize("text", ["model: a", "container: a", "[1]", "x", "model: a\ncontainer: b"])
def test_other_files_are_not_recipes(text: str) -> None:
    (document,) = parse_documents(source_file(text, "recipe.yaml"))
    assert starts(document) is None


_VALUES = st.sampled_from(
    ["vllm serve {model}", "{a}", "{{", "'", "[1, 2]", "{a: b}", "null", "true", "1", '""']
)
_KEYS = st.sampled_from(
    [
        "recipe_version",
        "model",
        "container",
        "runtime",
        "command",
        "defaults",
        "env",
        "executor_config",
        "volumes",
    ]
)


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES))
def test_any_recipe_is_read_or_refused(pairs: dict[str, str]) -> None:
    with suppress(UsageError):
        read("\n".join(f"{name}: {value}" for name, value in pairs.items()), "recipe.yaml", Images())


def test_a_bomb_ends() -> None:
    values = ", ".join(f"a{n}: '{f'{{a{n + 1}}}' * 100}'" for n in range(8))
    with pytest.raises(UsageError, match="longer than"):
        command("vllm serve {a0}", f"{{{values}, a8: x}}")
