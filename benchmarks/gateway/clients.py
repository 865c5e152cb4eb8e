#!/usr/bin/env python3
"""Real clients x what they do, against a running gateway; `scripts/record-clients` starts both.

    python benchmarks/gateway/clients.py < ORDER.json

Needs openai, anthropic, ollama, litellm, langchain-openai, llm and playwright in the environment, curl and
Debian's chromium. The order has `url`, `admin` (a key), `keys` by client, `model`, `far` (a model that does
not answer and has `model` as its fallback) and `embedding`. Prints a JSON object of cells for each client,
and what came back in full to standard error. A cell says what the client saw, and what the gateway's log says
where the client cannot know: that an engine stopped when its client left, who answered instead of whom.
The file is long because it runs alone, by the Python of an environment that has nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

ORDER: dict[str, Any] = json.load(sys.stdin)
URL, MODEL, EMBEDDING = ORDER["url"], ORDER["model"], ORDER["embedding"]
WAIT_S = 300
HI = "Say hello."
LONG = "Count from 1 to 200."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"name": "weather", "description": "The weather of a city", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
IMAGE_URL: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}}


def said(text: str, content: Any = None) -> Any:
    return [{"role": "user", "content": content or text}]


def image_message() -> Any:
    return said("", [{"type": "text", "text": "What is this?"}, IMAGE_URL])


def shown(message: Any) -> str:
    """The first call of a message, or its text: a model without a template for tools only talks."""
    if not message.tool_calls:
        return f"text: {message.content}"
    called = message.tool_calls[0].function
    arguments = called.arguments
    return f"{called.name}({arguments if isinstance(arguments, str) else json.dumps(dict(arguments))})"


class Client(ABC):
    packages: tuple[str, ...] = ()

    def __init__(self, key: str) -> None:
        self.key = key

    @abstractmethod
    def chat(self, model: str, key: str) -> Any:
        """The text of an answer."""

    @abstractmethod
    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        """Of a stream. Closed early: the client leaves."""

    @abstractmethod
    def tools(self) -> Any:
        """The call that the model makes, as text."""

    @abstractmethod
    def images(self) -> Any:
        """The text of an answer about a picture."""

    def embeddings(self) -> int | None:
        """How many numbers; None: the client has no call for this, and the cell stays empty."""
        return None

    def models(self) -> int | None:
        """How many; None: the client has no call for this, and the cell stays empty."""
        return None


class OpenAI(Client):
    packages = ("openai",)

    def _client(self, key: str) -> Any:
        import openai

        return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0, timeout=WAIT_S)

    def _ask(self, messages: Any, key: str = "", model: str = MODEL, tokens: int = 8, **more: Any) -> Any:
        client = self._client(key or self.key)
        return client.chat.completions.create(model=model, messages=messages, max_tokens=tokens, **more)

    def chat(self, model: str, key: str) -> Any:
        return self._ask(said(HI), key, model).choices[0].message.content

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        with self._ask(said(text), tokens=tokens, stream=True) as stream:
            for part in stream:
                if part.choices and part.choices[0].delta.content:
                    yield part.choices[0].delta.content

    def tools(self) -> Any:
        answer = self._ask(said("Weather in Paris?"), tokens=64, tools=[TOOL], tool_choice="required")
        return shown(answer.choices[0].message)

    def images(self) -> Any:
        return self._ask(image_message()).choices[0].message.content

    def embeddings(self) -> Any:
        return len(self._client(self.key).embeddings.create(model=EMBEDDING, input="a").data[0].embedding)

    def models(self) -> Any:
        return len(self._client(self.key).models.list().data)


class OpenAIResponses(OpenAI):
    def _ask(self, messages: Any, key: str = "", model: str = MODEL, tokens: int = 16, **more: Any) -> Any:
        client = self._client(key or self.key)
        return client.responses.create(model=model, input=messages, max_output_tokens=max(16, tokens), **more)

    def chat(self, model: str, key: str) -> Any:
        return self._ask(said(HI), key, model).output_text

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        with self._ask(said(text), tokens=tokens, stream=True) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    yield event.delta

    def tools(self) -> Any:
        tool: Any = {"type": "function", "strict": False, **FUNCTION}
        answer = self._ask(said("Weather in Paris?"), tokens=64, tools=[tool], tool_choice="required")
        for item in answer.output:
            if item.type == "function_call":
                return f"{item.name}({item.arguments})"
        return f"text: {answer.output_text}"

    def images(self) -> Any:
        image = {"type": "input_image", "image_url": IMAGE_URL["image_url"]["url"], "detail": "auto"}
        return self._ask(said("", [{"type": "input_text", "text": "What?"}, image])).output_text


class Anthropic(Client):
    packages = ("anthropic",)

    def _client(self, key: str) -> Any:
        import anthropic

        return anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0, timeout=WAIT_S)

    def _ask(self, messages: Any, key: str = "", model: str = MODEL, tokens: int = 8, **more: Any) -> Any:
        client = self._client(key or self.key)
        return client.messages.create(model=model, messages=messages, max_tokens=tokens, **more)

    def chat(self, model: str, key: str) -> Any:
        return self._ask(said(HI), key, model).content[0].text

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        with self._client(self.key).messages.stream(
            model=MODEL, messages=said(text), max_tokens=tokens
        ) as events:
            yield from events.text_stream

    def tools(self) -> Any:
        tool = {"name": "weather", "description": "The weather of a city", "input_schema": SCHEMA}
        answer = self._ask(said("Weather in Paris?"), tokens=64, tools=[tool], tool_choice={"type": "any"})
        for block in answer.content:
            if block.type == "tool_use":
                return f"{block.name}({json.dumps(block.input)})"
        return f"text: {answer.content[0].text}"

    def images(self) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": DOT}
        return self._ask(said("", [{"type": "image", "source": source}])).content[0].text

    def models(self) -> Any:
        return len(self._client(self.key).models.list().data)


class Ollama(Client):
    packages = ("ollama",)

    def _client(self, key: str) -> Any:
        import ollama

        return ollama.Client(host=URL, headers={"Authorization": f"Bearer {key}"}, timeout=WAIT_S)

    def _ask(self, messages: Any, key: str = "", model: str = MODEL, tokens: int = 8, **more: Any) -> Any:
        return self._client(key or self.key).chat(model, messages, options={"num_predict": tokens}, **more)

    def chat(self, model: str, key: str) -> Any:
        return self._ask(said(HI), key, model).message.content

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        stream = self._ask(said(text), tokens=tokens, stream=True)
        try:
            for part in stream:
                if part.message.content:
                    yield part.message.content
        finally:
            stream.close()

    def tools(self) -> Any:
        # This API cannot demand a call.
        return shown(self._ask(said("Weather in Paris?"), tokens=64, tools=[TOOL]).message)

    def images(self) -> Any:
        return self._ask([{"role": "user", "content": "What?", "images": [DOT]}]).message.content

    def embeddings(self) -> Any:
        return len(self._client(self.key).embed(EMBEDDING, "a").embeddings[0])

    def models(self) -> Any:
        return len(self._client(self.key).list().models)


class LiteLLM(OpenAI):
    """Its answers have the shape of OpenAI's."""

    packages = ("litellm",)
    provider = "openai"

    def _where(self, key: str) -> dict[str, Any]:
        return {"api_base": f"{URL}/v1", "api_key": key, "timeout": WAIT_S, "max_retries": 0}

    def _ask(self, messages: Any, key: str = "", model: str = MODEL, tokens: int = 8, **more: Any) -> Any:
        import litellm

        litellm.suppress_debug_info = True
        where = self._where(key or self.key)
        name = f"{self.provider}/{model}"
        return litellm.completion(model=name, messages=messages, max_tokens=tokens, **where, **more)

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        stream = self._ask(said(text), tokens=tokens, stream=True)
        try:
            for part in stream:
                if part.choices[0].delta.content:
                    yield part.choices[0].delta.content
        finally:
            # Its wrapper of a stream has no close(): what closes is the client's own stream, or the iterator.
            inner = stream.completion_stream
            for each in (inner, getattr(inner, "response", None), getattr(inner, "streaming_response", None)):
                with suppress(Exception):
                    each.close()

    def tools(self) -> Any:
        more = {"tool_choice": "required"} if self.provider == "openai" else {}
        answer = self._ask(said("Weather in Paris?"), tokens=64, tools=[TOOL], **more)
        return shown(answer.choices[0].message)

    def embeddings(self) -> Any:
        import litellm

        where = self._where(self.key)
        answer = litellm.embedding(model=f"{self.provider}/{EMBEDDING}", input=["a"], **where)
        return len(answer.data[0]["embedding"])

    def models(self) -> Any:
        import litellm

        where = {"api_key": self.key, "api_base": URL}
        return len(litellm.get_valid_models(True, custom_llm_provider="openai", **where))


class LiteLLMOllama(LiteLLM):
    provider = "ollama_chat"

    def _where(self, key: str) -> dict[str, Any]:
        return {"api_base": URL, "headers": {"Authorization": f"Bearer {key}"}, "timeout": WAIT_S}

    def embeddings(self) -> Any:
        import litellm

        # This part of litellm sends neither headers of ours nor a key (1.106): 401 from a gateway with keys.
        answer = litellm.embedding(
            model=f"ollama/{EMBEDDING}", input=["a"], api_base=URL, api_key=self.key, timeout=WAIT_S
        )
        return len(answer.data[0]["embedding"])

    models = Client.models


class LangChain(Client):
    packages = ("langchain-openai",)

    def _chat(self, key: str = "", model: str = MODEL, tokens: int = 8) -> Any:
        from langchain_openai import ChatOpenAI

        settings: Any = {"base_url": f"{URL}/v1", "api_key": key or self.key, "timeout": WAIT_S}
        return ChatOpenAI(model=model, max_tokens=tokens, max_retries=0, **settings)

    def chat(self, model: str, key: str) -> Any:
        return self._chat(key, model).invoke(HI).content

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        for part in self._chat(tokens=tokens).stream(text):
            if part.content:
                yield str(part.content)

    def tools(self) -> Any:
        chat = self._chat(tokens=64).bind_tools([TOOL], tool_choice="required")
        answer = chat.invoke("Weather in Paris?")
        calls = [f"{call['name']}({json.dumps(call['args'])})" for call in answer.tool_calls]
        return calls[0] if calls else f"text: {answer.content}"

    def images(self) -> Any:
        return self._chat().invoke(image_message()).content

    def embeddings(self) -> Any:
        from langchain_openai import OpenAIEmbeddings

        settings: Any = {"base_url": f"{URL}/v1", "api_key": self.key}
        embed = OpenAIEmbeddings(model=EMBEDDING, check_embedding_ctx_length=False, **settings)
        return len(embed.embed_query("a"))


class LLM(Client):
    """simonw/llm, as a program, with models of the user's own file."""

    packages = ("llm",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.home = tempfile.mkdtemp()
        entry = (
            "- model_id: {0}\n  model_name: {0}\n  api_base: {1}/v1\n  api_key_name: here\n"
            "  supports_tools: true\n  vision: true\n"
        )
        text = "".join(entry.format(name, URL) for name in (MODEL, ORDER["far"]))
        Path(self.home, "extra-openai-models.yaml").write_text(text)
        Path(self.home, "tools.py").write_text(
            'def weather(city: str) -> str:\n    "The weather of a city"\n    return "sunny"\n'
        )
        Path(self.home, "dot.png").write_bytes(b64decode(DOT))

    def _start(self, *words: str, key: str = "", model: str = MODEL) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "llm", "-m", model, "--key", key or self.key, *words)
        environment = {**os.environ, "LLM_USER_PATH": self.home, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def _run(self, *words: str, **more: str) -> str:
        process = self._start(*words, **more)
        out, errors = process.communicate(timeout=WAIT_S)
        if process.returncode:
            raise RuntimeError(errors.strip().splitlines()[-1])
        return out.strip() + (f" [{errors.strip()}]" if errors.strip() else "")

    def chat(self, model: str, key: str) -> Any:
        return self._run("--no-stream", "-o", "max_tokens", "8", HI, key=key, model=model)

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        process = self._start("-o", "max_tokens", str(tokens), text)
        assert process.stdout is not None
        try:
            while piece := process.stdout.read(4):
                yield piece
        finally:
            process.terminate()  # as Ctrl-C does
            process.communicate()

    def tools(self) -> Any:
        functions = f"{self.home}/tools.py"
        words = ("--functions", functions, "--td", "--cl", "3", "-o", "max_tokens", "64", "Weather in Paris?")
        out, errors = self._start("--no-stream", *words).communicate(timeout=WAIT_S)
        calls = [line.removeprefix("Tool call: ") for line in errors.splitlines() if "Tool call: " in line]
        return calls[0] if calls else f"text: {out or errors}"

    def images(self) -> Any:
        words = ("-a", f"{self.home}/dot.png", "-o", "max_tokens", "8", "What is this?")
        return self._run("--no-stream", *words)


class Raw(Client):
    """A client without a library: paths and JSON."""

    @abstractmethod
    def _send(self, path: str, body: Any = None, key: str = "") -> Any:
        """The answer, as JSON."""

    def _ask(self, messages: Any, key: str = "", model: str = MODEL, **more: Any) -> Any:
        body = {"model": model, "messages": messages, "max_tokens": 8, **more}
        return self._send("/v1/chat/completions", body, key)["choices"][0]["message"]

    def chat(self, model: str, key: str) -> Any:
        return self._ask(said(HI), key, model)["content"]

    def tools(self) -> Any:
        more: Any = {"max_tokens": 64, "tools": [TOOL], "tool_choice": "required"}
        message = self._ask(said("Weather in Paris?"), **more)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return f"{calls[0]['name']}({calls[0]['arguments']})" if calls else f"text: {message['content']}"

    def images(self) -> Any:
        return self._ask(image_message())["content"]

    def embeddings(self) -> Any:
        answer = self._send("/v1/embeddings", {"model": EMBEDDING, "input": "a"})
        return len(answer["data"][0]["embedding"])

    def models(self) -> Any:
        return len(self._send("/v1/models")["data"])


def _deltas(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                if text := choice["delta"].get("content"):
                    yield text


class Curl(Raw):
    def _words(self, path: str, body: Any, key: str) -> list[str]:
        words = ["curl", "-sSN", "--fail-with-body", "-H", f"Authorization: Bearer {key or self.key}"]
        return [*words, f"{URL}{path}", *(["-d", json.dumps(body)] if body else [])]

    def _send(self, path: str, body: Any = None, key: str = "") -> Any:
        words = self._words(path, body, key)
        ran = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
        if ran.returncode:
            raise RuntimeError(f"{ran.stderr.strip()} {ran.stdout}")
        return json.loads(ran.stdout)

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        body = {"model": MODEL, "messages": said(text), "max_tokens": tokens, "stream": True}
        words = self._words("/v1/chat/completions", body, "")
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield from _deltas(iter(process.stdout.readline, ""))
        finally:
            process.kill()
            process.communicate()


class Page(Raw):
    """A page of another origin in Chromium, with fetch."""

    packages = ("playwright",)
    FETCH = """async ([url, key, body, leavesAfter]) => {
      const options = {headers: {Authorization: `Bearer ${key}`}}, leaves = new AbortController();
      options.signal = leaves.signal;
      if (body !== null) {
        options.method = "POST";
        options.body = JSON.stringify(body);
        options.headers["Content-Type"] = "application/json";
      }
      const response = await fetch(url, options);
      const decoder = new TextDecoder(), reader = response.body.getReader();
      let text = "";
      for (;;) {
        const {done, value} = await reader.read();
        if (done) return [response.status, text];
        text += decoder.decode(value, {stream: true});
        if (leavesAfter && text.includes('"content":"')) {
          leaves.abort();
          return [response.status, text];
        }
      }
    }"""

    def __init__(self, key: str) -> None:
        from playwright.sync_api import sync_playwright

        super().__init__(key)
        self.playwright = sync_playwright().start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = self.playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        self.page = browser.new_page()
        self.page.goto(ORDER["page"])

    def _fetch(self, path: str, body: Any, key: str = "", leaves: bool = False) -> str:
        self.page.set_default_timeout(WAIT_S * 1000)
        status, text = self.page.evaluate(self.FETCH, [URL + path, key or self.key, body, leaves])
        if status != 200:
            raise RuntimeError(f"{status} {text}")
        return str(text)

    def _send(self, path: str, body: Any = None, key: str = "") -> Any:
        return json.loads(self._fetch(path, body, key))

    def pieces(self, text: str, tokens: int) -> Iterator[str]:
        body = {"model": MODEL, "messages": said(text), "max_tokens": tokens, "stream": True}
        answer = self._fetch("/v1/chat/completions", body, leaves=text == LONG)
        yield from _deltas(iter(answer.splitlines()))


# --- what the gateway says ---


def admin(path: str, method: str = "GET") -> Any:
    headers = {"Authorization": f"Bearer {ORDER['admin']}"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, headers=headers, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def only_row(key: str) -> Any:
    """What the request log says of the one request that was made with a key."""
    rows = wait_for(lambda: admin(f"/api/requests?limit=2&key={key}")["requests"])
    print(rows, file=sys.stderr)
    return rows[0]


def wait_for(is_so: Callable[[], Any]) -> Any:
    until = time.monotonic() + WAIT_S
    while not (value := is_so()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)
    return value


def unload() -> None:
    with suppress(urllib.error.HTTPError):
        admin(f"/api/models/{MODEL}/unload", "POST")
    wait_for(lambda: all(m["phase"] == "off" for m in admin("/api/state")["models"] if m["name"] == MODEL))


# --- cells ---


def stream(client: Client) -> str:
    pieces = list(client.pieces(HI, 8))
    print("".join(pieces), file=sys.stderr)
    return f"{len(pieces)} pieces" if pieces else "nothing"


def cancel(client: Client, name: str) -> str:
    own, client.key = client.key, ORDER["keys"][f"{name}-cancel"]
    try:
        pieces = client.pieces(LONG, 400)
        next(pieces)
        pieces.close()
    finally:
        client.key = own
    row = only_row(f"{name}-cancel")
    return "engine stopped" if row["how"] == "left" else f"not cut: {row['how']}"


def falls_back(client: Client, name: str) -> str:
    print(client.chat(ORDER["far"], ORDER["keys"][f"{name}-far"]), file=sys.stderr)
    return f"{only_row(f'{name}-far')['model']} answered"


def actions(client: Client, name: str) -> dict[str, Callable[[], str]]:
    def loads() -> str:
        unload()
        print(client.chat(MODEL, client.key), file=sys.stderr)
        return "loaded, answered"

    return {
        "chat": lambda: f"“{short(client.chat(MODEL, client.key))}”",
        "stream": lambda: stream(client),
        "tools": lambda: f"`{short(client.tools(), 60)}`",
        "images": lambda: f"“{short(client.images())}”",
        "embeddings": lambda: counted(client.embeddings(), "numbers"),
        "models": lambda: counted(client.models(), "models"),
        "cancel": lambda: cancel(client, name),
        "wrong key": lambda: f"let in: {client.chat(MODEL, 'fs-wrong')}",
        "loads": loads,
        "falls back": lambda: falls_back(client, name),
    }


def counted(number: int | None, what: str) -> str:
    return "" if number is None else f"{number} {what}"


def short(value: object, size: int = 24) -> str:
    text = " ".join(str(value).split()).replace("|", "/")
    return text if len(text) <= size else text[:size] + "…"


def cell(action: Callable[[], str]) -> str:
    try:
        return action()
    except Exception as error:  # whatever a client raises is a result
        text = " ".join(str(error).split())
        print(f"    {type(error).__name__}: {text[:600]}", file=sys.stderr)
        for words, meaning in (("mmproj", "engine: no images"), ("embedding", "engine: no embeddings")):
            if words in text:
                return meaning
        if "401" in text or getattr(error, "status_code", 0) == 401:
            return f"401, {type(error).__name__}" if type(error) is not RuntimeError else "401, shown"
        return f"**{type(error).__name__}**: {short(text, 60)}"


CLIENTS: dict[str, type[Client]] = {
    "openai": OpenAI,
    "openai, Responses": OpenAIResponses,
    "anthropic": Anthropic,
    "ollama": Ollama,
    "litellm, `openai`": LiteLLM,
    "litellm, `ollama_chat`": LiteLLMOllama,
    "llm": LLM,
    "langchain-openai": LangChain,
    "a page with fetch": Page,
    "curl": Curl,
}


def main() -> None:
    packages = sorted({package for kind in CLIENTS.values() for package in kind.packages})
    print(json.dumps({"versions": {package: version(package) for package in packages}}), flush=True)
    for number, (title, kind) in enumerate(CLIENTS.items()):
        name = f"{MODEL}-{number}"
        client = kind(ORDER["keys"][name])
        cells = {}
        for column, action in actions(client, name).items():
            print(f"-- {title}: {column}", file=sys.stderr, flush=True)
            cells[column] = cell(action)
        print(json.dumps({"client": title, "cells": cells}), flush=True)
    os._exit(0)  # playwright's and litellm's threads have nothing more to do


if __name__ == "__main__":
    main()
