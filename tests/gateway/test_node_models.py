"""Models on other hosts, as the gateway plans and starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.gateway.endpoints import model_endpoints
from firesteel.gateway.loader.job import read
from firesteel.gateway.loader.node_models import node_turns
from firesteel.gateway.service_config import RunningModel
from firesteel.library.plans import host
from firesteel.service_file import on_nodes, read_service_file
from firesteel.workspace import Workspace

HOSTS = "hosts: {spark1: 127.0.0.1, spark2: 192.168.100.11, spark3: 192.168.100.12}\nmodels:\n"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("gpt-oss-120b, node: spark2", "gpt-oss-120b, node: spark2", (("a", "b"),)),
        ("gpt-oss-120b, node: spark2", "gpt-oss-120b, node: spark3", ()),
        ("smollm2, node: spark2", "smollm2, node: spark2", ()),
    ],
)
def test_models_that_do_not_fit_on_their_node_take_turns(
    tmp_path: Path, one: str, other: str, expected: tuple[tuple[str, ...], ...]
) -> None:
    file = read_service_file("f", f"{HOSTS}  a: {{recipe: {one}}}\n  b: {{recipe: {other}}}\n")
    assert node_turns(on_nodes(file), Workspace(Home(tmp_path)), host("gb10")) == expected


def test_a_model_on_nodes_is_loaded_and_has_as_many_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "firesteel.yaml"
    path.write_text(
        f"{HOSTS}  far: {{recipe: smollm2, node: [spark2, spark3], route: prefix, ttl: 5m}}\n"
        "  pair: {recipe: smollm2, node: [spark1, spark2]}\n"
    )
    far, pair = read(str(path), Home(tmp_path)).models
    assert pair.is_outside and pair.start == f"firesteel up -f {path} starts it", "this host is one of them"
    assert not far.is_outside and far.ttl_s == 300 and far.bytes == 0
    assert far.ask["cmd"][-2] == str(tmp_path / "services/far")
    running = RunningModel("http://192.168.100.11:8000", 0, key="k")
    endpoints = model_endpoints(far, running).endpoints
    assert [endpoint.address for endpoint in endpoints] == [
        ("192.168.100.11", 8000),
        ("192.168.100.12", 8000),
    ]
    assert all(b"Bearer k" in endpoint.headers for endpoint in endpoints)
