"""The embedded engine's command line: what it takes, and what it refuses by name, without the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from firesteel.edge.embedded.server import SWITCHES, TAKES_VALUE, UnsupportedFlag, main, settings


def params() -> Any:
    cpu = SimpleNamespace(n_threads=0)
    return SimpleNamespace(
        model=SimpleNamespace(path=""), cpuparams=cpu, cpuparams_batch=SimpleNamespace(n_threads=0), n_ctx=0
    )


def apply(*arguments: str) -> Any:
    target = params()
    for _, setter, value in settings(list(arguments)):
        setter(target, value)
    return target


def test_flags_reach_the_parameters() -> None:
    applied = apply("--model", "a.gguf", "--ctx-size=4096", "--threads", "3", "--metrics", "--no-jinja")
    assert applied.model.path == "a.gguf"
    assert applied.n_ctx == 4096
    assert applied.cpuparams.n_threads == applied.cpuparams_batch.n_threads == 3
    assert applied.endpoint_metrics is True and applied.use_jinja is False


def test_the_address_reaches_releases_that_take_one_and_those_that_take_several() -> None:
    """2026.9 has `hostname`, 2026.10 has `hostnames`; `upgrade` goes from one to the other."""
    for target, expected in (
        (SimpleNamespace(hostnames=[]), {"hostnames": ["127.0.0.1"]}),
        (SimpleNamespace(hostname=""), {"hostname": "127.0.0.1"}),
    ):
        TAKES_VALUE["host"](target, "127.0.0.1")
        assert vars(target) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tensor-split", "1"], "does not know `--tensor-split`"),
        (["model.gguf"], "does not know `model.gguf`"),
        (["--ctx-size"], "`--ctx-size` needs a value"),
        (["--metrics=yes"], "`--metrics` takes no value"),
    ],
)
def test_unknown_flags_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(UnsupportedFlag, match=message):
        settings(arguments)


def test_a_refusal_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_no_flag_is_both_a_switch_and_takes_a_value() -> None:
    assert not TAKES_VALUE.keys() & SWITCHES.keys()
