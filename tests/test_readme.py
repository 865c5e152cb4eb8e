"""README.md shows what the commands really print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Firesteel

README = Path(__file__).parents[1] / "README.md"
MAX_BYTES = 10_000
MAX_LINES = 14


@pytest.mark.parametrize("name", ["plan", "check"])
def test_the_shown_output_is_real(name: str, firesteel: Firesteel) -> None:
    """Every shown line is printed, in this order; `...` stands for any number of others."""
    command, shown = _block(name)
    assert shown.count("...") < len(shown) <= MAX_LINES
    printed = iter(firesteel(*command, env={"COLUMNS": "110"}).out.splitlines())
    for line in shown:
        assert line == "..." or any(line == other.rstrip() for other in printed), f"not printed: {line}"


def test_it_stays_short() -> None:
    assert README.stat().st_size < MAX_BYTES


def _block(name: str) -> tuple[list[str], list[str]]:
    """The arguments of the command above a marked block, and the lines of the block."""
    match = re.search(
        rf"\$ \./firesteel ([^\n]*)\n```\n<!-- {name} -->\n```\n(.*?)\n```\n<!-- /{name} -->",
        README.read_text(),
        re.S,
    )
    assert match, f"README.md has no block <!-- {name} --> below a command"
    return shlex.split(match[1]), match[2].splitlines()
