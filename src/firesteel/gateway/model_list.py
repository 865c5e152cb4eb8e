"""`serve MODEL...`: a service file for models that were only named. Loads no PyYAML: the gateway's process
stays small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from firesteel.edge.home import Home, write_text
from firesteel.errors import UsageError
from firesteel.run.service import load

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""The names that a service file allows; any other is refused there, and no service can have it."""


def write_service_file(models: Iterable[str], home: Home) -> Path:
    """As JSON, which is YAML too and quotes what must be quoted."""
    models = tuple(models)
    entries = {_plain(model): _entry(model, home) for model in models}
    if len(entries) < len(models):
        raise UsageError(
            "two of these models have the same name", next="write a service file that names each"
        )
    path = home.root / "serve.yaml"
    write_text(path, json.dumps({"models": entries}, indent=1))
    return path


def _entry(model: str, home: Home) -> dict[str, Any]:
    """Keeps the port of a service that runs: with another port it would be another launch, and be stopped."""
    name = _plain(model)
    service = load(home, name) if _NAME.match(name) else None
    if service is None or service.phase == "dead":
        return {"recipe": model}
    try:
        port = urlsplit(service.spec.url).port
    except ValueError:  # another program has overwritten the service's file
        port = None
    return {"recipe": model, "port": port} if port else {"recipe": model}


def _plain(model: str) -> str:
    """`org/Repo` is served as `Repo`."""
    return model.rpartition("/")[2]
