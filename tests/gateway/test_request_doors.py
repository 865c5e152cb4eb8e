"""What a recipe knows of requests reaches the engine by every way in: flags, the gateway, clients' files.

Launch flags are read back in `tests/catalog/test_recipe.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.gateway.loader.job import model_parameters
from firesteel.gateway.service_config import ModelConfig
from firesteel.render.client_config import render_settings
from firesteel.render.clients import ClientEndpoint, client_names, load_client, settings
from firesteel.service_file import ModelEntry
from tests.gateway.test_charging import running
from tests.gateway.test_loader_job import Recorder, send

ASKED = {name: recipe.requests for name, recipe in shipped().recipes.items() if recipe.requests.body}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


async def test_a_request_through_the_gateway_arrives_with_them(tmp_path: Path) -> None:
    """Chat, chat with tools, Messages and Ollama's API; what a request says itself goes first."""
    engine = Recorder()
    models = [
        ModelConfig(
            name, name, (), is_outside=True, model=name, speaks=("chat",),
            parameters=model_parameters(ModelEntry(recipe=name), requests)["parameters"],
        )
        for name, requests in ASKED.items()
    ]  # fmt: skip
    async with running(tmp_path, 1, *models, script=engine) as it:
        for name in ASKED:
            asked = {"model": name, **MESSAGES}
            assert (await send(it, asked)).status == 200
            assert (await send(it, {**asked, "tools": [TOOL]})).status == 200
            assert (await send(it, {**asked, "temperature": 0.123})).status == 200
            assert (await send(it, {**asked, "max_tokens": 9}, path=b"/v1/messages")).status == 200
            assert (await send(it, {**asked, "stream": False}, path=b"/api/chat")).status == 200
    for at, requests in enumerate(ASKED.values()):
        chat, tools, own, messages, ollama = engine.bodies[5 * at : 5 * at + 5]
        assert requests.body.items() <= chat.items()
        assert requests.tool_body.items() <= tools.items()
        assert (requests.body | {"temperature": 0.123}).items() <= own.items()
        assert requests.body.items() <= messages.items()
        assert requests.body.items() <= ollama.items()


@pytest.mark.parametrize("client", client_names())
def test_a_clients_file_has_them_or_says_which_it_cannot_have(client: str) -> None:
    for requests in ASKED.values():
        made = settings(client, ClientEndpoint("http://127.0.0.1:8000/v1", "m", 4096, requests=requests.body))
        text = render_settings(made, load_client(client).format) + " ".join(made.notes)
        effort = requests.body.get("reasoning_effort")
        for setting in requests.body:
            if setting == "reasoning_effort" and f'_EFFORT_LEVEL": "{effort}"' in text:
                continue  # the client's own word for it
            camel = "".join(part.title() if at else part for at, part in enumerate(setting.split("_")))
            assert setting in text or camel in text, setting
