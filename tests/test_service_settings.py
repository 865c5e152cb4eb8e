"""`cors:` of the service file, and which pages it allows."""

from __future__ import annotations

import pytest

from firesteel.errors import InvalidFile
from firesteel.service_file import read_service_file
from firesteel.service_settings import is_allowed, parse_origins


@pytest.mark.parametrize(
    ("value", "origins"),
    [
        (None, ()),
        (False, ()),
        ("off", ()),
        ([], ()),
        ("loopback", ("loopback",)),
        ("*", ("any",)),
        ("any", ("any",)),
        ("https://Chat.Example.org/", ("https://chat.example.org",)),
        (["app://obsidian.md", "loopback"], ("app://obsidian.md", "loopback")),
        (["http://[::1]:3000"], ("http://[::1]:3000",)),
    ],
)
def test_what_the_file_may_say(value: object, origins: tuple[str, ...]) -> None:
    assert parse_origins(value) == origins


@pytest.mark.parametrize(
    "value",
    [True, 5, {}, {"a": "b"}, [5], [None], ["null"], "localhost", "https://a.example/path", "https://a.example?b",
     "https://user@a.example", "https://a.example:port", "https://*.example", ["https://a.example"] * 101,
     "https://a.example\r\nX: y"],
)  # fmt: skip
def test_what_is_no_origin_is_refused_with_what_to_write(value: object) -> None:
    with pytest.raises(ValueError, match="write it like `loopback`"):
        parse_origins(value)


@pytest.mark.parametrize(
    ("origin", "origins", "expected"),
    [
        ("http://localhost:3000", ("loopback",), True),
        ("https://localhost", ("loopback",), True),
        ("http://127.0.0.1:8080", ("loopback",), True),
        ("http://127.9.9.9", ("loopback",), True),
        ("http://[::1]:1", ("loopback",), True),
        ("http://app.localhost:1", ("loopback",), True),
        ("http://192.168.1.2", ("loopback",), False),
        ("http://localhost.evil.example", ("loopback",), False),
        ("http://notlocalhost", ("loopback",), False),
        ("app://localhost", ("loopback",), False),
        ("null", ("loopback",), False),
        ("null", ("any",), False),
        ("http://a.example\r\nx", ("any",), False),
        ("https://a.example", ("any",), True),
        ("https://a.example", ("https://a.example",), True),
        ("https://a.example:8443", ("https://a.example",), False),
        ("http://a.example", ("https://a.example",), False),
        ("https://a.example", (), False),
    ],
)
def test_which_pages_are_allowed(origin: str, origins: tuple[str, ...], expected: bool) -> None:
    assert is_allowed(origin, origins) is expected


def test_the_service_file_has_it() -> None:
    file = read_service_file("f", "models: {a: smollm2}\ncors: off\n")
    assert file.cors == ()
    assert read_service_file("f", "models: {a: smollm2}\ncors: [loopback]\n").cors == ("loopback",)
    with pytest.raises(InvalidFile, match=r"f:2: .*not an origin.*write it like"):
        read_service_file("f", "models: {a: smollm2}\ncors: [http://a/b]\n")
