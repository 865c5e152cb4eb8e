"""Errors of docker's command line, as a simulated Spark prints them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firesteel.edge.docker.containers import has_image, pull_image
from firesteel.edge.sim.setup import environment
from firesteel.edge.sim.spark import SimFault, SimSpark
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.run.preflight import gpu_problem
from tests.edge.sim.spark import Spark, spark

IMAGE = "vllm/vllm-openai:v0.28.0"


def _with_fault(fault: SimFault, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    host = spark(folder, SimSpark(pull_s=0.0, faults=(fault,)))
    for name, value in environment(host.folder, os.environ).items():
        monkeypatch.setenv(name, value)
    return host


async def test_a_full_disk_during_a_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _with_fault(SimFault(kind="disk-full"), tmp_path / "spark", monkeypatch)
    stderr = host.docker("pull", IMAGE).stderr
    with pytest.raises(HostNotReady, match="disk under docker is full") as caught:
        await pull_image(IMAGE)
    assert IMAGE in caught.value.what and caught.value.next == "docker system prune"
    assert not await has_image(IMAGE)
    trouble = gpu_problem(125, stderr)  # preflight gives the same explanation
    assert trouble is not None
    assert trouble.what in caught.value.what and trouble.next == caught.value.next


async def test_any_other_error_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_fault(SimFault(kind="pull-fails"), tmp_path / "spark", monkeypatch)
    with pytest.raises(FiresteelError, match="Error response from daemon") as caught:
        await pull_image(IMAGE)
    assert caught.value.exit_code == 1 and (caught.value.next or "").startswith(
        f"firesteel image inspect {IMAGE}"
    )


@pytest.mark.parametrize(
    ("output", "says", "next_"),
    [
        ("manifest for a/b:1 not found: manifest unknown", "no such image", "the tag's spelling"),
        ("unauthorized: authentication required", "without a login", "docker login"),
        ("toomanyrequests: You have reached your pull rate limit.", "no more images", "docker login"),
        ("dial tcp: lookup ghcr.io on 127.0.0.53:53: no such host", "not be reached", "proxy"),
        ("an odd end", "an odd end", f"firesteel image inspect {IMAGE}"),
    ],
)
async def test_a_refused_pull_does_not_point_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, says: str, next_: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(FiresteelError, match=says) as caught:
        await pull_image(IMAGE)
    assert next_ in caught.value.next and "docker pull" not in caught.value.next
