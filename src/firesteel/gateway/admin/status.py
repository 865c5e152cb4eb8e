"""Responses of the gateway itself: the list of models, and the health of the gateway and its models. Pure.

`/v1/models` is one document for both kinds of clients: OpenAI's fields, Anthropic's, and our own (`state`,
`context`, `plan`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import ceil
from typing import Any

from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import Caller, GatewayResponse, WaitStatus
from firesteel.units import show_seconds

_EPOCH = "1970-01-01T00:00:00Z"
"""Both protocols require a date; a service file has none."""
_RETRY_S = 5
"""`Retry-After` when the waiting time is unknown."""


def model_list(views: Iterable[ModelView], caller: Caller) -> GatewayResponse:
    seen = list(views)
    rows = [_model_row(view) for view in seen if _may_see(caller, view)]
    rows += [
        _model_row(view) | {"id": alias, "display_name": alias, "alias_of": view.config.name}
        for view in seen  # clients offer only names that are in the list
        for alias in view.config.aliases
        if _may_see(caller, view) or alias in (caller.models or ())
    ]
    ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
    return _response(200, {"object": "list", "data": rows, "has_more": False, **ends})


def model_details(view: ModelView) -> GatewayResponse:
    return _response(200, _model_row(view))


def _model_row(view: ModelView) -> dict[str, Any]:
    config = view.config
    row = {
        "id": config.name, "object": "model", "created": 0, "owned_by": "firesteel",
        "type": "model", "display_name": config.name, "created_at": _EPOCH,
        "state": phase(view), "context": config.context, "max_model_len": config.context,
        "engine": config.engine, "pinned": config.pinned,
        "plan": {"bytes": config.bytes, "load_s": round(config.load_s, 1)} if not config.is_outside else None,
    }  # fmt: skip
    if config.why_not:
        row["why"] = str(config.why_not)
    return row


def phase(view: ModelView) -> str:
    """`off`, `loading`, `ready`, `unloading`, or `cannot`: it can never be served."""
    return view.status.phase if view.status else "cannot"


def load_left_s(view: ModelView) -> float:
    """Of a load under way. One that is later than planned has no estimate."""
    eta_s = view.progress.eta_s if view.progress else None
    return _RETRY_S if eta_s is None else eta_s


def model_health(view: ModelView) -> GatewayResponse:
    """200 for a model that would answer at once; otherwise 503, with the expected waiting time."""
    state = phase(view)
    content: dict[str, Any] = {"status": "ok" if state == "ready" else state, "model": view.config.name}
    content["state"] = state
    if view.progress:
        content["doing"] = view.progress.text
    if state == "ready":
        return _response(200, content)
    if state == "cannot":
        return _response(503, {**content, "why": str(view.config.why_not)})
    eta_s: float | None = view.config.load_s
    if state == "loading":  # only its own estimate: a load that is later than planned has none
        eta_s = view.progress.eta_s if view.progress else None
    if eta_s is not None:
        content["eta_s"] = ceil(eta_s)
    retry_s = _RETRY_S if eta_s is None else max(1, ceil(eta_s))
    return _response(503, content, ((b"Retry-After", b"%d" % retry_s),))


def health(views: Iterable[ModelView], is_draining: bool, caller: Caller | None = None) -> GatewayResponse:
    """Of the gateway itself: whether it accepts requests. Lists the models that `caller` may see."""
    models = {view.config.name: phase(view) for view in views if caller is None or _may_see(caller, view)}
    text = "draining" if is_draining else "ok"
    return _response(503 if is_draining else 200, {"status": text, "models": models})


def wait_status(view: ModelView, loading: ModelView | None) -> WaitStatus:
    """For requests that wait for a model: the progress of its load, its note, or whose load goes first.

    `loading` is the model that is being loaded now, if any.
    """
    name = view.config.name
    if view.progress:
        return view.progress
    if view.status and view.status.phase == "loading" and view.note:
        return WaitStatus(f"{name}: {view.note}")
    if loading is None or loading.config.name == name:
        evicts = view.preview.evicts if view.preview else ()
        first = f": {' and '.join(evicts)} must be unloaded first" if evicts else ""
        return WaitStatus(f"waiting for {name}{first}")
    text = f"{name}: waiting until {loading.config.name} is loaded"
    rest_s = loading.progress.eta_s if loading.progress else None
    if rest_s is None:
        return WaitStatus(text)
    eta_s = rest_s + view.config.load_s
    return WaitStatus(f"{text}, about {show_seconds(eta_s)}", eta_s)


def _may_see(caller: Caller, view: ModelView) -> bool:
    return caller.models is None or view.config.name in caller.models


def _response(
    http_status: int, content: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> GatewayResponse:
    return GatewayResponse(http_status, json.dumps(content).encode(), headers=headers)
