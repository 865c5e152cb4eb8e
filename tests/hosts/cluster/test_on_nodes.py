"""A service file with `hosts:`: a replica on each of two hosts, behind the gateway, with real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost
from tests.hosts.cluster.service import wait_until

from firesteel.edge.files.home import Home

FILE = """\
hosts: {spark1: 127.0.0.1, spark2: 10.77.0.2}
models:
  pair: {recipe: smollm2, node: [spark1, spark2], route: prefix, context: 512, users: 1}
"""


@contextmanager
def gateway(head: NamespaceHost, path: Path) -> Iterator[None]:
    words = head.command(sys.executable, "-m", "firesteel", "serve", "-f", str(path))
    with (head.folder / "gateway.log").open("w") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until("the gateway does not answer", lambda: "pair" in curl(head, "/v1/models"))
        yield
    finally:
        child.terminate()
        child.wait(timeout=60)


def curl(head: NamespaceHost, path: str, body: dict[str, object] | None = None) -> str:
    data = ("-d", json.dumps(body), "-H", "Content-Type: application/json") if body else ()
    return head.run("curl", "-sS", "-m", "120", *data, f"http://127.0.0.1:8080{path}", timeout_s=150).out


def said(head: NamespaceHost, prompt: str) -> str:
    return curl(head, "/v1/completions", {"model": "pair", "prompt": prompt, "max_tokens": 4})


@pytest.mark.real
@pytest.mark.slow
def test_replicas_on_two_hosts(two_hosts: list[NamespaceHost], pulled: Home) -> None:
    head, node = two_hosts
    (node.home / ".bashrc").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    for home in (head.folder / "firesteel", node.home / ".local/share/firesteel"):
        home.mkdir(parents=True, exist_ok=True)
        for name in ("weights", "engines"):
            (home / name).symlink_to(getattr(pulled, name))
    path = head.folder / "firesteel.yaml"
    path.write_text(FILE)
    refused = head.firesteel("up", "-f", str(path))
    assert refused.code == 2 and "firesteel cluster add spark2" in refused.err, "spark2 is no node yet"
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    up = head.firesteel("up", "-f", str(path), "--json", timeout_s=600)
    assert up.code == 0, up.err
    assert [report["name"] for report in up.json["reports"]] == ["pair"]
    assert up.json["nodes"]["spark2"][0]["verified"] is True
    url = "http://10.77.0.2:8000/v1/models"
    assert head.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url).out == "401", "it has a key"
    with gateway(head, path):
        for number in range(6):
            assert '"choices"' in said(head, f"{number} {'word ' * 40}"), "either of them"
        assert head.firesteel("down", "pair").code == 0, "the one on this host"
        wait_until("nobody takes over", lambda: '"choices"' in said(head, "the other one answers"))
    down = head.firesteel("down", "-f", str(path))
    assert down.code == 0, down.err
    assert not [line for host in two_hosts for line in host.processes("supervise.supervisor")]
