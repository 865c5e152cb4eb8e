"""Each matcher, alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from firesteel.catalog.image import Image
from firesteel.launch import Container, Launch
from firesteel.rules.context import Context
from firesteel.rules.match import matches
from firesteel.rules.rule import Rule
from firesteel.values import YamlFile

OPENAI = Image("vllm", "0.24.0", entrypoint=("vllm", "serve"), sm=("12.0",))
MOVING = Image("vllm", None, floating=True)


def holds(
    when: dict[str, Any],
    launch: Launch,
    image: Image | None = None,
    hardware: str | None = "gb10",
    more: Mapping[str, Any] = {},
) -> list[str]:
    rule = YamlFile(
        "x",
        {
            "id": "a-rule",
            "level": "stop",
            "says": "",
            "when": when,
            "confidence": "verified",
            "sources": [{"url": "https://example.org", "seen": "2026-11-15"}],
            "hits": ["x"],
            "misses": ["y"],
            **more,
        },
        dict,
    ).convert(Rule)
    return [match.shown for match in matches(rule, Context(launch, hardware, image))]


def vllm(version: str | None = "0.24.0", **more: Any) -> Launch:
    return Launch("m", "Org/Model-NVFP4", "vllm", version, **more)


@pytest.mark.parametrize(
    ("version", "image", "specifier", "expected"),
    [
        ("0.24.0", None, ">=0.24.0", True),
        ("0.24.0", None, "<0.24.0", False),
        ("0.24.0rc1", None, "<0.24.0", False),  # PEP 440: a candidate of 0.24.0 is not before it
        ("0.24.0rc1", None, ">=0.23", True),
        ("0.24", None, ">=0.24.0", True),
        (None, None, ">=0.1", True),  # may hold: `check` makes a note of it
        (None, OPENAI, ">=0.1", True),
        (None, None, ">=0.1,<0.30", False),
        (None, None, "<0.30", False),
        (None, None, ">=99", False),
        (None, MOVING, ">=0.31", True),
        (None, MOVING, "<0.31", False),
        ("main", None, ">=0.1", True),
        ("main", None, "<99", False),
    ],
)
def test_version(version: str | None, image: Image | None, specifier: str, expected: bool) -> None:
    container = Container("i") if image else None
    assert bool(holds({"version": specifier}, vllm(version, container=container), image)) is expected


def test_llamacpp_builds_are_numbers() -> None:
    launch = Launch("m", "m", "llamacpp", "10105")
    assert holds({"version": ">=8955"}, launch)
    assert not holds({"version": "<8955"}, launch)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"engine": "vllm"}, True),
        ({"engine": "sglang"}, False),
        ({"hardware": "gb10"}, True),
        ({"hardware": "h100"}, False),
        ({"model": "*nvfp4"}, True),
        ({"model": ["*gpt-oss*", "org/*"]}, True),
        ({"model": "nvfp4"}, False),
        ({"container": True}, True),
        ({"container": False}, False),
        ({"network": "host"}, True),
        ({"network": "bridge"}, False),
        ({"flag": "a"}, True),
        ({"flag": ["nope", "a"]}, True),
        ({"flag": "nope"}, False),
        ({"flag": "a", "value": "ONE"}, True),
        ({"flag": "a", "other_than": ["one"]}, False),
        ({"flag": "a", "bare": True}, False),
        ({"flag": "switch", "bare": True}, True),
        ({"flag": "switch", "value": "true"}, True),
        ({"flag": "off", "value": "false"}, True),
        ({"flag": "number", "above": 0.9}, True),
        ({"flag": "number", "above": 0.95}, False),
        ({"flag": "number", "above": 0.9, "up_to": 0.95}, True),
        ({"flag": "a", "above": 0}, False),
        ({"flag": "a", "number": False}, True),
        ({"flag": "a", "number": True}, False),
        ({"flag": "number", "number": True}, True),
        ({"flag": "number", "number": False}, False),
        ({"flag": ["unfilled", "placeholder", "switch"], "number": False}, False),
        ({"flag": "json", "key": "x"}, True),
        ({"flag": "json", "key": "deep.y", "value": "z"}, True),
        ({"flag": "json", "key": "x", "above": 2}, True),
        ({"flag": "json", "key": "nope"}, False),
        ({"flag": "a", "key": "x"}, False),
        ({"absent": "nope"}, True),
        ({"absent": "a"}, False),
        ({"env": "VLLM_*"}, True),
        ({"env": "NCCL_*"}, False),
        ({"image": "vllm/vllm-openai:*"}, True),
        ({"image": "nvcr.io/*"}, False),
        ({"known_image": True}, True),
        ({"known_image": False}, False),
        ({"image_lacks": "12.1"}, True),
        ({"image_lacks": "12.0"}, False),
        ({"after_entrypoint": "engine"}, True),
        ({"after_entrypoint": "shell"}, False),
        ({"option": "memory"}, True),
        ({"option": "rm"}, False),
        ({"restart": ["always"]}, True),
        ({"restart": "no"}, False),
        ({"shm_above": "1g"}, True),
        ({"shm_above": "2g"}, False),
        ({"extra": "true"}, True),
        ({"extra": "-*"}, False),
        ({"predicate": "published-everywhere"}, True),
        ({"flag": "a", "env": "NCCL_*"}, False),
        ({"flag": "nope", "env": "VLLM_*"}, False),
    ],
)
def test_matchers(when: dict[str, Any], expected: bool) -> None:
    launch = vllm(
        flags={
            "a": "One", "switch": True, "off": False, "number": "0.95", "json": {"x": 3, "deep": {"y": "z"}},
            "unfilled": "${A:-1}", "placeholder": "<N>",
        },
        env={"VLLM_X": "1"},
        extra=("true",),
        container=Container(
            "vllm/vllm-openai:v0.24.0",
            program=("vllm", "serve"),
            network="host",
            restart="always",
            shm_bytes=2**31,
            publish=("8000:8000",),
            options=(("memory", "1g"),),
        ),
    )  # fmt: skip
    assert bool(holds(when, launch, OPENAI)) is expected


def test_unknown_hardware_and_image_are_not_guessed() -> None:
    assert not holds({"hardware": "gb10"}, vllm(), hardware=None)
    container = Container("my/image", program=("vllm", "serve"))
    assert not holds({"image_lacks": "12.1"}, vllm(container=container))
    assert not holds({"after_entrypoint": "engine"}, vllm(container=container))
    assert holds({"known_image": False}, vllm(container=container))
    assert not holds({"known_image": False}, vllm())


def test_also_and_unless() -> None:
    launch = vllm(flags={"a": "1", "b": "2"})
    assert holds({"flag": "a"}, launch, more={"also": [{"flag": "b"}]})
    assert not holds({"flag": "a"}, launch, more={"also": [{"flag": "c"}]})
    assert not holds({"flag": "a"}, launch, more={"unless": [{"flag": "c"}, {"flag": "b"}]})
    assert holds({"flag": "a"}, vllm(None, flags={"a": "1"}), more={"unless": [{"version": "<0.8.3"}]})


def test_matches_show_the_text() -> None:
    launch = vllm(
        flags={"a": "1", "c": {"k": 5}},
        env={"A_1": "x", "A_2": "$A_2", "B": ""},
        container=Container("img", restart="always", shm_bytes=2**36),
    )
    assert holds({"flag": ["a", "c"]}, launch) == ["--a 1", '--c {"k":5}']
    assert holds({"flag": "c", "key": "k"}, launch) == ['--c with "k": 5']
    assert holds({"env": "A_*"}, launch) == ["-e A_1=x", "-e A_2"]
    assert holds({"restart": "always"}, launch) == ["--restart always"]
    assert holds({"shm_above": "1g"}, launch) == ["--shm-size 64g"]
    assert holds({"engine": "vllm"}, launch) == ["Org/Model-NVFP4"]
    short = vllm(flags={"spec-method": "mtp", "spec-tokens": "5"})
    config = {"flag": "speculative-config"}
    assert holds({**config, "key": "num_speculative_tokens", "above": 4}, short) == ["--spec-tokens 5"]
    assert holds(config, short) == ["--spec-method mtp"]


def test_an_image_configured_by_variables_lacks_no_flag() -> None:
    assert not holds({"absent": "x"}, Launch("m", "", "vllm"))
