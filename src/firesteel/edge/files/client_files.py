"""Settings files of other programs: found where the program looks, replaced as a whole, with a backup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from firesteel.edge.files import home, text_files
from firesteel.errors import FiresteelError

MAX_BACKUPS = 100


def settings_path(
    variable: str, default: str, files: Sequence[str], new_file: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """The first of the files that exists, or the one to create. The variable may move their folder."""
    chosen = environ.get(variable)
    folder = Path(chosen or default.replace("~", environ.get("HOME") or str(Path.home()), 1))
    return next((folder / name for name in files if (folder / name).exists()), folder / new_file)


def read(path: Path) -> str:
    """Its text with Unix line ends; empty when there is no file."""
    return text_files.read_text(path).replace("\r\n", "\n") if path.exists() else ""


def replace(path: Path, text: str) -> Path | None:
    """Writes the new text atomically; returns the path of the backup, if there was a file."""
    if not path.exists():
        home.write_text(path, text)
        return None
    backup = _backup_path(path)
    try:
        shutil.copy2(path, backup)
    except OSError as error:
        raise FiresteelError(
            f"{path} cannot be copied: {error.strerror}", next=f"ls -ld {path.parent}"
        ) from error
    text_files.write_text(path, text)
    return backup


def _backup_path(path: Path) -> Path:
    """A name that no earlier backup has."""
    for number in range(1, MAX_BACKUPS):
        backup = path.with_name(f"{path.name}.before-firesteel{f'-{number}' if number > 1 else ''}")
        if not backup.exists():
            return backup
    raise FiresteelError(f"{path} has {MAX_BACKUPS} backups already", next=f"rm {path}.before-firesteel*")
