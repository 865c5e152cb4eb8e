"""The known clients: where each has its configuration, in which format, and the source for that."""

from __future__ import annotations

from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.facts.evidence import Evidence, Sources
from firesteel.values import FileValue

Format = Literal["json", "toml", "yaml", "env"]
_ORDER = ("opencode", "claude-code", "codex", "continue", "zed", "open-webui", "openai")


class ConfigFolder(FileValue, kw_only=True):
    variable: str
    """The environment variable that moves the folder."""
    default: str


class KnownClient(FileValue, kw_only=True):
    title: str
    speaks: Literal["chat", "messages", "responses"]
    """Which of the engine's APIs: OpenAI's chat completions, Anthropic's messages, OpenAI's responses."""
    format: Format
    folder: ConfigFolder | None = None
    """None: it has only environment variables, no file."""
    files: tuple[str, ...] = ()
    """The files that it reads; the first that exists is changed."""
    new_file: str | None = None
    """The file to create where none exists."""
    sources: Sources

    @property
    def source(self) -> Evidence:
        return self.sources[0]


def client_names() -> tuple[str, ...]:
    return _ORDER


@cache
def load_client(name: str) -> KnownClient:
    return shipped_data.load(f"clients/{name}.yaml", KnownClient)
