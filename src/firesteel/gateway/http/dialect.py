"""What differs between the APIs of clients, except for the requests and answers themselves.

How a client that waits for a stream is shown that its request is alive, how an error follows what it has
received, and what its requests need of an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from firesteel.gateway.http.error_format import wait_comment
from firesteel.gateway.http.responses import EVENT_STREAM
from firesteel.gateway.http.translation import NDJSON, OllamaCall
from firesteel.gateway.interfaces import Endpoint, WaitStatus
from firesteel.values import Value, replace


class Dialect(Value):
    stream_type: bytes = EVENT_STREAM
    comment: Callable[[WaitStatus], bytes] = wait_comment
    """For a client that waits for the next event of a stream."""
    gap: bytes = b"\n\n"
    """Ends an event that may be incomplete, so that an error can follow."""
    adapt: Callable[[Endpoint], Endpoint] | None = None
    """The endpoint as a request of this API needs it; None: as it is."""
    keep_alive_s: float | None = None
    """How long the client wants its model to stay loaded after the request."""


EVENTS = Dialect()
"""OpenAI's and Anthropic's: events and comments as in the HTML standard."""


def _untouched(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, served_name=None, parameters=None, speaks=())


DIRECT = Dialect(adapt=_untouched)
"""Of a path that only the server knows: nothing is edited or translated."""


def ollama_dialect(call: OllamaCall) -> Dialect:
    """Lines of JSON. A server that speaks everything is sent chat."""
    return Dialect(
        NDJSON,
        lambda status: call.waiting_line(),
        gap=b"",
        adapt=lambda endpoint: endpoint if endpoint.speaks else replace(endpoint, speaks=("chat",)),
        keep_alive_s=call.request.keep_alive_s,
    )
