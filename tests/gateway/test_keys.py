"""Keys: hashed at rest, never open by accident, and no inference key is an admin."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.interfaces import Caller, Rejection
from firesteel.gateway.key_limits import KeyLimits, RateLimit, TokenBudget
from firesteel.gateway.keys import (
    KeyRing,
    add_key,
    check_admin,
    check_metrics,
    check_model_access,
    is_loopback,
    parse_expiry,
    read_keys,
    require_keys,
    revoke_key,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "keys.json"


def token_of(path: Path, name: str, **more: Any) -> bytes:
    return add_key(path, name, **more)[1].encode()


def test_a_key_says_who_it_is(path: Path) -> None:
    token = token_of(path, "laptop", models=("coder",), priority=7)
    assert KeyRing.read(path).authenticate(token) == Caller("laptop", False, frozenset({"coder"}), 7)


def test_the_token_is_not_in_the_file_and_only_the_owner_reads_it(path: Path) -> None:
    token = token_of(path, "laptop")
    assert token.startswith(b"fs-") and len(token) == 46, "256 random bits"
    text = path.read_bytes()
    assert token not in text and token[3:] not in text
    assert hashlib.sha256(token).hexdigest().encode() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir() if "lock" not in file.name] == ["keys.json"]


@pytest.mark.parametrize("token", [None, b"", b"fs-", b"fs-" + b"A" * 43, b"x" * 100_000, b"\xff\x00"])
def test_a_wrong_key_is_401(path: Path, token: bytes | None) -> None:
    token_of(path, "laptop")
    rejection = KeyRing.read(path).authenticate(token)
    assert isinstance(rejection, Rejection) and (rejection.status, rejection.kind) == (401, "invalid_api_key")


def test_every_change_of_a_token_is_another_token(path: Path) -> None:
    token = token_of(path, "laptop")
    ring = KeyRing.read(path)
    near = [token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :] for at in range(len(token))]
    near += [token[:-1], token + b"A", token + b"\0", token + b" " * 600, token.swapcase(), token[3:]]
    assert not any(isinstance(ring.authenticate(each), Caller) for each in near)
    assert isinstance(ring.authenticate(token), Caller)


def test_without_keys_this_machine_may_do_all(path: Path) -> None:
    ring = KeyRing.read(path)
    assert ring.authenticate(None) == Caller(is_admin=True) and ring.authenticate(b"whatever") == Caller(
        is_admin=True
    )


@pytest.mark.parametrize(
    ("listen", "is_ours"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("127.9.9.9:1", True),
        ("[::1]:8080", True),
        ("::1", True),
        ("localhost:8080", True),
        ("/run/x.sock", True),
        ("0.0.0.0:8080", False),
        ("[::]:8080", False),
        ("::", False),
        ("192.168.1.2:80", False),
        ("spark.local:80", False),
        ("localhost.example.org:80", False),
        ("127.0.0.1.example.org:80", False),
        ("", False),
    ],
)
def test_beyond_loopback_only_with_keys(path: Path, listen: str, is_ours: bool) -> None:
    assert is_loopback(listen) == is_ours
    if not is_ours:
        with pytest.raises(FiresteelError, match="no keys") as rejected:
            require_keys(listen, KeyRing.read(path))
        assert rejected.value.next == "firesteel serve key add NAME"
    else:
        require_keys(listen, KeyRing.read(path))
    token_of(path, "laptop")
    require_keys(listen, KeyRing.read(path))


def test_an_inference_key_never_opens_admin(path: Path) -> None:
    plain, admin = token_of(path, "plain"), token_of(path, "boss", scope="admin")
    ring = KeyRing.read(path)
    low, high = ring.authenticate(plain), ring.authenticate(admin)
    assert isinstance(low, Caller) and isinstance(high, Caller)
    rejection = check_admin(low)
    assert rejection is not None and (rejection.status, rejection.kind) == (403, "permission_denied")
    assert check_admin(high) is None


def test_a_model_that_is_not_for_the_key_is_not_there(path: Path) -> None:
    who = Caller("a", models=frozenset({"small"}))
    assert check_model_access(who, "small") is None and check_model_access(Caller(), "anything") is None
    forbidden, unknown = check_model_access(who, "coder"), check_model_access(who, "no-such")
    assert forbidden is not None and unknown is not None
    assert (forbidden.status, forbidden.kind) == (unknown.status, unknown.kind) == (404, "unknown_model")
    assert forbidden.why.replace("coder", "no-such") == unknown.why


def test_a_change_is_seen_while_it_runs(path: Path) -> None:
    ring = KeyRing.read(path)
    assert ring.refresh() is None and ring.is_open
    token = token_of(path, "laptop")
    assert ring.refresh() == "added laptop"
    assert ring.authenticate(token) == Caller("laptop") and isinstance(ring.authenticate(None), Rejection)
    assert ring.refresh() is None, "once for a change"
    revoke_key(path, "laptop")
    assert ring.refresh() == "revoked laptop"
    assert isinstance(ring.authenticate(token), Rejection)


@pytest.mark.parametrize("how", ["revoked", "removed", "emptied"])
def test_a_gateway_that_has_seen_keys_never_opens(path: Path, how: str) -> None:
    token_of(path, "laptop")
    ring = KeyRing.read(path)
    if how == "revoked":
        revoke_key(path, "laptop")
    elif how == "removed":
        path.unlink()
    else:
        path.write_text("")
    assert ring.refresh() is not None
    assert isinstance(ring.authenticate(None), Rejection) and not ring.is_open


DAMAGE = [
    "",
    "[]",
    "{}",
    '{"document": "firesteel.keys/2", "keys": []}',
    '{"document": "firesteel.keys/1"}',
    '{"document": "firesteel.keys/1", "keys": {}}',
    '{"document": "firesteel.keys/1", "keys": [{}]}',
    '{"document": "firesteel.keys/1", "keys": ["a"]}',
    '{"document": "firesteel.keys/1", "keys": [{"name": "a", "sha256": "ab", "scope": "admin"}]}',
    "[" * 100_000,
    '"' + "a" * 2_000_000 + '"',
]


def row(**changed: object) -> str:
    good = {"name": "a", "sha256": "0" * 64, "scope": "inference", **changed}
    return json.dumps({"document": "firesteel.keys/1", "keys": [good]})


DAMAGE += [
    row(scope="root"),
    row(name="a\nb"),
    row(name=["a"]),
    row(models=["../x"]),
    row(models="coder"),
    row(priority="9"),
    row(priority=True),
    row(requests="many"),
    row(budget="many"),
    row(budget=5),
    row(budget="0/day"),
    row(expires="soon"),
    row(expires="2026-11-16T00:00:00"),
    row(expires=12),
    row(models=["a,b"]),
    row(models=["m"] * 101),
    row(sha256="0" * 63 + "g"),
    json.dumps({"document": "firesteel.keys/1", "keys": [json.loads(row())["keys"][0]] * 2}),
    json.dumps({"document": "firesteel.keys/1", "keys": [json.loads(row(name=n))["keys"][0] for n in "ab"]}),
]


@pytest.mark.parametrize("text", DAMAGE, ids=range(len(DAMAGE)))
def test_a_file_that_is_no_list_of_keys_is_an_error_and_admits_nobody(path: Path, text: str) -> None:
    token = token_of(path, "laptop")
    ring = KeyRing.read(path)
    path.write_text(text)
    with pytest.raises(FiresteelError, match="is not a valid list of keys"):
        KeyRing.read(path)
    said = ring.refresh()
    assert said is not None and said.endswith("the keys are unchanged")
    assert ring.authenticate(token) == Caller("laptop") and isinstance(ring.authenticate(b"fs-no"), Rejection)
    with pytest.raises(FiresteelError):
        add_key(path, "other")
    assert path.read_text() == text, "nothing is written over it"


def test_the_good_row_is_good() -> None:
    """What the damage above is damage of."""
    assert json.loads(row())["keys"][0].keys() == {"name", "sha256", "scope"}


def test_a_row_with_only_what_must_be(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(row())
    path.chmod(0o600)
    assert read_keys(path)["a"].caller(()) == Caller("a")


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_a_file_that_others_may_write_is_rejected(path: Path, mode: int) -> None:
    token_of(path, "laptop")
    path.chmod(mode)
    with pytest.raises(FiresteelError, match="other users can write") as rejected:
        KeyRing.read(path)
    assert rejected.value.next.startswith("chmod 600 ")


def test_limits_come_back(path: Path) -> None:
    limits = KeyLimits(RateLimit(60, 60), RateLimit(5, 1))
    add_key(path, "a", limits=limits)
    add_key(path, "b")
    assert KeyRing.read(path).limits() == {"a": limits, "b": KeyLimits()}


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "-a", ".a", "a" * 64, "ä", "a\n", "a\r\nX-Firesteel-Admin: 1"]
)
def test_names_that_are_none(path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name"):
        add_key(path, name)
    assert not path.exists()


@pytest.mark.parametrize("model", ["", "a b", "-a", "a" * 201, "\u00e4", "a\n", "a,b", "[a-z]", "a\r\nX: 1"])
def test_models_that_are_none(path: Path, model: str) -> None:
    with pytest.raises(UsageError, match="neither the name of a model nor a pattern"):
        add_key(path, "good", models=(model,))
    assert not path.exists()


NAMES = ("qwen3-30b", "qwen3-coder", "coder", "coder-fast", "gpt-oss:20b")


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        (("qwen*",), {"qwen3-30b", "qwen3-coder"}),
        (("*coder*",), {"qwen3-coder", "coder", "coder-fast"}),
        (("coder-fast",), {"coder-fast"}),
        (("*",), set(NAMES)),
        (("gpt-oss:?0b", "none"), {"gpt-oss:20b", "none"}),
        (("QWEN*",), set()),
    ],
)
def test_models_by_pattern(path: Path, models: tuple[str, ...], allowed: set[str]) -> None:
    token = token_of(path, "laptop", models=models)
    ring = KeyRing.read(path)
    ring.use_models(NAMES)
    caller = ring.authenticate(token)
    assert isinstance(caller, Caller) and caller.models == frozenset(allowed)
    ring.use_models((*NAMES, "qwen-new"))
    caller = ring.authenticate(token)
    assert isinstance(caller, Caller) and ("qwen-new" in (caller.models or ())) == any(
        each in ("qwen*", "*") for each in models
    )


def test_the_name_of_a_model_covers_its_aliases_and_an_alias_only_itself() -> None:
    by_name, by_alias = Caller("a", models=frozenset({"coder"})), Caller("b", models=frozenset({"fast"}))
    assert check_model_access(by_name, "fast", "coder") is None
    assert check_model_access(by_alias, "fast", "coder") is None
    refused = check_model_access(by_alias, "coder", "coder")
    assert refused is not None and refused.status == 404
    refused = check_model_access(by_alias, "slow", "coder")
    assert refused is not None and "coder" not in refused.why, "what it is an alias of is not told"


def test_a_key_expires_while_the_gateway_runs(path: Path) -> None:
    now = 1_800_000_000.0
    token = token_of(path, "guest", expires=parse_expiry("12h", now))
    forever = token_of(path, "me")
    ring = KeyRing(path, read_keys(path), None, lambda: now)
    assert isinstance(ring.authenticate(token), Caller)
    now += 12 * 3600 - 1
    ring.refresh()
    assert isinstance(ring.authenticate(token), Caller)
    now += 1
    ring.refresh()
    refused = ring.authenticate(token)
    assert isinstance(refused, Rejection) and refused.status == 401
    assert "`guest` has expired" in refused.why and "firesteel serve key add" in refused.why
    assert isinstance(ring.authenticate(forever), Caller) and not ring.is_open


def test_a_key_that_has_expired_never_opens_the_gateway(path: Path) -> None:
    token = token_of(path, "guest", expires=datetime(2020, 1, 1, tzinfo=UTC))
    ring = KeyRing.read(path)
    assert not ring.is_open and isinstance(ring.authenticate(token), Rejection)
    assert isinstance(ring.authenticate(None), Rejection)


def test_an_expiry_is_a_time_from_now_or_the_end_of_a_day() -> None:
    now = datetime(2026, 11, 16, 12).timestamp()
    assert parse_expiry("30d", now).timestamp() == now + 30 * 86_400
    assert parse_expiry("2026-11-16", now).timestamp() == datetime(2026, 11, 17).timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "soon", "0d", "-1d", "1y", "2026-11-15", "1970-01-01", "9999-12-31", "2026-02-30"],
)
def test_what_is_no_expiry(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_expiry(text, datetime(2026, 11, 16, 12).timestamp())
    assert "--expires" in refused.value.next


def test_a_key_for_metrics_reads_metrics_and_nothing_else(path: Path) -> None:
    token = token_of(path, "prometheus", scope="metrics")
    caller = KeyRing.read(path).authenticate(token)
    assert isinstance(caller, Caller) and not caller.is_admin and caller.models == frozenset()
    assert check_metrics(caller) is None and check_admin(caller) is not None
    refused = check_model_access(caller, "coder", "coder")
    assert refused is not None and refused.status == 403 and "/metrics only" in refused.why
    token = token_of(path, "laptop")
    inference = KeyRing.read(path).authenticate(token)
    assert isinstance(inference, Caller)
    refused = check_metrics(inference)
    assert refused is not None and "--metrics" in refused.why
    with pytest.raises(UsageError, match="takes no models and no limits"):
        add_key(path, "both", scope="metrics", models=("coder",))


def test_everything_about_a_key_survives_its_file(path: Path) -> None:
    limits = KeyLimits(RateLimit(60, 60), RateLimit(1000, 3600), TokenBudget(5_000_000, "month"))
    expires = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    key, _ = add_key(path, "a", models=("qwen*",), limits=limits, priority=3, expires=expires)
    assert read_keys(path) == {"a": key} and key.expires_s == expires.timestamp()


def test_one_name_once(path: Path) -> None:
    add_key(path, "a")
    with pytest.raises(UsageError, match="already") as rejected:
        add_key(path, "a")
    assert rejected.value.next == "firesteel serve key revoke a"
    with pytest.raises(UsageError, match="known keys: a"):
        revoke_key(path, "b")


def test_many_at_once_all_get_theirs(path: Path) -> None:
    """Threads and processes: each addition reads, changes and writes under one lock."""
    code = "import sys; from pathlib import Path; from firesteel.gateway.keys import add_key\n"
    code += "for n in range(5): add_key(Path(sys.argv[1]), f'p{sys.argv[2]}-{n}')"
    others = [subprocess.Popen([sys.executable, "-c", code, str(path), str(at)]) for at in range(2)]
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(lambda at: token_of(path, f"t{at}"), range(12)))
    assert [other.wait(60) for other in others] == [0, 0]
    ring = KeyRing.read(path)
    assert len(ring.keys) == 22
    assert {ring.authenticate(token) for token in tokens} == {Caller(f"t{at}") for at in range(12)}


def test_an_older_time_is_a_change_too(path: Path) -> None:
    """A backup that is put back has an old time, and another inode."""
    token = token_of(path, "old")
    kept = path.read_text()
    revoke_key(path, "old")
    ring = KeyRing.read(path)
    path.write_text(kept)
    os.utime(path, (1, 1))
    assert ring.refresh() is not None and ring.authenticate(token) == Caller("old")


@given(st.binary(max_size=600))
def test_no_bytes_are_a_key(token: bytes) -> None:
    ring = KeyRing(Path("nowhere"), {}, None)
    assert isinstance(ring.authenticate(token), Caller), "open"
    ring._has_had_keys = True
    assert isinstance(ring.authenticate(token), Rejection), "shut"


def test_a_new_key_works_at_once(path: Path) -> None:
    """No `refresh` is called here: the gateway's own comes once a second."""
    first = token_of(path, "first")
    ring = KeyRing.read(path)
    heard: list[str] = []
    ring.on_change = heard.append
    second = token_of(path, "second")
    assert ring.authenticate(second) == Caller("second")
    assert ring.authenticate(first) == Caller("first") and heard == ["added second"]
    assert ring.refresh() is None


def test_the_first_key_closes_an_open_gateway_at_once(path: Path) -> None:
    ring = KeyRing.read(path)
    ring._looked_s = -1e9
    assert isinstance(ring.authenticate(None), Caller)
    token = token_of(path, "first")
    ring._looked_s = -1e9  # a look is due
    assert isinstance(ring.authenticate(None), Rejection), "without a key"
    assert isinstance(ring.authenticate(b"fs-wrong"), Rejection)
    assert ring.authenticate(token) == Caller("first")


def test_a_flood_of_wrong_keys_does_not_look_at_the_file_each_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_of(path, "first")
    ring, looks, now = KeyRing.read(path), 0, 100.0

    def refresh() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(ring, "refresh", refresh)
    monkeypatch.setattr("firesteel.gateway.keys.time.monotonic", lambda: now)
    for number in range(10_000):
        now = 100 + number / 10_000  # all within a second
        assert isinstance(ring.authenticate(b"fs-%d" % number), Rejection)
    assert looks <= 101


def test_a_key_with_a_limit_of_tokens_is_kept_from_what_nobody_counts(path: Path) -> None:
    token_of(path, "free", limits=KeyLimits(requests=RateLimit(60, 60)))
    token_of(path, "rated", limits=KeyLimits(tokens=RateLimit(5, 1)))
    token_of(path, "budgeted", limits=KeyLimits(budget=TokenBudget(5, "day")))
    ring = KeyRing.read(path)
    refused = {name: ring.check_uncounted(Caller(name)) for name in ("", "free", "rated", "budgeted")}
    assert [name for name, rejection in refused.items() if rejection] == ["rated", "budgeted"]
    assert ring.check_uncounted(Caller("m", is_for_metrics=True))
