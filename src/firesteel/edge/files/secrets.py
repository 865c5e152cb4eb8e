"""Secrets of a service: one file of NAME=value lines that only its owner can read.

They reach an engine through its environment, never through arguments that `ps` shows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from firesteel.edge.files.home import Home, write_text
from firesteel.edge.files.state_file import open_without_waiting


def new_key() -> str:
    return f"fs-{secrets.token_urlsafe(24)}"


def write_secrets(path: Path, values: Mapping[str, str]) -> None:
    """Mode 0600. A value with a line break is left out: it is no token, and would define another name."""
    lines = [f"{name}={value}\n" for name, value in values.items() if "\n" not in value]
    write_text(path, "".join(lines))


def read_secrets(path: Path) -> dict[str, str]:
    try:
        with open(path, errors="replace", opener=open_without_waiting) as file:
            text = file.read()
    except OSError:  # missing or damaged: the next `up` writes it anew
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def secrets_path(home: Home, name: str) -> Path:
    return home.root / "secrets" / f"{name}.env"


def hub_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """The user's Hub token, if the environment has one."""
    return environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or None
