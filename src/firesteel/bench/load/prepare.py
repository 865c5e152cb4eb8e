"""Before the first measurement: learn how the server counts tokens, what its chat template adds, and whether
it obeys `ignore_eos`.

A few tiny requests. A failure here becomes a note and does not end the run: a server that answers HTTP 500 is
reported through its samples, not by a refusal to measure it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from firesteel.bench.load.prompts import Count, PromptWriter, text_blocks
from firesteel.bench.values import RequestSettings, Subject
from firesteel.edge.http.engine_client import EngineRefused, chat, count_tokens
from firesteel.errors import FiresteelError
from firesteel.launch import Text
from firesteel.values import Value

_TIMEOUT_S = 120.0
_EOS_PROBE_TOKENS = 24
_SHORT_CHARS, _LONG_CHARS = 300, 1500
"""Lengths of the two texts from which token length is estimated where there is no tokenizer."""
_PROBES = (
    "The harbour was quiet that morning.",
    "Nobody had seen the old station for years, and so it was sold.",
)
_FIXED_SLACK = 2
"""Tokens by which a prompt may be off even with a tokenizer: its text touches that of the template."""


class Prepared(Value):
    """How to send requests to this server."""

    writers: Mapping[Text, PromptWriter]
    template_tokens: int | None
    """Tokens that the chat template adds to one message; None: unknown."""
    is_exact: bool
    obeys_ignore_eos: bool
    """It continues to `max_tokens` when told to."""
    extra: Mapping[str, Any]
    """Fields of every request besides the messages."""
    slack_share: float = 0.0
    notes: tuple[str, ...] = ()

    def slack(self, tokens: int) -> int:
        return _FIXED_SLACK + round(self.slack_share * tokens)


class _Probe(Struct):
    subject: Subject
    key: str | None
    extra: dict[str, Any]
    notes: list[str] = []

    async def count(self, text: str) -> int | None:
        return await count_tokens(self.subject.url, self.subject.model, text, timeout_s=60, key=self.key)

    async def usage(
        self, text: str, max_tokens: int, more: Mapping[str, Any] | None = None
    ) -> tuple[int, int] | None:
        """The server's own token counts of a prompt and its answer."""
        answer = await chat(
            self.subject.url, self.subject.model, text, max_tokens=max_tokens, stream=False,
            extra={**self.extra, **(more or {})}, timeout_s=_TIMEOUT_S, key=self.key,
        )  # fmt: skip
        if answer.prompt_tokens is None or answer.completion_tokens is None:
            return None
        return answer.prompt_tokens, answer.completion_tokens


async def prepare(
    subject: Subject,
    settings: RequestSettings,
    texts: Iterable[Text],
    *,
    key: str | None = None,
    requests: Mapping[str, Any] | None = None,
) -> Prepared:
    """`requests`: more fields for every request, such as `chat_template_kwargs`."""
    extra = {
        "temperature": settings.temperature,
        "seed": settings.seed,
        **_thinking(settings),
        **(requests or {}),
    }
    probe = _Probe(subject, key, extra)
    try:
        obeys_ignore_eos = await _obeys_ignore_eos(probe) if settings.ignores_eos else False
        return await _prepare_counting(probe, tuple(dict.fromkeys(texts)), obeys_ignore_eos)
    except FiresteelError as error:
        note = f"a first tiny request failed ({error.what}), so prompt lengths are a guess"
        writers = {text: PromptWriter(_estimate(4.0)) for text in texts}
        return Prepared(writers, None, False, False, extra, 1.0, (*probe.notes, note))


def _thinking(settings: RequestSettings) -> dict[str, Any]:
    """Qwen and most others read `enable_thinking`, DeepSeek and some `thinking`; a template ignores the
    other."""
    if settings.thinking is None:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": settings.thinking, "thinking": settings.thinking}}


async def _obeys_ignore_eos(probe: _Probe) -> bool:
    """Does it continue past its own end when told to? vLLM, SGLang and llama.cpp all know `ignore_eos`."""
    try:
        usage = await probe.usage("Reply with the single word OK.", _EOS_PROBE_TOKENS, {"ignore_eos": True})
    except EngineRefused as refused:
        if refused.status not in (400, 422):
            raise
        probe.notes.append("the server does not accept `ignore_eos`: answers end where the model ends them")
        return False
    if usage is None or usage[1] < _EOS_PROBE_TOKENS:
        probe.notes.append("the server ends answers in spite of `ignore_eos`: their lengths differ")
        return False
    probe.extra["ignore_eos"] = True
    return True


async def _prepare_counting(probe: _Probe, texts: tuple[Text, ...], obeys_ignore_eos: bool) -> Prepared:
    first, second = [await _template_tokens(probe, text) for text in _PROBES]
    if first is None:
        return await _prepare_estimates(probe, texts, obeys_ignore_eos)
    if second != first:
        probe.notes.append(f"the chat template adds {first} tokens to one text and {second} to another")

    async def count(text: str) -> int:
        return await probe.count(text) or 0

    writers = {text: PromptWriter(count) for text in texts}
    return Prepared(writers, first, True, obeys_ignore_eos, probe.extra, 0.0, tuple(probe.notes))


async def _template_tokens(probe: _Probe, text: str) -> int | None:
    counted = await probe.count(text)
    usage = await probe.usage(text, 1)
    return usage[0] - counted if usage is not None and counted else None


async def _prepare_estimates(probe: _Probe, texts: tuple[Text, ...], obeys_ignore_eos: bool) -> Prepared:
    """Two lengths of each kind of text: the slope is characters per token, the offset is the template."""
    writers: dict[Text, PromptWriter] = {}
    offsets = []
    for kind in texts:
        short, long = (
            "".join(islice(text_blocks(kind, f"length {chars}"), 200))[:chars].strip()
            for chars in (_SHORT_CHARS, _LONG_CHARS)
        )
        usages = [await probe.usage(text, 1) for text in (short, long)]
        if usages[0] is None or usages[1] is None or usages[1][0] <= usages[0][0]:
            raise FiresteelError("the server does not report the number of prompt tokens")
        chars_per_token = (len(long) - len(short)) / (usages[1][0] - usages[0][0])
        offsets.append(usages[0][0] - len(short) / chars_per_token)
        writers[kind] = PromptWriter(_estimate(chars_per_token), {kind: chars_per_token})
    probe.notes.append(
        "the server has no /tokenize: prompts are within about 10 % of their lengths; `usage` is exact"
    )
    template = max(0, round(min(offsets)))
    return Prepared(writers, template, False, obeys_ignore_eos, probe.extra, 0.15, tuple(probe.notes))


def _estimate(chars_per_token: float) -> Count:
    async def count(text: str) -> int:
        return round(len(text) / chars_per_token)

    return count
