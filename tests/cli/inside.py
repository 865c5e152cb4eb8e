"""Runs a command in this process, for tests with many cases, where new processes would take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.cli.main import main
from firesteel.cli.output import show
from tests.conftest import Firesteel, Ran


def inside(home: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Firesteel:
    def run(*arguments: str, env: dict[str, str] | None = None) -> Ran:
        with patch.context() as here, pytest.raises(SystemExit) as exit:
            for name, value in {"FIRESTEEL_HOME": str(home), **(env or {})}.items():
                here.setenv(name, value)
            here.setattr(show.out, "width", 160)  # as in a pipe, whatever COLUMNS says where the tests run
            main(list(arguments))
        output = capture.readouterr()
        assert isinstance(exit.value.code, int)
        return Ran(exit.value.code, output.out, output.err)

    return run
