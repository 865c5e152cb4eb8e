"""Later answers to a prompt against the first ones: what is the same, what differs, what is broken."""

from __future__ import annotations

import pytest
from tests.run.test_verify_checks import answer

from firesteel.edge.http.answer import Answer
from firesteel.run.verify import checks, repeats

SUM, TEXT = "What is 2+2?", "What is a computer?"
FIRSTS = {
    SUM: [answer("The answer to this classic math problem is 4.")],
    TEXT: [
        answer(
            "A computer is a device that uses electronic systems to process information, manage data, and "
            "perform tasks. It has a processor, some memory and a screen.",
            "length",
        )
    ],
}
START = "A computer is a device that uses"


@pytest.mark.parametrize(
    ("prompt", "again"),
    [
        (TEXT, answer("A computer is a", "length")),
        (TEXT, answer("A computer is a device that uses electronic systems to process", "length")),
        (TEXT, answer(f"{START} algorithms and software to process information.", "stop")),  # a close choice
        (TEXT, answer(f"{START} ", "stop")),  # a stop string ended it
        (SUM, answer("The answer to this classic problem is 4.")),
        (SUM, answer("The answer to this classic math problem is 4. In mathematics, 2 and 2 make 4.")),
    ],
)
def test_the_same_answer(prompt: str, again: Answer) -> None:
    assert repeats.differences([(prompt, again)], FIRSTS) == {}


@pytest.mark.parametrize(
    ("prompt", "text", "is_broken"),
    [
        (TEXT, "", True),
        (TEXT, "!!!!!!!!!!!!!!!!", True),
        (TEXT, "edvc a utrpmoec si hatt eusst secr a ytenm ic pso ofn irta mn daa gtae ttksas perf ro", True),
        (TEXT, "The answer to this classic math problem is 4.", True),
        (SUM, f"{START} electronic systems", True),
        (TEXT, f"{START} this classic math problem is 4. electronic systems to process information", True),
        (TEXT, f"{START} and lava from the crater flows electronic systems to process information", False),
        (TEXT, "Computers are machines that follow a list of steps.", False),
        (SUM, "Seven, I think.", False),
    ],
)
def test_another_answer(prompt: str, text: str, is_broken: bool) -> None:
    found = repeats.differences([(prompt, answer(text, "length"))], FIRSTS)
    assert found[0].is_broken is is_broken, found[0].observed
    twice = repeats.same_again("parallel requests", [prompt], found, found)
    assert twice.fails_launch is is_broken and not twice.passed


def test_what_does_not_differ_again_is_reported_and_fails_nothing() -> None:
    found = repeats.differences([(TEXT, answer(""))], FIRSTS)
    once = repeats.same_again("same twice", [TEXT], found, {})
    assert once.passed and "differed once" in once.observed
    fluent = {0: repeats.Difference("other words", False)}
    assert not repeats.same_again("same twice", [TEXT], found, fluent).fails_launch


def test_few_tokens_of_a_model_that_thinks_may_make_no_text() -> None:
    thinking = {TEXT: [answer("A machine.", reasoning="I am asked for a machine.")]}
    assert repeats.differences([(TEXT, answer("", "length"))], thinking) == {}
    assert repeats.differences([(TEXT, answer("", "stop"))], thinking)[0].is_broken


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{START} ", None),
        (f"{START} electronic systems to process informa", None),  # the word itself did not come
        (f"{START} electronic systems to ", None),
        (f"{START} electronic systems to pro", "a part of"),
        (f"{START} electr", "ended 15 characters before"),
        ("A machine", None),
    ],
)
def test_stop_to_the_character(text: str, says: str | None) -> None:
    result = checks.stop_sequence(answer(text, "stop"), "process" if says else "screen", FIRSTS[TEXT])
    if says is None:
        result = checks.stop_sequence(answer(text, "stop"), "nowhere", FIRSTS[TEXT])
    assert result.passed is (says is None) and (says or "") in result.observed
