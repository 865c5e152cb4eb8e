"""The values of one config.json: looked up under the names that its family uses, checked, refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.families import Family

Config = Mapping[str, object]

MAX_LAYERS = 4096
_MAX_VALUE = 2**40


class ConfigValues:
    def __init__(self, model_type: str, config: Config, family: Family) -> None:
        self.model_type = model_type
        self.family = family
        self._config = config

    def get(self, key: str) -> object:
        """The value in the config, or the default of its model class; None if neither has one."""
        value = self._config.get(key)
        if value is not None:
            return value
        default = self.family.defaults.get(key)
        return self._config.get(default) if isinstance(default, str) else default

    def integer(self, key: str, least: int = 1) -> int:
        value = self.get(key)
        if value is None:
            raise self.unsupported(f"has no `{key}` in its config.json")
        listed = value if isinstance(value, list) and 0 < len(value) <= MAX_LAYERS else []
        if listed and len(listed) == self.get("num_hidden_layers") and listed.count(listed[0]) == len(listed):
            value = listed[0]  # Hunyuan lists a number for each layer
        if type(value) is not int or not least <= value <= _MAX_VALUE:
            raise self.unsupported(f"has the `{key}` {_shown(value)} in its config.json")
        return value

    def integer_or(self, key: str, default: int, least: int = 1) -> int:
        return default if self.get(key) is None else self.integer(key, least)

    def first_integer(self, keys: Sequence[str]) -> int:
        """The first of these keys that is set; 0 without any."""
        key = next((key for key in keys if self.get(key) is not None), None)
        return self.integer(key, least=0) if key else 0

    def nested(self, key: str) -> ConfigValues:
        """The values of an object inside this one."""
        value = self._config.get(key)
        if not isinstance(value, Mapping):
            raise self.unsupported(f"has no `{key}` in its config.json")
        return ConfigValues(self.model_type, value, self.family)

    def per_layer(self, key: str, count: int) -> list[object] | None:
        """A list with one entry per layer; None if the config has none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or len(value) < count:
            raise self.unsupported(f"has {count} layers but not as many `{key}`")
        return list(value[:count])

    def is_true(self, key: str) -> bool:
        return self.get(key) is True

    def is_null(self, key: str) -> bool:
        return key in self._config and self._config[key] is None

    def unsupported(self, reason: str) -> UnknownArchitecture:
        return UnknownArchitecture(f"`{self.model_type:.80}` {reason}")


def _shown(value: object) -> str:
    """A wrong value for a message; lists and numbers may be too long to print."""
    if isinstance(value, int) and abs(value) > _MAX_VALUE:
        return "of more digits than a model has"
    return f"{value!r:.40}" if isinstance(value, int | float | str) else f"of type {type(value).__name__}"
