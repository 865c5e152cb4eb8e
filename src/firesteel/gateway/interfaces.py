"""The words that the data plane and the desk exchange. Values and protocols; nothing is decided here.

The plane carries bytes and asks; the desk (`desk.py`) knows keys, models and memory, and answers. Everything
is a plain call on one loop: a request for a model that is ready is granted before `ask` returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

ApiFamily = Literal["openai", "anthropic"]
"""Whose envelope an error wears."""
CancelPolicy = Literal["cancel", "drain"]
"""A client that goes: close the engine's connection, or read its answer to the end and throw it away."""
OutcomeKind = Literal["whole", "left", "broke", "refused"]
"""whole: all bytes of an answer, whatever its status; left: the client went; broke: the engine did; refused:
by us."""


class BearerToken(bytes):
    """What a client shows for itself. A connection that says the same head again has the same object, so that
    its digest is worked out once for all its requests, and forgotten with it."""

    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is."""

    name: str = ""
    """The key's name; empty where no keys are in use."""
    is_admin: bool = False
    models: frozenset[str] | None = None
    """Which it may ask for; None: all."""
    priority: int = 0
    """Higher goes first among those who wait."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the gateway gives itself. What to type next is part of `why`, as a second sentence."""

    status: int
    kind: str
    """A word for programs: `unknown_model`, `queue_full`, `load_failed`, `bad_request`, `invalid_api_key`."""
    why: str
    retry_after_s: float | None = None
    src: str = "gateway"
    """`gateway`, or `engine:NAME` when the engine is to blame."""
    allow: bytes = b""
    """With 405: the methods that it may be asked with."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a granted request goes."""

    model: str
    address: tuple[str, int] | str
    """Host and port, or the path of a unix socket."""
    authority: bytes = b"127.0.0.1"
    """The `Host` that the engine is told."""
    is_tls: bool = False
    path: bytes = b""
    """What the engine's URL has before `/v1`."""
    headers: bytes = b""
    """Head lines to add, each with its CRLF: the engine's own key, for instance."""
    served_name: bytes | None = None
    """What the engine calls the model, where that is not what the client calls it."""
    policy: CancelPolicy = "cancel"
    replica: int = 0


@dataclass(slots=True)
class Usage:
    """As the engine counted. Not frozen, as `End` is not: each request has one, and that doubles its time."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class RequestOutcome:
    """How a request went. Seconds are from the head's arrival."""

    how: OutcomeKind
    status: int = 0
    usage: Usage | None = None
    is_stream: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    waited_s: float = 0.0
    """Until it was granted or refused."""
    first_s: float | None = None
    """Until the first byte of the answer's body."""
    total_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """What a waiting client is told."""

    words: str
    """`loading coder: weights 43 %`, `3 requests before yours`."""
    eta_s: float | None = None


class LatencyRecorder(Protocol):
    """Where a request's times are counted; made once for a model and a key: a chunk costs one call."""

    def first(self, seconds: float) -> None:
        """To the first byte of the answer's body."""

    def gap(self, seconds: float) -> None:
        """Between two chunks of a stream."""


class PendingRequest(Protocol):
    """A request, as the desk sees it. The plane's exchange is one."""

    model: str
    path: bytes
    """As asked for, without the query."""
    who: Identity
    prefix: int
    """A hash of how the prompt begins, for replicas; 0: unknown."""
    body: bytes
    """As it was sent; for a log that was asked to keep it."""

    def granted(self, seat: Endpoint, tally: LatencyRecorder | None) -> None: ...

    def refused(self, refusal: Refusal) -> None: ...

    def told(self, news: WaitStatus) -> None: ...

    def stop(self, refusal: Refusal) -> None:
        """Ends it now, whether it waits or is served; it is told why, where that can be said."""


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """A small answer of the gateway's own, such as the list of models."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


class Dispatcher(Protocol):
    """Who may, where to, and what became of it. Called by the plane, on its loop; never blocks."""

    def admit(self, token: bytes | None) -> Identity | Refusal:
        """Whose token that is. Called with the head, before any of the body is read."""

    def public(self, method: bytes, path: bytes) -> GatewayResponse | None:
        """What a stranger is told all the same: whether we are here."""

    def ask(self, caller: PendingRequest) -> None:
        """Answers with `granted` or `refused`, now or later; until then with `told`."""

    def leave(self, caller: PendingRequest, waited_s: float) -> None:
        """The client went while it waited: it is owed no answer any more."""

    def finish(self, caller: PendingRequest, end: RequestOutcome) -> None:
        """A granted or refused request is over, once for each; also one that left while it was served."""

    def own(self, method: bytes, path: bytes, who: Identity) -> GatewayResponse | Refusal | Endpoint | None:
        """For paths that no engine answers: an answer, or where it is made. None: it is an engine's."""
