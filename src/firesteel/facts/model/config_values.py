"""The figures of one config.json: looked up under the names its family uses, checked, refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.families import Family

Config = Mapping[str, object]

MAX_LAYERS = 4096
_MAX_FIGURE = 2**40


class ConfigValues:
    def __init__(self, model_type: str, text: Config, family: Family) -> None:
        self.model_type = model_type
        self.family = family
        self._text = text

    def figure(self, key: str, least: int = 1) -> int:
        value = self.said(key)
        if value is None:
            raise self.unknown(f"has no `{key}` in its config.json")
        if type(value) is not int or not least <= value <= _MAX_FIGURE:
            raise self.unknown(f"has the `{key}` {_shown(value)} in its config.json")
        return value

    def figure_or(self, key: str, default: int, least: int = 1) -> int:
        return default if self.said(key) is None else self.figure(key, least)

    def count(self, keys: Sequence[str]) -> int:
        """The first of these keys that is set; 0 without any."""
        key = next((key for key in keys if self.said(key) is not None), None)
        return self.figure(key, least=0) if key else 0

    def inside(self, key: str) -> ConfigValues:
        """The figures of an object inside this one."""
        value = self._text.get(key)
        if not isinstance(value, Mapping):
            raise self.unknown(f"has no `{key}` in its config.json")
        return ConfigValues(self.model_type, value, self.family)

    def listed(self, key: str, count: int) -> list[object] | None:
        """A list with an entry for each layer; None if the config has none."""
        value = self.said(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or len(value) < count:
            raise self.unknown(f"has {count} layers but not as many `{key}`")
        return list(value[:count])

    def is_on(self, key: str) -> bool:
        return self.said(key) is True

    def said(self, key: str) -> object:
        """What the config says, or what its model class fills in; None if neither."""
        value = self._text.get(key)
        if value is not None:
            return value
        default = self.family.defaults.get(key)
        return self._text.get(default) if isinstance(default, str) else default

    def is_null(self, key: str) -> bool:
        return key in self._text and self._text[key] is None

    def unknown(self, what: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self.model_type:.80}` {what}")


def _shown(value: object) -> str:
    """A wrong figure in a message; lists and numbers may be too big to print."""
    if isinstance(value, int) and abs(value) > _MAX_FIGURE:
        return "of more digits than a model has"
    return f"{value!r:.40}" if isinstance(value, int | float | str) else f"of type {type(value).__name__}"
