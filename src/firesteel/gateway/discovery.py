"""What runs, as the files under FIRESTEEL_HOME/services tell: is it what we would start, and what it holds.

Light: the gateway looks once a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from firesteel.edge.files.home import Home, write_text
from firesteel.edge.files.secrets import read_secrets
from firesteel.gateway.service_config import RunningModel
from firesteel.run.service import Service, ServiceSpec

Basis = Literal["host", "process", "planned"]
_MAX_FILE_BYTES = 2**20


def identity(launch: str, url: str, is_guarded_by_key: bool) -> str:
    """As `up` tells one launch from another: what is started, where, and who may reach it."""
    return _digest((launch, url, is_guarded_by_key))


def identity_of(spec: ServiceSpec) -> str:
    return identity(spec.launch, spec.url, spec.is_guarded_by_key)


def outside_identity(urls: Iterable[str], model: str | None, key: str | None) -> str:
    return _digest((list(urls), model, key))


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def up_of(home: Home, service: Service) -> RunningModel:
    """Where a ready service answers, and what it holds."""
    held, basis = measured(home, service)
    return RunningModel(service.spec.url, held, basis, _key(service.spec))


def measured(home: Home, service: Service) -> tuple[int, Basis]:
    """What its start took. `realised.json` has it by launch: of a container, what the host had less of after
    than before it, since no process shows what CUDA took; of a child, its processes' share of all pages."""
    spec = service.spec
    took = _realised(home.existing_measured_memory, spec.launch)
    if took is not None:
        return took, "host" if spec.stop else "process"
    return spec.expected_bytes, "planned"


def _realised(path: Path, launch: str) -> int | None:
    """`edge.realised` reads it with the planner's own types, which are not for this process."""
    try:
        with path.open("rb") as file:
            rows = json.loads(file.read(_MAX_FILE_BYTES))
        took = [row["process_bytes"] for row in rows if row["key"] == launch]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return took[-1] if took and isinstance(took[-1], int) and took[-1] > 0 else None


class OwnServices:
    """What a gateway of this home started, by name and identity; kept, so that the next one knows its own
    after a `kill -9`, and leaves alone what somebody started by hand."""

    def __init__(self, home: Home) -> None:
        self._path = home.root / "gateway" / "started.json"
        self._held = self._read()

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def add(self, name: str, identity: str) -> None:
        self._hold({**self._held, name: identity})

    def discard(self, name: str) -> None:
        self._hold({each: identity for each, identity in self._held.items() if each != name})

    def is_mine(self, name: str, identity: str) -> bool:
        return self._held.get(name) == identity

    def _hold(self, held: dict[str, str]) -> None:
        if held != self._held:
            self._held = held
            write_text(self._path, json.dumps(held))

    def _read(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                held = json.loads(file.read(_MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return {str(name): str(each) for name, each in held.items()} if isinstance(held, dict) else {}


def _key(spec: ServiceSpec) -> str | None:
    found = read_secrets(Path(spec.secrets)) if spec.is_guarded_by_key and spec.secrets else {}
    return next((value for name, value in found.items() if name.endswith("_API_KEY")), None)
