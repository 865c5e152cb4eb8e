"""The embedded engine's command line: what it takes, and what it refuses by name. LoRA on the real engine: an
adapter answers as itself, and the base model stays what it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.edge.programs import wheels
from firesteel.edge.programs.embedded_server import SWITCHES, TAKES_VALUE, UnsupportedFlag, main, settings
from firesteel.engines.engine import adapter_request
from tests.made_adapters import write_gguf

pytestmark = pytest.mark.real


@contextmanager
def engine(home: Home, port: int, *flags: str) -> Iterator[str]:
    (python,) = home.engines.glob("*/bin/python")
    (weights,) = home.weights.glob("*/*.gguf")
    words = [
        "--model",
        str(weights),
        "--port",
        str(port),
        "--ctx-size",
        "1024",
        "--parallel",
        "2",
        "--threads",
        "1",
    ]
    child = subprocess.Popen(
        [python, "-I", wheels.SERVER, *words, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "GOMP_SPINCOUNT": "1000"},
    )
    try:
        assert child.stdout and "serving on" in child.stdout.readline()
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        child.kill()
        child.communicate()


def answer(url: str, extra: Mapping[str, Any]) -> str:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"messages": [question], "temperature": 0, "max_tokens": 12, **extra}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
    return text


def test_it_answers_to_a_name_that_it_was_not_given(pulled: Home, free_port: int) -> None:
    """So a variant behind a Service of Kubernetes needs no second name (`render.kubernetes.served_as`)."""
    with engine(pulled, free_port, "--alias", "own") as url:
        assert answer(url, {"model": "shared"}) == answer(url, {"model": "own"})


def test_adapters_answer_as_themselves_and_the_base_as_without(
    pulled: Home, tmp_path: Path, free_port: int
) -> None:
    with engine(pulled, free_port) as url:
        alone = answer(url, {})
    files = [write_gguf(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2)]
    scaled = ",".join(f"{file}:0" for file in files)
    with engine(pulled, free_port, "--lora-scaled", scaled) as url:
        base, first, second = (answer(url, adapter_request(2, index)) for index in (None, 0, 1))
        # In this order each finds a prompt in the cache that another one has read.
        again = [answer(url, adapter_request(2, index)) for index in (None, 0, 1)]
    assert base == alone
    assert len({base, first, second}) == 3
    assert again == [base, first, second]


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
