"""Who answers a request that its server cannot: another replica, or the model that stands in.

    models:
      coder: {recipe: ..., fallback: {down: small, full: small, too_long: big}}

Only as long as nothing of an answer has reached the client. A request is sent to each replica once at most,
retries have a budget (`endpoints.py`), and each model is tried once: a broken server gets no more load than
its clients make. The client is told in a header which model answers (`X-Firesteel-Fallback`).
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Hashable
from functools import partial

from firesteel.gateway.executor import Executor
from firesteel.gateway.http.parameters import estimated_tokens
from firesteel.gateway.interfaces import FallbackReason, PendingRequest, Rejection
from firesteel.gateway.keys import check_model_access
from firesteel.gateway.request_record import RequestRecord

FALLBACK_REASONS: dict[str, FallbackReason] = {
    "full": "full",
    "no memory": "full",
    "too large": "down",
    "failed": "down",
}
"""Why the scheduler rejects a request."""


def check_length(request: PendingRequest, asked: str, limit: int) -> Rejection | None:
    """`limit`: tokens of a prompt that the model or alias takes."""
    if (tokens := estimated_tokens(request.body)) <= limit:
        return None
    why = f"the prompt has about {tokens:,} tokens, estimated from its length; `{asked}` takes {limit:,}."
    return Rejection(400, "context_length_exceeded", why)


class Fallbacks:
    """The part of the dispatcher that finds somebody else."""

    executor: Executor
    _records: dict[PendingRequest, RequestRecord]
    _aliases: dict[str, str]

    @abstractmethod
    def granted(self, record: Hashable, model: str) -> None: ...

    @abstractmethod
    def _enqueue(self, record: RequestRecord) -> None:
        """Submit it for its model."""

    def retry(self, request: PendingRequest, reason: FallbackReason) -> bool:
        """By another replica, as long as there are retries left, or by the model that stands in."""
        record = self._records.get(request)
        if record is None or (endpoint := record.endpoint) is None:
            return False
        endpoints = record.endpoints
        if reason != "too_long" and endpoints.may_retry(endpoint, record.retries, time.monotonic()):
            record.retries += 1
            record.is_between = True
            resume = partial(self._grant_again, record)
        elif self._stand_in(record, reason):
            self.executor.finish(record)
            resume = partial(self._resume_elsewhere, record, reason)
        else:
            return False
        endpoints.release(endpoint)
        record.endpoint = None
        asyncio.get_running_loop().call_soon(resume)  # the caller is not ready for an answer yet
        return True

    def _grant_again(self, record: RequestRecord) -> None:
        record.is_between = False
        if record.request in self._records:
            self.granted(record, record.request.model)

    def _resume_elsewhere(self, record: RequestRecord, reason: FallbackReason) -> None:
        request = record.request
        if not self._fall_back(record, reason) and request in self._records:  # the file has just changed
            request.rejected(Rejection(503, "engine_down", f"`{request.model}` cannot serve this", 5.0))

    def _stand_in(self, record: RequestRecord, reason: FallbackReason) -> str | None:
        """The model or alias that serves a request in place of its own; None: there is none for this key, or
        it was tried."""
        request = record.request
        config = self.executor.model_config(request.model)
        name = config.fallbacks.get(reason) if config else None
        model = self._aliases.get(name, name) if name else None
        if name is None or model is None or model in (request.model, *record.tried):
            return None
        return None if check_model_access(request.caller, name, model) else name

    def _fall_back(self, record: RequestRecord, reason: FallbackReason) -> bool:
        name, request = self._stand_in(record, reason), record.request
        if name is None or request not in self._records:
            return False
        record.tried += (request.model,)
        record.stand_in, record.retries = name, 0
        request.falls_back(request.model, name, reason)
        request.model = self._aliases.get(name, name)
        self._enqueue(record)
        return True
