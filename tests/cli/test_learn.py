from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from firesteel.cli.engine import learn
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import ContainerRuntime
from firesteel.errors import HostNotReady, UsageError


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))


def test_a_known_release_is_not_fetched_again(tmp_path: Path) -> None:
    ran = CliRunner().invoke(learn, ["vllm", "v0.24.0"])
    assert ran.stdout == "vllm 0.24.0: 267 flags, 268 environment variables, known already\n"
    assert list(tmp_path.iterdir()) == []


def test_json() -> None:
    ran = CliRunner().invoke(learn, ["llamacpp", "b11549", "--json"])
    output = json.loads(ran.stdout)
    assert output["document"] == "firesteel.learn/1"
    assert (output["version"], output["was_known"], output["path"]) == ("11549", True, None)


def test_list() -> None:
    assert "0.32.0" in CliRunner().invoke(learn, ["vllm", "--list"]).stdout.splitlines()
    output = json.loads(CliRunner().invoke(learn, ["sglang", "--list", "--json"]).stdout)
    assert "0.5.23" in output["versions"]


def test_recipes_that_a_release_breaks(tmp_path: Path) -> None:
    """0.10.1 has none of the newer flags and parsers; what does not fit is no fault of a release."""
    newest = CliRunner().invoke(learn, ["vllm", "0.32.0", "--recipes"], standalone_mode=False)
    assert newest.return_value == 0 and "it stops 0" in newest.stdout
    old = CliRunner().invoke(learn, ["vllm", "0.10.1", "--recipes", "--json"], standalone_mode=False)
    findings = json.loads(old.stdout)["findings"]
    assert old.return_value == 3
    assert "qwen3.6-35b-a3b-nvfp4" in {row["recipe"] for row in findings if row["level"] == "stop"}


def test_an_own_recipe_is_held_against_a_release(tmp_path: Path) -> None:
    own = tmp_path / "catalog" / "recipes" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "title: mine\nmodel: openai/gpt-oss-20b\nengine: vllm\nimage: vllm-openai-0.28\n"
        "serves: {context: 8192, users: 2}\nflags: {moe-backend: {value: marlin, why: x}}\n"
        "status: untried\nsources: [{url: https://example.org/r, seen: 2026-11-16}]\n"
    )
    ran = CliRunner().invoke(learn, ["vllm", "0.10.1", "--recipes"], standalone_mode=False)
    assert "stop  mine: " in ran.stdout and "moe-backend" in ran.stdout


def test_missing_arguments() -> None:
    ran = CliRunner().invoke(learn, [])
    assert isinstance(ran.exception, UsageError)
    assert "firesteel engine learn --image IMAGE" in ran.exception.next


@pytest.mark.parametrize("image", ["", " ", "-v", "a b", "x" * 500, "a;b"])
def test_invalid_image_names(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before docker is called."""
    monkeypatch.setattr(image_sources, "find_container_runtime", lambda: ContainerRuntime("false"))
    ran = CliRunner().invoke(learn, ["--image", image])
    assert isinstance(ran.exception, UsageError)


def test_neither_docker_nor_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    ran = CliRunner().invoke(learn, ["--image", "vllm/vllm-openai:v0.33.0"])
    assert isinstance(ran.exception, HostNotReady)
    assert ran.exception.next == "sudo apt install docker.io"


@pytest.mark.parametrize("arguments", [["vllm"], ["vllm", "latest"], ["vllm", "../../x"]])
def test_invalid_releases(arguments: list[str]) -> None:
    ran = CliRunner().invoke(learn, arguments)
    assert isinstance(ran.exception, UsageError)
    assert "--list" in ran.exception.next
