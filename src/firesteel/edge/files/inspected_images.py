"""What `image inspect` learned about images, kept by digest.

FIRESTEEL_HOME/engines-data/inspected/sha256-1b2c3d4e....json
"""

from __future__ import annotations

import json
from pathlib import Path

from firesteel.catalog.image import ImageInspection
from firesteel.edge.files.home import Home
from firesteel.errors import FiresteelError
from firesteel.values import InvalidValue, from_json


def inspections_folder(home: Home) -> Path:
    return home.learned / "inspected"


def read_inspections(home: Home) -> tuple[ImageInspection, ...]:
    """The oldest first; a damaged file is an error that names it."""
    found = [_read(path) for path in sorted(inspections_folder(home).glob("*.json"))]
    return tuple(sorted(found, key=lambda inspection: inspection.on))


def _read(path: Path) -> ImageInspection:
    try:
        return from_json(ImageInspection, json.loads(path.read_text("utf-8", errors="replace")))
    except (ValueError, InvalidValue) as error:
        raise FiresteelError(
            f"{path} is damaged ({error})", next="delete it and run `firesteel image inspect` again"
        ) from error
