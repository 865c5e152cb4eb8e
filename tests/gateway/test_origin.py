"""Pages of others: what a browser would send for them is refused, what a program sends is not."""

from __future__ import annotations

import pytest

from firesteel.gateway.origin import is_plain_host, reject_foreign_page


@pytest.mark.parametrize(
    ("host", "is_plain"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("192.168.1.9:80", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("localhost.:8080", True),
        ("app.localhost:8080", True),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("evil.example#localhost", False),
        ("evil.example/localhost", False),
        ("[::1].evil.example", False),
        ("notlocalhost", False),
        ("[::1", False),
        ("localhost:999999", False),
        ("::1", False),
        ("", False),
    ],
)
def test_names_that_cannot_be_rebound(host: str, is_plain: bool) -> None:
    assert is_plain_host(host) == is_plain
    for method in ("GET", "POST"):
        refusal = reject_foreign_page(method, host, None, None, has_keys=False)
        assert (refusal is None) == is_plain
        assert reject_foreign_page(method, host, None, None, has_keys=True) is None


@pytest.mark.parametrize(
    ("origin", "host", "is_ours"),
    [
        (None, "127.0.0.1:8080", True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("http://localhost:8080", "LOCALHOST:8080", True),
        ("http://spark", "spark", True),
        ("http://spark:80", "spark", True),
        ("https://spark", "spark:443", True),
        ("https://spark", "spark", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8080", False),
        ("http://localhost:8080", "127.0.0.1:8080", False),
        ("http://evil.example", "127.0.0.1:8080", False),
        ("http://spark:81", "spark", False),
        ("https://spark", "spark:80", False),
        ("null", "127.0.0.1:8080", False),
        ("", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080@evil.example", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080/x", "127.0.0.1:8080", False),
        ("file://", "127.0.0.1:8080", False),
        ("chrome-extension://abc", "abc", False),
        ("http://[", "127.0.0.1", False),
    ],
)
def test_only_a_page_of_our_own_changes_anything(origin: str | None, host: str, is_ours: bool) -> None:
    for has_keys in (True, False) if is_plain_host(host) else (True,):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            refusal = reject_foreign_page(method, host, origin, None, has_keys=has_keys)
            assert (refusal is None) == is_ours
        assert reject_foreign_page("GET", host, origin, None, has_keys=has_keys) is None


def test_a_browser_that_says_cross_site_is_believed() -> None:
    refusal = reject_foreign_page("POST", "127.0.0.1", None, "cross-site", has_keys=True)
    assert refusal is not None and (refusal.status, refusal.kind) == (403, "origin_not_allowed")
    assert reject_foreign_page("POST", "127.0.0.1", None, "same-origin", has_keys=True) is None
