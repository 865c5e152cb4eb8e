from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost, hosts, missing


def _made(folder: Path, count: int) -> Iterator[list[NamespaceHost]]:
    if lacks := missing():
        assert os.environ.get("CI") != "true", f"scripts/test should have installed it: {lacks}"
        pytest.skip(lacks)
    with hosts(folder, count) as made:
        yield made


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[list[NamespaceHost]]:
    """`spark1`, where commands are typed, and `spark2`."""
    yield from _made(tmp_path, 2)


@pytest.fixture
def three_hosts(tmp_path: Path) -> Iterator[list[NamespaceHost]]:
    yield from _made(tmp_path, 3)
