"""Secrets, doors and other people's code: what is shown, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.launch import Container, FlagValue, Launch
from firesteel.reads.launches import read
from firesteel.rules.checker import check
from firesteel.rules.context import Context, Match
from firesteel.rules.exposure import (
    asks_for_a_key,
    developer_mode,
    keys_written_out,
    published_everywhere,
    tokens_written_out,
    unpinned_remote_code,
)

HF = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"
SK = "sk-" + "Zq8wJ2kLm4Np6Rt9Vx1Yb3Cd"
COMMIT = "b482b5d57fda6e4e562a652869bde24ba2a57c92"


def context(
    *,
    model: str = "org/m",
    flags: dict[str, FlagValue] | None = None,
    env: dict[str, str] | None = None,
    container: Container | None = None,
) -> Context:
    return Context(
        Launch("m", model, "vllm", flags=flags or {}, env=env or {}, container=container), None, None
    )


def saws(sights: list[Match]) -> list[str]:
    return [match.shown for match in sights]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HF_TOKEN": HF}, ["HF_TOKEN=hf_..."]),
        ({"NGC_API_KEY": "nvapi-" + "a1B2c3D4e5F6g7H8i9J0k"}, ["NGC_API_KEY=nvapi-..."]),
        ({"HEADER": f"Bearer {SK}"}, ["HEADER=sk-..."]),
        ({"GITHUB_TOKEN": "ghp_" + "aB3dE6gH9jK2mN5pQ8sT"}, ["GITHUB_TOKEN=ghp_..."]),
        ({"HF_TOKEN": "$HF_TOKEN"}, []),
        ({"HF_TOKEN": "hf_xxx"}, []),
        ({"HF_TOKEN": "hf_" + "x" * 34}, []),
        ({"HF_TOKEN": "hf_YourTokenGoesInThisPlace"}, []),
        ({"HF_TOKEN": "<hf_token>"}, []),
        ({"PATH": "/home/hf_cache/hub"}, []),
        ({"MODEL": "task-1234567890abcdefgh"}, []),
    ],
)
def test_tokens_in_variables(env: dict[str, str], expected: list[str]) -> None:
    assert saws(tokens_written_out(context(env=env))) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"hf-token": HF}, ["--hf-token hf_..."]),
        ({"api-key": ["$KEY", SK]}, ["--api-key sk-..."]),
        ({"hf-token": True}, []),
        ({"speculative-config": {"method": "mtp"}}, []),
        ({"api-key": "$KEY"}, []),
    ],
)
def test_tokens_in_flags(flags: dict[str, FlagValue], expected: list[str]) -> None:
    assert saws(tokens_written_out(context(flags=flags))) == expected


def test_no_finding_repeats_a_secret() -> None:
    line = (
        f"docker run -e HF_TOKEN={HF} -e VLLM_API_KEY=letmein vllm/vllm-openai:v0.28.0 org/m --api-key {SK}"
    )
    (reading,) = read(line, "run.sh", shipped().images)
    findings = check(reading.launch, hardware="gb10", locations=reading.locations)
    assert {"token-written-out", "key-written-out"} <= {finding.rule for finding in findings}
    for finding in findings:
        shown = f"{finding.says} {finding.instead} {finding.saw}"
        assert HF not in shown and SK not in shown and "letmein" not in shown


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ({"api-key": "letmein"}, {}, ["--api-key ..."]),
        ({"admin-api-key": "letmein"}, {}, ["--admin-api-key ..."]),
        ({}, {"VLLM_API_KEY": "letmein"}, ["VLLM_API_KEY=..."]),
        ({"api-key": SK}, {}, []),  # the other rule's
        ({"api-key": ""}, {}, []),
        ({"api-key": "<KEY>"}, {}, []),
        ({"api-key": "`cat key`"}, {"VLLM_API_KEY": "${KEY:-}"}, []),
    ],
)
def test_keys(flags: dict[str, FlagValue], env: dict[str, str], expected: list[str]) -> None:
    assert saws(keys_written_out(context(flags=flags, env=env))) == expected


@pytest.mark.parametrize(
    ("model", "flags", "env", "expected"),
    [
        ("org/m", {}, {}, True),
        ("org/m", {"revision": "main"}, {}, True),
        ("org/m", {"revision": COMMIT}, {}, False),
        ("org/m", {"code-revision": COMMIT[:12]}, {}, False),
        ("org/m", {"revision": "$REV"}, {}, False),
        ("org/m", {"trust-remote-code": False}, {}, False),
        ("org/m", {}, {"HF_HUB_OFFLINE": "1"}, False),
        ("/models/m", {}, {}, False),
        ("", {}, {}, False),
    ],
)
def test_remote_code(model: str, flags: dict[str, FlagValue], env: dict[str, str], expected: bool) -> None:
    trusting: dict[str, FlagValue] = {"trust-remote-code": True, **flags}
    assert bool(unpinned_remote_code(context(model=model, flags=trusting, env=env))) is expected


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("$DEV", False)])
def test_developer_mode(value: str, expected: bool) -> None:
    assert bool(developer_mode(context(env={"VLLM_SERVER_DEV_MODE": value}))) is expected


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
