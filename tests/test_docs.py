"""The generated pages are what the program would write now, and every command on a page exists."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from firesteel.cli.main import COMMANDS
from firesteel.service_file import read_service_file

ROOT = Path(__file__).parent.parent


def test_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make-docs"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_COMMAND = re.compile(r"^(?:\$ )?(?:\./)?firesteel ((?=[a-z-])\S+(?: \S+)*)(?: {2,}.*)?$", re.M)


def commands_of(page: Path) -> list[list[str]]:
    """What a reader would copy, without explanations in a column of their own."""
    blocks = [text for kind, text in _BLOCK.findall(page.read_text("utf-8")) if kind in ("", "sh", "console")]
    lines = [re.sub(r" --on \w+| [|>] .*", "", line) for text in blocks for line in _COMMAND.findall(text)]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    """Its options and arguments are read as the program reads them; nothing is run."""
    for words in commands_of(page):
        at = next(index for index, word in enumerate(words) if word in COMMANDS)
        name, rest = words[at], words[at + 1 :]
        command = importlib.import_module(f"firesteel.cli.{name}").command
        while isinstance(command, click.Group) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        try:
            command.make_context(name, rest).close()
        except click.exceptions.Exit as done:  # --help
            assert done.exit_code == 0
        except click.ClickException as error:
            pytest.fail(f"{page.name}: firesteel {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_service_file_of_a_page_is_one(page: Path) -> None:
    texts = [text for kind, text in _BLOCK.findall(page.read_text("utf-8")) if kind == "yaml"]
    for text in texts:
        if re.search(r"^models:", text, re.M):
            assert read_service_file(page.name, text).models
