"""A gateway as Ollama's clients see it: what it lists, what a key may see, a model that loads and goes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import ollama
import pytest

from firesteel.edge.home import Home
from firesteel.gateway.admin.ollama import model_document, running_rows, tag_rows
from firesteel.gateway.interfaces import AdminRejected
from firesteel.gateway.keys import add_key, keys_path
from firesteel.gateway.service_config import ModelConfig, ServiceConfig
from firesteel.gateway.state import ModelStatus
from tests.gateway.page.conftest import free_ports, start_gateway


def model(name: str, **more: object) -> ModelStatus:
    usual: dict[str, Any] = {
        "phase": "ready",
        "since": 1_000_000_000.0,
        "context": 4096,
        "engine": "vllm",
        "planned_bytes": 7,
    }
    return ModelStatus(name, **usual | more)


def test_lists() -> None:
    models = [model("a", aliases=("a:20b",), ttl_s=60.0, measured_bytes=9), model("b", phase="off")]
    tags = ollama.ListResponse.model_validate({"models": tag_rows(models)})
    assert [each.model for each in tags.models] == ["a", "a:20b", "b"]
    assert [each.size for each in tags.models] == [9, 9, 7]
    (running,) = ollama.ProcessResponse.model_validate({"models": running_rows(models)}).models
    assert running.name == "a" and running.context_length == 4096
    assert running.expires_at and running.expires_at.timestamp() == 1_000_000_060.0
    assert running_rows([model("c")])[0]["expires_at"].startswith("2318")


def test_a_model() -> None:
    shown = ollama.ShowResponse.model_validate(model_document([model("a", aliases=("x:1",))], "x:1"))
    assert shown.modelinfo and shown.modelinfo["vllm.context_length"] == 4096
    assert shown.parameters == "num_ctx 4096", "Continue takes the length of its prompts from here"
    assert ".Suffix" not in (shown.template or ""), "by which Continue knows whether it may send `suffix`"
    assert shown.capabilities == ["completion", "tools"]
    assert model_document([model("a")], "a:latest")
    with pytest.raises(AdminRejected) as refused:
        model_document([model("a")], "b")
    assert refused.value.rejection.status == 404


def test_latest_is_every_models_tag() -> None:
    config = ServiceConfig(
        "f", "", 0, 0, (ModelConfig("a", "", (), aliases=("b:latest",)), ModelConfig("b", "", ()))
    )
    assert config.aliased == {"a:latest": "a", "b:latest": "a"}


@pytest.mark.real
def test_a_client_loads_uses_and_unloads_a_model(quick_home: Home, tmp_path: Path) -> None:
    free_port, engine_port = free_ports(2)
    url, file = f"http://127.0.0.1:{free_port}", tmp_path / "service.yaml"
    file.write_text(
        f"listen: 127.0.0.1:{free_port}\nmodels:\n"
        f"  one: {{recipe: smollm2, context: 2048, port: {engine_port}}}\n"
        "  two: {url: 'http://127.0.0.1:9'}\n"
    )
    _, key = add_key(keys_path(quick_home), "laptop", models=("one",))
    gateway = start_gateway(file, quick_home.root, url)
    client = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=400)
    stranger = ollama.Client(host=url, headers={"Authorization": "Bearer fs-wrong"}, timeout=60)
    try:
        assert [each.model for each in client.list().models] == ["one"]
        assert client.ps().models == []
        assert client.show("one").modelinfo == {
            "general.architecture": "llamacpp",
            "general.basename": "one",
            "llamacpp.context_length": 2048,
        }
        refusals = (
            (stranger.list, 401),
            (lambda: client.show("two"), 404),
            (lambda: client.pull("x"), 501),
            (lambda: client.chat("two"), 404),
        )
        for refused, status in refusals:
            with pytest.raises(ollama.ResponseError) as error:
                refused()
            assert error.value.status_code == status
        response = client._client.get("/api/state")
        assert response.status_code == 403, "an inference key does not open the admin API"
        assert json.loads(client._client.get("/api/version").text)["version"]
        parts = list(
            client.chat("one:latest", [{"role": "user", "content": "hi"}], stream=True, keep_alive="1h")
        )
        assert (
            parts[-1].done and parts[-1].eval_count and "".join(each.message.content or "" for each in parts)
        )
        (running,) = client.ps().models
        assert running.expires_at and running.expires_at.timestamp() < time.time() + 7200
        assert client.generate("one", keep_alive=0).done_reason == "unload"
        deadline = time.monotonic() + 120
        while client.ps().models:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        client._client.close()
        stranger._client.close()
        gateway.terminate()
        gateway.wait(timeout=90)
