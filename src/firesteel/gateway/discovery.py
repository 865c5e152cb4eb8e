"""What runs, from the files under FIRESTEEL_HOME/services: is it what we would start, and what does it hold?

Imports little: the gateway checks once a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

from firesteel.edge.home import Home, read_state, write_text
from firesteel.gateway.service_config import RunningModel
from firesteel.run.service import Service, ServiceSpec, api_key
from firesteel.values import Value

Basis = Literal["host", "process", "planned"]


class _MeasuredLaunch(Value):
    """A row of `measured_memory.json`; `edge.files.measured_memory` reads it with the planner's types, which
    this process must not load."""

    key: str
    process_bytes: int


def identity(launch: str, url: str, is_guarded_by_key: bool) -> str:
    """Distinguishes launches as `up` does: what is started, where, and who may reach it."""
    return _digest((launch, url, is_guarded_by_key))


def identity_of(spec: ServiceSpec) -> str:
    return identity(spec.launch, spec.url, spec.is_guarded_by_key)


def outside_identity(urls: Iterable[str], model: str | None, key: str | None) -> str:
    return _digest((list(urls), model, key))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def running_model(home: Home, service: Service) -> RunningModel:
    """Where a ready service answers, and what it holds."""
    held_bytes, basis = measured(home, service)
    return RunningModel(service.spec.url, held_bytes, basis, api_key(service.spec))


def measured(home: Home, service: Service) -> tuple[int, Basis]:
    """Memory that its start took, as `measured_memory.json` has it.

    Of a container: what the host had less afterwards, since no process shows what CUDA took. Of a child
    process: its processes' share of all pages.
    """
    spec = service.spec
    rows = read_state(home.measured_memory, list[_MeasuredLaunch]) or []
    sizes = [row.process_bytes for row in rows if row.key == spec.launch]
    if sizes and sizes[-1] > 0:
        return sizes[-1], "host" if spec.stop else "process"
    return spec.expected_bytes, "planned"


class OwnServices:
    """What gateways of this home have started, by name and identity. Kept in a file, so that after a `kill
    -9` the next gateway recognizes its models and leaves alone what was started by hand."""

    def __init__(self, home: Home) -> None:
        self._path = home.root / "gateway" / "started.json"
        self._identities = read_state(self._path, dict[str, str]) or {}

    def __contains__(self, name: str) -> bool:
        return name in self._identities

    def add(self, name: str, identity: str) -> None:
        self._write({**self._identities, name: identity})

    def discard(self, name: str) -> None:
        self._write({other: identity for other, identity in self._identities.items() if other != name})

    def is_mine(self, name: str, identity: str) -> bool:
        return self._identities.get(name) == identity

    def _write(self, identities: dict[str, str]) -> None:
        if identities != self._identities:
            self._identities = identities
            write_text(self._path, json.dumps(identities))
