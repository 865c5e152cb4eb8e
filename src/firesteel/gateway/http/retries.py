"""What becomes of a request whose server fails or refuses before its client has received anything."""

from __future__ import annotations

import re
from abc import abstractmethod
from time import monotonic

from firesteel.gateway.http.forward import fallback_header
from firesteel.gateway.http.head import ResponseHead
from firesteel.gateway.http.request_body import RequestBody
from firesteel.gateway.http.upstream import ChunkBoundaries
from firesteel.gateway.http.usage import ResponseTail
from firesteel.gateway.interfaces import (
    Endpoint,
    FallbackReason,
    GatewayResponse,
    OutcomeKind,
    WaitStatus,
)

_RETRYABLE: dict[int, FallbackReason] = {429: "full", 502: "down", 503: "down", 504: "down"}
"""What a server answers that cannot serve a request now."""
_TOO_LONG = re.compile(
    rb"context[ _](?:length|size|window)|maximum (?:model|context) length|prompt is too long", re.IGNORECASE
)
"""vLLM, SGLang, llama.cpp (`exceed_context_size_error`), OpenAI and Anthropic, in their errors 400."""


class Retries(RequestBody):
    """The part of an exchange that tries again."""

    model = ""
    _endpoint: Endpoint | None = None
    _has_retried = False
    _last: float

    @abstractmethod
    def _retry(self, reason: FallbackReason) -> bool:
        """Ask for another server. True: this one is let go, and `granted` or `rejected` follows."""

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _drop_upstream(self) -> None: ...

    @abstractmethod
    def _finish(self, how: OutcomeKind, why: str = "") -> None: ...

    def falls_back(self, model: str, stand_in: str, reason: FallbackReason) -> None:
        self._own_headers = fallback_header(model, stand_in, reason)
        if self._has_head:
            self._wait_status = WaitStatus(f"{stand_in} answers in place of {model} ({reason})")
            self.write_comment()

    def _retry_error(self, head: ResponseHead) -> ChunkBoundaries | None:
        """An error that the client need not see: somebody else may do better. None: it is passed on."""
        is_plain = self._translation is None
        if is_plain and self._filter is not None and head.status in (400, 422) and self._must_ask_again():
            return ChunkBoundaries.AS_THEY_COME
        reason = _RETRYABLE.get(head.status)
        if reason is not None and self._can_be_held() and self._retry(reason):
            return ChunkBoundaries.AS_THEY_COME
        endpoint = self._endpoint
        has_longer = is_plain and endpoint is not None and endpoint.has_longer
        if head.status == 400 and has_longer and self._can_be_held():
            self._error_body = b""
            self._error_head = head
            return ChunkBoundaries.WITHOUT_FRAMING
        return None

    def _await_grant(self) -> None:
        self._endpoint, self._has_retried, self._last = None, False, monotonic()
        self._translation = self._filter = None  # the next server may speak another API
        self._client.deadline = self._last + self._client.limits.hold_after_s

    def _must_ask_again(self) -> bool:
        """A server that we do not know may reject the request because of what we added: send it as it came.
        It has not been processed."""
        if self._is_unasked or self._endpoint is None or self._endpoint.counting != "at the end":
            return False
        self._is_unasked = True
        self._drop_upstream()
        self._connect()
        return True

    def _end_kept_error(self, head: ResponseHead, body: bytes) -> None:
        """A longer context may do; anything else is the client's."""
        self._error_head = self._error_body = None
        if _TOO_LONG.search(body) and self._can_be_held() and self._retry("too_long"):
            self._tail = ResponseTail()
            return
        self._error_head = head
        rejection = self._engine_error(head, self.model)
        self._status = head.status
        self._finish("whole", rejection.why)
        if self._has_head:
            self._end_stream_with_error(rejection)
        else:
            self._client.respond(GatewayResponse(head.status, body))

    def _can_be_held(self) -> bool:
        """Whether nothing of an answer has reached the client, so that it may wait for another one."""
        if self._pending_head:
            self._pending_head, self._has_head, self._status = b"", False, 0
        is_silent = self._first_s is None and self._error_head is None and self._route is not None
        return is_silent and (not self._has_head or (self._is_stream and self._head.is_11))
