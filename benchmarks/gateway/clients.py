#!/usr/bin/env python3
"""Real clients x what they do, against a running gateway: a Markdown table of what came back.

    python benchmarks/gateway/clients.py URL KEY MODEL [EMBEDDING_MODEL] [CHAT_ONLY_MODEL]

Needs openai, anthropic, ollama, litellm, langchain-openai and llm in the environment, and curl; what is not
installed is left out. LITELLM_LOCAL_MODEL_COST_MAP=True keeps litellm from looking for the network.
CHAT_ONLY_MODEL is one with `speaks: chat`, for the translated APIs. `tests/screens/test_cors.py` has the
browser.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL, KEY, MODEL, *REST = sys.argv[1:]
EMBEDDING, CHAT_ONLY = (*REST, "", "")[:2]
WRONG = "fs-wrong"
HI: Any = [{"role": "user", "content": "Say hello."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
IMAGE: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}},
        ],
    }
]
COLUMNS = ("chat", "stream", "tools", "images", "embeddings", "models", "cancel", "wrong key")
Actions = dict[str, Callable[[], object]]


def openai_actions(model: str = MODEL) -> Actions:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key=WRONG, max_retries=0)

    def ask(**more: Any) -> Any:
        return client.chat.completions.create(model=model, messages=HI, max_tokens=8, **more)

    def cancel() -> str:
        with ask(stream=True) as stream:
            return f"left after {next(iter(stream)).object}"

    return {
        "chat": lambda: ask().choices[0].message.content,
        "stream": lambda: "".join(c.choices[0].delta.content or "" for c in ask(stream=True) if c.choices),
        "tools": lambda: ask(tools=[TOOL]).choices[0].finish_reason,
        "images": lambda: client.chat.completions.create(model=model, messages=IMAGE, max_tokens=8).choices[
            0
        ],
        "embeddings": lambda: len(client.embeddings.create(model=EMBEDDING, input="a").data[0].embedding),
        "models": lambda: len(client.models.list().data),
        "cancel": cancel,
        "wrong key": lambda: stranger.chat.completions.create(model=model, messages=HI),
    }


def responses_actions(model: str) -> Actions:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)

    def ask(**more: Any) -> Any:
        return client.responses.create(model=model, input="Say hello.", max_output_tokens=16, **more)

    tool: Any = {"type": "function", "strict": False, **FUNCTION}
    return {
        "chat": lambda: ask().output_text,
        "stream": lambda: "".join(
            e.delta for e in ask(stream=True) if e.type == "response.output_text.delta"
        ),
        "tools": lambda: ask(tools=[tool]).status,
    }


def anthropic_actions(model: str = MODEL) -> Actions:
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    stranger = anthropic.Anthropic(base_url=URL, api_key=WRONG, max_retries=0)

    def ask(**more: Any) -> Any:
        return client.messages.create(model=model, messages=HI, max_tokens=8, **more)

    def stream() -> str:
        with client.messages.stream(model=model, messages=HI, max_tokens=8) as events:
            return "".join(events.text_stream)

    def cancel() -> str:
        with ask(stream=True) as events:
            return f"left after {next(iter(events)).type}"

    source = {"type": "base64", "media_type": "image/png", "data": DOT}
    image: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    tool: Any = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}
    return {
        "chat": lambda: ask().content[0].text,
        "stream": stream,
        "tools": lambda: ask(tools=[tool]).stop_reason,
        "images": lambda: client.messages.create(model=model, messages=image, max_tokens=8),
        "models": lambda: len(client.models.list().data),
        "cancel": cancel,
        "wrong key": lambda: stranger.messages.create(model=model, messages=HI, max_tokens=8),
    }


def ollama_actions(model: str = MODEL) -> Actions:
    import ollama

    client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
    stranger = ollama.Client(host=URL, headers={"Authorization": f"Bearer {WRONG}"})

    def ask(**more: Any) -> Any:
        return client.chat(model, HI, options={"num_predict": 8}, **more)

    def cancel() -> str:
        stream = ask(stream=True)
        part = next(iter(stream))
        stream.close()
        return f"left after {part.done}"

    return {
        "chat": lambda: ask().message.content,
        "stream": lambda: "".join(part.message.content or "" for part in ask(stream=True)),
        "tools": lambda: ask(tools=[TOOL]).done_reason,
        "images": lambda: client.chat(model, [{"role": "user", "content": "What?", "images": [DOT]}]),
        "embeddings": lambda: len(client.embed(EMBEDDING, "a").embeddings[0]),
        "models": lambda: len(client.list().models),
        "cancel": cancel,
        "wrong key": lambda: stranger.chat(model, HI),
    }


def litellm_actions() -> Actions:
    import litellm

    litellm.suppress_debug_info = True
    base = {"api_base": URL, "headers": {"Authorization": f"Bearer {KEY}"}, "max_tokens": 8}

    def ask(messages: Any = HI, **more: Any) -> Any:
        return litellm.completion(model=f"ollama_chat/{MODEL}", messages=messages, **base | more)

    return {
        "chat": lambda: ask().choices[0].message.content,
        "stream": lambda: "".join(part.choices[0].delta.content or "" for part in ask(stream=True)),
        "tools": lambda: ask(tools=[TOOL]).choices[0].finish_reason,
        "images": lambda: ask(IMAGE),
        "wrong key": lambda: ask(headers={"Authorization": f"Bearer {WRONG}"}),
    }


def langchain_actions() -> Actions:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    settings: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": KEY}
    chat = ChatOpenAI(model=MODEL, max_tokens=8, max_retries=0, **settings)
    stranger = ChatOpenAI(model=MODEL, max_retries=0, **{**settings, "api_key": WRONG})
    embed = OpenAIEmbeddings(model=EMBEDDING, check_embedding_ctx_length=False, **settings)
    return {
        "chat": lambda: chat.invoke("Say hello.").content,
        "stream": lambda: "".join(str(part.content) for part in chat.stream("Say hello.")),
        "tools": lambda: chat.bind_tools([TOOL]).invoke("Say hello.").response_metadata["finish_reason"],
        "images": lambda: chat.invoke(IMAGE),
        "embeddings": lambda: len(embed.embed_query("a")),
        "wrong key": lambda: stranger.invoke("Say hello."),
    }


def llm_actions() -> Actions:
    """simonw/llm, as a program, with a model of the user's own file."""
    home = tempfile.mkdtemp()
    entry = f"- model_id: here\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  api_key_name: here\n"
    Path(home, "extra-openai-models.yaml").write_text(entry)

    def run(*words: str, key: str = KEY) -> str:
        environment = {**os.environ, "LLM_USER_PATH": home}
        words = (sys.executable, "-m", "llm", "-m", "here", "--key", key, *words, "Say hello.")
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip().splitlines()[-1])
        return ran.stdout

    return {
        "chat": lambda: run("--no-stream", "-o", "max_tokens", "8"),
        "stream": lambda: run("-o", "max_tokens", "8"),
        "wrong key": lambda: run(key=WRONG),
    }


def curl_actions() -> Actions:
    def curl(path: str, body: Any = None, key: str = KEY) -> str:
        words = ["curl", "-sSN", "--fail-with-body", "-H", f"Authorization: Bearer {key}", f"{URL}{path}"]
        ran = subprocess.run(
            [*words, *(["-d", json.dumps(body)] if body else [])], capture_output=True, text=True, timeout=300
        )
        if ran.returncode:
            raise RuntimeError(f"{ran.stderr.strip()} {ran.stdout[:60]}")
        return ran.stdout

    chat: Any = {"model": MODEL, "messages": HI, "max_tokens": 8}
    return {
        "chat": lambda: json.loads(curl("/v1/chat/completions", chat))["choices"][0]["message"]["content"],
        "stream": lambda: curl("/v1/chat/completions", chat | {"stream": True}).count("data: "),
        "embeddings": lambda: len(curl("/v1/embeddings", {"model": EMBEDDING, "input": "a"})),
        "models": lambda: len(json.loads(curl("/v1/models"))["data"]),
        "wrong key": lambda: curl("/v1/chat/completions", chat, WRONG),
    }


def run(action: Callable[[], object]) -> str:
    try:
        value = action()
    except Exception as error:
        text = " ".join(str(error).split())
        status = getattr(error, "status_code", "")
        print(f"    {type(error).__name__} {status}: {text[:160]}", file=sys.stderr)
        if "mmproj" in text:
            return "refused by the engine"
        return f"{type(error).__name__} {status}".strip()
    print(f"    {str(value)[:100]!r}", file=sys.stderr)
    return "yes"


def main() -> None:
    tables: dict[str, Callable[[], Actions]] = {
        "openai": openai_actions,
        "anthropic": anthropic_actions,
        "ollama": ollama_actions,
        "litellm, `ollama_chat`": litellm_actions,
        "langchain-openai": langchain_actions,
        "llm": llm_actions,
        "curl": curl_actions,
    }
    if CHAT_ONLY:
        tables["anthropic, `speaks: chat`"] = lambda: anthropic_actions(CHAT_ONLY)
        tables["openai Responses, `speaks: chat`"] = lambda: responses_actions(CHAT_ONLY)
        tables["ollama, `speaks: chat`"] = lambda: ollama_actions(CHAT_ONLY)
    print("| client | " + " | ".join(COLUMNS) + " |\n|---" * 1 + "|---" * len(COLUMNS) + "|")
    for name, make in tables.items():
        print(f"  {name}", file=sys.stderr)
        try:
            actions = make()
        except ImportError as error:
            print(f"    left out: {error}", file=sys.stderr)
            continue
        cells = []
        for column in COLUMNS:
            can_do = column in actions and (column != "embeddings" or EMBEDDING)
            if can_do:
                print(f"   {column}", file=sys.stderr)
            cells.append(run(actions[column]) if can_do else "")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
