"""Settings of other programs: found where the program looks, changed whole, the old file kept beside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from firesteel.edge.files import home, text_files
from firesteel.errors import FiresteelError

MAX_BACKUPS = 100


def settings_path(
    variable: str, default: str, files: Sequence[str], new: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """The first of the files that exists, or the one to make. The variable may move their folder."""
    told = environ.get(variable)
    folder = Path(told or default.replace("~", environ.get("HOME") or str(Path.home()), 1))
    return next((folder / name for name in files if (folder / name).exists()), folder / new)


def read(path: Path) -> str:
    """With plain line ends; nothing where there is no file."""
    return text_files.read_text(path).replace("\r\n", "\n") if path.exists() else ""


def replace(path: Path, text: str) -> Path | None:
    """The new text in one move; what was there before is kept beside it, and its place given back."""
    if not path.exists():
        home.write_text(path, text)
        return None
    backup = _free(path)
    try:
        shutil.copy2(path, backup)
    except OSError as error:
        raise FiresteelError(
            f"{path} cannot be copied: {error.strerror}", next=f"ls -ld {path.parent}"
        ) from error
    text_files.write_text(path, text)
    return backup


def _free(path: Path) -> Path:
    """A name that no earlier copy has."""
    names = (
        f"{path.name}.before-firesteel{f'-{number}' if number > 1 else ''}"
        for number in range(1, MAX_BACKUPS)
    )
    for name in names:
        if not path.with_name(name).exists():
            return path.with_name(name)
    raise FiresteelError(
        f"{MAX_BACKUPS} copies of {path} are there already", next=f"rm {path}.before-firesteel*"
    )
