"""docs/cluster.md from top to bottom, as somebody with two hosts would type it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost
from tests.hosts.cluster.service import cluster_page_commands, engines_on, equip

from firesteel.edge.home import Home


@pytest.mark.real
@pytest.mark.slow  # six minutes: two starts on real hosts, two on simulated Sparks, two benchmarks
def test_the_page_as_written(two_hosts: list[NamespaceHost], pulled: Home, built_engine: Path) -> None:
    head, node = two_hosts
    equip(head, built_engine, pulled.weights)
    (node.home / ".bashrc").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    for words in cluster_page_commands():
        ran = head.firesteel(*words)
        assert ran.code == 0, f"firesteel {' '.join(words)}\n{ran.out}{ran.err}"
    assert not (engines_on(head) or engines_on(node))
