"""The server that `verify`, `bench` and `compare --ab` talk to, from NAME, --url and --model."""

from __future__ import annotations

from firesteel import library
from firesteel.errors import UsageError
from firesteel.run.endpoints import KEY_VARIABLES, base_url, key_from, running_service
from firesteel.run.service import Service

__all__ = ["KEY_VARIABLES", "base_url", "key_from", "pick_service", "require_one_target"]


def require_one_target(command: str, name: str | None, url: str | None, model: str | None) -> None:
    if url and name:
        raise UsageError("give NAME (a service of firesteel) or --url, not both", next="firesteel ps")
    if model and not url:
        raise UsageError(
            "--model needs --url", next=f"firesteel {command} --url http://host:8000/v1 --model M"
        )


def pick_service(name: str | None) -> Service:
    return running_service(library.home(), name)
