"""A request of an Ollama client and its response: translated to the engine's API, whatever that is."""

from __future__ import annotations

from dataclasses import replace

from firesteel.gateway.http.exchange import Exchange
from firesteel.gateway.interfaces import Endpoint, LatencyRecorder, OutcomeKind


class OllamaExchange(Exchange):
    def granted(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None:
        """An engine that speaks everything is sent chat."""
        super().granted(endpoint if endpoint.speaks else replace(endpoint, speaks=("chat",)), recorder)

    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        was_over = self._is_over
        super()._finish(how, why)
        if not was_over and self._endpoint is not None and self.ollama is not None:
            self.ollama.keep_alive(self._client.dispatcher, self.model, self.caller)
