"""What the gateway answers itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firesteel.gateway.pages import health, model_health, waiting_words
from firesteel.gateway.reading import Served
from firesteel.gateway.schedule_words import Phase, Standing
from firesteel.gateway.swap import Shown
from firesteel.gateway.talk import News, Reply, Who


def shown(name: str, phase: Phase = "off", news: News | None = None, note: str = "") -> Shown:
    standing = Standing(name, phase, 0, 0, 0, 0.0, "", 0.0, False, False, False)
    return Shown(Served(name, name, (), load_s=40.0), standing, None, news, note)


def said(reply: Reply) -> Any:
    return json.loads(reply.body)


def test_a_key_sees_its_own_models() -> None:
    both = (shown("one", "ready"), shown("two"))
    assert said(health(both, False))["models"] == {"one": "ready", "two": "off"}
    assert said(health(both, False, Who("laptop")))["models"] == {"one": "ready", "two": "off"}
    assert said(health(both, False, Who("laptop", models=frozenset({"two"}))))["models"] == {"two": "off"}


@pytest.mark.parametrize(
    ("model", "eta_s", "again"),
    [
        (shown("one"), 40, b"40"),
        (shown("one", "loading", News("proving one: asks", 6.5)), 7, b"7"),
        (shown("one", "loading", News("proving one: later than planned")), None, b"5"),
        (shown("one", "loading", note="coming back by itself"), None, b"5"),
    ],
)
def test_how_long_a_model_will_be_is_said_by_its_load(model: Shown, eta_s: int | None, again: bytes) -> None:
    reply = model_health(model)
    assert (reply.status, said(reply).get("eta_s")) == (503, eta_s)
    assert dict(reply.headers)[b"Retry-After"] == again


OWN = News("loading one: weights", 9.0)
BACK = "coming back by itself: its engine ended"


@pytest.mark.parametrize(
    ("model", "loading", "news"),
    [
        (shown("one", "loading", OWN), shown("one", "loading", OWN), OWN),
        (shown("one", "loading", note=BACK), shown("one", "loading", note=BACK), News(f"one: {BACK}")),
        (shown("one"), None, News("waiting for one")),
        (shown("one"), shown("two", "loading"), News("one: behind the load of two")),
        (
            shown("one"),
            shown("two", "loading", News("loading two: weights", 25.0)),
            News("one: behind the load of two, about 65 s", 65.0),
        ),
        (shown("one", note="it was stopped by hand"), None, News("waiting for one")),
    ],
)
def test_who_waits_is_told_for_what(model: Shown, loading: Shown | None, news: News) -> None:
    assert waiting_words(model, loading) == news
