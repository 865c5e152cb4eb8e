"""The words of a pretend model (`data/sim/answers.json`), and text from them as long as it must be."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

Text = Literal["prose", "conversation", "code", "reasoning", "structured"]
_TOPIC = re.compile(
    r"(?:what (?:is|are)|about|explain(?: what)?|describe|how does) (?:an? |the )?"
    r"([a-z][a-z -]{2,30}?)(?: is| are| works?)?[.?!]?\s*$"
)


@cache
def data() -> dict[str, Any]:
    text = (files("firesteel") / "data" / "sim" / "answers.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def prose(asked: str, many: int = 9) -> str:
    """A few sentences, the same for the same question, those on its subject first."""
    order = _shuffled(asked)
    opener = order.choice(data()["openers"]).format(topic=_topic(asked))
    on_it, others = _by_theme(asked)
    order.shuffle(others)
    return " ".join([f"{opener[0].upper()}{opener[1:]}", *(on_it + others)[:many]])


def more(asked: str, text: Text, round: int) -> str:
    """What goes on after an answer that may not end; every round is another order of the same sentences."""
    order = _shuffled(f"{asked}{round}")
    if text == "code":
        return "\n\n" + "\n\n".join("\n".join(each["lines"]) for each in order.sample(data()["code"], 6))
    if text == "structured":
        animals = data()["lists"]["animal"]
        rows = [
            {"id": 40 * round + at, "name": order.choice(animals), "count": order.randint(1, 999)}
            for at in range(40)
        ]
        return "\n" + json.dumps(rows)
    _, sentences = _by_theme("")
    order.shuffle(sentences)
    return "\n\n" + " ".join(sentences)


def code(asked: str) -> str:
    """The function that the question names, else the first."""
    functions = data()["code"]
    named = [each for each in functions if each["name"] in asked.lower()]
    lines = "\n".join((named or functions)[0]["lines"])
    return f"```python\n{lines}\n```"


def garbage(kind: str, seed: str, size: int) -> str:
    """What a broken kernel makes instead: `soup`, a `loop`, or another language than was asked for."""
    if kind == "loop":
        return str(data()["loop"]) * (size // 4 + 1)
    if kind == "foreign":
        return str(data()["foreign"]) * (size // 8 + 1)
    order = _shuffled(seed)
    return "".join(order.choice(data()["soup"]) for _ in range(size))


def _by_theme(asked: str) -> tuple[list[str], list[str]]:
    lower = asked.lower()
    on_it: list[str] = []
    others: list[str] = []
    for theme in data()["themes"]:
        into = on_it if not on_it and any(word in lower for word in theme["about"]) else others
        into += theme["sentences"]
    return on_it, others


def _topic(asked: str) -> str:
    about = _TOPIC.search(asked[-200:].lower())
    return f"the subject of {about[1].strip()}" if about else "such a question"


def _shuffled(text: str) -> random.Random:
    return random.Random(int(sha256(text.encode()).hexdigest()[:15], 16))
