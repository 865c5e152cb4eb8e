"""What `verify` and `bench` are pointed at, from NAME, --url and --model."""

from __future__ import annotations

from firesteel.errors import UsageError


def require_one_target(command: str, name: str | None, url: str | None, model: str | None) -> None:
    if url and name:
        raise UsageError("give NAME (a service of firesteel) or --url, not both", next="firesteel ps")
    if model and not url:
        raise UsageError(
            "--model needs --url", next=f"firesteel {command} --url http://host:8000/v1 --model M"
        )
