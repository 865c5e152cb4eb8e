"""What the gateway answers itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firesteel.gateway.admin.status import health, load_left_s, model_health, model_list
from firesteel.gateway.admin.status import wait_status as wait_status_of
from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import Caller, GatewayResponse, WaitStatus
from firesteel.gateway.scheduler.capacity import LoadPreview
from firesteel.gateway.scheduler.events import ModelPhase, ScheduledModel
from firesteel.gateway.service_config import ModelConfig
from firesteel.values import replace


def view(
    name: str, phase: ModelPhase = "off", wait_status: WaitStatus | None = None, note: str = ""
) -> ModelView:
    status = ScheduledModel(name, phase, 0, 0, 0, 0.0, "", 0.0, False, False, False)
    return ModelView(ModelConfig(name, name, (), load_s=40.0), status, None, wait_status, note)


def content(response: GatewayResponse) -> Any:
    return json.loads(response.body)


def test_a_key_sees_its_own_models() -> None:
    both = (view("one", "ready"), view("two"))
    assert content(health(both, False))["models"] == {"one": "ready", "two": "off"}
    assert content(health(both, False, Caller("laptop")))["models"] == {"one": "ready", "two": "off"}
    assert content(health(both, False, Caller("laptop", models=frozenset({"two"}))))["models"] == {
        "two": "off"
    }


@pytest.mark.parametrize(
    ("model", "eta_s", "again"),
    [
        (view("one"), 40, b"40"),
        (view("one", "loading", WaitStatus("proving one: asks", 6.5)), 7, b"7"),
        (view("one", "loading", WaitStatus("proving one: later than planned")), None, b"5"),
        (view("one", "loading", note="restarting by itself"), None, b"5"),
    ],
)
def test_the_load_reports_the_time_left(model: ModelView, eta_s: int | None, again: bytes) -> None:
    response = model_health(model)
    assert (response.status, content(response).get("eta_s")) == (503, eta_s)
    assert dict(response.headers)[b"Retry-After"] == again


OWN = WaitStatus("loading one: weights", 9.0)
BACK = "restarting by itself: its engine ended"


@pytest.mark.parametrize(
    ("model", "loading", "wait_status"),
    [
        (view("one", "loading", OWN), view("one", "loading", OWN), OWN),
        (view("one", "loading", note=BACK), view("one", "loading", note=BACK), WaitStatus(f"one: {BACK}")),
        (view("one"), None, WaitStatus("waiting for one")),
        (
            replace(view("one"), preview=LoadPreview(("two", "three"))),
            None,
            WaitStatus("waiting for one: two and three must be unloaded first"),
        ),
        (view("one"), view("two", "loading"), WaitStatus("one: waiting until two is loaded")),
        (
            view("one"),
            view("two", "loading", WaitStatus("loading two: weights", 25.0)),
            WaitStatus("one: waiting until two is loaded, about 65 s", 65.0),
        ),
        (view("one", note="it was stopped by hand"), None, WaitStatus("waiting for one")),
    ],
)
def test_a_waiting_request_gets_the_reason(
    model: ModelView, loading: ModelView | None, wait_status: WaitStatus
) -> None:
    assert wait_status_of(model, loading) == wait_status


def test_aliases_are_in_the_list() -> None:
    """Clients offer only what is in the list."""
    one = view("one", "ready")
    named = ModelView(replace(one.config, aliases=("gpt:1", "x")), one.status, None, None)
    rows = content(model_list((named, view("two")), Caller()))["data"]
    assert [row["id"] for row in rows] == ["one", "two", "gpt:1", "x"]
    assert [row.get("alias_of") for row in rows] == [None, None, "one", "one"]
    assert rows[2]["state"] == "ready"
    assert content(model_list((named,), Caller("k", models=frozenset({"two"}))))["data"] == []


def test_what_is_left_of_a_load() -> None:
    assert load_left_s(view("one", "loading", WaitStatus("weights", 12.0))) == 12
    assert load_left_s(view("one", "loading", WaitStatus("weights"))) == 5
