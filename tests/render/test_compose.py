"""Compose files: valid by the specification's own schema, and read back to the same launch."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.render import LaunchFacts, compose, containerized, pin
from firesteel.render.compose import with_bounded_restart
from firesteel.values import replace
from tests.render.material import (
    ON_ONE,
    SHOWN,
    check_golden,
    facts_of,
    launch_of,
    objections,
    own_objections,
    read_one,
)

SCHEMA = json.loads((Path(__file__).parent / "schema" / "compose-spec.json").read_text("utf-8"))
VALID = jsonschema.Draft7Validator(SCHEMA)


@pytest.mark.parametrize("name", ON_ONE)
def test_every_recipe_is_read_back(name: str) -> None:
    launch, known = launch_of(name), facts_of(name)
    text = compose(launch, known)
    VALID.validate(yaml.safe_load(text))
    expected = containerized(pin(launch, known))
    assert expected.container is not None
    expected = replace(expected, container=replace(expected.container, restart="on-failure:3"))
    found = read_one(text, "compose.yaml")
    assert found == replace(expected, version=found.version)
    assert objections(text, "compose.yaml") <= own_objections(launch)


@pytest.mark.parametrize("name", SHOWN)
def test_golden(name: str) -> None:
    check_golden(f"{name}.compose.yaml", compose(launch_of(name), facts_of(name)))


def test_every_option_with_an_equivalent() -> None:
    container = Container(
        "my.registry:5000/vllm@sha256:00",
        entrypoint="",
        program=("bash", "-c", 'echo "$(date) $$ $HOME" && vllm serve'),
        gpus='"device=0,1"',
        shm_bytes=16 * 2**30,
        network="host",
        restart="no",
        publish=("127.0.0.1:1:2", "[::1]:3:3"),
        mounts=(Mount("/a", "/b", True), Mount("/c:d", "/e", True)),
        labels={"a": "b$c", "yes": "no"},
        options=(("ulimit", "memlock=-1"), ("ulimit", "stack=1:2"), ("cap-add", "IPC_LOCK"), ("init", None)),
    )
    launch = Launch(
        "m", "org/m", "vllm", env={"A": "é\u0085: '\"#", "HF_TOKEN": "$HF_TOKEN"}, container=container, port=2
    )
    text = compose(launch)
    VALID.validate(yaml.safe_load(text))
    found = read_one(text, "compose.yaml")
    assert found.container is not None
    assert sorted(found.container.options, key=str) == sorted(container.options, key=str)
    assert replace(found, container=replace(found.container, options=())) == replace(
        launch, container=replace(container, options=())
    )


def test_a_secret_is_nowhere() -> None:
    text = compose(launch_of("smollm2"), LaunchFacts(is_gated=True))
    assert "HF_TOKEN: null" not in text
    launch = replace(containerized(launch_of("smollm2")), env={"HF_TOKEN": "$HF_TOKEN"})
    text = compose(launch)
    assert yaml.safe_load(text)["services"]["smollm2"]["environment"] == {"HF_TOKEN": None}
    assert "HF_TOKEN=... into `.env`" in text and "chmod 600" in text


@pytest.mark.parametrize("policy", [None, "always", "unless-stopped", "on-failure"])
def test_a_restart_policy_ends(policy: str | None) -> None:
    launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", restart=policy))
    container = with_bounded_restart(launch).container
    assert container is not None and container.restart == "on-failure:3"


def test_a_reason_stays_a_comment() -> None:
    launch = Launch("m", "org/m", "vllm", flags={"dtype": "auto"}, container=Container("x/vllm"))
    text = compose(launch, LaunchFacts(flag_reasons={"dtype": "because\nprivileged: true\u2028x\x85y"}))
    assert "# because privileged: true x y" in text
    assert "privileged" not in yaml.safe_load(text)["services"]["m"]


def test_an_option_without_an_equivalent_is_refused() -> None:
    launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", options=(("cidfile", "/x"),)))
    with pytest.raises(UsageError, match="no equivalent of `--cidfile`"):
        compose(launch)
    with pytest.raises(UsageError, match="runs on 2 Sparks"):
        compose(launch_of("qwen3-235b-gptq-int4-two-sparks"))


def test_an_image_by_its_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    launch = Launch("m", "org/m", "vllm", "0.28.0", container=Container("vllm/vllm-openai:v0.28.0"))
    text = compose(launch, LaunchFacts(digest=digest, revision="c" * 40))
    assert f"vllm/vllm-openai:v0.28.0@{digest}" in text and "--revision" in text
    assert "can change" not in text and "not pinned" not in text
    assert "can change" in compose(launch) and "not pinned" in compose(launch)
