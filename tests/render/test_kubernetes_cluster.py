"""What an API server 1.36 with its controllers and scheduler said about our manifests, in cluster/recorded.

`scripts/kubernetes-witness --record` wrote it; cluster/README.md has the table. Here the objects that are
written today are compared with those that were stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Firesteel

RECORDED = Path(__file__).parent / "cluster/recorded"
SET = "qwen3-235b-gptq-int4-two-sparks"
VARIES = {"args", "image", "env", "memory", "storage", "failureThreshold", "progressDeadlineSeconds"}
"""What a newer recipe or plan may change."""


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))


def differences(ours: Any, stored: Any, path: str = "") -> Iterator[str]:
    """What the server did not store as it was written; what it adds is no difference."""
    if isinstance(ours, dict) and isinstance(stored, dict):
        for key in ours.keys() - VARIES:
            yield from differences(ours[key], stored.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(stored, list) and len(ours) == len(stored):
        for index, pair in enumerate(zip(ours, stored, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif ours != stored:
        yield f"{path}: {ours!r} is stored as {stored!r}"


@pytest.mark.parametrize("name", ["baseline", "vllm", "set"])
def test_the_server_stores_what_is_written(firesteel: Firesteel, tmp_path: Path, name: str) -> None:
    """A quantity in another unit would be a change at every apply."""
    file = tmp_path / "service.yaml"
    lines = [f"  {each}: {{recipe: smollm2, aliases: ['{each}:1b']}}" for each in ("one", "two", "three")]
    file.write_text("\n".join(["models:", *lines]) + "\n")
    words = {"baseline": ("-f", str(file)), "vllm": ("gpt-oss-20b",), "set": (SET,)}[name]
    ours = list(yaml.safe_load_all(firesteel("render", *words, "--as", "kubernetes").out))
    stored = {(each["kind"], each["metadata"]["name"]): each for each in recorded(f"stored-{name}")}
    assert {(each["kind"], each["metadata"]["name"]) for each in ours} == stored.keys()
    for each in ours:
        found = list(differences(each, stored[each["kind"], each["metadata"]["name"]]))
        assert not found, found


def test_after_a_swap_the_file_still_owns_the_replicas() -> None:
    """A second owner (`kubectl scale`) would be a conflict at the next server-side apply."""
    deployments = recorded("f2-deployments")
    assert {each["name"]: each["replicas"] for each in deployments} == {"one": 0, "two": 0, "three": 1}
    for each in deployments:
        owners = [(owner["manager"], owner["operation"]) for owner in each["managed"] if owner["replicas"]]
        assert owners == [("kubectl", "Apply")]


def test_the_scheduler_keeps_a_new_variant_waiting() -> None:
    messages = recorded("f2-scheduling")
    assert messages and all("didn't match pod anti-affinity rules" in message for message in messages)


def test_ranks_are_found_before_they_are_ready() -> None:
    slices = {each["service"]: each["endpoints"] for each in recorded("f1-slices")}
    ranks = slices[f"{SET}-ranks"]
    assert {each["hostname"] for each in ranks} == {f"{SET}-ranks-0", f"{SET}-ranks-0-1"}
    assert len({each["nodeName"] for each in ranks}) == 2
    assert all(each["conditions"]["ready"] for each in ranks)
    assert not all(each["conditions"]["serving"] for each in ranks), "published before they serve"
    assert len(slices[SET]) == 1, "clients reach the leader alone"


def test_refusals_are_in_events_alone() -> None:
    refusals = " ".join(recorded("f6-refusals"))
    for reason in ("must specify limits.memory", 'RuntimeClass "nvidia" not found', "violates PodSecurity"):
        assert reason in refusals
