"""Judging answers: three checks that a broken engine fails. Pure; `verify` does the asking."""

from __future__ import annotations

import re
from dataclasses import dataclass

from firesteel.edge.answer import Answer

LATE_CHARS = 200
LOOP_REPEATS = 4
LOOP_MIN_CHARS = 24


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    saw: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers that the checks are made of; `text` is also the first speed measurement."""

    sum: Answer
    text: Answer
    again: Answer


def judge_answers(asked: Asked) -> tuple[Check, ...]:
    return (answers(asked.sum), same_twice(asked.text, asked.again), no_loop(asked.text))


def answers(answer: Answer) -> Check:
    """It says 4, ends properly, and the engine counted its tokens."""
    ended = answer.finish_reason in ("stop", "length")
    says_four = bool(re.search(r"\b(4|four)\b", answer.text, re.I))
    counted = bool(answer.completion_tokens)
    return Check("answers", ended and says_four and counted, f"2+2: {_short(answer.text)}")


def same_twice(first: Answer, second: Answer) -> Check:
    """Equal, or equal for long: batching and speculation may tip a close call late in an answer, a broken
    kernel or cache differs at once."""
    pairs = enumerate(zip(first.text, second.text, strict=False))
    shared = next((at for at, (one, other) in pairs if one != other), min(len(first.text), len(second.text)))
    if first.text and first.text == second.text:
        return Check("same twice", True, f"{first.completion_tokens} tokens at temperature 0, equal")
    if shared >= LATE_CHARS:
        return Check("same twice", True, f"temperature 0, equal for {shared} characters, then not")
    return Check("same twice", False, f"temperature 0, differs at character {shared}: {_short(second.text)}")


def no_loop(answer: Answer) -> Check:
    unit = loop_in(answer.text)
    if unit is not None:
        return Check("no loop", False, f"repeats {_short(unit)} to the end")
    if not answer.text.strip():
        return Check("no loop", False, "no text at all")
    return Check("no loop", True, _short(answer.text))


def loop_in(text: str) -> str | None:
    """The unit that the end of the text repeats at least four times, or None.

    Short units need more repeats, so that "..." or "====" at the end of a list is no alarm. Numbers
    count as equal: a list that says the same thing under 1., 2., 3. is a loop too.
    """
    text = re.sub(r"[0-9]+", "0", text).rstrip()
    for size in range(1, len(text) // LOOP_REPEATS + 1):
        repeats = max(LOOP_REPEATS, -(-LOOP_MIN_CHARS // size))
        unit = text[-size:]
        if text.endswith(unit * repeats):
            return unit
    return None


def _short(text: str, limit: int = 60) -> str:
    flat = " ".join(text.split())
    return f'"{flat[:limit]}{"…" if len(flat) > limit else ""}"'
