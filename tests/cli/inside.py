"""The command in this very process: for tests of many words, where a new process each would take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.cli.main import main
from firesteel.cli.output import show
from tests.conftest import Firesteel, Ran


def inside(home: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Firesteel:
    def run(*words: str, env: dict[str, str] | None = None) -> Ran:
        with patch.context() as here, pytest.raises(SystemExit) as left:
            for name, value in {"FIRESTEEL_HOME": str(home), **(env or {})}.items():
                here.setenv(name, value)
            here.setattr(show.out, "width", 160)  # as in a pipe, whatever COLUMNS says where the tests run
            main(list(words))
        said = capture.readouterr()
        assert isinstance(left.value.code, int)
        return Ran(left.value.code, said.out, said.err)

    return run
