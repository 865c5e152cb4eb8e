"""What becomes of an engine's error: it is passed on, or another try is made and the client never sees it."""

from __future__ import annotations

import re
from enum import Enum

from firesteel.gateway.http.attempt import Attempt
from firesteel.gateway.interfaces import FallbackReason
from firesteel.values import Value

_RETRYABLE: dict[int, FallbackReason] = {429: "full", 502: "down", 503: "down", 504: "down"}
"""Statuses of a server that cannot serve a request now."""
_REJECTED = (400, 422)
"""Statuses of a server that does not know a field of the body."""
_TOO_LONG = re.compile(
    rb"context[ _](?:length|size|window)|maximum (?:model|context) length|prompt is too long", re.IGNORECASE
)
"""vLLM, SGLang, llama.cpp (`exceed_context_size_error`), OpenAI and Anthropic, in their errors 400."""


class Judgement(Enum):
    PASS_ON = "pass on"
    """The client gets the error."""
    ASK_AGAIN = "ask again"
    """Send it to the same server as it came, without the question for token counts."""
    KEEP = "keep"
    """Read the error to its end first, and judge again with its body."""


class Retry(Value):
    """Another replica or another model may do better."""

    reason: FallbackReason


def judge(status: int, body: bytes | None, attempt: Attempt, *, nothing_sent: bool) -> Judgement | Retry:
    """`body`: of an error that was kept; None: only its head has arrived. `nothing_sent`: no part of an
    answer has reached the client, so it may get another one."""
    if body is not None:
        return Retry("too_long") if nothing_sent and _TOO_LONG.search(body) else Judgement.PASS_ON
    if status in _REJECTED and _asks_a_stranger_for_counts(attempt):
        return Judgement.ASK_AGAIN
    if not nothing_sent:
        return Judgement.PASS_ON
    if (reason := _RETRYABLE.get(status)) is not None:
        return Retry(reason)
    may_be_too_long = status == 400 and attempt.endpoint.has_longer and attempt.body.translation is None
    return Judgement.KEEP if may_be_too_long else Judgement.PASS_ON


def _asks_a_stranger_for_counts(attempt: Attempt) -> bool:
    """A server that we do not know may reject a request because of what we added; it has not processed it."""
    return attempt.body.usage is not None and attempt.endpoint.counting == "at the end"
