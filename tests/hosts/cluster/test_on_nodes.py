"""A service file with `hosts:`: models on other hosts, behind the gateway, with real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost
from tests.hosts.cluster.service import engines_on, kill, wait_until
from tests.hosts.cluster.service import equip as equip_head

from firesteel.edge.home import Home

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
        wait_until("the gateway does not answer", lambda: '"data"' in curl(head, "/v1/models"))
        yield
    finally:
        child.terminate()
        child.wait(timeout=60)


def curl(head: NamespaceHost, path: str, body: dict[str, object] | None = None) -> str:
    data = ("-d", json.dumps(body), "-H", "Content-Type: application/json") if body else ()
    return head.run("curl", "-sS", "-m", "120", *data, f"http://127.0.0.1:8080{path}", timeout_s=150).out


def said(head: NamespaceHost, prompt: str, model: str = "pair") -> str:
    return curl(head, "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 4})


def equip(head: NamespaceHost, node: NamespaceHost, pulled: Home) -> None:
    """Both have engine and weights; packages of Python come from an index, which a namespace cannot reach."""
    (node.home / ".bashrc").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    for home in (head.folder / "firesteel", node.home / ".local/share/firesteel"):
        home.mkdir(parents=True, exist_ok=True)
        for name in ("weights", "engines"):
            (home / name).symlink_to(getattr(pulled, name))


ON_DEMAND = """\
hosts: {spark1: 127.0.0.1, spark2: 10.77.0.2}
models:
  far: {recipe: smollm2, node: spark2, context: 512, users: 1}
  other: {recipe: smollm2, node: spark2, context: 1024, users: 1}
never_together: [[far, other]]
"""


@pytest.mark.real
@pytest.mark.slow
def test_serve_starts_swaps_and_stops_a_model_on_a_node(two_hosts: list[NamespaceHost], pulled: Home) -> None:
    head, node = two_hosts
    equip(head, node, pulled)
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    path = head.folder / "firesteel.yaml"
    path.write_text(ON_DEMAND)
    with gateway(head, path):
        assert not node.processes("supervise.supervisor"), "nothing runs before it is asked for"
        assert '"choices"' in said(head, "Once", "far"), "it was started there"
        assert node.processes("supervise.supervisor")
        assert "http://10.77.0.2:" in head.firesteel("ps").out
        kill(node, "embedded")
        wait_until("it does not come back", lambda: '"choices"' in said(head, "again", "far"))
        assert '"choices"' in said(head, "Once", "other"), "the other one takes its turn"
        names = {service["name"] for service in services_on(node)}
        assert names == {"other"}, "the first one was stopped there"
        assert head.firesteel("down", "other").code == 0
        assert not node.processes("supervise.supervisor"), "nothing is left there"
        node.power_off()
        refused = said(head, "nobody is there", "far")
        assert "spark2" in refused and '"choices"' not in refused, "the reason reaches the client"


TOGETHER = """\
hosts: {spark1: 127.0.0.1, spark2: 10.77.0.2}
models:
  both: {recipe: smollm2, nodes: 2, runtime: native, context: 512, users: 1}
  pair: {recipe: smollm2, node: [spark1, spark2], context: 512, users: 1}
"""


@pytest.mark.real
@pytest.mark.slow
def test_serve_loads_a_model_that_two_hosts_serve_together(
    two_hosts: list[NamespaceHost], pulled: Home, built_engine: Path
) -> None:
    head, node = two_hosts
    equip_head(head, built_engine, pulled.weights)
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    path = head.folder / "firesteel.yaml"
    path.write_text(TOGETHER)
    with gateway(head, path):
        assert not engines_on(node), "nothing runs before it is asked for"
        assert '"choices"' in said(head, "Once", "both") and node.processes("ggml-rpc-server")
        kill(node, "ggml-rpc-server")
        wait_until("it does not come back", lambda: '"choices"' in said(head, "again", "both"))
        assert f"firesteel up -f {path} starts it" in said(head, "Once", "pair")
        assert head.firesteel("down", "both").code == 0
        assert not (engines_on(head) or engines_on(node)), "nothing is left on any host"


def services_on(node: NamespaceHost) -> list[dict[str, object]]:
    home = f"FIRESTEEL_HOME={node.home}/.local/share/firesteel"
    listed: list[dict[str, object]] = node.run(
        "env", home, sys.executable, "-m", "firesteel", "ps", "--json"
    ).json["services"]
    return listed


@pytest.mark.real
@pytest.mark.slow
def test_replicas_on_two_hosts(two_hosts: list[NamespaceHost], pulled: Home) -> None:
    head, node = two_hosts
    equip(head, node, pulled)
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
