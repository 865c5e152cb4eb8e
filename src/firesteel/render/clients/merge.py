"""Settings -> the text of a file: written out whole, or put into one that is there.

A file of the user's is changed only where it must be: comments, order and everything else stay. Each format
is edited as text, and the result is read again and held against what it should say; if the two differ, the
file is left alone. What cannot be parsed is not touched either.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from firesteel.errors import UsageError
from firesteel.render.clients import jsonc, toml_text, yaml_file
from firesteel.render.clients.known import Format
from firesteel.render.clients.settings import ClientSettings, SettingEdit

MAX_CHARACTERS = 2**20


def _as_is(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class _Editor:
    """What a format can do."""

    read: Callable[[str, str], dict[str, Any]]
    edit: Callable[[str, SettingEdit, str], str]
    as_read: Callable[[object], object] = _as_is
    """A value as `read` would give it back."""


def shown(settings: ClientSettings, form: Format) -> str:
    """All of it, for a file that does not exist yet or to be pasted."""
    value: dict[str, Any] = {}
    for edit in settings.edits:
        value = applied(value, edit)
    if form == "env":
        return "".join(f"export {name}={_exported(str(said))}\n" for name, said in value.items())
    return _WRITERS[form](value)


def _exported(text: str) -> str:
    return f'"{text}"' if text.startswith("$") else shlex.quote(text)


def merged(text: str, settings: ClientSettings, form: Format, path: str) -> str:
    """The user's file with the settings in it."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{path} is longer than {MAX_CHARACTERS:,} characters", next="firesteel client NAME")
    if not text.strip():
        return shown(settings, form)
    editor = _EDITORS[form]
    for edit in settings.edits:
        before = editor.read(text, path)
        wanted = applied(before, replace(edit, value=editor.as_read(edit.value)))
        if wanted == before:
            continue
        text = editor.edit(text, edit, path)
        if not _says(editor, text, path, wanted):
            raise UsageError(
                f"{path} is written in a way that `{'.'.join(edit.path)}` cannot be put into without touching"
                " the rest",
                next="without --write it is printed, to be put there by hand",
            )
    return text


def _says(editor: _Editor, text: str, path: str, wanted: dict[str, Any]) -> bool:
    try:
        return editor.read(text, path) == wanted
    except UsageError:
        return False


def applied(value: dict[str, Any], edit: SettingEdit) -> dict[str, Any]:
    """What the value should be after the edit; the value itself is not changed."""
    value = deepcopy(value)
    *folders, last = edit.path
    inner = value
    for name in folders:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"`{name}` holds something else there already", next="look at the file first")
    if edit.how == "list":
        inner[last] = _with_item(inner.get(last) or [], edit.value)
    elif edit.how == "drop":
        inner.pop(last, None)
    elif edit.how == "set" or last not in inner:
        inner[last] = deepcopy(edit.value)
    return value


def _with_item(items: Any, item: Any) -> list[Any]:
    if not isinstance(items, list):
        raise UsageError("a list was expected there", next="look at the file first")
    names = [each.get("name") if isinstance(each, dict) else None for each in items]
    if item["name"] in names:
        at = names.index(item["name"])
        return [*items[:at], item, *items[at + 1 :]]
    return [item, *items]


_WRITERS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "json": jsonc.write,
    "toml": toml_text.write,
    "yaml": yaml_file.write,
}
_EDITORS: Mapping[str, _Editor] = {
    "json": _Editor(jsonc.read, jsonc.edit),
    "toml": _Editor(toml_text.read, toml_text.edit),
    "yaml": _Editor(yaml_file.read, yaml_file.edit, yaml_file.as_read),
}
