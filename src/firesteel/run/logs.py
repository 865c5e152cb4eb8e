"""The engines' logs, which are kept after a service has ended."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError


def all_logs(home: Home) -> dict[str, Path]:
    """By the name of the service."""
    return {path.parent.name: path for path in home.services.glob("*/engine.log")}


def find_log(home: Home, name: str | None = None) -> Path:
    """The log of that service; without a name, the one that was written to last."""
    logs = all_logs(home)
    if name in logs:
        return logs[name]
    if name is not None:
        known = f"; there are logs of {', '.join(sorted(logs))}" if logs else ""
        raise UsageError(f"there is no log of `{name}`{known}", next="firesteel ps")
    if not logs:
        raise FiresteelError("nothing has run yet, so there is no log", next="firesteel up")
    return max(logs.values(), key=lambda path: path.stat().st_mtime)
