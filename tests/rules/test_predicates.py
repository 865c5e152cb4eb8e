from __future__ import annotations

from typing import Any

import pytest

from firesteel.launch import Container, FlagValue, Launch
from firesteel.rules.context import Context
from firesteel.rules.predicates import asks_for_a_key, drafts_overflow_batch, published_everywhere


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        (("8000:8000",), True),
        (("0.0.0.0:8000:8000",), True),
        (("[::]:8000:8000",), True),
        (("127.0.0.1:8000:8000",), False),
        (("[::1]:8000:8000",), False),
        (("8000",), True),
        (("127.0.0.1::8000",), False),
        ((), False),
    ],
)
def test_published_everywhere(publish: tuple[str, ...], expected: bool) -> None:
    launch = Launch("m", "m", "vllm", container=Container("i", publish=publish))
    assert bool(published_everywhere(Context(launch, None, None))) is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"options": (("publish-all", None),)}, "-P"),
        ({"options": (("publish-all", "false"),)}, None),
        ({"network": "host"}, "--network host"),
        ({"network": "bridge"}, None),
        ({}, None),
    ],
)
def test_published_without_a_port(options: dict[str, Any], expected: str | None) -> None:
    launch = Launch("m", "m", "vllm", container=Container("i", **options))
    assert [match.shown for match in published_everywhere(Context(launch, None, None))] == [expected][
        : bool(expected)
    ]


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ({"api-key": "k"}, {}, True),
        ({"api-key": ["", "k"]}, {}, True),
        ({"api-key": ""}, {}, False),
        ({"api-key": ""}, {"VLLM_API_KEY": "$VLLM_API_KEY"}, True),
        ({}, {"VLLM_API_KEY": ""}, False),
        ({}, {"LLAMA_API_KEY": "k"}, True),
        ({}, {}, False),
    ],
)
def test_asks_for_a_key(flags: dict[str, FlagValue], env: dict[str, str], expected: bool) -> None:
    launch = Launch("m", "m", "vllm", flags=flags, env=env)
    assert bool(asks_for_a_key(Context(launch, None, None))) is expected


@pytest.mark.parametrize(
    ("tokens", "users", "batch", "expected"),
    [
        (15, "256", "2048", True),
        (8, "256", "2048", False),
        (3, "4", "8192", False),
        ("many", "4", "1", False),
        (3, None, "1", False),
    ],
)
def test_drafts_overflow_batch(tokens: object, users: str | None, batch: str, expected: bool) -> None:
    flags: dict[str, FlagValue] = {
        "speculative-config": {"num_speculative_tokens": tokens},
        "max-num-batched-tokens": batch,
    }
    if users:
        flags["max-num-seqs"] = users
    launch = Launch("m", "m", "vllm", flags=flags)
    assert bool(drafts_overflow_batch(Context(launch, None, None))) is expected
