"""LoRA on the real embedded engine: an adapter answers as itself, and the base model stays what it is."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.embedded import install
from firesteel.edge.files.home import Home
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
        [python, "-I", install.SERVER, *words, *flags],
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
