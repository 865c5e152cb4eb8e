"""Which release of its engine a model uses, where `upgrade` chose another one than its recipe has."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.files import state_file
from firesteel.edge.files.home import Home, exclusive
from firesteel.launch import EngineName
from firesteel.values import Value, replace


class EngineRelease(Value):
    """One of `image`, `package` and `engine_path`, as the model runs in a container, embedded or natively."""

    engine: EngineName
    version: str
    image: str | None = None
    package: str | None = None
    """A PyPI requirement with one version."""
    engine_path: str | None = None

    def __str__(self) -> str:
        return self.image or self.package or f"{self.engine_path} ({self.version})"


class ModelRelease(Value):
    model: str
    """The name of its service."""
    current: EngineRelease | None
    """None: what the recipe has."""
    previous: EngineRelease | None
    since: str


def releases_path(home: Home) -> Path:
    return home.root / "releases.json"


def chosen_release(home: Home, model: str | None) -> ModelRelease | None:
    return _read(home).get(model or "")


def choose_release(home: Home, chosen: ModelRelease) -> None:
    with exclusive(releases_path(home)):
        known = {**_read(home), chosen.model: chosen}
        kept = [each for each in known.values() if each.current or each.previous]
        state_file.write_state(releases_path(home), kept)


def _read(home: Home) -> dict[str, ModelRelease]:
    rows = state_file.read_state(releases_path(home), list[ModelRelease]) or []
    return {row.model: row for row in rows}


def swapped(chosen: ModelRelease, since: str) -> ModelRelease:
    """Back to the one before; doing it twice changes nothing."""
    return replace(chosen, current=chosen.previous, previous=chosen.current, since=since)
