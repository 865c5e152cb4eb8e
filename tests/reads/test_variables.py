"""Variables that a script sets itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from firesteel.reads import shell, variables
from firesteel.reads.source_text import SourceFile


def expanded(text: str) -> list[str]:
    """The words of the last command."""
    file = SourceFile("run.sh", text)
    lines = shell.split(file.whole, file)
    return [word.text for word in variables.expand(lines[-1], variables.find_values(lines), file).words]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=x\nrun $A ${A}y \"$A z\" '$A'", ["run", "x", "xy", "x z", "x"]),
        ("A='x y'\nrun $A", ["run", "x", "y"]),
        ("A='x y'\nrun \"$A\"", ["run", "x y"]),
        ("A=1\nA=2\nrun $A", ["run", "$A"]),
        ("A=1\nA+=2\nrun $A", ["run", "12"]),
        ('A=a\nA="$A b"\nif x; then A="$A c"; fi\nrun $A', ["run", "a", "b", "c"]),
        ('A=a\nif x\nthen A+=" b"\nelse\n  A+=" c"\nfi\nrun $A', ["run", "a", "b"]),
        ('L=(a)\nL+=(b "c d")\nrun "${L[@]}"', ["run", "a", "b", "c d"]),
        ('L=()\nif x; then L+=(b); fi\nrun "${L[@]}" z', ["run", "b", "z"]),
        ('L=(a)\nL+=(b)\nrun "${L[@]}"', ["run", "a", "b"]),
        ("A=1\nA=$A\nA=2\nrun $A", ["run", "$A"]),
        ("for A in 1 2; do\nrun $A", ["run", "$A"]),
        ("run ${A:-x} ${B-y z} ${C}", ["run", "x", "y", "z", "${C}"]),
        ("A=set\nrun ${A:-x}", ["run", "set"]),
        ("ARGS=(--a 'b c'\n  --d)\nrun \"${ARGS[@]}\" x", ["run", "--a", "b c", "--d", "x"]),
        ("A=$B\nB=x\nrun $A", ["run", "x"]),
        ("A=$A\nrun $A", ["run", "$A"]),
        ("A=\nrun $A b", ["run", "b"]),
        ("export A=x B=y\nrun $A$B", ["run", "xy"]),
        ("HF_TOKEN=hf_secret\nrun $HF_TOKEN", ["run", "$HF_TOKEN"]),
        ("A=$(id -u)\nrun $A", ["run", "$A"]),
    ],
)
def test_expand(script: str, words: list[str]) -> None:
    assert expanded(script) == words


def test_a_value_has_the_position_where_it_was_written() -> None:
    file = SourceFile("run.sh", 'IMAGE=img\nARGS="--a \\\n  --b"\nrun $IMAGE $ARGS')
    lines = shell.split(file.whole, file)
    line = variables.expand(lines[-1], variables.find_values(lines), file)
    places = [(word.text, word.line, word.column) for word in line.words]
    assert places == [("run", 4, 1), ("img", 1, 7), ("--a", 2, 7), ("--b", 3, 3)]


def test_values_that_grow_are_bounded() -> None:
    names = "abcdefgh"
    script = f"a={'x' * 4096}\n" + "\n".join(
        f"{new}=${old}${old}${old}${old}" for old, new in pairwise(names)
    )
    assert max(len(word) for word in expanded(f"{script}\nrun $h")) <= variables.MAX_EXPANDED
