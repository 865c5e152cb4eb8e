"""One try of a request at one endpoint: the connection, what is sent, and what has come back so far.

A request that is granted again gets a new one, so that nothing of a failed try is left. It measures the
response and keeps its end; what is done with the response is not decided here. `judge` says what becomes of
an engine's error: it is passed on, or another try is made and the client never sees it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import Enum
from time import monotonic

from firesteel.gateway.http.head import ResponseHead
from firesteel.gateway.http.messages import prompt_too_long
from firesteel.gateway.http.request_body import ContentFilter, EndpointBody
from firesteel.gateway.http.translation import MAX_ANSWER_BYTES
from firesteel.gateway.http.upstream import PIECES, Upstream
from firesteel.gateway.http.usage import TAIL_BYTES, ResponseTail, RunningCount
from firesteel.gateway.interfaces import (
    Allowance,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    LatencyRecorder,
    Rejection,
    Usage,
)
from firesteel.gateway.translate.shape import SystemRole
from firesteel.values import Value

_MAX_ERROR_BYTES = 64 * 1024
_QUOTED_BYTES = 512
"""Of an engine's error, in ours."""
_CLOSE_S = 5.0
"""For the server of a WebSocket to read what its client sent last."""


class Attempt:
    # Defaults that most attempts never change are class attributes: creating one sets fewer fields.
    upstream: Upstream | None = None
    connecting: asyncio.Task[None] | None = None
    has_reconnected = False
    """A reused connection was closed before a byte of the response; that happens to each request once."""
    was_changed = False
    """It is sent a second time, in another way: one of the next two."""
    without_counts = False
    """It is sent a second time as it came: the server rejected the question for token counts."""
    shape: SystemRole | None = None
    """It is sent a second time in this shape: the model's template refused the one that it had."""
    first_s: float | None = None
    """From the arrival of the request to the first byte of a response that is passed on."""
    bytes_out = 0
    is_stream = False
    _arrivals: list[float] | None = None
    """Of pieces that the upstream has forwarded by itself, as `time.monotonic` has it."""
    _collected: list[bytes] | None = None
    _collected_head: ResponseHead | None = None
    _collected_bytes = 0

    def __init__(self, endpoint: Endpoint, recorder: LatencyRecorder | None, body: EndpointBody) -> None:
        self.endpoint = endpoint
        self.body = body
        self.recorder = recorder
        self.last = monotonic()
        """When the engine was last heard of, or its client read again."""
        self._tail = ResponseTail()

    # -- the connection --

    def is_sending(self) -> bool:
        """Whether a part of the request is still here."""
        return self.upstream is None or self.upstream.is_sending

    def drop(self) -> None:
        """Close the connection at once."""
        if self.connecting is not None:
            self.connecting.cancel()
        if self.upstream is not None:
            self.upstream.drop()
        self.connecting = self.upstream = None

    def pause(self) -> None:
        if self.upstream is not None:
            self.upstream.pause()

    def resume(self) -> None:
        self.measure_forwarded()
        self.last = monotonic()  # it was the client that was slow
        if self.upstream is not None:
            self.upstream.resume()

    def has_last_event(self) -> bool:
        """Whether a stream was passed on to its last event."""
        self.measure_forwarded()
        return self.is_stream and self._tail.has_last_event()

    def is_whole_answer_coming(self) -> bool:
        """Whether a response of known length is on its way: the engine has finished."""
        return self.upstream is not None and self.upstream.has_length()

    # -- the response --

    def collect(self, head: ResponseHead) -> None:
        """Keep the response until its end, within a limit."""
        self._collected_head, self._collected = head, []

    def forward_to(self, write: Callable[[bytes], None]) -> None:
        """Have the upstream write whole chunks by itself."""
        if self.upstream is not None:
            self._arrivals = []
            self.upstream.forward_to(write, self._tail, self._arrivals)

    def stop_forwarding(self) -> None:
        if self.upstream is not None:
            self.upstream.stop_forwarding()

    def new_filter(self) -> ContentFilter | None:
        return self.body.new_filter(self.endpoint, is_metered=False)

    def take(self, piece: bytes) -> bytes:
        """Measure a piece, and keep its end. Return what is passed on of it."""
        if self._arrivals:
            self.measure_forwarded()
        now = monotonic()
        if self.recorder is not None and self.is_stream and self.first_s is not None:
            self.recorder.gap(now - self.last)
        self.last = now
        size, tail = len(piece), self._tail
        self.bytes_out += size
        tail.append(piece if size <= TAIL_BYTES else tail.end_of(piece))
        if len(tail) > PIECES:
            tail.trim()
        return piece

    def begin_stream(self, first_s: float, path: bytes) -> None:
        """The piece that was taken is the first of a stream that is passed on."""
        self._tail.is_response = self._target(path) == b"/v1/responses"
        if self.recorder is not None:
            self.recorder.first(first_s)

    def _target(self, path: bytes) -> bytes:
        return self.body.translation.target if self.body.translation is not None else path

    def measure_forwarded(self) -> None:
        """What the upstream has written by itself; the tail has it already."""
        arrivals = self._arrivals
        if not arrivals:
            return
        self.bytes_out += sum(map(len, self._tail[-len(arrivals) :]))
        if self.recorder is not None:
            self.recorder.record_gaps(self.last, arrivals)
        self.last = arrivals[-1]
        arrivals.clear()

    def keep(self, piece: bytes) -> None:
        """Of a response that is collected."""
        assert self._collected is not None
        if self._collected_bytes <= (_MAX_ERROR_BYTES if self.body.translation is None else MAX_ANSWER_BYTES):
            self._collected.append(piece)
        self._collected_bytes += len(piece)

    def collected(self) -> tuple[ResponseHead, bytes]:
        assert self._collected_head is not None and self._collected is not None
        return self._collected_head, b"".join(self._collected)

    def answer(self, model: str) -> GatewayResponse | Rejection:
        """What the client gets in place of a response that was collected."""
        translation = self.body.translation
        return (
            self.engine_error(model) if translation is None else translation.answer(*self.collected(), model)
        )

    def engine_error(self, model: str) -> Rejection:
        head, body = self.collected()
        if head.status == 400 and _TOO_LONG.search(body):
            return self._too_long(body, model)
        text = body[:_QUOTED_BYTES].decode("utf-8", "replace").strip()
        why = f"the engine answered HTTP {head.status}: {text}"
        return Rejection(
            head.status if head.status >= 400 else 502, "engine_error", why, src=f"engine:{model}"
        )

    def _too_long(self, body: bytes, model: str) -> Rejection:
        found = {name: pattern.search(body) for name, pattern in _LENGTHS.items()}
        prompt, answer, limit = (
            int(match[match.lastindex or 0]) if match else None for match in found.values()
        )
        said = body[:_QUOTED_BYTES].decode("utf-8", "replace").strip()
        return prompt_too_long(prompt, limit, f"The engine answered: {said}", answer, src=f"engine:{model}")

    def is_between_events(self, *, is_framed: bool) -> bool:
        """Whether what has arrived ends with a whole event. `is_framed`: it is passed on with its chunks,
        which must also be whole."""
        if self.is_whole_answer_coming():
            return False
        if not self._tail:
            return True
        if is_framed and not self.is_between_chunks():
            return False
        last = self._tail[-1][:-2] if is_framed else self._tail[-1]
        return last.endswith((b"\n\n", b"\n\r\n"))

    def is_between_chunks(self) -> bool:
        """Whether everything that was passed on ended with a chunk."""
        return self.upstream is not None and self.upstream.is_between_chunks()

    # -- a WebSocket --

    def pass_through(self, piece: bytes) -> None:
        self.last = monotonic()
        self.bytes_out += len(piece)

    def send_more(self, data: bytes) -> bool:
        """Return whether even more may be sent now."""
        if self.upstream is None:
            return True
        self.last = monotonic()
        self.upstream.transport.write(data)
        return not self.upstream.is_sending

    def finish_sending(self) -> None:
        """Close the connection once the server has what was sent last, such as a close frame."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.receiver = None
            upstream.transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, upstream.transport.abort)

    # -- its end --

    def usage(self, *, is_whole: bool) -> Usage | None:
        if self._arrivals:
            self.measure_forwarded()
        return self._tail.usage(self.is_stream, is_whole)


class MeteredAttempt(Attempt):
    """Its stream ends where its key has no tokens left: its answer has no limit of its own."""

    def __init__(
        self,
        path: bytes,
        allowance: Allowance,
        extend: Callable[[], bool],
        endpoint: Endpoint,
        recorder: LatencyRecorder | None,
        body: EndpointBody,
    ) -> None:
        """`extend`: called when the allowance is used up; whether it is larger now."""
        super().__init__(endpoint, recorder, body)
        self._allowance, self._extend = allowance, extend
        self._count = RunningCount(allowance.prompt, is_response=self._target(path) == b"/v1/responses")
        self._has_ended = False

    def new_filter(self) -> ContentFilter | None:
        """Without the framing of its server, it can end after any event."""
        return self.body.new_filter(self.endpoint, is_metered=True)

    def take(self, piece: bytes) -> bytes:
        allowance = self._allowance
        if self._has_ended or not self.is_stream:
            return b"" if self._has_ended else super().take(piece)
        allowance.used = self._count.take(piece)
        if allowance.used >= allowance.tokens and not self._extend():
            piece = piece[: self._count.take_back(piece, allowance.tokens)]
            self._has_ended = True
        return super().take(piece)


_RETRYABLE: dict[int, FallbackReason] = {429: "full", 502: "down", 503: "down", 504: "down"}
"""Statuses of a server that cannot serve a request now."""
_REJECTED = (400, 422)
"""Statuses of a server that does not know a field of the body."""
_TOO_LONG = re.compile(
    rb"context[ _](?:length|size|window)|maximum (?:model|context) length|prompt is too long", re.IGNORECASE
)
"""vLLM, SGLang, llama.cpp (`exceed_context_size_error`), OpenAI and Anthropic, in their errors 400."""


_LENGTHS = {
    "prompt": re.compile(
        rb"(?:input|request|prompt) \((\d+) tokens"
        rb"|(\d+) (?:tokens )?(?:in|from) the (?:messages|input|prompt)"
        rb"|(?:has|passed|contains) (?:at least )?(\d+) input tokens",
        re.IGNORECASE,
    ),
    "answer": re.compile(
        rb"(\d+) (?:tokens )?(?:in|for) the completion|requested (\d+) output tokens|`?max_tokens`?=(\d+)",
        re.I,
    ),
    "limit": re.compile(rb"context (?:length|size|window)(?: of| is| is only)? ?\(?(\d+)", re.IGNORECASE),
}
"""In the same errors: tokens of the prompt, of the answer that was asked for, and what fits."""
_REFUSED_SHAPE = re.compile(
    rb"system message must|roles must alternate|message role|unknown role|role[^.]{0,24}not supported"
    rb"|generate parser for this template",
    re.IGNORECASE,
)
"""What templates say to a conversation that they do not take (Qwen's, Mistral's, Gemma's), as vLLM, SGLang
and llama.cpp repeat it in their errors 400."""
_NO_SYSTEM = re.compile(rb"system role (?:is )?not supported", re.IGNORECASE)


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


class Reshape(Value):
    """Send it to the same server in the shape that every template takes (`translate/shape.py`)."""

    system: SystemRole


def judge(
    status: int, body: bytes | None, attempt: Attempt, *, nothing_sent: bool
) -> Judgement | Retry | Reshape:
    """`body`: of an error that was kept; None: only its head has arrived. `nothing_sent`: no part of an
    answer has reached the client, so it may get another one."""
    if body is not None:
        if not nothing_sent:
            return Judgement.PASS_ON
        if _TOO_LONG.search(body):
            return Retry("too_long")
        return _reshape(body, attempt) or Judgement.PASS_ON
    if status in _REJECTED and attempt.body.usage is not None and attempt.endpoint.counting == "at the end":
        # A server that is not one of our engines may reject what we added; it has not processed the request.
        return Judgement.ASK_AGAIN
    if not nothing_sent:
        return Judgement.PASS_ON
    if (reason := _RETRYABLE.get(status)) is not None:
        return Retry(reason)
    return Judgement.KEEP if status == 400 else Judgement.PASS_ON


def _reshape(body: bytes, attempt: Attempt) -> Reshape | None:
    """Each shape is tried once. A translated request has the first already."""
    tried = attempt.shape or ("first" if attempt.body.translation is not None else None)
    if tried != "none" and _NO_SYSTEM.search(body):
        return Reshape("none")
    return Reshape("first") if tried is None and _REFUSED_SHAPE.search(body) else None
