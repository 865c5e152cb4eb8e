"""What the gateway answers itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firesteel.gateway.admin.status import health, model_health, waiting_text
from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import GatewayResponse, Identity, WaitStatus
from firesteel.gateway.scheduler.events import ModelPhase, ModelStatus
from firesteel.gateway.service_config import ModelConfig


def shown(name: str, phase: ModelPhase = "off", news: WaitStatus | None = None, note: str = "") -> ModelView:
    standing = ModelStatus(name, phase, 0, 0, 0, 0.0, "", 0.0, False, False, False)
    return ModelView(ModelConfig(name, name, (), load_s=40.0), standing, None, news, note)


def said(reply: GatewayResponse) -> Any:
    return json.loads(reply.body)


def test_a_key_sees_its_own_models() -> None:
    both = (shown("one", "ready"), shown("two"))
    assert said(health(both, False))["models"] == {"one": "ready", "two": "off"}
    assert said(health(both, False, Identity("laptop")))["models"] == {"one": "ready", "two": "off"}
    assert said(health(both, False, Identity("laptop", models=frozenset({"two"}))))["models"] == {
        "two": "off"
    }


@pytest.mark.parametrize(
    ("model", "eta_s", "again"),
    [
        (shown("one"), 40, b"40"),
        (shown("one", "loading", WaitStatus("proving one: asks", 6.5)), 7, b"7"),
        (shown("one", "loading", WaitStatus("proving one: later than planned")), None, b"5"),
        (shown("one", "loading", note="coming back by itself"), None, b"5"),
    ],
)
def test_how_long_a_model_will_be_is_said_by_its_load(
    model: ModelView, eta_s: int | None, again: bytes
) -> None:
    reply = model_health(model)
    assert (reply.status, said(reply).get("eta_s")) == (503, eta_s)
    assert dict(reply.headers)[b"Retry-After"] == again


OWN = WaitStatus("loading one: weights", 9.0)
BACK = "coming back by itself: its engine ended"


@pytest.mark.parametrize(
    ("model", "loading", "news"),
    [
        (shown("one", "loading", OWN), shown("one", "loading", OWN), OWN),
        (shown("one", "loading", note=BACK), shown("one", "loading", note=BACK), WaitStatus(f"one: {BACK}")),
        (shown("one"), None, WaitStatus("waiting for one")),
        (shown("one"), shown("two", "loading"), WaitStatus("one: behind the load of two")),
        (
            shown("one"),
            shown("two", "loading", WaitStatus("loading two: weights", 25.0)),
            WaitStatus("one: behind the load of two, about 65 s", 65.0),
        ),
        (shown("one", note="it was stopped by hand"), None, WaitStatus("waiting for one")),
    ],
)
def test_who_waits_is_told_for_what(model: ModelView, loading: ModelView | None, news: WaitStatus) -> None:
    assert waiting_text(model, loading) == news
