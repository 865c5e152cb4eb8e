"""The judgements behind `verify`, on answers as real and broken engines give them."""

from __future__ import annotations

import pytest

from firesteel.edge.answer import Answer
from firesteel.run.judge import answers, loop_in, no_loop, same_twice


def answer(text: str, finish: str | None = "stop", tokens: int | None = 12) -> Answer:
    return Answer(text, finish, 30, tokens, 0.1, 0.5)


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (answer("The answer to this classic math problem is 4."), True),
        (answer("Four, of course."), True),
        (answer("2+2 = **4**", finish="length"), True),
        (answer("!!!!!!!!!!!!!!!!"), False),
        (answer("The answer is 42."), False),
        (answer(""), False),
        (answer("4", finish=None), False),
        (answer("4", tokens=None), False),
    ],
)
def test_answers(given: Answer, passes: bool) -> None:
    assert answers(given).passed is passes


def test_same_twice() -> None:
    assert same_twice(answer("A computer is"), answer("A computer is")).passed
    differing = same_twice(answer("A computer is"), answer("A compiler is"))
    assert not differing.passed and "character 6" in differing.saw
    assert not same_twice(answer(""), answer("")).passed
    assert not same_twice(answer("A computer"), answer("A computer is")).passed
    long = "A computer is a device. " * 9
    late = same_twice(answer(long + "It hums."), answer(long + "It sings."))
    assert late.passed and "equal for 219 characters, then not" in late.saw


LOOPS = [
    "L'Étoile, la femme au martyre, la femme au martyre, la femme au martyre, la femme au martyre,",
    "1. Mona Ali\n2. Mona Ali\n3. Mona Ali\n4. Mona Ali\n5. Mona Ali\n",
    "!" * 40,
    "ok then " + "ha " * 30,
]
FINE = [
    "",
    "A computer is a device that uses electronic systems to process information.",
    "Wait...",
    "1. Red\n2. Blue\n3. Green\n4. Yellow\n",
    "He laughed: ha ha ha ha, and left.",
    "-" * 20,
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_loop_is_seen(text: str) -> None:
    assert loop_in(text) is not None
    assert not no_loop(answer(text)).passed


@pytest.mark.parametrize("text", FINE)
def test_fine_text_is_no_loop(text: str) -> None:
    assert loop_in(text) is None


def test_no_text_fails_the_loop_check_too() -> None:
    assert not no_loop(answer("  ")).passed
