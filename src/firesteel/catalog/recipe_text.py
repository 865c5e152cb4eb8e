"""A recipe -> the text of its file; the inverse of `read_recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.catalog.recipe import Recipe, Setting, read_recipe
from firesteel.values import YamlFile, plain


def dump_recipe(recipe: Recipe) -> str:
    """YAML that reads back as the same recipe; what is empty is left out."""
    import yaml  # slow to load, and only few commands write a recipe

    document = {
        "title": recipe.title, "model": recipe.model, "engine": recipe.engine, "image": recipe.image,
        "sparks": recipe.sparks, "serves": {"context": recipe.context, "users": recipe.users},
        "flags": _settings(recipe.flags), "env": _settings(recipe.env),
        "assets": [_filled(asset) for asset in recipe.assets], "requests": _filled(recipe.requests),
        "quality": [_filled(score) for score in recipe.quality], "status": recipe.status,
        "corrects": [_filled(row) for row in recipe.corrects],
        "sources": [_filled(source) for source in recipe.sources], "note": recipe.note,
    }  # fmt: skip
    filled = {name: value for name, value in document.items() if value not in ({}, [], None)}
    text: str = yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, width=110)
    read_recipe(recipe.name, YamlFile.parse("recipe", text))  # never write a recipe that cannot be read back
    return text


def _settings(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: {"value": setting.value, "why": setting.why} for name, setting in settings.items()}


def _filled(value: Any) -> dict[str, Any]:
    """A value as a map, without what is not said."""
    fields: dict[str, Any] = plain(value)
    if fields.get("source"):
        fields["source"] = {name: field for name, field in fields["source"].items() if field is not None}
    return {name: field for name, field in fields.items() if field not in (None, {}, ())}
