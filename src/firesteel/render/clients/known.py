"""The clients that are known: where each keeps its configuration, in which format, and who says so."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from firesteel import yaml_schema
from firesteel.facts.evidence import Evidence, Sources

Format = Literal["json", "toml", "yaml", "env"]
_ORDER = ("opencode", "claude-code", "codex", "continue", "zed", "open-webui", "openai")


class ConfigFolder(yaml_schema.FileSchema):
    variable: str
    """Moves the folder, where it is set."""
    default: str


class KnownClient(yaml_schema.FileSchema):
    title: str
    speaks: Literal["chat", "messages", "responses"]
    """Which of the engine's APIs: OpenAI's chat completions, Anthropic's messages, OpenAI's responses."""
    format: Format
    folder: ConfigFolder | None = None
    """None: it has no file of its own, only variables."""
    files: tuple[str, ...] = ()
    """Those that it reads, the one to change first."""
    new: str | None = None
    """The one to make where there is none."""
    sources: Sources

    @property
    def source(self) -> Evidence:
        return self.sources[0]


def names() -> tuple[str, ...]:
    return _ORDER


@cache
def client(name: str) -> KnownClient:
    path = f"clients/{name}.yaml"
    text = (files("firesteel") / "data" / path).read_text("utf-8")
    return yaml_schema.load(path, text, KnownClient)
