"""The llama.cpp that `scripts/make-test-engine` has built for the tests."""

from __future__ import annotations

import os
from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.programs.installed import installed_engines


def find_built_engine() -> Path | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Home(Path(os.environ.get("FIRESTEEL_TEST_ENGINES") or cache / "firesteel-test-engines"))
    return next(
        (folder for folder, engine in installed_engines(home).items() if engine.made == "built"), None
    )
