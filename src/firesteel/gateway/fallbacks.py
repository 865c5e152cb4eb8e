"""Who answers a request that its server cannot: another replica, or the model that stands in.

    models:
      coder: {recipe: ..., fallback: {down: small, full: small, too_long: big}}

Only as long as nothing of an answer has reached the client. A request is sent to each replica once at most,
retries have a budget (`endpoints.py`), and each model is tried once: a broken server gets no more load than
its clients make. A header tells the client which model answers (`X-Firesteel-Fallback`).
"""

from __future__ import annotations

from firesteel.gateway.http.parameters import estimated_tokens
from firesteel.gateway.interfaces import FallbackReason, PendingRequest, Rejection
from firesteel.gateway.keys import check_model_access
from firesteel.gateway.request_record import RequestRecord
from firesteel.gateway.service_config import ServiceConfig

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
    """The models that stand in for others, as the service file has them."""

    def __init__(self, config: ServiceConfig) -> None:
        self._models = config.by_name
        self._aliases = config.aliased

    def stand_in(self, record: RequestRecord, reason: FallbackReason) -> str | None:
        """The model or alias that serves a request in place of its own; None: there is none for this key, or
        it was tried."""
        request = record.request
        config = self._models.get(request.model)
        name = config.fallbacks.get(reason) if config else None
        model = self._aliases.get(name, name) if name else None
        if name is None or model is None or model in (request.model, *record.tried):
            return None
        return None if check_model_access(request.caller, name, model) else name

    def switch(self, record: RequestRecord, reason: FallbackReason) -> bool:
        """Make it a request for its stand-in, if it has one."""
        name, request = self.stand_in(record, reason), record.request
        if name is None:
            return False
        record.tried += (request.model,)
        record.stand_in, record.retries = name, 0
        request.falls_back(request.model, name, reason)
        request.model = self._aliases.get(name, name)
        return True
