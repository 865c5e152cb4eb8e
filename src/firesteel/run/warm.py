"""Warm: the first request of each kind pays for what is made lazily, so we send it before any user does."""

from __future__ import annotations

from collections.abc import AsyncIterator

from firesteel.edge import http
from firesteel.run.events import Doing, Done, Event
from firesteel.run.service import Spec

_WARM_PROMPTS = {"a short prompt": "Hello.", "a long prompt": "Tell me about the sea. " * 20}
"""One word, and one that fills a micro-batch: the first of each kind pays for what is made lazily."""


async def warm(spec: Spec) -> AsyncIterator[Event]:
    for name, prompt in _WARM_PROMPTS.items():
        yield Doing("warm", name)
        await http.chat(spec.url, spec.model, prompt, max_tokens=8)
    yield Done("warm", f"{len(_WARM_PROMPTS)} prompts")
