from __future__ import annotations

import pytest

from firesteel.launch import Container, FlagValue, Launch
from firesteel.rules.predicates import drafts_overflow_batch, published_everywhere
from firesteel.rules.scene import Scene


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        (("8000:8000",), True),
        (("0.0.0.0:8000:8000",), True),
        (("[::]:8000:8000",), True),
        (("127.0.0.1:8000:8000",), False),
        (("[::1]:8000:8000",), False),
        (("8000",), False),  # a random port; who publishes so does not serve on it
        ((), False),
    ],
)
def test_published_everywhere(publish: tuple[str, ...], expected: bool) -> None:
    launch = Launch("m", "m", "vllm", container=Container("i", publish=publish))
    assert bool(published_everywhere(Scene(launch, None, None))) is expected


@pytest.mark.parametrize(
    ("tokens", "users", "batch", "expected"),
    [
        (15, "256", "2048", True),
        (8, "256", "2048", False),
        (3, "4", "8192", False),
        ("many", "4", "1", False),
        (3, None, "1", False),
    ],
)
def test_drafts_overflow_batch(tokens: object, users: str | None, batch: str, expected: bool) -> None:
    flags: dict[str, FlagValue] = {
        "speculative-config": {"num_speculative_tokens": tokens},
        "max-num-batched-tokens": batch,
    }
    if users:
        flags["max-num-seqs"] = users
    launch = Launch("m", "m", "vllm", flags=flags)
    assert bool(drafts_overflow_batch(Scene(launch, None, None))) is expected
