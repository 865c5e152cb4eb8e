"""What the gateway answers itself: the list of models, and whether it and they are well. Pure.

`/v1/models` is one document that both kinds of clients take: OpenAI's fields and Anthropic's beside each
other, and ours (`state`, `context`, `plan`) for whoever looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import ceil
from typing import Any

from firesteel.gateway.swap import Shown
from firesteel.gateway.talk import Reply, Who

_EPOCH = "1970-01-01T00:00:00Z"
"""Both protocols want a date; a service file has none."""


def model_list(shown: Iterable[Shown], who: Who) -> Reply:
    rows = [model_row(each) for each in shown if who.models is None or each.served.name in who.models]
    ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
    return _reply(200, {"object": "list", "data": rows, "has_more": False, **ends})


def model_row(shown: Shown) -> dict[str, Any]:
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


def state(shown: Shown) -> str:
    """`off`, `loading`, `ready`, `unloading`, or `cannot`: it will not be, whoever asks."""
    return shown.standing.phase if shown.standing else "cannot"


def model_health(shown: Shown) -> Reply:
    """200 for a model that would answer at once; else 503, with how long it may take."""
    phase = state(shown)
    said: dict[str, Any] = {"status": "ok" if phase == "ready" else phase, "model": shown.served.name}
    if shown.news:
        said["doing"] = shown.news.words
    if phase == "ready":
        return _reply(200, said)
    wait_s = shown.news.eta_s if shown.news and shown.news.eta_s else shown.served.load_s
    if phase == "cannot":
        return _reply(503, {**said, "why": str(shown.served.why_not)})
    return _reply(503, {**said, "eta_s": ceil(wait_s)}, ((b"Retry-After", b"%d" % max(1, ceil(wait_s))),))


def health(shown: Iterable[Shown], is_draining: bool) -> Reply:
    """Of the gateway itself: it takes requests, whatever is loaded."""
    models = {each.served.name: state(each) for each in shown}
    status = "draining" if is_draining else "ok"
    return _reply(503 if is_draining else 200, {"status": status, "models": models})


def _reply(status: int, said: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    return Reply(status, as_json(said), headers=headers)


def as_json(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode()
