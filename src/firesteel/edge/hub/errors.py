"""Readable errors for what huggingface_hub raises. Its own messages may contain signed addresses."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from firesteel.errors import FiresteelError, HostNotReady, UsageError

if TYPE_CHECKING:
    from firesteel.edge.hub.client import Hub


def is_transient(error: Exception) -> bool:
    """Worth another try: the network, a busy server, a body that ended early; not a full disk."""
    import httpx2  # huggingface_hub's client; lazy: only a fetch pays for the import
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    return isinstance(error, httpx2.TransportError) or is_truncated(error)


def is_truncated(error: Exception | None) -> bool:
    """huggingface_hub reports a body shorter than announced as a plain OSError without a number."""
    return type(error) is OSError and error.errno is None


def explain(
    error: Exception, hub: Hub, repository: str, revision: str, path: str | None = None
) -> FiresteelError:
    import httpx2
    from huggingface_hub import errors

    page = f"{hub.page}/{repository}"
    match error:
        case FiresteelError():
            return error
        case errors.GatedRepoError():
            return _gated(hub, repository, page)
        case errors.RevisionNotFoundError():
            return UsageError(f"{repository} has no revision `{revision}`", next=f"see {page}/commits/main")
        case errors.EntryNotFoundError():
            return FiresteelError(f"{repository} has no file {path}", next=f"see {page}/tree/{revision}")
        case errors.RepositoryNotFoundError():
            return _missing(hub, repository)
        case errors.OfflineModeIsEnabled():
            return HostNotReady(
                f"{repository} is not complete on this machine, and HF_HUB_OFFLINE forbids fetching it",
                next="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then run the command again",
            )
        case errors.HfHubHTTPError():
            return _refused(hub, repository, error.response.status_code)
        case errors.HFValidationError():
            return UsageError(f"`{repository}` is not a Hub repository", next="firesteel pull ORG/NAME")
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return HostNotReady(
                f"the disk became full while {repository} was fetched",
                next="firesteel pull --prune, then run the command again: it resumes",
            )
        case httpx2.HTTPError() | ConnectionError() | TimeoutError():
            return FiresteelError(
                f"{hub.page} cannot be reached ({type(error).__name__})",
                next="check the network, then run the command again: it resumes",
            )
    return FiresteelError(
        f"{hub.page} does not answer like the Hub ({type(error).__name__})", next="check HF_ENDPOINT"
    )


def _gated(hub: Hub, repository: str, page: str) -> FiresteelError:
    if hub.token:
        return HostNotReady(
            f"{repository} is gated, and your token may not read it yet",
            next=f"accept its licence at {page} with the account of the token, then run the command again",
        )
    return HostNotReady(
        f"{repository} is gated: its authors ask users to identify themselves",
        next=f"accept its licence at {page}, then: export HF_TOKEN=... ({hub.page}/settings/tokens)",
    )


def _missing(hub: Hub, repository: str) -> FiresteelError:
    if hub.token:
        return UsageError(
            f"the Hub has no {repository} that your token may see", next=f"search for it: {hub.page}/models"
        )
    return UsageError(
        f"the Hub has no public {repository}",
        next=f"search for it: {hub.page}/models; if it is private: export HF_TOKEN=...",
    )


def _refused(hub: Hub, repository: str, status: int) -> FiresteelError:
    if status in (401, 403):
        return HostNotReady(
            f"{hub.page} refuses {repository} (HTTP {status}): the token is wrong or may not read it",
            next=f"create one that may at {hub.page}/settings/tokens, then: export HF_TOKEN=...",
        )
    if status == 429:
        return FiresteelError(
            f"{hub.page} limits your requests (HTTP 429)",
            next="wait a while; with HF_TOKEN set the Hub allows more",
        )
    return FiresteelError(f"{hub.page} answered HTTP {status} for {repository}", next="try again later")
