"""What a speculative config says beyond its single keys."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from firesteel.launch import FlagValue, Launch
from firesteel.rules.context import Context
from firesteel.rules.speculation import (
    drafts_through_flashinfer,
    method_is_unknown,
    schedule_is_malformed,
)


def context(flags: Mapping[str, FlagValue], version: str | None = "0.28.0") -> Context:
    return Context(Launch("m", "org/m", "vllm", version, flags=flags), "gb10", None)


@pytest.mark.parametrize(
    ("version", "method", "why"),
    [
        ("0.24.0", "dspark", "first in 0.25.0"),
        ("0.25.0", "dspark", None),
        ("0.19.1", "dflash", "first in 0.20.0"),
        ("0.28.0", "mtpp", "no release since 0.10.1 had it"),
        ("0.28.0", "mtp", None),
        ("0.28.0", "$METHOD", None),
        ("0.28.0", 3, None),
        ("0.24.7", "dspark", None),  # not a release that was read
        (None, "dspark", None),
    ],
)
def test_methods(version: str | None, method: object, why: str | None) -> None:
    found = method_is_unknown(context({"speculative-config": {"method": method}}, version))
    assert [match.value for match in found] == ([why] if why else [])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"attention-backend": "flashinfer"}, "--attention-backend flashinfer"),
        ({"attention-backend": "FLASH_ATTN"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_the_drafter_follows_the_model(
    flags: Mapping[str, FlagValue], expected: str | None, method: str
) -> None:
    found = drafts_through_flashinfer(context({**flags, "speculative-config": {"method": method}}))
    assert [match.shown for match in found] == ([expected] if expected else [])


def test_the_drafters_own_key_goes_first() -> None:
    own: FlagValue = {"method": "dflash", "attention_backend": "FLASH_ATTN"}
    assert not drafts_through_flashinfer(
        context({"attention-backend": "flashinfer", "speculative-config": own})
    )
    own = {"method": "dflash", "attention_backend": "FLASHINFER"}
    (match,) = drafts_through_flashinfer(
        context({"attention-backend": "triton_attn", "speculative-config": own})
    )
    assert match.key == "flag:speculative-config"


def test_shortcuts_say_the_same() -> None:
    flags: Mapping[str, FlagValue] = {"spec-method": "dflash", "attention-backend": "FLASHINFER"}
    assert drafts_through_flashinfer(context(flags))
    assert not drafts_through_flashinfer(context({**flags, "spec-method": "mtp"}))


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ([[1, 8, 3], [9, 32, 1]], None),
        ([[9, 32, 1], [1, 8, 3]], None),  # any order
        ([[1, 8, 3], [16, 32, 0]], None),  # a gap, and none at all
        ([[1, 1, 0]], None),
        ([], "it is empty"),
        (3, "it is not a list"),
        ({"1": 3}, "it is not a list"),
        ([[1, 8]], "an entry is not [first, last, tokens]"),
        ([5], "an entry is not [first, last, tokens]"),
        ([[0, 8, 3]], "[0, 8, 3] is not a range"),
        ([[8, 1, 3]], "[8, 1, 3] is not a range"),
        ([[1, 8, -1]], "[1, 8, -1] is not a range"),
        ([[2, 8, 3]], "the first range must begin at 1"),
        ([[1, 8, 3], [8, 16, 1]], "two ranges overlap"),
        ([[1, 8, 3], [1, 4, 1]], "two ranges overlap"),
        ("$SCHEDULE", None),
        ([["1", "8", "3"]], None),  # the engine may read these as numbers
        (None, None),
    ],
)
def test_schedule(schedule: object, why: str | None) -> None:
    """Held once against `validate_and_normalize_dynamic_sd_schedule` of 0.24.0 and 0.32.0."""
    config: FlagValue = {"method": "mtp", "num_speculative_tokens_per_batch_size": schedule}
    found = schedule_is_malformed(context({"speculative-config": config}))
    assert [match.value for match in found] == ([why] if why else [])


def test_no_config_no_schedule() -> None:
    assert not schedule_is_malformed(context({}))
    assert not schedule_is_malformed(context({"speculative-config": "$CONFIG"}))
