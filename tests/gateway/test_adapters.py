"""Adapters as models of the gateway: their names, and what the engine is sent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from firesteel.catalog.recipe import RecipeRequests
from firesteel.edge.home import Home
from firesteel.edge.host.process import port_is_free
from firesteel.gateway.endpoints import ModelEndpoints
from firesteel.gateway.loader.job import model_parameters, read
from firesteel.gateway.service_config import ModelConfig
from firesteel.launch import EngineName
from firesteel.service_file import read_service_file
from tests.made_adapters import write_gguf

FILE = (
    "models:\n  small: {recipe: smollm2, adapters: {polite: /p, curt: /c}, aliases: {fast: {fixed: {n: 1}}}}"
)


def served(engine: EngineName, asked: str) -> tuple[bytes | None, dict[str, bytes]]:
    """(the name, the fixed fields) that the engine gets."""
    entry = read_service_file("f", FILE).models["small"]
    config = ModelConfig(
        "small", "", ("http://h:1",), **model_parameters(entry, RecipeRequests(), ("polite", "curt"), engine)
    )
    models = ModelEndpoints(config, config.urls, None)
    endpoint = models.endpoints[0]
    if asked != "small":
        endpoint = models.by_another_name(endpoint, asked)
    rules = endpoint.parameters.of("chat") if endpoint.parameters else None
    return endpoint.served_name, dict(rules.fixed) if rules else {}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_vllm_and_sglang_are_asked_for_the_adapter_by_name(engine: EngineName) -> None:
    assert served(engine, "small") == (None, {})
    assert served(engine, "polite") == (b"polite", {})
    assert served(engine, "curt") == (b"curt", {})
    assert served(engine, "fast") == (b"small", {"n": b"1"})


def test_llama_cpp_is_told_in_every_request() -> None:
    none = b'[{"id":0,"scale":0.0},{"id":1,"scale":0.0}]'
    first, second = none.replace(b"0.0", b"1.0", 1), b'[{"id":0,"scale":0.0},{"id":1,"scale":1.0}]'
    assert served("llamacpp", "small") == (None, {"lora": none})
    assert served("llamacpp", "polite") == (b"small", {"lora": first})
    assert served("llamacpp", "curt") == (b"small", {"lora": second})
    assert served("llamacpp", "fast") == (b"small", {"lora": none, "n": b"1"})


def test_an_adapter_that_does_not_fit_is_told_in_the_files_own_words(
    quick_home: Home, tmp_path: Path
) -> None:
    wrong = write_gguf(tmp_path / "a.gguf", architecture="qwen2", layers=1)
    file = tmp_path / "firesteel.yaml"
    file.write_text(f"models:\n  small: {{recipe: smollm2, adapters: {{silly: {wrong}}}}}\n")
    (model,) = read(str(file), quick_home).models
    assert model.why_not is not None and "adapter `silly`" in model.why_not.what


@pytest.mark.slow
@pytest.mark.real
def test_every_api_serves_the_adapter_as_a_model(engine_home: Home, tmp_path: Path, free_port: int) -> None:
    """Through `serve`, on the real engine: chat, completions, Messages, Responses, Ollama's API."""
    adapter, file = write_gguf(tmp_path / "silly.gguf"), tmp_path / "firesteel.yaml"
    file.write_text(
        f"listen: 127.0.0.1:{free_port}\n"
        f"models:\n  small: {{recipe: smollm2, adapters: {{silly: {adapter}}}}}\n"
    )
    gateway = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "serve", "-f", str(file)],
        env={
            "PATH": "/usr/bin:/bin",
            "FIRESTEEL_HOME": str(engine_home.root),
            "PYTHONPATH": ":".join(sys.path),
        },
    )

    def asked(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{free_port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            document: dict[str, Any] = json.load(response)
        return document

    try:
        while port_is_free(free_port):
            assert gateway.poll() is None
            time.sleep(0.2)
        chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}

        def texts(model: str) -> list[str]:
            short = {"model": model, "max_tokens": 12}
            ollama = {"model": model, "stream": False, "options": {"temperature": 0, "num_predict": 12}}
            responses = {"model": model, "input": chat["messages"], "temperature": 0, "max_output_tokens": 12}
            return [
                asked("/v1/chat/completions", short | chat)["choices"][0]["message"]["content"],
                asked("/v1/messages", short | chat)["content"][0]["text"],
                asked("/v1/responses", responses)["output"][0]["content"][0]["text"],
                asked("/api/chat", ollama | {"messages": chat["messages"]})["message"]["content"],
            ]

        base, silly, again = texts("small"), texts("silly"), texts("small")
        assert len(set(base)) == 1 and len(set(silly)) == 1
        assert base == again and base != silly
    finally:
        gateway.terminate()
        gateway.wait(120)
