"""Images and containers of a real docker daemon: imported, inspected, and left as they were."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from firesteel.workshop.images.inspect import inspect_image
from firesteel.workshop.images.report import compare_reports
from firesteel.workshop.images.sources import open_image
from tests.conftest import Firesteel
from tests.workshop.images.made_images import VLLM_CONFIG, layer, package, vllm_files, write_docker_archive

LAYERS = [layer(vllm_files()), layer({**package("ray", "2.50.0"), "etc/.wh.os-release": b""})]


def docker(address: str, *words: str) -> str:
    done = subprocess.run(["docker", "-H", address, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def address(docker_daemon: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_HOST", docker_daemon)
    return docker_daemon


def test_an_image_and_a_container_of_docker(address: str, tmp_path: Path, firesteel: Firesteel) -> None:
    archive = write_docker_archive(tmp_path / "image.tar", LAYERS, **VLLM_CONFIG)
    docker(address, "load", "--input", str(archive))
    expected = inspect_image(open_image(str(archive)), tmp_path)
    local = inspect_image(open_image("test:1"), tmp_path)
    assert local.source == "local image" and local.digests[-1] == expected.digests[-1]
    assert compare_reports(expected, local).differences == ()

    docker(address, "create", "--name", "mine", "test:1")
    docker(address, "cp", str(archive), "mine:/opt")
    container = inspect_image(open_image("mine"), tmp_path)
    assert container.source == "container" and container.architecture == "arm64"
    assert container.bytes > local.bytes, "what was written into the container counts"

    saved = tmp_path / "saved.tar"
    docker(address, "save", "--output", str(saved), "test:1")
    assert compare_reports(expected, inspect_image(open_image(str(saved)), tmp_path)).differences == ()

    ran = firesteel("image", "inspect", "test:1", "--json")
    assert ran.code == 0 and ran.json["engine"] == "vllm", ran.err
    listed = firesteel("check", "--json", "docker run --gpus all test:1 openai/gpt-oss-20b")
    assert listed.json["launches"] == 1
    names = docker(address, "ps", "--all", "--format", "{{json .Names}}").split()
    assert [json.loads(name) for name in names] == ["mine"], "what inspect created is removed"
