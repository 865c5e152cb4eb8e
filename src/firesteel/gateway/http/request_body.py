"""What an engine receives as a request's body: the client's, with few edits by position."""

from __future__ import annotations

from firesteel.gateway.http.body import SEARCH_BYTES, Edit, ModelField, model_edit
from firesteel.gateway.http.parameters import parameter_edits
from firesteel.gateway.http.reply import Reply
from firesteel.gateway.http.usage_filter import UsageFilter
from firesteel.gateway.http.usage_request import request_usage
from firesteel.gateway.interfaces import Endpoint, Rejection


class RequestBody(Reply):
    """The engine's side of an exchange: the body."""

    _model_field: ModelField | None = None
    _is_unasked = False

    def _edits(self, endpoint: Endpoint) -> list[Edit] | Rejection:
        """The engine's name for the model, token counts that the client did not ask for, and the parameters
        of the model."""
        body, route, field = self.body, self._route, self._model_field
        edits: list[Edit] = []
        if endpoint.served_name is not None and body and field is not None:
            edit = model_edit(field, endpoint.served_name)
            edits += [edit] if edit else []
        if route is not None and route.has_usage and (len(body) > SEARCH_BYTES or b'"stream"' in body):
            edits += self._usage_edits(endpoint)
        if endpoint.parameters is not None and body and route is not None and field is not None:
            rules = endpoint.parameters.of(route.kind) if field.is_json else None
            changes = parameter_edits(body, rules) if rules is not None else []
            if isinstance(changes, Rejection):
                return changes
            edits += changes
        return edits

    def _usage_edits(self, endpoint: Endpoint) -> list[Edit]:
        """Ask for the token counts of a stream, and filter them out of the response if the client did not."""
        counting = endpoint.counting
        self._filter = None
        if self._is_unasked or endpoint.address in self._client.pool.unasked:
            return []
        usage = request_usage(self.body, counting)
        if usage is None:
            return []
        if usage.strips_event or usage.strips_fields:
            self._filter = UsageFilter(
                counting, strips_event=usage.strips_event, strips_fields=usage.strips_fields
            )
        return [usage.edit]
