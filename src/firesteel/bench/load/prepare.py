"""Before the first measurement: how this server counts, what its chat template adds, whether it goes on
when told.

A handful of tiny requests. What goes wrong here is said in a note and does not end the run: a server that
answers 500 is to be reported by its samples, not by a refusal to measure it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from firesteel.bench.load.prompts import PromptWriter, blocks
from firesteel.bench.values import RequestSettings, Subject, Text
from firesteel.edge.http.engine_client import EngineRefused, chat, count_tokens
from firesteel.errors import FiresteelError

_PATIENCE_S = 120.0
_GOES_ON = 24
_SHORT, _LONG = 300, 1500
"""Characters of the two texts by which length is estimated where there is no tokenizer."""
_PROBES = (
    "The harbour was quiet that morning.",
    "Nobody had seen the old station for years, and so it was sold.",
)
_FIXED = 2
"""Tokens by which a prompt may be off where the tokenizer is there: texts meet the template's own words."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """How to ask this server."""

    writers: Mapping[Text, PromptWriter]
    template_tokens: int | None
    """What a chat template adds to one message; None: not known."""
    is_exact: bool
    goes_on: bool
    """It goes on to `max_tokens` when told to."""
    extra: Mapping[str, Any]
    """What every request says beside its words."""
    slack_share: float = 0.0
    notes: tuple[str, ...] = ()

    def slack(self, tokens: int) -> int:
        return _FIXED + round(self.slack_share * tokens)


@dataclass(slots=True)
class _Probe:
    subject: Subject
    key: str | None
    extra: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    async def count(self, text: str) -> int | None:
        return await count_tokens(self.subject.url, self.subject.model, text, timeout_s=60, key=self.key)

    async def ask(
        self, text: str, max_tokens: int, more: Mapping[str, Any] | None = None
    ) -> tuple[int, int] | None:
        """The server's own count of a prompt and its answer."""
        found = await chat(
            self.subject.url, self.subject.model, text, max_tokens=max_tokens, stream=False,
            extra={**self.extra, **(more or {})}, timeout_s=_PATIENCE_S, key=self.key,
        )  # fmt: skip
        if found.prompt_tokens is None or found.completion_tokens is None:
            return None
        return found.prompt_tokens, found.completion_tokens


async def prepare(
    subject: Subject,
    settings: RequestSettings,
    texts: Iterable[Text],
    *,
    key: str | None = None,
    requests: Mapping[str, Any] | None = None,
) -> Prepared:
    """`requests`: what else each request is to say, `chat_template_kwargs` for instance."""
    extra = {
        "temperature": settings.temperature,
        "seed": settings.seed,
        **_thinking(settings),
        **(requests or {}),
    }
    probe = _Probe(subject, key, extra)
    try:
        goes_on = await _goes_on(probe) if settings.ignores_eos else False
        return await _counted(probe, tuple(dict.fromkeys(texts)), goes_on)
    except FiresteelError as error:
        note = f"a first tiny request failed ({error.what}), so lengths of prompts are a guess"
        writers = {text: PromptWriter(_estimate(4.0)) for text in texts}
        return Prepared(writers, None, False, False, extra, 1.0, (*probe.notes, note))


def _thinking(settings: RequestSettings) -> dict[str, Any]:
    """Qwen and most others read `enable_thinking`, DeepSeek and some `thinking`; a template ignores the
    rest."""
    if settings.thinking is None:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": settings.thinking, "thinking": settings.thinking}}


async def _goes_on(probe: _Probe) -> bool:
    """Does it write past its own end when told to? `ignore_eos` is vLLM's, SGLang's and llama.cpp's word."""
    try:
        told = await probe.ask("Reply with the single word OK.", _GOES_ON, {"ignore_eos": True})
    except EngineRefused as refused:
        if refused.status not in (400, 422):
            raise
        probe.notes.append("it does not take `ignore_eos`: answers end where the model ends them")
        return False
    if told is None or told[1] < _GOES_ON:
        probe.notes.append("it ends answers itself, whatever `ignore_eos` says: their lengths differ")
        return False
    probe.extra["ignore_eos"] = True
    return True


async def _counted(probe: _Probe, texts: tuple[Text, ...], goes_on: bool) -> Prepared:
    added = [await _template(probe, text) for text in _PROBES]
    first = added[0]
    if first is None:
        return await _estimated(probe, texts, goes_on)
    if added[1] != first:
        probe.notes.append(f"its chat template adds {first} tokens to one text and {added[1]} to another")

    async def count(text: str) -> int:
        return await probe.count(text) or 0

    writers = {text: PromptWriter(count) for text in texts}
    return Prepared(writers, first, True, goes_on, probe.extra, 0.0, tuple(probe.notes))


async def _template(probe: _Probe, text: str) -> int | None:
    counted = await probe.count(text)
    told = await probe.ask(text, 1)
    return told[0] - counted if told is not None and counted else None


async def _estimated(probe: _Probe, texts: tuple[Text, ...], goes_on: bool) -> Prepared:
    """Two lengths of each kind: the slope is characters a token, the rest is the template's."""
    writers: dict[Text, PromptWriter] = {}
    bases = []
    for kind in texts:
        short, long = (_sized(kind, chars) for chars in (_SHORT, _LONG))
        told = [await probe.ask(each, 1) for each in (short, long)]
        if told[0] is None or told[1] is None or told[1][0] <= told[0][0]:
            raise FiresteelError("it tells no count of prompt tokens")
        chars = (len(long) - len(short)) / (told[1][0] - told[0][0])
        bases.append(told[0][0] - len(short) / chars)
        writers[kind] = PromptWriter(_estimate(chars), {kind: chars})
    probe.notes.append(
        "it has no /tokenize: prompts are within about 10 % of their lengths, `usage` has them exactly"
    )
    return Prepared(writers, max(0, round(min(bases))), False, goes_on, probe.extra, 0.15, tuple(probe.notes))


def _sized(kind: Text, chars: int) -> str:
    return "".join(islice(blocks(kind, f"length {chars}"), 200))[:chars].strip()


def _estimate(chars: float) -> Any:
    async def count(text: str) -> int:
        return round(len(text) / chars)

    return count
