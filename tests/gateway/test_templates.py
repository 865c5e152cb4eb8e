"""A real llama.cpp whose chat templates refuse what agents send, behind a real gateway, through three APIs.

The templates are written here, with the guards that those of Qwen, Mistral and Gemma have; the model is
SmolLM2, so that an answer says nothing but that the conversation was accepted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from tests.conftest import find_free_port, is_listening

pytestmark = pytest.mark.real

_BODY = """
{%- if tools %}{{ '<|im_start|>user\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- GUARD %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
TEMPLATES = {
    "one system message": """if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unexpected message role.') }}{% endif %}
        {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}{% endif""",
    "in turns": """if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}{% endif %}
        {%- if message.role == 'user' and not loop.first and loop.previtem.role == 'user' %}
        {{- raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif""",
    "no system message": """if message.role == 'system' %}
        {{- raise_exception('System role not supported') }}{% endif""",
}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}


def text(role: str, content: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]}


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": "Look at a."},
            {"role": "assistant", "content": "", "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            {"role": "system", "content": "The user changed a file."},
        ],
    },
    "/v1/messages": {
        "max_tokens": 1,
        "system": [{"type": "text", "text": "You are an agent."}],
        "tools": [{"name": "read", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "Look at a."},
            {"role": "system", "content": "Today is Monday."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
            {"role": "system", "content": "The user changed a file."},
        ],
    },
    "/v1/responses": {
        "max_output_tokens": 1,
        "instructions": "You are an agent.",
        "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
        "input": [
            text("developer", "Be short."),
            text("developer", "Today is Monday."),
            text("user", "Look at a."),
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"a"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
    },
}  # fmt: skip
"""As Claude Code and Codex send them: several system messages, one of them after a tool's result."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "one system message" else pytest.mark.slow)
        for name in TEMPLATES
    ],
)
def gateway(
    request: pytest.FixtureRequest, pulled: Home, built_engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    """The ports of the gateway and of the engine behind it."""
    folder = tmp_path_factory.mktemp("templates")
    template, file = folder / "template.jinja", folder / "models.yaml"
    template.write_text(_BODY.replace("GUARD", TEMPLATES[request.param]))
    (weights,), port, engine_port = pulled.weights.rglob("*.gguf"), find_free_port(), find_free_port()
    words = [str(built_engine / "bin" / "llama-server"), "--model", str(weights), "--port", str(engine_port)]
    words += ["--ctx-size", "4096", "--parallel", "1", "--jinja", "--chat-template-file", str(template)]
    url = f"http://127.0.0.1:{engine_port}"
    file.write_text(
        f"listen: 127.0.0.1:{port}\nmodels:\n  forwarded: {{url: {url}}}\n"
        f"  translated: {{url: {url}, speaks: chat}}\n"
    )
    env = {"PATH": "/usr/bin:/bin", "FIRESTEEL_HOME": str(folder / "home"), "PYTHONPATH": ":".join(sys.path)}
    serve = [sys.executable, "-m", "firesteel", "serve", "-f", str(file)]
    spin = {**os.environ, "GOMP_SPINCOUNT": "1000"}  # two threads wait for each other briefly, as with `up`
    with (
        (folder / "engine.log").open("w") as log,
        subprocess.Popen(words, stdout=log, stderr=log, env=spin) as engine,
    ):
        try:
            _await(engine, engine_port)
            with subprocess.Popen(serve, env=env) as process:
                try:
                    _await(process, port)
                    yield port, engine_port
                finally:
                    process.terminate()
        finally:
            engine.kill()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 120
    while not is_listening(port):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


def asked(port: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("model", ["forwarded", "translated"])
@pytest.mark.parametrize("path", REQUESTS)
def test_a_first_request_is_accepted(gateway: tuple[int, int], path: str, model: str) -> None:
    port, engine_port = gateway
    body = {"model": model, "temperature": 0, **REQUESTS[path]}
    status, said = asked(engine_port, path, body)
    assert status == 400, f"this template takes it as it is: {said}"
    for _ in range(2):  # the second goes out in the right shape at once
        status, said = asked(port, path, body)
        assert status == 200, said
