"""What a simulated model answers: sums, a few facts, sentences of the prompt, and otherwise English prose.

Deterministic, so that the same question gets the same answer, and correct, so that an honest check passes.
It is not a model: it knows only what is in `data/sim/answers.json`, and calculates.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from hashlib import sha256
from importlib.resources import files
from random import Random
from typing import Any

from firesteel.edge.sim.spark import Text
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
        return SimReply(code(question), "code")
    return SimReply(prose(question), "prose")


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
    data = known_answers()
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
    for noun, items in known_answers()["lists"].items():
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
    return frozenset(known_answers()["small"])


def _object(question: str) -> dict[str, Any]:
    """An object with the keys that the question names in quotes."""
    result = first_sum(question)
    value: Any = int(result[1]) if result and result[1].isdigit() else "Paris"
    keys = re.findall(r"[\"'`](\w{1,40})[\"'`]", question)
    return dict.fromkeys(keys[:8], value) or {"answer": value}


_TOPIC = re.compile(
    r"(?:what (?:is|are)|about|explain(?: what)?|describe|how does) (?:an? |the )?"
    r"([a-z][a-z -]{2,30}?)(?: is| are| works?)?[.?!]?\s*$"
)


@cache
def known_answers() -> dict[str, Any]:
    text = (files("firesteel") / "data" / "sim" / "answers.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def prose(question: str, count: int = 9) -> str:
    """A few sentences, the same for the same question, those on its subject first."""
    random = _seeded(question)
    match = _TOPIC.search(question[-200:].lower())
    topic = f"the subject of {match[1].strip()}" if match else "such a question"
    opener = random.choice(known_answers()["openers"]).format(topic=topic)
    related, others = _by_theme(question)
    random.shuffle(others)
    return " ".join([f"{opener[0].upper()}{opener[1:]}", *(related + others)[:count]])


def more(question: str, text: Text, round: int) -> str:
    """Continues an answer that may not end; every round is another order of the same sentences."""
    random = _seeded(f"{question}{round}")
    if text == "code":
        return "\n\n" + "\n\n".join(
            "\n".join(function["lines"]) for function in random.sample(known_answers()["code"], 6)
        )
    if text == "structured":
        animals = known_answers()["lists"]["animal"]
        rows = [
            {"id": 40 * round + index, "name": random.choice(animals), "count": random.randint(1, 999)}
            for index in range(40)
        ]
        return "\n" + json.dumps(rows)
    _, sentences = _by_theme("")
    random.shuffle(sentences)
    return "\n\n" + " ".join(sentences)


def code(question: str) -> str:
    """The function that the question names, else the first."""
    functions = known_answers()["code"]
    named = [function for function in functions if function["name"] in question.lower()]
    lines = "\n".join((named or functions)[0]["lines"])
    return f"```python\n{lines}\n```"


def garbage(kind: str, seed: str, size: int) -> str:
    """What a broken kernel gives instead: token `soup`, a `loop`, or a `foreign` language."""
    if kind == "loop":
        return str(known_answers()["loop"]) * (size // 4 + 1)
    if kind == "foreign":
        return str(known_answers()["foreign"]) * (size // 8 + 1)
    random = _seeded(seed)
    return "".join(random.choice(known_answers()["soup"]) for _ in range(size))


def _by_theme(question: str) -> tuple[list[str], list[str]]:
    """Sentences of the first theme that the question is about, and all others."""
    lower = question.lower()
    related: list[str] = []
    others: list[str] = []
    for theme in known_answers()["themes"]:
        is_related = not related and any(word in lower for word in theme["about"])
        (related if is_related else others).extend(theme["sentences"])
    return related, others


def _seeded(text: str) -> Random:
    return Random(int(sha256(text.encode()).hexdigest()[:15], 16))


_SIGNS = {
    r"\btimes\b|\bmultiplied by\b|[\u00d7x](?=\s*\d)|\u00b7": "*", r"\bplus\b": "+", r"\bminus\b": "-",
    r"\bdivided by\b|\u00f7": "/",
}  # fmt: skip
_SUM = re.compile(r"\(*\s*\d[\d.]*\)*(?:\s*[-+*/]\s*\(*\s*\d[\d.]*\)*)+")
_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_CHARS = 80


def first_sum(text: str) -> tuple[str, str] | None:
    """The first sum in a text, such as `12 * 17`, `7 times 8` or `(3 + 4) * 5`, and its value."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    for pattern, sign in _SIGNS.items():
        plain = re.sub(rf"(?<=[\d) ])\s*(?:{pattern})\s*(?=[\d( ])", f" {sign} ", plain, flags=re.I)
    for match in _SUM.finditer(plain):
        expression = match[0].strip().rstrip(".")
        if len(expression) <= _MAX_CHARS and (value := _value(expression)) is not None:
            text = str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
            return " ".join(expression.split()), text
    return None


def _value(expression: str) -> Fraction | None:
    try:
        return _evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not a sum")
