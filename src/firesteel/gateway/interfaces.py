"""Values and protocols that the HTTP server and the dispatcher share. Nothing is decided here.

The HTTP server (`http/`) moves bytes and asks; the dispatcher (`dispatcher.py`) knows keys, models and
memory, and answers. Everything is a plain call on one event loop: a request for a model that is ready is
granted before `submit` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct, field

from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.gateway.cache_report import CacheReport
    from firesteel.gateway.http.body_edits import ParameterRules

ApiFamily = Literal["openai", "anthropic", "ollama"]
"""The error format that a client expects."""
CancelPolicy = Literal["cancel", "drain"]
"""When a client leaves: close the connection to the engine, or read its response to the end and discard
it."""
Counting = Literal["at the end", "continuous", "continuous or null", "timings"]
"""How an engine is asked for the token counts of a stream: at its end; in every event, where it writes
nothing or `null` otherwise; or llama.cpp's `timings` in every event, which the last one always has."""
FallbackReason = Literal["down", "full", "too_long"]
"""Why another model serves a request: its own does not respond or cannot be loaded, its queue is full, or its
context is too small."""
ServerApiName = Literal["chat", "messages", "responses"]
"""What a server speaks: OpenAI's chat completions, Anthropic's Messages, OpenAI's Responses."""
OutcomeKind = Literal["whole", "left", "broke", "refused"]
"""whole: a complete response, whatever its status; left: the client left; broke: the engine failed; refused:
rejected by the gateway."""


class BearerToken(bytes):
    """A client's token. Repeated requests of a connection share one object, so that its digest is computed
    once per connection and forgotten with it."""

    digest: bytes | None = None


class Caller(Value):
    """Who makes a request."""

    name: str = ""
    """The name of the key; empty where no keys are in use."""
    is_admin: bool = False
    models: frozenset[str] | None = None
    """The models it may use; None: all."""
    priority: int = 0
    """Higher goes first among waiting requests."""
    is_for_metrics: bool = False
    """It may read /metrics, and nothing else."""
    has_budget: bool = False
    has_reservation: bool = False
    """Its requests are held against limits of its key until they end."""


class Rejection(Value):
    """An error response from the gateway itself. `why` ends with what to do next, as a second sentence."""

    status: int
    kind: str
    """For programs: `unknown_model`, `queue_full`, `load_failed`, `bad_request`, `invalid_api_key`."""
    why: str
    retry_after_s: float | None = None
    src: str = "gateway"
    """`gateway`, or `engine:NAME` if the engine is to blame."""
    allow: bytes = b""
    """With 405: the allowed methods."""


class AdminRejected(Exception):
    """Ends a request to the admin API with a rejection."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.why)
        self.rejection = rejection


class Timeouts(Value):
    """How long an engine may be silent. A prompt of 100,000 tokens takes minutes on a Spark."""

    first_byte_s: float = 600.0
    """Of a stream, until its first byte."""
    gap_s: float = 300.0
    """Between two bytes of a response."""
    answer_s: float = 3600.0
    """Of a response that is not streamed, until its first byte: all of it is generated before."""


class Endpoint(Value):
    """Where a granted request goes."""

    model: str
    address: tuple[str, int] | str
    """Host and port, or the path of a unix socket."""
    authority: bytes = b"127.0.0.1"
    """The `Host` sent to the engine."""
    is_tls: bool = False
    path: bytes = b""
    """The part of the engine's URL before `/v1`."""
    headers: bytes = b""
    """Header lines to add, each with its CRLF, such as the engine's own key."""
    served_name: bytes | None = None
    """The engine's name for the model, if it differs from the client's."""
    policy: CancelPolicy = "cancel"
    replica: int = 0
    counting: Counting = "at the end"
    timeouts: Timeouts = Timeouts()
    parameters: ParameterRules | None = None
    """What is changed in the bodies of requests; None: nothing."""
    speaks: tuple[ServerApiName, ...] = ()
    """Other APIs are translated to the first of these; empty: everything is forwarded."""
    moves_system: bool = False
    """It moves system messages of Anthropic's API to the head of the prompt."""


class Usage(Struct):
    """Token counts from the engine. Not frozen, like `RequestOutcome`: each request creates one, and a frozen
    one takes twice the time."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class RequestOutcome(Struct):
    """How a request ended. Times count from the arrival of its head."""

    how: OutcomeKind
    status: int = 0
    usage: Usage | None = None
    is_stream: bool = False
    bytes_in: int = 0
    """Of the request's body, as the client sent it."""
    bytes_out: int = 0
    """Of the engine's response body, without the head and before the gateway edits or translates it."""
    waited_s: float = 0.0
    """Until it was granted or rejected."""
    first_s: float | None = None
    """Until the first byte of the response body."""
    total_s: float = 0.0
    why: str = ""
    loaded_s: float = 0.0
    """The part of `waited_s` in which its model was loaded. This and the next are set by the dispatcher."""
    cache: CacheReport | None = None
    """What was read again; None: nothing that could have been cached, or not known."""
    normalized: str = ""
    """What was taken out of the prompt, or why nothing was."""


class Allowance(Struct):
    """Of a stream whose answer has no limit of its own: what its key has for it."""

    prompt: int
    """Tokens, as estimated."""
    tokens: int
    """Prompt and answer may have so many before there must be more."""
    used: int = 0


class WaitStatus(Value):
    """Progress for a client that waits."""

    text: str
    """`loading coder: weights 43 %`, `waiting for coder`."""
    eta_s: float | None = None


class LatencyRecorder(Protocol):
    """Records a request's latencies. Created once per model and key, so that a chunk costs one call."""

    def first(self, seconds: float) -> None:
        """Time to the first byte of the response body."""

    def gap(self, seconds: float) -> None:
        """Time between two chunks of a stream."""

    def record_gaps(self, last: float, arrivals: Sequence[float]) -> None:
        """The same for several chunks; `last` is when the one before them arrived."""


class PendingRequest(Protocol):
    """A request as the dispatcher sees it; implemented by `http.request.Request`."""

    model: str
    path: bytes
    """Without the query."""
    caller: Caller

    @property
    def prefix(self) -> int:
        """A hash of the beginning of the prompt, to choose a replica; 0: unknown."""

    @property
    def agent(self) -> str:
        """The first word of its `User-Agent`: `claude-cli/2.1.197`."""

    @property
    def body(self) -> bytes:
        """As the client sent it until an answer begins; then its first 64 KiB if prompts are logged."""

    def granted(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None: ...

    def rejected(self, rejection: Rejection) -> None: ...

    def update_wait_status(self, wait_status: WaitStatus) -> None: ...

    def falls_back(self, model: str, fallback: str, reason: FallbackReason) -> None:
        """Another model serves it; the client is informed."""

    def meter(self, allowance: Allowance) -> None:
        """Count its stream as it arrives, and ask `Dispatcher.extend` for more when that is used up."""

    def stop(self, rejection: Rejection) -> None:
        """End it now, waiting or served; the client gets the reason if the response format allows it."""


class GatewayResponse(Value):
    """A small response from the gateway itself, such as the list of models."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


class Dispatcher(Protocol):
    """Authenticates requests and finds their endpoint. Called by the HTTP server on its loop; never
    blocks."""

    def admit(self, token: bytes | None) -> Caller | Rejection:
        """Authenticate. Called with the head, before any of the body is read."""

    def public_response(self, method: bytes, path: bytes) -> GatewayResponse | None:
        """The response that needs no key: whether the gateway runs."""

    def submit(self, request: PendingRequest) -> None:
        """Calls `granted` or `rejected`, now or later; until then `update_wait_status`."""

    def sent(self, request: PendingRequest, prompt: bytes) -> None:
        """A prompt has been sent to its engine, or is being sent; called for each try."""

    def abandon(self, request: PendingRequest, waited_s: float) -> None:
        """The client left while the request waited: it gets no answer any more."""

    def hold(self, request: PendingRequest, *, was_sent: bool) -> bool:
        """The engine failed before anything of its answer was passed on; `was_sent`: it may have received the
        request. True: the request waits until the engine is back, and is granted once more; `granted` or
        `rejected` follows."""

    def retry(self, request: PendingRequest, reason: FallbackReason) -> bool:
        """Its server cannot answer it, and nothing was passed on. True: another replica or another model
        will; `granted` or `rejected` follows, never before this returns."""

    def extend(self, request: PendingRequest) -> Rejection | None:
        """A metered stream has used its allowance. None: it has more; otherwise why it ends."""

    def keep_alive(self, model: str, seconds: float, caller: Caller) -> Rejection | None:
        """A client says how long a model stays loaded without requests, until the service file is read again:
        0 unloads it once it is idle, a negative time is for ever."""

    def finish(self, request: PendingRequest, outcome: RequestOutcome) -> None:
        """A granted or rejected request has ended, also if its client left meanwhile. Called once for
        each."""

    def check_direct(self, model: str, caller: Caller, *, is_path: bool) -> Rejection | None:
        """Whether a caller may use what is not counted: WebSockets, and (`is_path`) the server's own
        paths."""

    def local_target(
        self, method: bytes, path: bytes, caller: Caller
    ) -> GatewayResponse | Rejection | Endpoint | None:
        """For paths of the gateway itself: a response, or the endpoint that makes it. None: an engine's
        path."""
