"""The embedded engine's command line: what it takes, and what it refuses by name, without the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from firesteel.edge.embedded.server import BARE, TAKES_VALUE, UnsupportedFlag, main, settings


def params() -> Any:
    cpu = SimpleNamespace(n_threads=0)
    return SimpleNamespace(
        model=SimpleNamespace(path=""), cpuparams=cpu, cpuparams_batch=SimpleNamespace(n_threads=0), n_ctx=0
    )


def apply(*words: str) -> Any:
    target = params()
    for _, put, value in settings(list(words)):
        put(target, value)
    return target


def test_words_reach_the_parameters() -> None:
    set_up = apply("--model", "a.gguf", "--ctx-size=4096", "--threads", "3", "--metrics", "--no-jinja")
    assert set_up.model.path == "a.gguf"
    assert set_up.n_ctx == 4096
    assert set_up.cpuparams.n_threads == set_up.cpuparams_batch.n_threads == 3
    assert set_up.endpoint_metrics is True and set_up.use_jinja is False


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tensor-split", "1"], "does not know `--tensor-split`"),
        (["model.gguf"], "does not know `model.gguf`"),
        (["--ctx-size"], "`--ctx-size` needs a value"),
        (["--metrics=yes"], "`--metrics` takes no value"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(words: list[str], says: str) -> None:
    with pytest.raises(UnsupportedFlag, match=says):
        settings(words)


def test_a_refusal_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_no_flag_is_both_bare_and_valued() -> None:
    assert not TAKES_VALUE.keys() & BARE.keys()
