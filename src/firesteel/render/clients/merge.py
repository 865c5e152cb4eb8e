"""Settings -> the text of a file: a whole new file, or an existing file with the settings in it.

A user's file is changed only where it must be: comments, order and everything else stay. Each format is
edited as text, and the result is parsed again and compared with what it should be; if the two differ, the
file is left alone. A file that cannot be parsed is not touched either.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from firesteel.errors import UsageError
from firesteel.render.clients import jsonc, toml_text, yaml_file
from firesteel.render.clients.known import Format
from firesteel.render.clients.settings import ClientSettings, SettingEdit
from firesteel.values import Value, replace

MAX_CHARACTERS = 2**20


class _Editor(Value):
    """Parse and edit one format."""

    read: Callable[[str, str], dict[str, Any]]
    edit: Callable[[str, SettingEdit, str], str]
    as_read: Callable[[object], object] = lambda value: value
    """A value as `read` would return it."""


def render_settings(settings: ClientSettings, form: Format) -> str:
    """All settings, for a new file or for pasting."""
    value: dict[str, Any] = {}
    for edit in settings.edits:
        value = apply_edit(value, edit)
    if form == "env":
        return "".join(f"export {name}={_quote(str(setting))}\n" for name, setting in value.items())
    return _WRITERS[form](value)


def _quote(text: str) -> str:
    return f'"{text}"' if text.startswith("$") else shlex.quote(text)


def merge_settings(text: str, settings: ClientSettings, form: Format, path: str) -> str:
    """The user's file with the settings in it."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{path} is longer than {MAX_CHARACTERS:,} characters", next="firesteel client NAME")
    if not text.strip():
        return render_settings(settings, form)
    editor = _EDITORS[form]
    for edit in settings.edits:
        before = editor.read(text, path)
        wanted = apply_edit(before, replace(edit, value=editor.as_read(edit.value)), path)
        if wanted == before:
            continue
        text = editor.edit(text, edit, path)
        if not _is_equal(editor, text, path, wanted):
            raise UsageError(
                f"`{'.'.join(edit.path)}` cannot be set in {path} without changing the rest of the file",
                next="leave out --write: it is printed, and you can add it by hand",
            )
    return text


def _is_equal(editor: _Editor, text: str, path: str, wanted: dict[str, Any]) -> bool:
    try:
        return editor.read(text, path) == wanted
    except UsageError:
        return False


def apply_edit(value: dict[str, Any], edit: SettingEdit, path: str = "a new file") -> dict[str, Any]:
    """A copy of the value, which `path` holds, with the edit applied."""
    value = deepcopy(value)
    *parents, last = edit.path
    inner = value
    for name in parents:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise _of_another_kind(name, "a section", path)
    if edit.action == "list":
        items = inner.get(last) or []
        if not isinstance(items, list):
            raise _of_another_kind(last, "a list", path)
        inner[last] = _with_item(items, edit.value)
    elif edit.action == "drop":
        inner.pop(last, None)
    elif edit.action == "set" or last not in inner:
        inner[last] = deepcopy(edit.value)
    return value


def _of_another_kind(name: str, wanted: str, path: str) -> UsageError:
    return UsageError(
        f"`{name}` in {path} is not {wanted}", next=f"correct it in {path}, or leave out --write"
    )


def _with_item(items: list[Any], item: Any) -> list[Any]:
    names = [other.get("name") if isinstance(other, dict) else None for other in items]
    if item["name"] in names:
        index = names.index(item["name"])
        return [*items[:index], item, *items[index + 1 :]]
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
