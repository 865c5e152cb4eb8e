"""What a test needs of the machine. Without it the test is skipped with the reason; in CI it must run."""

from __future__ import annotations

import os
import shutil

import pytest

from firesteel.workshop.kernels.compiler import find_compiler

IN_CI = os.environ.get("CI") == "true"


def missing_programs(*names: str) -> str:
    return ", ".join(name for name in names if shutil.which(name) is None)


def needs_programs(*names: str) -> pytest.MarkDecorator:
    missing = missing_programs(*names)
    return pytest.mark.skipif(bool(missing) and not IN_CI, reason=f"needs {missing}")


needs_compiler = pytest.mark.skipif(
    find_compiler(os.environ) is None and not IN_CI, reason="needs a C compiler (Debian: gcc)"
)


def skip_elsewhere(why: str) -> None:
    """For a fixture, which has found only now that something is missing."""
    assert not IN_CI, f"in CI this must run: {why}"
    pytest.skip(why)
