"""Asks a gateway for what `top` shows, as values, and asks it to load and unload.

Synchronous and without aiohttp: `top --once` is over before that is imported.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import field

from firesteel.edge.http.sync_client import Deadline, HttpResponse, bearer, get, post, trust_only
from firesteel.errors import FiresteelError, UsageError, printable
from firesteel.gateway.state import GatewayState
from firesteel.values import Value

CurveRangeName = Literal["15m", "24h", "30d"]


class Curve(Value):
    name: str
    model: str | None
    values: tuple[float | None, ...]


class Curves(Value):
    """`/api/curves`."""

    step_s: int = 5
    start: int = 0
    series: tuple[Curve, ...] = ()

    def values(self, name: str, model: str | None) -> tuple[float | None, ...]:
        found = (curve.values for curve in self.series if (curve.name, curve.model) == (name, model))
        return next(found, ())


class LoggedRequest(Value):
    """A row of `/api/requests`."""

    id: int
    at: float
    model: str
    status: int
    how: str
    total_s: float
    key: str = ""
    why: str = ""
    waited_s: float = 0.0
    first_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cache: str = ""
    is_stream: bool = True


class Snapshot(Value):
    """Everything that a frame shows, as of one moment."""

    url: str
    at: float
    """Seconds since 1970."""
    state: GatewayState = field(default_factory=GatewayState)
    curves: Curves = field(default_factory=Curves)
    requests: tuple[LoggedRequest, ...] = ()
    log: tuple[str, ...] = ()
    log_of: str = ""
    problem: str = ""
    """Why it is not current."""


T = TypeVar("T")
Action = Literal["load", "unload", "pin", "unpin"]
KEY_VARIABLE = "FIRESTEEL_API_KEY"
MAX_REQUESTS = 1000
_LIMIT_BYTES = 32 * 2**20
_TIMEOUT_S = 5.0


class NoAnswer(FiresteelError):
    """The gateway did not answer, or not as a gateway does."""


class Refused(FiresteelError):
    """The gateway answered with an error."""

    def __init__(self, status: int, what: str, next: str = "") -> None:
        super().__init__(what, next=next)
        self.status = status


class RequestQuery(Value):
    """Which requests of the log."""

    model: str | None = None
    slower: float | None = None
    """Only those that took this many seconds."""
    until: float | None = None
    """Seconds since 1970."""


class GatewayClient:
    def __init__(self, url: str, key: str | None = None, certificate: str | None = None) -> None:
        """`certificate`: the file of the only one that the gateway may show; None: any that this machine
        trusts."""
        self.url = base_url(url)
        self._tls = trust_only(certificate) if certificate else None
        self._headers = {**bearer(key), "Accept": "application/json"}

    def state(self) -> GatewayState:
        return self._parsed(GatewayState, self._get("/api/state"))

    def curves(self, range_name: CurveRangeName) -> Curves:
        return self._parsed(Curves, self._get(f"/api/curves?range={range_name}"))

    def log(self, model: str, lines: int) -> tuple[str, ...]:
        """Empty for a model that was never started."""
        try:
            document = self._get(f"/api/models/{quote(model, safe='')}/logs?lines={lines}")
        except Refused as error:
            if error.status == 404:
                return ()
            raise
        found = document.get("lines")
        return tuple(str(line) for line in found) if isinstance(found, list) else ()

    def requests(self, query: RequestQuery) -> tuple[LoggedRequest, ...]:
        """Newest first. What the gateway does not filter is filtered here."""
        parameters: dict[str, object] = {"limit": MAX_REQUESTS}
        for name in ("model", "slower", "until"):
            if (value := getattr(query, name)) is not None:
                parameters[name] = value
        document = self._get(f"/api/requests?{urlencode(parameters)}")
        rows = self._parsed(tuple[LoggedRequest, ...], document.get("requests", []))
        return tuple(row for row in rows if _matches(row, query))

    def change(self, model: str, action: Action) -> None:
        self._ask("POST", f"/api/models/{quote(model, safe='')}/{action}")

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        deadline = Deadline(_TIMEOUT_S)
        try:
            if method == "POST":
                response = post(
                    self.url + path, self._headers, limit_bytes=_LIMIT_BYTES, deadline=deadline, tls=self._tls
                )
            else:
                response = get(
                    self.url + path,
                    self._headers,
                    limit_bytes=_LIMIT_BYTES,
                    deadline=deadline,
                    direct=True,
                    tls=self._tls,
                )
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            if isinstance(why, ssl.SSLCertVerificationError):
                raise NoAnswer(
                    f"{self.url} shows a certificate that is not trusted here ({why.verify_message})",
                    next=f"SSL_CERT_FILE=CERT.pem firesteel top --url {self.url}, with its certificate",
                ) from error
            raise NoAnswer(
                f"no answer from {self.url} ({printable(str(why))})", next="firesteel serve, or --url URL"
            ) from error
        return self._document(response)

    def _document(self, response: HttpResponse) -> dict[str, Any]:
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise NoAnswer(f"{self.url} is not a firesteel gateway", next="firesteel serve, or --url URL")
        if response.status >= 400:
            raise _refusal(response.status, document)
        return document

    def _parsed(self, kind: type[T], value: object) -> T:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise NoAnswer(f"{self.url} answered strangely: {error}", next="--url URL of a gateway") from None


def base_url(text: str) -> str:
    """`spark:8080`, `http://spark:8080/v1` -> `http://spark:8080`."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise UsageError(f"`{printable(text)}` is not an address", next="--url http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _refusal(status: int, document: dict[str, Any]) -> Refused:
    error = document.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    what = printable(str(message or f"the gateway answered HTTP {status}"), 2000)
    if status in (401, 403):
        return Refused(status, what, next=f"set {KEY_VARIABLE} to an admin key of that gateway")
    return Refused(status, what)


def _matches(row: LoggedRequest, query: RequestQuery) -> bool:
    return (
        (query.model is None or row.model == query.model)
        and (query.slower is None or row.total_s >= query.slower)
        and (query.until is None or row.at <= query.until)
    )
