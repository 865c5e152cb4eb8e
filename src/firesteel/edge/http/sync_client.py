"""Small HTTP reads with an end: a limit on bytes, a deadline over the whole, and a token that stays home.

The Hub redirects to a store on another host; the user's token is for the Hub alone, so it is dropped
when scheme, host or port change, and a redirect from https to http is refused.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage
from typing import IO
from urllib.parse import urlsplit

from firesteel.errors import FiresteelError

_STALL_S = 30


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_range: str | None


@dataclass(slots=True)
class Deadline:
    """How long all reads of one errand may take together."""

    seconds: float = 300
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    @property
    def left_s(self) -> float:
        return self._deadline - time.monotonic()


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
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


_OPENER = urllib.request.build_opener(_CarefulRedirects)


def get(url: str, headers: Mapping[str, str], *, limit_bytes: int, patience: Deadline) -> HttpResponse | None:
    """None when there is nothing at the address; a sentence is raised for all else that is no success."""
    if not url.startswith(("https://", "http://")):
        raise FiresteelError(f"{url} is not an address of the web", next="unset HF_ENDPOINT")
    try:
        with _OPENER.open(urllib.request.Request(url, headers=dict(headers)), timeout=_STALL_S) as answer:
            body = _read(url, answer, limit_bytes, patience)
            return HttpResponse(answer.status, body, answer.headers.get("Content-Range"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return None
        raise _refused(url, error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FiresteelError(
            f"{url} cannot be read: {error}",
            next="check the network, or name a model that is here: firesteel models",
        ) from error


def _read(url: str, answer: http.client.HTTPResponse, limit_bytes: int, patience: Deadline) -> bytes:
    """Piece by piece: a server that drips would never trip a timeout on one read."""
    body = b""
    while len(body) <= limit_bytes:
        if patience.left_s < 0:
            raise FiresteelError(
                f"{url} is too slow", next="try again, or download the model and plan its folder"
            )
        piece = answer.read1(min(65536, limit_bytes + 1 - len(body)))
        if not piece:
            return body
        body += piece
    if answer.status == 206:
        return body[:limit_bytes]
    raise FiresteelError(
        f"{url} is longer than {limit_bytes:,} bytes", next="download the model and plan its folder"
    )


def _refused(url: str, code: int) -> FiresteelError:
    if code in (401, 403):
        return FiresteelError(
            f"{url} is gated or private (HTTP {code})",
            next="accept its licence on the Hub, then set HF_TOKEN to a token that may read it",
        )
    return FiresteelError(f"{url} answered HTTP {code}", next="try again later")
