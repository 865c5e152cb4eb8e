"""The server that `verify`, `bench` and `compare --ab` talk to: a running service, or a URL with its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.run.service import Service, pick

_URL = re.compile(r"https?://[^\s\x00-\x20\"'<>\\^`{|}?#]{1,500}\Z", re.ASCII)
KEY_VARIABLES = ("FIRESTEEL_API_KEY", "OPENAI_API_KEY")


def base_url(url: str) -> str:
    """`http://host:8000/v1/` -> `http://host:8000`, or a UsageError."""
    try:
        parts = urlsplit(url)
        is_valid = bool(_URL.match(url) and parts.hostname) and parts.port != 0
    except ValueError:  # an impossible port, or a bracket that is never closed
        is_valid = False
    if not is_valid:
        raise UsageError(f"`{url[:80]}` is not the URL of a server", next="--url http://host:8000/v1")
    if parts.username or parts.password:
        raise UsageError("do not put a password in the URL", next=f"export {KEY_VARIABLES[0]}=...")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def key_from(environ: Mapping[str, str], variable: str | None = None) -> str | None:
    """Never from the command line, which other users of the machine can read."""
    if variable is None:
        return next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None)
    if not environ.get(variable):
        raise UsageError(f"the variable {variable} is not set", next=f"export {variable}=...")
    return environ[variable]


def running_service(home: Home, name: str | None) -> Service:
    """If no service runs, the host is not ready; only an unknown name is the user's mistake."""
    try:
        return pick(home, name)
    except UsageError:
        raise
    except FiresteelError as error:
        raise HostNotReady(error.what, next=error.next) from error
