"""Proof that what came up is right: three questions whose answers a broken engine gets wrong.

HTTP 200 proves nothing; a wrong kernel answers fast and fluently in nonsense.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from firesteel.edge.http import chat
from firesteel.run.judge import Asked

SUM_PROMPT = "What is 2+2?"
TEXT_PROMPT = "Explain what a computer is."
SUM_TOKENS, TEXT_TOKENS = 64, 128


async def ask(url: str, model: str) -> AsyncIterator[Asked | str]:
    """Yields what it is doing, then the answers."""
    yield "asking what 2+2 is"
    total = await chat(url, model, SUM_PROMPT, max_tokens=SUM_TOKENS)
    yield "asking for a paragraph"
    text = await chat(url, model, TEXT_PROMPT, max_tokens=TEXT_TOKENS)
    yield "asking for it again"
    again = await chat(url, model, TEXT_PROMPT, max_tokens=TEXT_TOKENS)
    yield Asked(total, text, again)
