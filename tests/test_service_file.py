"""The service file: what is taken, and what is refused with its line."""

from __future__ import annotations

import pytest

from firesteel.errors import UsageError
from firesteel.service_file import asks, chosen, read_service_file
from firesteel.units import GIB

GOOD = """\
listen: 127.0.0.1:8080
memory: {ceiling: 110GiB}
models:
  coder: {recipe: qwen3-coder-next-fp8, context: 131072, pinned: true}
  small: {recipe: smollm2, ttl: 10m, port: 8001}
  third: {recipe: smollm2}
  other: {url: "http://127.0.0.1:9000", memory: 20GiB}
never_together: [[coder, small]]
"""


def test_the_shape_in_the_manual() -> None:
    file = read_service_file("firesteel.yaml", GOOD)
    assert file.memory.ceiling == 110 * GIB
    assert file.models["coder"].pinned and file.models["coder"].context == 131072
    assert file.models["small"].ttl == 600
    assert file.models["other"].memory == 20 * GIB


def test_every_model_of_ours_has_a_port_of_its_own() -> None:
    ports = {name: ask.port for name, ask in asks(read_service_file("f", GOOD)).items()}
    assert ports == {"coder": 8000, "small": 8001, "third": 8002}


def test_those_that_were_named_are_started() -> None:
    file = read_service_file("f", GOOD)
    assert list(chosen(file, ("third", "coder"))) == ["coder", "third"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((), "coder and small must not run together"),
        (("coder", "small"), "coder and small must not run together"),
        (("nobody",), "starts no `nobody`; it has coder, small, third"),
        (("other",), "starts no `other`"),
    ],
)
def test_what_cannot_be_started(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen(read_service_file("f", GOOD), names)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: {}", "models"),
        ("models:\n  a: {recipe: x, url: 'http://127.0.0.1:1'}", "f:2: .*one of them"),
        ("models:\n  a: {}", "f:2: .*needs `recipe` or `url`"),
        ("models:\n  a: {url: 'ftp://x'}", "not an http address"),
        ("models:\n  a: {url: 'http://127.0.0.1:1', context: 5}", "has no `context`"),
        ("models:\n  a: {recipe: x, ttl: 10}", "f:2: .*is not a time"),
        ("models:\n  a: {recipe: x, port: 70000}", "f:2"),
        ("models:\n  a: {recipe: x, colour: red}", "f:2: .*no such key"),
        ("models:\n  a/b: {recipe: x}", "f:2: `a/b` is no name"),
        ("models:\n  ../a: {recipe: x}", "f:2: .*is no name"),
        (
            "models:\n  a: {recipe: x, port: 1}\n  b:\n    recipe: x\n    port: 1",
            "f:5: .*the same port as `a`",
        ),
        ("models:\n  a: {recipe: x}\nnever_together: [[a, c]]", "f:3: .*`c` is not in `models`"),
        ("models:\n  a: {recipe: x}\nnever_together:\n  - [a]\n  - [a,\n     c]", "f:6: .*`c` is not in"),
        ("models:\n  a:\n    memory: 1GiB\n    url: 'ftp://x'", "f:4: .*not an http address"),
        ("models:\n  a:\n    url: 'http://[x'", "f:3: .*not an http address"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:99999'", "f:3: .*not an http address"),
        ("models:\n  a:\n    url: 'http://127.0.0.1:1'\n    users: 5", "f:4: .*has no `users`"),
        ("models:\n  a: {}\n  b: {}", "f:2: .*\nf:3: "),
        ("listen: everywhere:80\nmodels:\n  a: {recipe: x}", "f:1: .*write it like 127.0.0.1:8080"),
        ("listen: 0.0.0.0\nmodels:\n  a: {recipe: x}", "f:1: .*write it like"),
        ("memory: {ceiling: much}\nmodels:\n  a: {recipe: x}", "f:1: .*is not a size"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_service_file("f", text)
