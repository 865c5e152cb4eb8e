"""What the gateway answers itself: the list of models, and whether it and they are well. Pure.

`/v1/models` is one document that both kinds of clients take: OpenAI's fields and Anthropic's beside each
other, and ours (`state`, `context`, `plan`) for whoever looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import ceil
from typing import Any

from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import GatewayResponse, Identity, WaitStatus
from firesteel.units import show_seconds

_EPOCH = "1970-01-01T00:00:00Z"
"""Both protocols want a date; a service file has none."""
_LOOK_AGAIN_S = 5
"""For whom nobody can say how long it will be."""


def model_list(shown: Iterable[ModelView], who: Identity) -> GatewayResponse:
    rows = [model_row(each) for each in shown if _sees(who, each)]
    ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
    return _reply(200, {"object": "list", "data": rows, "has_more": False, **ends})


def model_row(shown: ModelView) -> dict[str, Any]:
    served = shown.served
    row = {
        "id": served.name, "object": "model", "created": 0, "owned_by": "firesteel",
        "type": "model", "display_name": served.name, "created_at": _EPOCH,
        "state": state(shown), "context": served.context, "max_model_len": served.context,
        "engine": served.engine, "pinned": served.pinned,
        "plan": {"bytes": served.bytes, "load_s": round(served.load_s, 1)} if not served.is_outside else None,
    }  # fmt: skip
    if served.why_not:
        row["why"] = str(served.why_not)
    return row


def state(shown: ModelView) -> str:
    """`off`, `loading`, `ready`, `unloading`, or `cannot`: it will not be, whoever asks."""
    return shown.standing.phase if shown.standing else "cannot"


def model_health(shown: ModelView) -> GatewayResponse:
    """200 for a model that would answer at once; else 503, with how long it may take."""
    phase = state(shown)
    said: dict[str, Any] = {"status": "ok" if phase == "ready" else phase, "model": shown.served.name}
    said["state"] = phase
    if shown.news:
        said["doing"] = shown.news.words
    if phase == "ready":
        return _reply(200, said)
    if phase == "cannot":
        return _reply(503, {**said, "why": str(shown.served.why_not)})
    eta_s = _eta_s(shown, phase)
    said |= {"eta_s": ceil(eta_s)} if eta_s is not None else {}
    again_s = _LOOK_AGAIN_S if eta_s is None else max(1, ceil(eta_s))
    return _reply(503, said, ((b"Retry-After", b"%d" % again_s),))


def _eta_s(shown: ModelView, phase: str) -> float | None:
    """Of a load under way what it says itself: one that is later than planned makes no promise."""
    if phase == "loading":
        return shown.news.eta_s if shown.news else None
    return shown.served.load_s


def health(shown: Iterable[ModelView], is_draining: bool, who: Identity | None = None) -> GatewayResponse:
    """Of the gateway itself: it takes requests, whatever is loaded. With the models that `who` may see."""
    models = {each.served.name: state(each) for each in shown if who is None or _sees(who, each)}
    status = "draining" if is_draining else "ok"
    return _reply(503 if is_draining else 200, {"status": status, "models": models})


def waiting_text(shown: ModelView, loading: ModelView | None) -> WaitStatus:
    """For those who wait for a model: how its own load goes, what became of it, or whose load is first.

    `loading`: the model that is being loaded now; None: none is."""
    name = shown.served.name
    if shown.news:
        return shown.news
    if shown.standing and shown.standing.phase == "loading" and shown.note:
        return WaitStatus(f"{name}: {shown.note}")
    if loading is None or loading.served.name == name:
        return WaitStatus(f"waiting for {name}")
    rest_s = loading.news.eta_s if loading.news else None
    words = f"{name}: behind the load of {loading.served.name}"
    if rest_s is None:
        return WaitStatus(words)
    eta_s = rest_s + shown.served.load_s
    return WaitStatus(f"{words}, about {show_seconds(eta_s)}", eta_s)


def _sees(who: Identity, shown: ModelView) -> bool:
    return who.models is None or shown.served.name in who.models


def _reply(
    status: int, said: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> GatewayResponse:
    return GatewayResponse(status, as_json(said), headers=headers)


def as_json(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode()
