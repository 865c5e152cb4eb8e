"""The text of a simulated model (`data/sim/answers.json`): prose, code and garbage of any length."""

from __future__ import annotations

import json
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from random import Random
from typing import Any

from firesteel.sim.spark import Text

_TOPIC = re.compile(
    r"(?:what (?:is|are)|about|explain(?: what)?|describe|how does) (?:an? |the )?"
    r"([a-z][a-z -]{2,30}?)(?: is| are| works?)?[.?!]?\s*$"
)


@cache
def data() -> dict[str, Any]:
    text = (files("firesteel") / "data" / "sim" / "answers.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def prose(question: str, count: int = 9) -> str:
    """A few sentences, the same for the same question, those on its subject first."""
    random = _seeded(question)
    match = _TOPIC.search(question[-200:].lower())
    topic = f"the subject of {match[1].strip()}" if match else "such a question"
    opener = random.choice(data()["openers"]).format(topic=topic)
    related, others = _by_theme(question)
    random.shuffle(others)
    return " ".join([f"{opener[0].upper()}{opener[1:]}", *(related + others)[:count]])


def more(question: str, text: Text, round: int) -> str:
    """Continues an answer that may not end; every round is another order of the same sentences."""
    random = _seeded(f"{question}{round}")
    if text == "code":
        return "\n\n" + "\n\n".join(
            "\n".join(function["lines"]) for function in random.sample(data()["code"], 6)
        )
    if text == "structured":
        animals = data()["lists"]["animal"]
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
    functions = data()["code"]
    named = [function for function in functions if function["name"] in question.lower()]
    lines = "\n".join((named or functions)[0]["lines"])
    return f"```python\n{lines}\n```"


def garbage(kind: str, seed: str, size: int) -> str:
    """What a broken kernel gives instead: token `soup`, a `loop`, or a `foreign` language."""
    if kind == "loop":
        return str(data()["loop"]) * (size // 4 + 1)
    if kind == "foreign":
        return str(data()["foreign"]) * (size // 8 + 1)
    random = _seeded(seed)
    return "".join(random.choice(data()["soup"]) for _ in range(size))


def _by_theme(question: str) -> tuple[list[str], list[str]]:
    """Sentences of the first theme that the question is about, and all others."""
    lower = question.lower()
    related: list[str] = []
    others: list[str] = []
    for theme in data()["themes"]:
        is_related = not related and any(word in lower for word in theme["about"])
        (related if is_related else others).extend(theme["sentences"])
    return related, others


def _seeded(text: str) -> Random:
    return Random(int(sha256(text.encode()).hexdigest()[:15], 16))
