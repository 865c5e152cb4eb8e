"""The clients that are known: where each keeps its configuration, in which format, and who says so."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from firesteel import sheets
from firesteel.facts.evidence import Source, Sources

Format = Literal["json", "toml", "yaml", "env"]
_ORDER = ("opencode", "claude-code", "codex", "continue", "zed", "open-webui", "openai")


class Folder(sheets.Sheet):
    variable: str
    """Moves the folder, where it is set."""
    default: str


class Client(sheets.Sheet):
    title: str
    speaks: Literal["chat", "messages", "responses"]
    """Which of the engine's APIs: OpenAI's chat completions, Anthropic's messages, OpenAI's responses."""
    format: Format
    folder: Folder | None = None
    """None: it has no file of its own, only variables."""
    files: tuple[str, ...] = ()
    """Those that it reads, the one to change first."""
    new: str | None = None
    """The one to make where there is none."""
    sources: Sources

    @property
    def source(self) -> Source:
        return self.sources[0]


def names() -> tuple[str, ...]:
    return _ORDER


@cache
def client(name: str) -> Client:
    path = f"clients/{name}.yaml"
    text = (files("firesteel") / "data" / path).read_text("utf-8")
    return sheets.load(path, text, Client)
