"""The synchronous HTTP client: small GETs with a byte limit and a deadline over the whole transfer.

The Hub redirects to a store on another host. The user's token is for the Hub alone, so it is dropped when
scheme, host or port change, and a redirect from https to http is refused. An engine is reached directly: no
proxy, no redirects. Its supervisor has a `HealthPoller` ask in a thread: a stuck engine must not block it. No
aiohttp here: a supervisor lives as long as its model and stays small.
"""

from __future__ import annotations

import errno
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPMessage
from typing import IO
from urllib.parse import urlsplit

from firesteel.edge.host.process import uptime
from firesteel.errors import FiresteelError
from firesteel.values import Value

_STALL_S = 30


class HttpResponse(Value):
    status: int
    body: bytes = b""
    """At most `limit_bytes`; empty for an error that came through a redirecting client."""
    content_range: str | None = None
    is_cut: bool = False
    """The body is longer than the limit."""


class Deadline:
    """How long several requests may take together."""

    def __init__(self, seconds: float = 300) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if old.scheme == "https" and new.scheme != "https":
            raise urllib.error.URLError(f"it redirects from https to {new.scheme}")
        if following is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            following.remove_header("Authorization")
        return following


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Returns every response as it is. urllib follows redirects from here, so this also turns them off."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        return response

    https_response = http_response


_REDIRECTING = urllib.request.build_opener(_SafeRedirects)
_DIRECT = urllib.request.build_opener(_AnyStatus, urllib.request.ProxyHandler({}))


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def trust_only(certificate: str) -> ssl.SSLContext | None:
    """For a server that shows this certificate, whatever names are in it and whoever signed it. None: the
    file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError):
        return None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _direct(tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    if tls is None:
        return _DIRECT
    https = urllib.request.HTTPSHandler(context=tls)
    return urllib.request.build_opener(_AnyStatus, urllib.request.ProxyHandler({}), https)


def get(
    url: str,
    headers: Mapping[str, str],
    *,
    limit_bytes: int,
    deadline: Deadline,
    direct: bool = False,
    tls: ssl.SSLContext | None = None,
) -> HttpResponse:
    """The response, whatever its status. `direct`: through no proxy, and redirects are not followed. `tls`:
    what is trusted, if direct; None: what this machine trusts.

    Raises OSError, HTTPException or ValueError when no complete response arrives in time.
    """
    opener = _direct(tls) if direct else _REDIRECTING
    # urllib has a timeout for single operations; the deadline over all of them is checked in `_read`.
    timeout_s = max(0.001, min(_STALL_S, deadline.left_s))
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=timeout_s) as response:
            body = _read(response, limit_bytes + 1, deadline)
            content_range = response.headers.get("Content-Range")
            return HttpResponse(response.status, body[:limit_bytes], content_range, len(body) > limit_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        return HttpResponse(error.code)


def open_stream(url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """The response as a stream; raises HTTPError. A server on this machine is reached without a proxy."""
    is_here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    opener = urllib.request.build_opener(_SafeRedirects, urllib.request.ProxyHandler({})) if is_here else None
    request = urllib.request.Request(url, headers=dict(headers))
    response: http.client.HTTPResponse = (opener or _REDIRECTING).open(request, timeout=_STALL_S)
    return response


def post(
    url: str,
    headers: Mapping[str, str],
    *,
    limit_bytes: int,
    deadline: Deadline,
    tls: ssl.SSLContext | None = None,
) -> HttpResponse:
    """An empty body, directly: through no proxy, and redirects are not followed."""
    request = urllib.request.Request(url, b"", dict(headers), method="POST")
    with _direct(tls).open(request, timeout=max(0.001, min(_STALL_S, deadline.left_s))) as response:
        return HttpResponse(response.status, _read(response, limit_bytes, deadline))


def _read(response: http.client.HTTPResponse, most_bytes: int, deadline: Deadline) -> bytes:
    """Piece by piece: a server that sends a byte now and then never trips a timeout on a single read."""
    body = b""
    while len(body) < most_bytes and (piece := response.read1(min(65536, most_bytes - len(body)))):
        body += piece
        if deadline.left_s < 0:
            raise TimeoutError("it is too slow")
    return body


def get_file(
    url: str, headers: Mapping[str, str], *, limit_bytes: int, deadline: Deadline
) -> HttpResponse | None:
    """A file, or the range that `headers` ask for; None when there is none at this address."""
    if not url.startswith(("https://", "http://")):
        raise FiresteelError(f"{url} is not a web address", next="unset HF_ENDPOINT")
    try:
        response = get(url, headers, limit_bytes=limit_bytes, deadline=deadline)
    except TimeoutError as error:
        raise FiresteelError(
            f"{url} is too slow", next="try again, or download the model and plan its folder"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FiresteelError(
            f"{url} cannot be read: {error}",
            next="check the network, or name a model that is here: firesteel models",
        ) from error
    if response.status == 404:
        return None
    if response.status in (401, 403):
        raise FiresteelError(
            f"{url} is gated or private (HTTP {response.status})",
            next="accept its licence on the Hub, then set HF_TOKEN to a token that may read it",
        )
    if response.status >= 300:
        raise FiresteelError(f"{url} answered HTTP {response.status}", next="try again later")
    # A server may send more than the range that was asked for; the range itself is complete.
    if response.is_cut and response.status != 206:
        raise FiresteelError(
            f"{url} is longer than {limit_bytes:,} bytes", next="download the model and plan its folder"
        )
    return response


_POLL_TIMEOUT_S = 3
_MAX_POLL_BYTES = 4 * 2**20


class HealthPoller(threading.Thread):
    """Asks every few seconds until stopped; the last results can be read at any time."""

    def __init__(
        self,
        url: str,
        key: str | None,
        interval_s: float = 2,
        metrics_s: float = 5,
        find_pid: Callable[[], int | None] = lambda: None,
        health: str = "/health",
    ) -> None:
        super().__init__(daemon=True)
        self._find_pid, self._health = find_pid, health
        self._url, self._key, self._interval_s, self._metrics_s = url, key, interval_s, metrics_s
        self._stopped = threading.Event()
        self.pid: int | None = None
        """The first process of the engine; None until it answers. Found here, since docker may block."""
        self.is_healthy = False
        self.metrics: tuple[float, str | None] | None = None
        """When `/metrics` was read last, and its text; None in place of text: no answer."""
        self.answered_at: float | None = None
        """When it last answered, with any status. None: not yet, or the last request was not sent."""

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.is_healthy = self._get(self._health) is not None
                if self.is_healthy and self.pid is None:
                    self.pid = self._find_pid()
                if self.metrics is None or uptime() - self.metrics[0] >= self._metrics_s:
                    self.metrics = (uptime(), self._get("/metrics"))
            except _CannotAsk:
                self.answered_at = None
            self._stopped.wait(self._interval_s)

    def stop(self) -> None:
        self._stopped.set()

    def _get(self, path: str) -> str | None:
        try:
            status, text = _get(self._url + path, self._key)
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)  # urllib wraps it
            if isinstance(cause, OSError) and cause.errno in _OWN_LIMITS:
                raise _CannotAsk from error
            return None
        self.answered_at = uptime()
        return text if status == 200 else None


class _CannotAsk(Exception):
    """This process lacks files, ports or memory, which says nothing about the engine."""


_OWN_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def get_from_engine(url: str, key: str | None = None) -> tuple[int | None, str]:
    """Status and text; the status is None when no answer came in time."""
    try:
        return _get(url, key)
    except (OSError, http.client.HTTPException, ValueError):
        return None, ""


def _get(url: str, key: str | None) -> tuple[int, str]:
    response = get(
        url, bearer(key), limit_bytes=_MAX_POLL_BYTES, deadline=Deadline(_POLL_TIMEOUT_S), direct=True
    )
    return response.status, response.body.decode(errors="replace")
