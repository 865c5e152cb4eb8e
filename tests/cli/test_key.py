"""`firesteel serve key`: only the token on stdout, once; messages on stderr."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jsonschema
import pytest

from firesteel.gateway.admin.request_log import RequestLog
from firesteel.gateway.interfaces import Caller, Rejection, RequestOutcome, Usage
from firesteel.gateway.keys import KeyRing
from firesteel.library.documents.all import schemas
from tests.cli.inside import inside
from tests.conftest import Firesteel


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def firesteel(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return inside(home, monkeypatch, capsys)


def test_added_listed_revoked(firesteel: Firesteel, home: Path) -> None:
    ran = firesteel("serve", "key", "add", "laptop", "--model", "coder", "--model", "small", "--rate", "60/m")
    assert ran.code == 0 and ran.out.startswith("fs-") and ran.out.count("\n") == 1
    assert "only time" in ran.err and ran.out.strip() not in ran.err
    token = ran.out.strip().encode()
    assert KeyRing.read(home / "keys.json").authenticate(token) == Caller(
        "laptop", False, frozenset({"coder", "small"})
    )

    listed = firesteel("serve", "key", "list")
    assert all(word in listed.out for word in ("laptop", "inference", "coder, small", "60/m"))
    assert token.decode() not in listed.out

    gone = firesteel("serve", "key", "revoke", "laptop")
    assert (gone.code, gone.out) == (0, "") and "revoked" in gone.err
    assert "firesteel serve key add NAME" in firesteel("serve", "key", "list").out
    assert isinstance(KeyRing.read(home / "keys.json").authenticate(b"x"), Caller), (
        "a gateway that starts now has no keys"
    )


def test_as_json(firesteel: Firesteel, home: Path) -> None:
    arguments = ("--admin", "--tokens-rate", "5000/h", "--at-once", "4", "--priority", "-3", "--json")
    added = firesteel("serve", "key", "add", "boss", *arguments).json
    jsonschema.validate(added, schemas()["firesteel.key-add/1"])
    who = KeyRing.read(home / "keys.json").authenticate(added["token"].encode())
    assert who == Caller("boss", True, None, -3, has_reservation=True)
    assert added["key"]["at_once"] == 4
    assert added["key"]["tokens"] == "5000/h" and added["key"]["models"] is None
    listed = firesteel("--json", "serve", "key", "list").json
    jsonschema.validate(listed, schemas()["firesteel.key-list/1"])
    assert listed["keys"] == [added["key"]] and added["token"] not in json.dumps(listed)
    gone = firesteel("serve", "key", "revoke", "boss", "--json").json
    jsonschema.validate(gone, schemas()["firesteel.key-revoke/1"])
    assert gone["key"]["id"] == added["key"]["id"]


def test_budget_expiry_and_scope_are_listed(firesteel: Firesteel) -> None:
    firesteel(
        "serve", "key", "add", "team", "--budget", "5M/month", "--expires", "2999-12-31", "--model", "qwen*"
    )
    firesteel("serve", "key", "add", "prometheus", "--metrics")
    team, prometheus = firesteel("serve", "key", "list", "--json").json["keys"]
    assert (team["budget"], team["models"], team["scope"]) == ("5000000/month", ["qwen*"], "inference")
    assert team["expires"].startswith(("2999-12-31", "3000-01-01"))
    assert (prometheus["scope"], prometheus["budget"], prometheus["expires"]) == ("metrics", None, None)


def test_usage_of_a_home(firesteel: Firesteel, home: Path) -> None:
    assert "nothing was used" in firesteel("serve", "usage").out
    firesteel("serve", "key", "add", "team", "--budget", "1k/day")
    log = RequestLog(home / "requests.db")
    log.add(time.time(), "team", "coder", "chat", RequestOutcome("whole", 200, Usage(1200, 34, 5)))
    log.add(time.time(), "", "coder", "chat", RequestOutcome("left", 200, Usage(1, 1)))
    log.close()
    shown = firesteel("serve", "usage")
    assert shown.code == 0 and "days in " in shown.out and "1,200" in shown.out and "(no key)" in shown.out
    assert "team: 1,234 of 1,000 tokens this day, 234 over it" in shown.out
    document = firesteel("serve", "usage", "--by", "key", "--json").json
    jsonschema.validate(document, schemas()["firesteel.usage/1"])
    assert [(row["key"], row["day"], row["requests"]) for row in document["rows"]] == [
        ("", None, 1),
        ("team", None, 1),
    ]
    assert document["total"]["completion_tokens"] == 35
    assert firesteel("serve", "usage", "--by", "key,model", "--key", "team", "--csv").out == (
        "key,model,requests,prompt_tokens,completion_tokens,cached_tokens,reread_tokens\n"
        "team,coder,1,1200,34,5,0\n"
    )
    refused = firesteel("serve", "usage", "--since", "yesterday")
    assert refused.code == 2 and "is not a day" in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add",), "Missing argument"),
        (("add", "a/b"), "is not a valid name"),
        (("add", "a", "--rate", "often"), "is not a rate"),
        (("add", "a", "--priority", "1000"), "not in the range"),
        (("add", "a", "--model", "../x"), "neither the name of a model nor a pattern"),
        (("add", "a", "--budget", "much"), "is not a budget"),
        (("add", "a", "--expires", "2001-01-01"), "has passed already"),
        (("add", "a", "--expires", "soon"), "neither a time nor a day"),
        (("add", "a", "--admin", "--metrics"), "exclude each other"),
        (("add", "a", "--metrics", "--budget", "1k/day"), "takes no models and no limits"),
        (("revoke", "nobody"), "no key called"),
        (("lose",), "No such command"),
    ],
)
def test_refused(firesteel: Firesteel, home: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = firesteel("serve", "key", *arguments)
    assert ran.code == 2 and message in ran.err and ran.out == ""
    assert not (home / "keys.json").exists()


def test_without_a_subcommand_it_lists_them(firesteel: Firesteel) -> None:
    ran = firesteel("serve", "key")
    assert ran.code == 2 and all(word in ran.err for word in ("add", "list", "revoke"))


def test_a_name_can_be_used_once(firesteel: Firesteel, home: Path) -> None:
    first = firesteel("serve", "key", "add", "a").out.strip().encode()
    ran = firesteel("serve", "key", "add", "a")
    assert ran.code == 2 and "next: firesteel serve key revoke a" in ran.err and ran.out == ""
    ring = KeyRing.read(home / "keys.json")
    assert ring.authenticate(first) == Caller("a") and isinstance(ring.authenticate(b"fs-x"), Rejection)
