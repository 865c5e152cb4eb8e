"""`cmd:` of a model: what cannot be started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports this module
    from firesteel.service_file import ModelEntry

_HEALTH = re.compile(r"/[!-~]{0,199}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_NOT_OURS = ("route", "key", "context", "users", "runtime", "engine_path")


def command_faults(name: str, entry: ModelEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    here, words = ("models", name), entry.cmd or ("",)
    if not words[0] or any("\0" in word for word in words):
        yield (*here, "cmd"), f"`{name}`: `cmd` begins with no program, or has a NUL in it"
    if entry.health is not None and not _HEALTH.match(entry.health):
        yield (*here, "health"), f"`{name}`: `health` is a path on the server; write it like `/health`"
    for variable, value in entry.env.items():
        if not _VARIABLE.match(variable) or "\0" in value:
            what = f"`{name}`: `{variable[:60]}` cannot be a variable; write it like `MODEL_DIR: /data`"
            yield (*here, "env", variable), what
    for key in _NOT_OURS:
        if getattr(entry, key) is not None:
            yield (*here, key), f"`{name}`: a `cmd` has no `{key}` of ours"
    if entry.memory is None:
        yield here, f"`{name}`: a `cmd` needs `memory`, how much it takes; write it like 4GiB"
    if entry.port is None and not any("${PORT}" in word for word in (*words, *entry.env.values())):
        yield here, f"`{name}`: `cmd` has no ${{PORT}}, so that its `port` must be given"
