"""What a pretend model answers: sums, a few facts, what the prompt itself says, and else plain English prose.

Deterministic, so that the same question has the same answer twice, and right, so that an honest check passes.
It is no model: it knows only what stands in `data/sim/answers.json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from firesteel.sim.model import prose
from firesteel.sim.model.arithmetic import first_sum
from firesteel.sim.model.prose import Text


@dataclass(frozen=True, slots=True)
class SimReply:
    content: str
    text: Text
    """What kind of text it is: how well it can be drafted depends on that."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tools it calls, with their arguments as JSON."""


_COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_TAIL = 1500
"""What is asked stands at the end of a prompt, however long that is."""
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
    """`question` is what the user said last, `before` everything that the prompt holds besides."""
    asked = question.strip()
    if wants_json:
        return SimReply(json.dumps(_object(asked)), "structured")
    found = _echo(asked[-_TAIL:]) or _count(asked[-_TAIL:]) or _known(asked, before)
    if found is not None:
        return found
    if _JSON.search(asked[-_TAIL:]):
        return SimReply(json.dumps(_object(asked)), "structured")
    if _CODE.search(asked[-_TAIL:]):
        return SimReply(prose.code(asked), "code")
    return SimReply(prose.prose(asked), "prose")


def _known(asked: str, before: str) -> SimReply | None:
    lone = _last_question(asked)
    told = _told(lone, f"{before}\n{asked.replace(lone, '', 1)}")
    if told is not None:
        return SimReply(told, "conversation")
    return _sum(asked[-_TAIL:]) or _fact(lone.lower()) or _list(lone.lower())


def _echo(asked: str) -> SimReply | None:
    """`Reply with exactly "x"`, `Say yes and nothing else`."""
    found = _ECHO.search(asked)
    said = (found[1] or found[2]).strip() if found else ""
    if said and not said.endswith("?") and not _JSON.search(asked):
        return SimReply(said, "conversation")
    bare = _ECHO_BARE.search(asked)
    return SimReply(bare[1] or bare[2], "conversation") if bare else None


def _count(asked: str) -> SimReply | None:
    found = _COUNTING.search(asked)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    step = 1 if last >= first else -1
    joint = "\n" if re.search(r"\bline", asked, re.I) else ", "
    return SimReply(joint.join(str(number) for number in range(first, last + step, step)), "structured")


def _sum(asked: str) -> SimReply | None:
    found = first_sum(asked)
    if found is None:
        return None
    said, value = found
    short = re.search(r"\b(?:only|just)\b", asked, re.I)
    return SimReply(value if short else f"{said} = {value}.", "reasoning")


def _fact(asked: str) -> SimReply | None:
    known = prose.data()
    if "capital" in asked:
        for country, city in known["capitals"].items():
            if country.lower().removeprefix("the ") in asked:
                return SimReply(f"The capital of {country} is {city}.", "conversation")
    for pattern, answer in known["facts"]:
        if re.search(pattern, asked):
            return SimReply(answer, "conversation")
    is_greeting = re.match(r"(?:hello|hi|hey)\b", asked)
    return SimReply("Hello. How can I help you today?", "conversation") if is_greeting else None


def _list(asked: str) -> SimReply | None:
    """`Name three colours`."""
    if not re.search(r"\b(?:list|name|give)\b", asked):
        return None
    words = re.findall(r"\w+", asked)
    many = next((_COUNTS.get(word) or int(word) for word in words if word in _COUNTS or word.isdigit()), 3)
    for noun, things in prose.data()["lists"].items():
        if re.search(rf"\b{noun}s?\b", asked.replace("color", "colour")):
            return SimReply(", ".join(things[:many]), "structured")
    return None


def _last_question(asked: str) -> str:
    """The last sentence that asks, else the last sentence."""
    found = (match[0].strip() for match in _SENTENCE.finditer(asked[-_TAIL:]))
    sentences = [each for each in found if re.search(r"\w", each)]
    asking = [each for each in sentences[-6:] if each.endswith("?")]
    return (asking or sentences or [asked])[-1]


def _told(question: str, context: str) -> str | None:
    """The sentence of the prompt that speaks of what is asked, if one clearly does."""
    wanted = _words(question)
    sentences = {each.strip(): _words(each) for each in _SENTENCE.findall(context) if len(each) > 8}
    if not wanted or len(sentences) < 2:
        return None
    common = Counter(word for words in sentences.values() for word in words & wanted)
    scored = [
        (sum(1 / common[word] for word in words & wanted), len(words & wanted), each)
        for each, words in sentences.items()
        if not each.endswith("?")
    ]
    _, shared, best = max(scored, default=(0.0, 0, ""))
    return best if shared >= 2 and shared * 2 >= len(wanted) else None


def _words(text: str) -> set[str]:
    small = _small()
    return {word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in small}


@cache
def _small() -> frozenset[str]:
    """Words that are in every question."""
    return frozenset(prose.data()["small"])


def _object(asked: str) -> dict[str, Any]:
    """An object with the keys that are named in quotes."""
    summed = first_sum(asked)
    value: Any = int(summed[1]) if summed and summed[1].isdigit() else "Paris"
    named = re.findall(r"[\"'`](\w{1,40})[\"'`]", asked)
    return dict.fromkeys(named[:8], value) or {"answer": value}
