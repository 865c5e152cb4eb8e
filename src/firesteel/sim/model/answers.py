"""What a simulated model answers: sums, a few facts, sentences of the prompt, and otherwise English prose.

Deterministic, so that the same question gets the same answer, and correct, so that an honest check passes.
It is not a model: it knows only what is in `data/sim/answers.json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any

from firesteel.sim.model import prose
from firesteel.sim.model.arithmetic import first_sum
from firesteel.sim.spark import Text
from firesteel.values import Value


class SimReply(Value):
    content: str
    text: Text
    """The kind of text, which decides how well it can be drafted."""
    calls: tuple[tuple[str, str], ...] = ()
    """The tools that it calls, with their arguments as JSON."""


_COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_TAIL_CHARS = 1500
"""Characters at the end of a prompt, where the question is."""
_ECHO = re.compile(
    r"(?:reply|respond|answer|say|repeat|output|write|print|return)\b[^\"“`'\n]{0,80}"
    r"(?:exactly|only|just|verbatim|word|following|text|string|phrase|sentence|this|back)[^\"“`'\n]{0,40}"
    r"(?:[\"“`']([^\"”`\n]{1,300}?)[\"”`'](?=\W|$)|: *([^\n]{1,300}))",
    re.I,
)
_ECHO_BARE = re.compile(
    r"(?:reply|respond|answer) with (?:only |just |exactly )?(?:the )?(?:one |single )?word ([A-Za-z]+)|"
    r"\bsay (?:only |just )?([A-Za-z]+)(?: and nothing else| only)?[.!]?\s*$",
    re.I,
)
_COUNTING = re.compile(r"(?:count|numbers?) (?:up )?from (\d{1,4}) (?:up )?to (\d{1,4})", re.I)
_CODE = re.compile(r"\b(?:python|function|code|program|script|class)\b|```|def ", re.I)
_JSON = re.compile(r"\bjson\b", re.I)
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.](?=\d)[^.!?\n]+)*[.!?]?")


def reply(question: str, before: str = "", *, wants_json: bool = False) -> SimReply:
    """`question` is the last message of the user, `before` the rest of the prompt."""
    question = question.strip()
    tail = question[-_TAIL_CHARS:]
    if wants_json:
        return SimReply(json.dumps(_object(question)), "structured")
    if known := _echo(tail) or _count(tail) or _known(question, before):
        return known
    if _JSON.search(tail):
        return SimReply(json.dumps(_object(question)), "structured")
    if _CODE.search(tail):
        return SimReply(prose.code(question), "code")
    return SimReply(prose.prose(question), "prose")


def _known(text: str, before: str) -> SimReply | None:
    question = _last_question(text)
    sentence = _find_sentence(question, f"{before}\n{text.replace(question, '', 1)}")
    if sentence is not None:
        return SimReply(sentence, "conversation")
    return _sum(text[-_TAIL_CHARS:]) or _fact(question.lower()) or _list(question.lower())


def _echo(question: str) -> SimReply | None:
    """`Reply with exactly "x"`, `Say yes and nothing else`."""
    match = _ECHO.search(question)
    text = (match[1] or match[2]).strip() if match else ""
    if text and not text.endswith("?") and not _JSON.search(question):
        return SimReply(text, "conversation")
    bare = _ECHO_BARE.search(question)
    return SimReply(bare[1] or bare[2], "conversation") if bare else None


def _count(question: str) -> SimReply | None:
    match = _COUNTING.search(question)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    step = 1 if last >= first else -1
    separator = "\n" if re.search(r"\bline", question, re.I) else ", "
    return SimReply(separator.join(str(number) for number in range(first, last + step, step)), "structured")


def _sum(question: str) -> SimReply | None:
    result = first_sum(question)
    if result is None:
        return None
    expression, value = result
    is_short = re.search(r"\b(?:only|just)\b", question, re.I)
    return SimReply(value if is_short else f"{expression} = {value}.", "reasoning")


def _fact(question: str) -> SimReply | None:
    data = prose.data()
    if "capital" in question:
        for country, city in data["capitals"].items():
            if country.lower().removeprefix("the ") in question:
                return SimReply(f"The capital of {country} is {city}.", "conversation")
    for pattern, answer in data["facts"]:
        if re.search(pattern, question):
            return SimReply(answer, "conversation")
    is_greeting = re.match(r"(?:hello|hi|hey)\b", question)
    return SimReply("Hello. How can I help you today?", "conversation") if is_greeting else None


def _list(question: str) -> SimReply | None:
    """`Name three colours`."""
    if not re.search(r"\b(?:list|name|give)\b", question):
        return None
    words = re.findall(r"\w+", question)
    count = next((_COUNTS.get(word) or int(word) for word in words if word in _COUNTS or word.isdigit()), 3)
    for noun, items in prose.data()["lists"].items():
        if re.search(rf"\b{noun}s?\b", question.replace("color", "colour")):
            return SimReply(", ".join(items[:count]), "structured")
    return None


def _last_question(text: str) -> str:
    """The last sentence that asks, else the last sentence."""
    matches = (match[0].strip() for match in _SENTENCE.finditer(text[-_TAIL_CHARS:]))
    sentences = [sentence for sentence in matches if re.search(r"\w", sentence)]
    questions = [sentence for sentence in sentences[-6:] if sentence.endswith("?")]
    return (questions or sentences or [text])[-1]


def _find_sentence(question: str, context: str) -> str | None:
    """The sentence of the prompt that answers the question, if one clearly shares its words."""
    asked = _words(question)
    sentences = {text.strip(): _words(text) for text in _SENTENCE.findall(context) if len(text) > 8}
    if not asked or len(sentences) < 2:
        return None
    frequency = Counter(word for words in sentences.values() for word in words & asked)
    scores = [  # a rare word says more than a frequent one
        (sum(1 / frequency[word] for word in words & asked), len(words & asked), sentence)
        for sentence, words in sentences.items()
        if not sentence.endswith("?")
    ]
    _, shared, best = max(scores, default=(0.0, 0, ""))
    return best if shared >= 2 and shared * 2 >= len(asked) else None


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower())) - _stop_words()


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(prose.data()["small"])


def _object(question: str) -> dict[str, Any]:
    """An object with the keys that the question names in quotes."""
    result = first_sum(question)
    value: Any = int(result[1]) if result and result[1].isdigit() else "Paris"
    keys = re.findall(r"[\"'`](\w{1,40})[\"'`]", question)
    return dict.fromkeys(keys[:8], value) or {"answer": value}
