"""Texts on which a pattern once took for ever, or a time that grows with the square of their length.

The alarm counts CPU time, so a busy machine does not set it off.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.reads.source_text import parse_env_file
from firesteel.rules.linter import LintOptions, lint

MAX_CPU_S = 60
OPTIONS = LintOptions(shipped().images)
TEXTS = {
    "assignments.md": "```bash\nvllm serve m\n```\n\n    " + "A=" * 60 + " x\n",
    "assignments.yaml": "a:\n  b: " + "A=" * 60 + " x vllm\n",
    "variables.nomad": 'variable "a" {\n}\n' * 60 + "x",
    "heredocs.nomad": 'job "a" {\n' + "a = <<X\n" * 60_000,
    "lists.nomad": 'job "a" {\n' + "a = [ " * 150_000,
    "comments.nomad": 'job "a" {\n' + "/* " * 300_000,
    "word.nomad": 'job "a" {\n' + "a" * 1_000_000,
    "Makefile": "A=x" + " " * 400_000 + "y\nall:\n\tvllm serve m\n",
    "Dockerfile": 'FROM a\nCMD ["a"' + " " * 400_000 + "x",
    "hardware.sh": "vllm serve m # x: " + "hardware" * 120_000 + "\n",
    "repositories.sh": "vllm serve m\n" + "_REPO" * 200_000 + "\n",
    "images.sh": "docker run " + "vllm/" * 100_000 + "\n",
    "tags.sh": "docker run " + "vllm:" * 100_000 + "\n",
    "empty_lines.sh": "vllm serve m\n" + "\n" * 300_000,
    "digits.sh": "docker run vllm/vllm-openai:v0.28.0 m --max-model-len " + "1" * 200_000,
    "indent.rst": " " * 500_000 + "x\n",
    "forks.sh": "vllm serve m --no-such-flag-anywhere 1\n# " + "vllm-" * 200_000 + "\n",
}


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {MAX_CPU_S} s of CPU")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", TEXTS)
def test_ends(name: str) -> None:
    lint(TEXTS[name], name, OPTIONS)


def test_an_env_file_ends_and_is_read_as_before() -> None:
    parse_env_file("A=x" + " " * 400_000 + "y")
    assert parse_env_file("A=b c  # d\nexport B = 'e # f' # g\nC=\nD= h#i \nE=j   #") == {
        "A": "b c", "B": "e # f", "C": "", "D": "h#i", "E": "j",
    }  # fmt: skip
