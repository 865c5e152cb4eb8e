"""A service over several hosts, with real engines: llama.cpp's RPC server on nodes, llama-server here."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost

from firesteel.edge.files.home import Home
from firesteel.edge.native.installed import installed_engines

pytestmark = pytest.mark.real
LIMIT_S = 120
QUESTION = json.dumps({"prompt": "The capital of France is", "n_predict": 8, "temperature": 0})


def _test_engines() -> Home:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Home(Path(os.environ.get("FIRESTEEL_TEST_ENGINES") or cache / "firesteel-test-engines"))


def _equip(head: NamespaceHost, pulled: Home) -> None:
    """The head has the weights and the built engine; the nodes have nothing."""
    built = [
        folder for folder, engine in installed_engines(_test_engines()).items() if engine.made == "built"
    ]
    if not built:
        assert os.environ.get("CI") != "true", "scripts/test should have built it"
        pytest.skip("no llama-server was built; scripts/make-test-engine PYTHON does")
    home = head.folder / "firesteel"
    shutil.copytree(built[0], home / "engines" / built[0].name, symlinks=True)
    (home / "weights").symlink_to(pulled.weights)


@pytest.fixture
def cluster(two_hosts: list[NamespaceHost], pulled: Home) -> Iterator[list[NamespaceHost]]:
    _equip(two_hosts[0], pulled)
    added = two_hosts[0].firesteel("cluster", "add", "spark2", "--yes")
    assert added.code == 0, added.err
    yield two_hosts


def wait_until(what: str, is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def status(head: NamespaceHost) -> Any:
    listed = head.firesteel("ps", "--json").json["services"]
    return listed[0] if listed else None


def engines_on(host: NamespaceHost) -> list[str]:
    return [*host.processes("ggml-rpc-server"), *host.processes("llama-server"), *host.processes("agent")]


def ask(head: NamespaceHost, port: int = 8000) -> str:
    """An answer of the engine, or nothing."""
    return head.run("curl", "-sS", "-m", "30", "-d", QUESTION, f"http://127.0.0.1:{port}/completion").out


def test_up_chat_ps_logs_down(cluster: list[NamespaceHost]) -> None:
    head, node = cluster
    dry = head.firesteel("up", "smollm2", "--cluster", "--dry-run")
    assert dry.code == 0, dry.err
    assert "# on spark2: rank 1, with a lease of 30 s" in dry.out and "--rpc 10.77.0.2:50052" in dry.out
    up = head.firesteel("up", "smollm2", "--cluster", "--json")
    assert up.code == 0, up.err
    assert up.json["verified"] is True
    assert [(row["host"], row["rank"]) for row in up.json["nodes"]] == [("spark1", 0), ("spark2", 1)]
    assert all(row["resident_bytes"] > 0 for row in up.json["nodes"])
    assert "Paris" in ask(head)
    assert node.processes("ggml-rpc-server") and head.processes("llama-server")
    assert status(head)["phase"] == "ready"
    assert [row["phase"] for row in status(head)["cluster"]["nodes"]] == ["running", "running"]
    listed = head.firesteel("ps").out
    assert "spark2" in listed and "rank 1" in listed
    log = head.firesteel("logs", "smollm2", "--node", "spark2")
    assert log.code == 0 and "Accepted client connection" in log.out
    assert head.firesteel("logs", "smollm2", "--node", "spark7").code == 2
    assert head.firesteel("up", "smollm2", "--cluster").code == 0, "it is up already"
    down = head.firesteel("down", "smollm2")
    assert down.code == 0, down.err
    assert not engines_on(head) and not engines_on(node), "nothing is left on any host"
